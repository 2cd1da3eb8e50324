"""The host's end of the guest protocol: links, instances over links, files over links, verdicts."""
