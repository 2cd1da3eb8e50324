"""The native engine: boxes made of namespaces on this machine, as root or as an ordinary user, without a daemon."""
