"""`minions mcp`: lists the configured servers, and logs in to them; locks and serves beside it."""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import click
from attrs import evolve, frozen

from minions.app.settings.folder_trust import FolderTrust
from minions.app.wiring.mcp import (
    as_server,
    configured_servers,
    lock_path,
    locked_server,
    login_store,
    read_lock,
    server_parts,
)
from minions.contracts.tool_servers import Grant, PinnedTool, ServerLogin, ToolServer
from minions.data.errors import NotFoundError, UsageError, did_you_mean, near_names
from minions.data.json_values import JsonValue
from minions.data.words import shell_word
from minions.interfaces.cli.commands.mcp_lock import lock
from minions.interfaces.cli.commands.mcp_serve import serve
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.console.render import plain
from minions.interfaces.cli.options import (
    CommandContext,
    OutputOptions,
    command_context,
    takes_options,
)

if TYPE_CHECKING:
    from minions.adapters.tools.mcp.login_store import LoginStore


@click.group("mcp")
def command() -> None:
    """MCP servers that recipes may call, and recipes as an MCP server."""


for each in (lock, serve):
    command.add_command(each)


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


@command.command("list")
@takes_options(OutputOptions)
def list_(options: OutputOptions) -> int:
    """List the servers of [mcp.NAME] and of locked recipes with their tools; starts none."""
    context = command_context(options)
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


T = TypeVar("T")

_PATIENCE_S: Final = 300.0
"""Seconds in which a person has to log in."""


@command.command("login")
@click.argument("name", metavar="NAME")
@click.option("--no-browser", is_flag=True, help="Print the address only; open no browser.")
@takes_options(OutputOptions)
def login(options: OutputOptions, name: str, *, no_browser: bool) -> int:
    """Log in to a server of the configuration that asks for it (OAuth).

    The address of its login is printed and opened in a browser, which comes back to this machine.
    What the login gives is kept in the user's data folder; runs send and renew it. It stays
    until `minions mcp logout NAME`.
    """
    from minions.adapters.tools.mcp.toolsets import check_extra

    check_extra()
    context = command_context(options)
    server, how = _server(name, context)
    tools = asyncio.run(_log_in(server, login_store(server, how), opens=not no_browser))
    store = login_store(server, how)
    if not store.read():
        say(f"{name} asks for no login: {tools} tools.")
        return 0
    lock = f"minions mcp lock {shell_word(name)}"
    say(f"Logged in to {name}: {tools} tools. Now let runs call them: {lock}")
    return 0


@command.command("logout")
@click.argument("name", metavar="NAME")
@takes_options(OutputOptions)
def logout(options: OutputOptions, name: str) -> int:
    """Forget what a login gave. The server itself is not told."""
    server, how = _server(name, command_context(options))
    if login_store(server, how).forget():
        say(f"Logged out of {name}.")
    else:
        say(f"Nobody is logged in to {name}.")
    return 0


def _server(name: str, context: CommandContext) -> tuple[ToolServer, ServerLogin]:
    """The server of that name, and how one logs in to it.

    Raises:
        UsageError: There is none, or nobody logs in to it.
    """
    servers = configured_servers(context.settings, context.folder_of)
    server = servers.get(name)
    if server is None:
        raise NotFoundError(
            f"There is no MCP server '{name}'.{did_you_mean(name, servers)} Configured are: "
            f"{', '.join(servers) or 'none'}.",
            code="mcp-unknown-server",
            suggestions=near_names(name, servers),
        )
    if server.login is None or server.login.grant is not Grant.BROWSER:
        why = "it is a program that is started"
        if server.login is not None:
            why = "runs log in by its client_id and client_secret"
        elif server.url is not None:
            why = f"{server.url} is not https, and tokens would be sent in plain text"
        raise UsageError(f"Nobody can log in to the MCP server '{name}': {why}.")
    return server, server.login


async def _log_in(server: ToolServer, store: LoginStore, *, opens: bool) -> int:
    """Log in; the number of its tools."""
    from minions.adapters.tools.mcp.login_page import returning_browser
    from minions.adapters.tools.mcp.server import McpServer
    from minions.contracts.tool_servers import PinnedServer

    shown = asyncio.Event()

    async def show(url: str) -> None:
        shown.set()
        tell(f"Log in to {server.name} here:\n\n  {url}\n")
        if opens:
            with contextlib.suppress(webbrowser.Error):  # the address stands there
                await asyncio.to_thread(webbrowser.open, url)

    patient = evolve(server, start_timeout_s=_PATIENCE_S)
    empty = PinnedServer(fingerprint=server.fingerprint)
    async with returning_browser(store, show) as visitor:
        listing = McpServer(patient, empty, server_parts(visitor)).list_tools()
        return len(await _within_time(asyncio.ensure_future(listing), shown, server))


async def _within_time(listing: asyncio.Future[T], shown: asyncio.Event, server: ToolServer) -> T:
    """What the server lists. Only a person has the time that a person takes.

    Raises:
        ToolServerError: It was not ready in its own time.
    """
    from minions.adapters.tools.mcp.failures import failed

    visiting = asyncio.ensure_future(shown.wait())
    try:
        await asyncio.wait(
            (listing, visiting),
            timeout=server.start_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not listing.done() and not shown.is_set():
            raise failed(server.name, f"was not ready within {server.start_timeout_s:g} s")
        return await listing
    finally:
        visiting.cancel()
        listing.cancel()
        await asyncio.wait((listing, visiting))
