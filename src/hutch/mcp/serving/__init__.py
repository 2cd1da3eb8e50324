"""Hutch as an MCP server: the tools of `hutch.tools` for any MCP client, on stdio and over streamable HTTP.

Each client has a `ClientSession` with its own tools, questions and box. `server.py` connects it to the official SDK,
which speaks both eras of the protocol: with a handshake (until 2025-11-25) and without one (2026-07-28). In the latter
each request names its client, and a question to the user is a result that asks for another request.
"""
