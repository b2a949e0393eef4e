"""`minions mcp`: lists the configured servers, and logs in to them; locks and serves beside it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
from attrs import evolve, frozen
from msgspec.structs import replace

from minions.app.settings.setting_rights import server_rights
from minions.app.settings.user_folders import FolderTrust
from minions.app.wiring.configured_servers import (
    Lock,
    OwnServer,
    as_server,
    changes_between,
    configured_servers,
    lock_path,
    lock_problem,
    locked_server,
    login_store,
    looked_at,
    programs_now,
    read_lock,
    server_parts,
    stored_lock,
    with_own,
)
from minions.contracts.tool_servers import Grant, PinnedServer, PinnedTool, ServerLogin, ToolServer
from minions.data.errors import (
    EnvironmentRefusedError,
    MinionsError,
    NotFoundError,
    UsageError,
    did_you_mean,
    near_names,
)
from minions.data.json_values import JsonValue, as_object_of_texts, as_texts
from minions.data.texts import shell_word
from minions.interfaces.cli.commands.mcp_serve_command import serve
from minions.interfaces.cli.console.console import json_text, say, say_table, tell
from minions.interfaces.cli.console.render import plain
from minions.interfaces.cli.options import (
    CommandContext,
    OutputOptions,
    command_context,
    takes_options,
)

if TYPE_CHECKING:
    from minions.adapters.tools.mcp.login_store import LoginStore


@frozen(kw_only=True)
class _Candidate:
    """A server that is to be looked at."""

    server: ToolServer
    before: PinnedServer | None
    """How it was when it was locked before; None: it was not."""
    is_of_recipe: bool = False
    replaced: str | None = None
    """In words what of its program is not as it was looked at; None: nothing."""

    @property
    def key(self) -> str:
        """The name under which its program is known on this machine."""
        return self.server.fingerprint if self.is_of_recipe else self.server.name

    def refusal(self, problem: str | None) -> str | None:
        """Why runs do not call it as it is locked; None: they do."""
        from minions.adapters.tools.mcp.mcp_toolsets import LockedServer

        refusal = LockedServer(server=self.server, pinned=self.before).refusal(problem)
        if refusal is None and self.replaced is not None:
            return (
                f"The program of the MCP server '{self.server.name}' was replaced: {self.replaced}."
            )
        return refusal

    @property
    def was_reached_otherwise(self) -> bool:
        """Whether it was looked at, and is reached in another way now."""
        return self.before is not None and self.before.fingerprint != self.server.fingerprint


@click.command("lock")
@click.argument("names", nargs=-1, metavar="[NAME|RECIPE.yaml]…")
@click.option(
    "--check", is_flag=True, help="Only compare; exit code 1 if a run would refuse something."
)
@click.option(
    "--yes", is_flag=True, help="Start servers of recipes, and replaced programs, without asking."
)
@takes_options(OutputOptions)
def lock(options: OutputOptions, names: tuple[str, ...], *, check: bool, yes: bool) -> int:
    """Start servers, look at their tools, and let runs call them as they are now.

    NAME is a server of the configuration, RECIPE.yaml a recipe with a server of its own; without
    any, all of the configuration. Names, descriptions, schemas and hints are written to
    mcp.lock.json beside the configuration. A tool that differs later is not called.
    """
    context = command_context(options)
    _check_extra()
    path = lock_path(context.folder_of)
    known, content = read_lock(path)
    problem = lock_problem(path, content, context.environ)
    wanted = [_with_program(each, path) for each in _find_wanted(names, context, known)]
    if problem is not None and not check:
        _refuse_unseen(known, wanted, problem)
    if not yes:
        _ask_about([each for each in wanted if each.is_of_recipe or (each.replaced and not check)])
    programs = programs_now({each.key: each.server for each in wanted})
    seen = asyncio.run(_look_at(wanted, path.parent, is_check=check))
    report = [_report(each, now) for each, now in zip(wanted, seen, strict=True)]
    if check:
        for each, told in zip(wanted, report, strict=True):
            told["refused"] = each.refusal(problem)
    failed = [each for each in seen if isinstance(each, MinionsError)]
    if not check:
        good = {
            each.key
            for each, now in zip(wanted, seen, strict=True)
            if isinstance(now, PinnedServer)
        }
        programs = {key: files for key, files in programs.items() if key in good}
        if good:  # of a server that does not answer nothing is known that could be kept
            _store(path, _find_changed(known, wanted, seen), programs)
    _print(report, path, context, is_check=check)
    if failed:
        return 4 if isinstance(failed[0], EnvironmentRefusedError) else 1
    return 1 if check and any(each["changes"] or each["refused"] for each in report) else 0


def _with_program(candidate: _Candidate, path: Path) -> _Candidate:
    """With what of its program is not as somebody looked at it; of another command nothing is."""
    seen = FolderTrust().programs_seen(path).get(candidate.key)
    locked = locked_server(candidate.server, candidate.before, path.parent, seen)
    return evolve(candidate, replaced=locked.replaced) if locked.is_locked else candidate


def _check_extra() -> None:
    from minions.adapters.tools.mcp.mcp_toolsets import check_extra

    check_extra()


def _find_wanted(names: Sequence[str], context: CommandContext, known: Lock) -> list[_Candidate]:
    """The servers of these names and recipes.

    Raises:
        NotFoundError: There is no such server or file.
    """
    servers = configured_servers(context.settings, context.folder_of)
    found: list[_Candidate] = []
    for name in names or servers:
        if name in servers:
            found.append(_Candidate(server=servers[name], before=known.servers.get(name)))
        elif Path(name).suffix in (".yaml", ".yml", ".json"):
            found += _of_recipe(Path(name), known)
        else:
            raise NotFoundError(
                f"There is no MCP server '{name}'.{did_you_mean(name, servers)} Configured are: "
                f"{', '.join(servers) or 'none'}.",
                code="mcp-unknown-server",
                suggestions=near_names(name, servers),
            )
    if not found:
        raise UsageError(
            "There is no MCP server to look at: the configuration has no table [mcp.NAME].",
            code="mcp-unknown-server",
        )
    return found


def _of_recipe(path: Path, known: Lock) -> list[_Candidate]:
    from minions.recipe.reading.toolset_reading import own_servers

    before = {each.pinned.fingerprint: each.pinned for each in known.of_recipes}
    servers = own_servers(_document(path))
    if not servers:
        raise UsageError(f"{path} has no MCP server of its own.", code="mcp-unknown-server")
    return [
        _Candidate(server=each, before=before.get(each.fingerprint), is_of_recipe=True)
        for each in servers
    ]


def _document(path: Path) -> Mapping[str, JsonValue]:
    from minions.recipe.text.nodes import to_plain
    from minions.recipe.text.yaml_reader import read_document, read_source

    found = to_plain(read_document(read_source(path), str(path)))
    return found if isinstance(found, Mapping) else {}


def _ask_about(candidates: Sequence[_Candidate]) -> None:
    """Start nothing of a recipe, and no program that was replaced, before a person saw what it is.

    Raises:
        UsageError: Nobody can be asked, or the person says no.
    """
    for each in candidates:
        server = each.server
        if each.is_of_recipe:
            tell(f"The recipe's MCP server '{server.name}' is: {server.words}")
            for right in server_rights(server.name, server.command, server.url, Path.cwd()):
                tell(f"  {right.words}")
        if each.replaced is not None:
            tell(f"The program of the MCP server '{server.name}' was replaced: {each.replaced}")
    if not candidates:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "These servers come with a recipe, or their program was replaced, and nobody can be "
            "asked here. Look at what is started, and say --yes.",
            code="not-agreed",
        )
    if not click.confirm("Start it, as you would start a program yourself?", err=True):
        raise UsageError("Nothing was started.", code="not-agreed")


async def _look_at(
    wanted: Iterable[_Candidate], folder: Path, *, is_check: bool
) -> list[PinnedServer | MinionsError]:
    """Each server as it is now, or why it cannot be looked at; one after the other. A check starts
    no program that was replaced: of that one it is known already that runs refuse it.
    """
    return [
        each.before
        if is_check and each.replaced is not None and each.before is not None
        else await _looked_at(each.server, folder)
        for each in wanted
    ]


async def _looked_at(server: ToolServer, folder: Path) -> PinnedServer | MinionsError:
    try:
        return await looked_at(server, folder)
    except MinionsError as error:
        return error


def _refuse_unseen(known: Lock, wanted: Sequence[_Candidate], problem: str) -> None:
    """Refuse to trust what stands in a lock that does not count, and that this command does not
    look at.

    Raises:
        UsageError: There is such a server.
    """
    looked_at = {each.server.name for each in wanted if not each.is_of_recipe}
    own = {each.server.fingerprint for each in wanted if each.is_of_recipe}
    unseen = [name for name in known.servers if name not in looked_at]
    unseen += [
        f"{e.name} (of a recipe)" for e in known.of_recipes if e.pinned.fingerprint not in own
    ]
    if unseen:
        raise UsageError(
            f"{problem}. It has servers that this command does not look at: {', '.join(unseen)}. "
            "Trust it first, or look at these, too.",
            code="mcp-not-locked",
        )


def _report(wanted: _Candidate, now: PinnedServer | MinionsError) -> dict[str, JsonValue]:
    name, otherwise = wanted.server.name, wanted.was_reached_otherwise
    if isinstance(now, MinionsError):
        found: dict[str, JsonValue] = {"tools": [], "changes": {}, "error": now.message}
    else:
        found = {
            "tools": [f"{name}__{tool.shown_as}" for tool in now.tools],
            "changes": changes_between(wanted.before, now, wanted.server.only),
            "error": None,
        }
    return {"name": name, "reached_otherwise": otherwise, "refused": None, **found}


def _find_changed(
    known: Lock, wanted: Sequence[_Candidate], seen: Sequence[PinnedServer | MinionsError]
) -> Lock:
    """The lock with what could be looked at; of the others it stays as it was."""
    good = [
        (each, now) for each, now in zip(wanted, seen, strict=True) if isinstance(now, PinnedServer)
    ]
    configured = {each.server.name: now for each, now in good if not each.is_of_recipe}
    own = [
        OwnServer(
            name=each.server.name, command=each.server.command, url=each.server.url, pinned=now
        )
        for each, now in good
        if each.is_of_recipe
    ]
    return with_own(replace(known, servers={**known.servers, **configured}), own)


def _store(path: Path, changed: Lock, programs: Mapping[str, Mapping[str, str]]) -> None:
    """Write the lock, and trust it: this command is the decision.

    Args:
        programs: By server what its program is on this machine, of those that were looked at.
    Raises:
        EnvironmentRefusedError: It cannot be written.
    """
    trust = FolderTrust()
    known = {**trust.programs_seen(path), **programs}
    trust.add(path, stored_lock(path, changed), programs=known)


def _print(
    report: Sequence[Mapping[str, JsonValue]],
    path: Path,
    context: CommandContext,
    *,
    is_check: bool,
) -> None:
    if context.settings.json:
        say(json_text({"lock": str(path), "servers": [dict(each) for each in report]}))
        return
    for each in report:
        if each["error"] is not None:
            tell(plain(f"{each['name']}: {each['error']}"))
            continue
        for line in _lines_of(each):
            say(plain(line))  # also in a pipe: a server wrote it, and a terminal may read it later
    if not is_check and any(each["error"] is None for each in report):
        tell(f"Locked in {path}: runs call these tools until they change.")


def _lines_of(server: Mapping[str, JsonValue]) -> Iterator[str]:
    """What changed in a server, for a person."""
    changes = as_object_of_texts(server["changes"])
    tools = as_texts(server["tools"])
    yield f"{server['name']}: {len(tools)} tools, {len(changes) or 'none'} changed"
    if server["refused"] is not None:
        yield f"  {server['refused']}"
    elif server["reached_otherwise"]:
        yield "  It was reached in another way when it was locked."
    for tool, change in changes.items():
        yield f"  {tool}"
        yield from (f"    {line}" for line in change.splitlines())


@click.group("mcp")
def mcp_command() -> None:
    """MCP servers that recipes may call, and recipes as an MCP server."""


for each in (lock, serve):
    mcp_command.add_command(each)


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


@mcp_command.command("list")
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
    say_table(
        ("SERVER", "STATE", "FROM"),
        [
            (each.name, f"{each.state}{' (of a recipe)' if each.is_of_recipe else ''}", each.way)
            for each in found
        ],
        details=[[_tool_line(each.name, tool) for tool in each.tools] for each in found],
    )
    return 0


def _tool_line(server: str, tool: PinnedTool) -> str:
    about = tool.description.partition("\n")[0][:200]
    return f"  {server}__{tool.shown_as}  {tool.effect.value}  {about}".rstrip()


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


@mcp_command.command("login")
@click.argument("name", metavar="NAME")
@click.option("--no-browser", is_flag=True, help="Print the address only; open no browser.")
@takes_options(OutputOptions)
def login(options: OutputOptions, name: str, *, no_browser: bool) -> int:
    """Log in to a server of the configuration that asks for it (OAuth).

    The address of its login is printed and opened in a browser, which comes back to this machine.
    What the login gives is kept in the user's data folder; runs send and renew it. It stays
    until `minions mcp logout NAME`.
    """
    from minions.adapters.tools.mcp.mcp_toolsets import check_extra

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


@mcp_command.command("logout")
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
    from minions.adapters.tools.mcp.login import returning_browser
    from minions.adapters.tools.mcp.started_server import McpServer
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
    from minions.adapters.tools.mcp.mcp_failures import failed

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
