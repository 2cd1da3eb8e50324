"""Hutch as an MCP server: the tools of `hutch.tools` for any MCP client, on stdio and over streamable HTTP.

A client sits at a `Desk`: a session of its own, with its tools, its questions and its box. `server.py` gives the desk
to the official SDK, which speaks the protocol in both of its eras: with a handshake (until 2025-11-25) and without
(2026-07-28, where each request says who asks and a question to the user is an answer that asks for another request).
"""
