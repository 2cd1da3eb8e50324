"""The E2B-compatible API: the wire protocol of E2B's SDKs, translated to boxes. An E2B sandbox is a box."""
