"""The control plane of E2B: sandboxes, snapshots, templates and metrics, as JSON over HTTP."""
