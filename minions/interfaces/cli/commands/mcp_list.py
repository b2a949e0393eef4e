"""`minions mcp list`: the configured servers, and the tools that are locked of each."""

from __future__ import annotations

from collections.abc import Iterator

import click
from attrs import frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.tool_servers import PinnedTool, ToolServer
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.console.render import plain
from minions.interfaces.cli.options import CommandContext, command_context, output_options
from minions.interfaces.folder_trust import FolderTrust
from minions.interfaces.wiring.mcp import (
    as_server,
    configured_servers,
    lock_path,
    locked_server,
    read_lock,
)

__all__ = ["ListedServer", "list_", "listed_servers"]


@frozen(kw_only=True)
class ListedServer:
    """A server as the list shows it."""

    name: str
    way: str
    """The command or the address."""
    state: str
    """`locked`, `not locked`, `changed` (reached in another way than when it was locked),
    `replaced` (its program is not the one that was looked at) or `untrusted` (its lock is)."""
    tools: tuple[PinnedTool, ...] = ()
    missing: str | None = None
    """Why its program cannot be started; None: it can, or an address is asked."""
    is_of_recipe: bool = False

    def to_json(self) -> dict[str, JsonValue]:
        """The server for programs."""
        tools: list[JsonValue] = [
            {"name": f"{self.name}__{tool.shown_as}", "effect": tool.effect.value}
            for tool in self.tools
        ]
        return {
            "name": self.name,
            "way": self.way,
            "state": self.state,
            "is_of_recipe": self.is_of_recipe,
            "tools": tools,
        }


@click.command("list")
@output_options
def list_(**flags: object) -> int:
    """List the servers of [mcp.NAME] and of locked recipes with their tools; starts none."""
    context = command_context(flags)
    found = list(listed_servers(context))
    if context.settings.json:
        say(json_text({"servers": [each.to_json() for each in found]}))
        return 0
    if not found:
        tell("There are no MCP servers: minions.toml has no table [mcp.NAME].")
    for each in found:
        owner = " (of a recipe)" if each.is_of_recipe else ""
        say(plain(hanging(f"{each.name}  {each.state}{owner}: {each.way}")))
        for tool in each.tools:
            about = tool.description.partition("\n")[0][:200]
            line = f"  {each.name}__{tool.shown_as}  {tool.effect.value}  {about}".rstrip()
            say(plain(hanging(line)))
    return 0


def listed_servers(context: CommandContext) -> Iterator[ListedServer]:
    """The servers, in the order of the configuration.

    Raises:
        UsageError: The lock cannot be read, or an address cannot be used.
    """
    path = lock_path(context.folder_of)
    lock, content = read_lock(path)
    trust = FolderTrust.of(context.environ)
    is_trusted, programs = trust.holds(path, content), trust.programs_seen(path)
    for name, server in configured_servers(context.settings, context.folder_of).items():
        pinned = lock.servers.get(name)
        state = "locked" if is_trusted else "untrusted"
        if pinned is None:
            state = "not locked"
        elif pinned.fingerprint != server.fingerprint:
            state = "changed"
        elif locked_server(server, pinned, path.parent, programs.get(name)).replaced is not None:
            state = "replaced"
        tools = pinned.tools if pinned is not None else ()
        missing = _missing(server)
        yield ListedServer(name=name, way=server.words, state=state, tools=tools, missing=missing)
    for own in lock.of_recipes:
        server, seen = as_server(own), programs.get(own.pinned.fingerprint)
        is_replaced = locked_server(server, own.pinned, path.parent, seen).replaced is not None
        yield ListedServer(
            name=own.name,
            way=server.words,
            state="untrusted" if not is_trusted else "replaced" if is_replaced else "locked",
            tools=own.pinned.tools,
            is_of_recipe=True,
        )


def _missing(server: ToolServer) -> str | None:
    from minions.adapters.tools.mcp.program import find_program

    if not server.command:
        return None
    try:
        find_program(server.command, server.folder, server.variables)
    except OSError as error:
        return str(error)
    return None
