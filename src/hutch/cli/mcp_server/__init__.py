"""MCP servers that run in boxes: registered once, started when needed, used by any MCP client through `hutch serve`.

Clients connect to /mcp/gateway (all servers, tools as SERVER__TOOL) or /mcp/servers/NAME of that server.
"""
