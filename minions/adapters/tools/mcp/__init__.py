"""Tools of MCP servers: servers that are reached, and the tools that recipes call."""
