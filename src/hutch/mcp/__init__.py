"""MCP, both ways: Hutch's tools for MCP clients (`serving`), and other people's MCP servers in boxes (`hosting`)."""
