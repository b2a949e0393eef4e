"""`minions mcp login` and `logout`: a person's consent to a server, kept for runs."""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from typing import TYPE_CHECKING, Final, TypeVar

import click
from attrs import evolve

from minions.contracts.errors import NotFoundError, UsageError, did_you_mean, near_names
from minions.contracts.tool_servers import Grant, ServerLogin, ToolServer
from minions.contracts.words import shell_word
from minions.interfaces.cli.console.console import say, tell
from minions.interfaces.cli.options import CommandContext, command_context, output_options
from minions.interfaces.wiring.mcp import configured_servers, login_store, server_parts

if TYPE_CHECKING:
    from minions.adapters.tools.mcp.login_store import LoginStore

__all__ = ["login", "logout"]

T = TypeVar("T")

_PATIENCE_S: Final = 300.0
"""Seconds in which a person has to log in."""


@click.command("login")
@click.argument("name", metavar="NAME")
@click.option("--no-browser", is_flag=True, help="Print the address only; open no browser.")
@output_options
def login(name: str, *, no_browser: bool, **flags: object) -> int:
    """Log in to a server of the configuration that asks for it (OAuth).

    The address of its login is printed and opened in a browser, which comes back to this machine.
    What the login gives is kept in the user's data folder; runs send and renew it. It stays
    until `minions mcp logout NAME`.
    """
    from minions.adapters.tools.mcp.toolsets import check_extra

    check_extra()
    context = command_context(flags)
    server, how = _server(name, context)
    tools = asyncio.run(_log_in(server, login_store(server, how), opens=not no_browser))
    store = login_store(server, how)
    if not store.read():
        say(f"{name} asks for no login: {tools} tools.")
        return 0
    lock = f"minions mcp lock {shell_word(name)}"
    say(f"Logged in to {name}: {tools} tools. Now let runs call them: {lock}")
    return 0


@click.command("logout")
@click.argument("name", metavar="NAME")
@output_options
def logout(name: str, **flags: object) -> int:
    """Forget what a login gave. The server itself is not told."""
    server, how = _server(name, command_context(flags))
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
