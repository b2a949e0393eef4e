"""`minions serve`: serves recipes, runs and sessions over HTTP."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import click
from attrs import evolve, frozen

from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CacheOption,
    CommandContext,
    CommonOptions,
    RunLimitOptions,
    command_context,
    option,
    takes_options,
)
from minions.interfaces.cli.queue_options import process_log, queue_place

if TYPE_CHECKING:
    from minions.app.settings.settings import Settings
    from minions.contracts.runtime import Log
    from minions.data.json_values import JsonValue
    from minions.interfaces.http.token_file import FileTokens
    from minions.interfaces.server.projects import ProjectTable
    from minions.interfaces.server.server_options import ServerOptions


_ANY: Final = ("0.0.0.0", "::")  # noqa: S104  # compared, not bound


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ExecutionOptions(RunLimitOptions, CacheOption, CommonOptions):
    """How each run is executed, and what is told of it."""

    caller_secrets: tuple[str, ...] = option(
        "--allow-secret",
        multiple=True,
        metavar="REF",
        help="A secret that callers may refer to: env:NAME, file:/absolute/path. Repeatable.",
    )
    on_waiting_url: str | None = option(
        "--on-waiting-url",
        metavar="URL",
        help="Posts to it each run that begins to wait for a person.",
    )
    on_waiting_secret: str | None = option(
        "--on-waiting-secret",
        metavar="REF",
        help="Signs these posts: env:NAME, file:/absolute/path.",
    )
    max_parallel: int | None = option(
        "--max-parallel", type=click.IntRange(min=1), help="Steps at a time of one run."
    )


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8642, show_default=True)
@click.option(
    "--recipes",
    multiple=True,
    metavar="DIR",
    help="Folder with the recipes that may be run; else ./recipes. Repeatable.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="Take the token from there, or put it there; or a table of tokens with scopes.",
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A further name of this host. Repeatable."
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Pages of this origin, http://localhost:3000, may ask with a token (CORS). Repeatable.",
)
@click.option(
    "--allow-recipe-bodies",
    is_flag=True,
    help="Requests may contain recipes, which can call every tool there is.",
)
@click.option(
    "--plan-workspace",
    multiple=True,
    metavar="DIR",
    help="Lets requests have tasks planned and carried out in this folder. Repeatable.",
)
@click.option(
    "--allow-folder",
    multiple=True,
    metavar="DIR",
    help="Requests may choose folders beneath it where a recipe takes a path. Repeatable.",
)
@click.option(
    "--public-url", metavar="URL", help="The address of the page for people; else that of --host."
)
@click.option(
    "--submit-only", is_flag=True, help="Execute nothing: queue runs for `minions worker`."
)
@click.option("--queue", metavar="NAME", help="Their queue; else `default`. With --submit-only.")
@click.option(
    "--projects",
    metavar="FILE",
    help="Serve several projects, each in a database of its own: a TOML table of them.",
)
@click.option("--resume", is_flag=True, help="Resume runs that the command line left, too.")
@click.option("--max-runs", type=click.IntRange(min=1), default=100, show_default=True)
@takes_options(_ExecutionOptions)
def serve_command(
    execution: _ExecutionOptions,
    *,
    host: str,
    port: int,
    recipes: tuple[str, ...],
    token_file: str | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    allow_recipe_bodies: bool,
    plan_workspace: tuple[str, ...],
    allow_folder: tuple[str, ...],
    public_url: str | None,
    projects: str | None,
    resume: bool,
    max_runs: int,
    submit_only: bool,
    queue: str | None,
) -> int:
    """Serve the stored recipes at http://127.0.0.1:8642/api/v1, until Ctrl-C.

    Every request needs the token that is printed at the start.
    """
    context = command_context(execution)
    if queue is not None and not submit_only:
        raise UsageError("--queue goes with --submit-only: else nothing is queued.")
    _check_extra()
    from minions.interfaces.server.server_options import LOOPBACK_NAMES, ServerOptions

    tokens = _tokens(token_file)
    bound_to = () if host in _ANY else (host,)
    options = ServerOptions(
        token=tokens.token,
        tokens=tokens.tokens,
        proxy=tokens.proxy,
        hosts=LOOPBACK_NAMES.union(bound_to, allow_host),
        origins=allow_origin,
        allow_recipe_bodies=allow_recipe_bodies,
        plan_workspaces=plan_workspace,
        input_folders=allow_folder,
        max_runs=max_runs,
        queue=queue_place(context, queue) if submit_only else None,
    )
    folders = [Path(name) for name in recipes or ("recipes",)]
    _check_folders(folders if recipes else ())
    place = _Place(host, port, prints_token=token_file is None, public_url=public_url)
    table = None if projects is None else _projects(context, Path(projects))
    tokens.check_projects(() if table is None else tuple(table.projects))
    return asyncio.run(_serve(context, options, folders, place, table, resume=resume))


def _projects(context: CommandContext, path: Path) -> ProjectTable:
    """The table of projects.

    Raises:
        UsageError: `bad-projects`; it has faults. Or a journal is configured beside it.
    """
    from minions.interfaces.server.projects import read_project_table

    settings = context.settings
    if settings.no_store or settings.db is not None or settings.journal.replica is not None:
        raise UsageError(
            f"--projects {path} names the database of each project: leave out `db` (--db, "
            "MINIONS_DB), --no-store and `replica` of [journal].",
            code="bad-projects",
        )
    return read_project_table(path)


@frozen
class _OfProject:
    """A log whose lines name the project."""

    log: Log
    project: str

    def info(self, event: str, /, **facts: object) -> None:
        """Log an event."""
        self.log.info(event, project=self.project, **facts)

    def warning(self, event: str, /, **facts: object) -> None:
        """Log an event that someone should look at."""
        self.log.warning(event, project=self.project, **facts)


class _Place:
    """The address that the server listens on, and how its token is announced."""

    def __init__(self, host: str, port: int, *, prints_token: bool, public_url: str | None) -> None:
        self.host = host
        self.port = port
        self.public_url = public_url
        self.prints_token = prints_token
        """Whether the token is printed; False: it is in a file."""

    def url(self, port: int) -> str:
        """The address of the server that listens on that port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}"


def _check_extra() -> None:
    """Check that the extra `server` is installed.

    Raises:
        EnvironmentRefusedError: It is not installed.
    """
    import importlib.util

    for name in ("litestar", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise EnvironmentRefusedError(
                f"`minions serve` needs the package '{name}', which is not installed. Install the "
                "extra: pip install 'minions-engine[server]'.",
                code="missing-extra",
            )


def _check_folders(folders: tuple[()] | list[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--recipes {folder}: there is no such folder.", code="no-folder")


def _tokens(file: str | None) -> FileTokens:
    """The tokens of the file, or a new one without a file.

    Raises:
        EnvironmentRefusedError: The file cannot be used.
    """
    from minions.interfaces.http.token_file import FileTokens, read_token_file

    if file is None:
        return FileTokens(token=secrets.token_urlsafe(24))
    return read_token_file(Path(file))


async def _serve(
    context: CommandContext,
    options: ServerOptions,
    folders: list[Path],
    place: _Place,
    table: ProjectTable | None,
    *,
    resume: bool,
) -> int:
    from minions.interfaces.server.app import App, create_app
    from minions.interfaces.server.process import bound_socket, serve
    from minions.interfaces.server.projects import ProjectServer

    sock = bound_socket(place.host, place.port)
    url = place.url(sock.getsockname()[1])
    extensions, log = context.own_extensions(), process_log(context)

    def make(settings: Settings, project: str | None, log: Log) -> App:
        path = "/" if project is None else f"/projects/{project}/"
        return create_app(
            evolve(options, public_url=f"{place.public_url or url}{path}", project=project),
            recipes=folders,
            settings=settings,
            extensions=extensions,
            environ=context.environ,
            folder_of=context.folder_of,
            note=_note(context),
            log=log,
            resume=resume,
        )

    app: App | ProjectServer
    if table is None:
        app = make(context.settings, None, log)
    else:
        apps = {
            name: make(table.settings_of(name, context.settings), name, _OfProject(log, name))
            for name in table.projects
        }
        app = ProjectServer(apps, table.default, options, log)
        try:
            await app.tell_apart()
        except BaseException:
            sock.close()
            await app.aclose()
            raise
    _announce(context, options, place, url)
    return await serve(app, sock, tell)


def _note(context: CommandContext) -> Mapping[str, JsonValue]:
    """The note from which the command line can resume runs of the server."""
    from minions.interfaces.cli.run_follower import note_of

    return {**note_of(context, None), "approve": context.settings.approve or "wait"}


def _announce(context: CommandContext, options: ServerOptions, place: _Place, url: str) -> None:
    if context.settings.json:
        token = options.token if place.prints_token else None
        link = None if token is None else _login_link(url, token)
        say(json_text({"url": url, "token": token, "page": link}))
    elif place.prints_token:
        say(f"minions serves {url} · token {options.token}")
        say(f"open the page: {_login_link(url, options.token)}")
    else:
        names = f": {', '.join(each.name for each in options.tokens)}" if options.tokens else ""
        if options.proxy is None:
            say(f"minions serves {url} · {'tokens' if names else 'token'} as in the file{names}")
        else:
            header = options.proxy.user_header
            say(f"minions serves {url} · users by the proxy's header {header}; tokens{names}")


def _login_link(url: str, token: str) -> str:
    """The page's address with the token in the fragment, which browsers send to no server."""
    host = url.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")
    return f"{host}/#token={quote(token, safe='')}"
