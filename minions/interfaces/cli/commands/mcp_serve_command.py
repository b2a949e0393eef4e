"""`minions mcp serve`: each recipe is a tool of an MCP server, on standard streams or over HTTP."""

from __future__ import annotations

import asyncio
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import frozen

import minions
from minions.contracts.runtime import SystemClock
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.interfaces.cli.console.console import log_line, tell
from minions.interfaces.cli.console.render import plain
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    RunLimitOptions,
    command_context,
    option,
    takes_options,
)

if TYPE_CHECKING:
    from minions.interfaces.server.recipe_tools import RecipeTools
    from minions.interfaces.server.server_options import ServerOptions


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ExecutionOptions(RunLimitOptions, CommonOptions):
    """How each run is executed."""

    caller_secrets: tuple[str, ...] = option(
        "--allow-secret",
        multiple=True,
        metavar="REF",
        help="A secret that callers may refer to: env:NAME, file:/absolute/path. Repeatable.",
    )
    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name for recipes that name none."
    )


@click.command("serve")
@click.option(
    "--recipes",
    multiple=True,
    metavar="DIR",
    help="Folder with the recipes that become tools; else ./recipes. Repeatable.",
)
@click.option("--http", is_flag=True, help="Serve over HTTP, at /mcp, instead of standard streams.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8643, show_default=True)
@click.option("--token-file", metavar="FILE", help="Take the token from there, or put it there.")
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A further name of this host. Repeatable."
)
@click.option(
    "--allow-folder",
    multiple=True,
    metavar="DIR",
    help="Callers may choose folders beneath it where a recipe takes a path. Repeatable.",
)
@click.option("--max-runs", type=click.IntRange(min=1), default=20, show_default=True)
@takes_options(_ExecutionOptions)
def serve(
    execution: _ExecutionOptions,
    *,
    recipes: tuple[str, ...],
    http: bool,
    host: str,
    port: int,
    token_file: str | None,
    allow_host: tuple[str, ...],
    allow_folder: tuple[str, ...],
    max_runs: int,
) -> int:
    """Serve the recipes of a folder as MCP tools, to whoever starts this program or over HTTP.

    A tool takes the inputs of its recipe, gives its output, tells which step runs, and is cancelled
    with its call. Standard output holds the protocol and nothing else.
    """
    from minions.adapters.tools.mcp.mcp_toolsets import check_extra

    context = command_context(execution)
    check_extra()
    folders = [Path(name) for name in recipes or ("recipes",)]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--recipes {folder}: there is no such folder.", code="no-folder")
    place = _Place(host=host, port=port, token_file=token_file, names=allow_host)
    tools = _tools(context, folders, allow_folder, max_runs)
    return asyncio.run(_serve(tools, place if http else None, max_runs))


@frozen(kw_only=True)
class _Place:
    """Where an HTTP server listens, and for whom."""

    host: str
    port: int
    token_file: str | None
    names: tuple[str, ...]


async def _serve(tools: RecipeTools, place: _Place | None, max_runs: int) -> int:
    try:
        if place is None:
            from minions.interfaces.server.mcp_endpoint import serve_streams

            await asyncio.to_thread(_tell_left_out, tools)
            await _until_signal(serve_streams(tools, minions.__version__))
            return 0
        return await _serve_http(tools, place, max_runs)
    finally:
        await tools.aclose()


def _tools(
    context: CommandContext, folders: list[Path], offered: tuple[str, ...], max_runs: int
) -> RecipeTools:
    """The recipes, with an executor as the one of `minions serve`."""
    from minions.app.wiring.logs import is_logging, make_log
    from minions.interfaces.cli.run_follower import note_of
    from minions.interfaces.http.tokens import OVER_MCP
    from minions.interfaces.server.recipe_store import RecipeStore
    from minions.interfaces.server.recipe_tools import RecipeTools
    from minions.interfaces.server.server_runtime import ServerRuntime

    runtime = context.runtime(recipe_folders=tuple(folders))
    note = {**note_of(context, None), "approve": context.settings.approve or "wait"}
    served = ServerRuntime(
        context.settings, runtime, note=note, folders=[*folders, *offered], way=OVER_MCP
    )
    log = make_log(context.settings, log_line) if is_logging(context.settings) else _FaultLog()
    store = RecipeStore(folders, served.catalog, served.bounded, log)
    return RecipeTools(store, served, max_runs=max_runs, options="".join(context.flags_again))


def _tell_left_out(tools: RecipeTools) -> None:
    """Say which recipes are no tools, and why; those with faults the log tells."""
    for left_out, other in tools.collisions():
        tell(plain(f"note: the recipe '{left_out}' is left out: '{other}' has its name as a tool"))


class _FaultLog:
    """Tells the operator of each recipe that is left out, once for each of its versions."""

    def info(self, event: str, /, **facts: object) -> None:
        """Print nothing."""

    def warning(self, event: str, /, **facts: object) -> None:
        """Print the recipe and its faults."""
        if event in ("recipe_has_faults", "recipe_not_checked"):
            faults = facts.get("faults", facts.get("error"))
            tell(plain(f"note: the recipe '{facts.get('recipe')}' is left out: {faults}"))


async def _until_signal(serving: object) -> None:
    """Serve until the input ends, or a signal comes, which cancels runs as a call's end does."""
    task = asyncio.ensure_future(serving)  # type: ignore[call-overload]  # a coroutine
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def _serve_http(tools: RecipeTools, place: _Place, max_runs: int) -> int:
    from minions.interfaces.http.http_answers import Incidents, StandardLog
    from minions.interfaces.server.mcp_endpoint import PATH, http_app
    from minions.interfaces.server.process import bound_socket, serve_until_signal

    options = _options(place, max_runs)
    sock = bound_socket(place.host, place.port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    host = f"[{place.host}]" if ":" in place.host else place.host
    token = f" · token {options.token}" if place.token_file is None else ""
    tell(f"minions serves MCP at http://{host}:{sock.getsockname()[1]}{PATH}{token}")
    await asyncio.to_thread(_tell_left_out, tools)
    log = StandardLog()
    incidents = Incidents(log, lambda prefix: f"{prefix}_{secrets.token_hex(4)}", "")
    now = SystemClock().now
    async with http_app(tools, minions.__version__, options, incidents.report, now) as app:
        await serve_until_signal(app, sock, options, stop, log)
    return 0


def _options(place: _Place, max_runs: int) -> ServerOptions:
    """Who may ask.

    Raises:
        EnvironmentRefusedError: The extra `server` is not installed, or the token file is wrong.
    """
    import importlib.util

    if importlib.util.find_spec("uvicorn") is None:
        raise EnvironmentRefusedError(
            "`minions mcp serve --http` needs the package 'uvicorn', which is not installed. "
            "Install the extra: pip install 'minions-engine[server]'.",
            code="missing-extra",
        )
    from minions.interfaces.http.token_file import FileTokens, read_token_file
    from minions.interfaces.server.server_options import LOOPBACK_NAMES, ServerOptions

    if place.token_file is None:
        tokens = FileTokens(token=secrets.token_urlsafe(24))
    else:
        tokens = read_token_file(Path(place.token_file))
        tokens.check_projects(())
    bound_to = () if place.host in ("0.0.0.0", "::") else (place.host,)  # noqa: S104  # compared
    return ServerOptions(
        token=tokens.token,
        tokens=tokens.tokens,
        proxy=tokens.proxy,
        hosts=LOOPBACK_NAMES.union(bound_to, place.names),
        max_runs=max_runs,
    )
