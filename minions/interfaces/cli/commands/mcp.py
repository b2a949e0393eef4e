"""`minions mcp`: the group; each command is in a module beside it."""

from __future__ import annotations

import click

from minions.interfaces.cli.commands.mcp_list import list_
from minions.interfaces.cli.commands.mcp_lock import lock
from minions.interfaces.cli.commands.mcp_login import login, logout
from minions.interfaces.cli.commands.mcp_serve import serve

__all__ = ["command"]


@click.group("mcp")
def command() -> None:
    """MCP servers that recipes may call, and recipes as an MCP server."""


for each in (list_, lock, login, logout, serve):
    command.add_command(each)
