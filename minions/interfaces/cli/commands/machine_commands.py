"""`minions trust` and `doctor`: a folder's configuration counts, and what this machine lacks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from attrs import evolve, frozen

from minions.app.settings.setting_rights import Right, rights_of, server_rights
from minions.app.settings.setting_sources import ProjectFile
from minions.app.settings.settings import McpSettings
from minions.app.settings.user_folders import FolderTrust, UnreadKeys
from minions.app.wiring.chosen_models import user_profiles
from minions.app.wiring.configured_servers import (
    LOCK_NAME,
    Lock,
    as_server,
    programs_now,
    read_lock,
    tool_server,
)
from minions.app.wiring.databases import database_of, has_database, place_of_journal, postgres_of
from minions.contracts.runtime import SystemClock
from minions.contracts.sandbox import Sandbox, probe_words
from minions.contracts.tool_servers import PinnedServer, ToolServer
from minions.data.codec import encode
from minions.data.errors import EnvironmentRefusedError, MinionsError, UsageError, did_you_mean
from minions.data.json_values import JsonValue
from minions.data.texts import one_line
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.render import painter, wants_color
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    takes_options,
)
from minions.recipe.recipe_files import project_file

if TYPE_CHECKING:
    from minions.app.runs.fleet_health import FleetHealth


@click.command("trust")
@click.argument("directory", default=".", metavar="[DIR]")
@click.option("--show", is_flag=True, help="Show what would count; trust nothing.")
@click.option("--remove", is_flag=True, help="Trust it no longer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def trust_command(directory: str, *, show: bool, remove: bool, as_json: bool) -> int:
    """Make the minions.toml or pyproject.toml of DIR (default: here) count until it changes.

    Such a file names code that is loaded, servers that get your keys, and who approves. Of one that
    you have not trusted, only harmless keys are read. Look at it before: --show says what it lets
    Minions do, and after a change what differs.
    """
    path = _file(Path(directory))
    trust = FolderTrust()
    if remove:
        was_trusted = trust.remove(path)
        trust.remove(path.parent / LOCK_NAME)
        tell(f"{path} is not trusted{' any more' if was_trusted else ', and was not before'}.")
        if as_json:
            say(json_text({"file": str(path), "trusted": False}))
        return 0
    file = ProjectFile.read(path)
    values = file.values(file.keys)  # what is wrong is found now
    lock, content = read_lock(path.parent / LOCK_NAME)
    rights = [*rights_of(file.keys, path.parent), *_of_lock(lock, path.parent)]
    before = trust.rights_shown(path)
    if not show:
        trust.add(path, file.content, rights=[_line(each) for each in rights])
        if content:
            programs = programs_now(_name_programs(lock, values, path.parent))
            trust.add(path.parent / LOCK_NAME, content, programs=programs)
    difference = _Difference.of(before, rights)
    if as_json:
        say(json_text(_document(path, file, trust, rights, difference)))
        return 0
    for line in _lines(path, rights, difference, is_shown=show):
        say(line)
    return 0


@frozen
class _Difference:
    """What is not as it was shown before."""

    added: tuple[str, ...]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, before: Sequence[str] | None, rights: Sequence[Right]) -> _Difference | None:
        """None: what was shown before was not kept."""
        if before is None:
            return None
        now = [_line(each) for each in rights]
        return cls(
            tuple(each for each in now if each not in before),
            tuple(each for each in before if each not in now),
        )


def _line(right: Right) -> str:
    return one_line(f"{right.key}: {right.words}")


def _lines(
    path: Path, rights: Sequence[Right], difference: _Difference | None, *, is_shown: bool
) -> Iterator[str]:
    if difference is None:
        yield (
            f"{path} lets Minions do this:"
            if is_shown
            else (f"Trusted {path}, until it changes. It lets Minions do this:")
        )
        yield from (f"  {_line(each)}" for each in rights)
        return
    done = "" if is_shown else f"Trusted {path}, until it changes. "
    kept = len(rights) - len(difference.added)
    if not (difference.added or difference.removed):
        yield f"{done}It lets Minions do what it did when you trusted it:"
        yield from (f"  {_line(each)}" for each in rights)
        return
    yield f"{done}What differs from what you trusted; {kept} other rights are as they were:"
    yield from (f"  - {each}" for each in difference.removed)
    yield from (f"  + {each}" for each in difference.added)


def _document(
    path: Path,
    file: ProjectFile,
    trust: FolderTrust,
    rights: Sequence[Right],
    difference: _Difference | None,
) -> JsonValue:
    return {
        "file": str(path),
        "trusted": trust.holds(path, file.content),
        "keys": list(file.keys),
        "rights": [each.to_json() for each in rights],
        "added": None if difference is None else list(difference.added),
        "removed": None if difference is None else list(difference.removed),
    }


def _name_programs(
    lock: Lock, values: Mapping[str, object], folder: Path
) -> Mapping[str, ToolServer]:
    """The servers of the lock by the names under which their programs are known."""
    configured = cast("Mapping[str, McpSettings]", values.get("mcp", {}))
    named = {
        name: tool_server(name, each, folder)
        for name, each in configured.items()
        if name in lock.servers
    }
    return {**named, **{each.pinned.fingerprint: as_server(each) for each in lock.of_recipes}}


def _of_lock(lock: Lock, folder: Path) -> Iterator[Right]:
    """What recipes may call, and what is started for recipes that bring their servers along."""
    for name, pinned in lock.servers.items():
        yield from _tools(name, pinned)
    for own in lock.of_recipes:
        for right in server_rights(own.name, own.command, own.url, folder):
            yield evolve(right, key=f"{LOCK_NAME} {right.key} (of a recipe)")
        yield from _tools(f"{own.name} (of a recipe)", own.pinned)


def _tools(name: str, pinned: PinnedServer) -> Iterator[Right]:
    for tool in pinned.tools:
        digest = tool.digest.removeprefix("sha256:")[:12]
        words = f"lets recipes call {tool.shown_as} ({tool.effect.value}, sha256 {digest}…)"
        yield Right(key=f"{LOCK_NAME} {name}", words=words)
    for file, digest in (pinned.files or {}).items():
        short = digest.removeprefix("sha256:")[:12]
        yield Right(key=f"{LOCK_NAME} {name}", words=f"starts it with {file} (sha256 {short}…)")


def _file(folder: Path) -> Path:
    if not folder.is_dir():
        near = did_you_mean(folder.name, [each.name for each in folder.parent.glob("*/")])
        raise UsageError(f"There is no folder {folder}.{near}", code="no-configuration")
    found = project_file(folder.resolve())
    if found is None:
        raise UsageError(
            f"{folder.resolve()} has no configuration to trust: there is no minions.toml and no "
            "pyproject.toml with [tool.minions], neither there nor above it in its repository.",
            code="no-configuration",
        )
    return found


# --- `minions doctor` ----------------------------------------------------------------------------


_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
_LEAST_FREE_BYTES = 100 * 1024 * 1024
_OLDEST_SENSIBLE_TIME = 1_704_067_200
"""2024-01-01: a clock before this was never set."""


@frozen(kw_only=True)
class Finding:
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    is_needed: bool = True
    """Whether Minions does not work without it; what is not needed fails no check."""


@click.command("doctor")
@click.option(
    "--fleet",
    is_flag=True,
    help="Check the workers of the database instead: versions, clocks, heartbeats, and what "
    "queued runs wait for.",
)
@takes_options(CommonOptions)
def doctor_command(options: CommonOptions, *, fleet: bool) -> int:
    """Check Python, the database, sandboxes, keys (never their values), disk and clock."""
    context = command_context(options)
    findings = list(asyncio.run(_fleet(context)) if fleet else _findings(context))
    if context.settings.json:
        say(json_text([encode(finding) for finding in findings]))
    else:
        paint = painter(is_on=wants_color(sys.stdout, context.environ))
        for finding in findings:
            say(f"{_mark(finding, paint)} {finding.name}: {finding.detail}", is_painted=True)
    return 0 if all(finding.ok or not finding.is_needed for finding in findings) else 4


def _mark(finding: Finding, paint: painter) -> str:
    if finding.ok:
        return paint("ok ", "green")
    return paint("bad", "red") if finding.is_needed else paint("no ", "yellow")


async def _fleet(context: CommandContext) -> list[Finding]:
    """How workers are, and what waits; a finding that is not ok wants a hand.

    Raises:
        UsageError: Nothing is stored.
        EnvironmentRefusedError, JournalError: The database cannot be used.
    """
    from minions.app.runs.fleet_health import MOST_AHEAD_S, fleet_health
    from minions.app.wiring.databases import shared_dispatch, state_beside
    from minions.app.wiring.logs import make_log
    from minions.engine.services.run_services import is_worker_gone
    from minions.interfaces.cli.console.console import log_line

    if context.settings.no_store:
        raise UsageError("Workers share a database: leave out --no-store.", code="no-store")
    journal = context.known_journal()
    state = state_beside(journal)
    engine = shared_dispatch(context.settings, make_log(context.settings, log_line))
    found: list[Finding] = []
    now = SystemClock().now()
    try:
        views = None
        if engine is not None:
            views, before = await engine.workers(), time.time()
            server_s = await engine.server_s() or before
            ahead_s = (before + time.time()) / 2 - server_s
            now = datetime.fromtimestamp(server_s, UTC)
            is_right = abs(ahead_s) <= MOST_AHEAD_S
            words = f"{ahead_s:+.1f} s of the database's"
            found.append(Finding(name="clock of this machine", ok=is_right, detail=words))
        health = await fleet_health(journal, state, views, is_worker_gone, now)
    finally:
        if engine is not None:
            await engine.aclose()
        await state.aclose()
        await journal.aclose()
    return [*found, *_fleet_findings(health)]


def _fleet_findings(health: FleetHealth) -> Iterator[Finding]:
    for worker in health.workers:
        parts = [f"version {worker.version or 'unknown'}", f"queues {', '.join(worker.queues)}"]
        if worker.silent_s is not None:
            parts += [f"{worker.load} runs", f"seen {worker.silent_s:.0f} s ago"]
        if worker.clock_ahead_s is not None:
            parts.append(f"clock {worker.clock_ahead_s:+.1f} s")
        if worker.problem is not None:
            parts.insert(0, f"it lacks {worker.problem}, and executes nothing")
        is_able = worker.problem is None
        yield Finding(name=f"worker {worker.name}", ok=is_able, detail=" · ".join(parts))
    if not health.workers:
        words = "none is alive: minions worker"
        yield Finding(name="workers", ok=not health.waiting, detail=words)
    for pause in health.pauses.values():
        yield Finding(name="pause", ok=False, detail=pause.words, is_needed=False)
    for group in health.waiting:
        waited = f"{health.now - group.oldest_since}".partition(".")[0]
        words = f"{group.count} wait, the oldest for {waited} ({group.oldest_run}): {group.reason}"
        yield Finding(name=f"queue {group.queue}", ok=not group.is_stuck, detail=words)
    told = {f"queue {group.queue}" for group in health.waiting}
    told |= {f"worker {worker.name}" for worker in health.workers}
    for name, why in health.problems():
        if name not in told:
            yield Finding(name=name, ok=False, detail=why)
    if health.has_more:
        words = "more runs wait than were looked at; these wait longest"
        yield Finding(name="queues", ok=True, detail=words)


def _findings(context: CommandContext) -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding(
        name="python", ok=sys.version_info >= (3, 11), detail=f"{version}, 3.11 or newer is needed"
    )
    unread = context.origin.unread
    if unread is not None:
        yield Finding(name="configuration", ok=False, detail=unread.words, is_needed=False)
        yield from _rights(unread)
    yield _try_once("extensions", lambda: _extensions(context))
    yield from _policies(context)
    yield _try_once("database", lambda: _database(context))
    with contextlib.suppress(MinionsError):  # reported with the database already
        is_shared = not context.settings.no_store and postgres_of(context.settings) is not None
        if is_shared and context.settings.journal.replica is not None:
            yield _replica(context)
    yield from _sandboxes()
    yield from _mcp_servers(context)
    yield from _lessons(context)
    for key in _KEYS:
        state = "set" if context.environ.get(key) else "not set"
        yield Finding(name=key, ok=True, detail=state)
    yield Finding(
        name="model", ok=True, detail=context.settings.model or "none configured; use -m or a key"
    )
    with contextlib.suppress(MinionsError):  # reported with the database already
        if postgres_of(context.settings) is None:  # the disk of a server is not this machine's
            yield _disk(context)
    yield Finding(
        name="clock",
        ok=time.time() > _OLDEST_SENSIBLE_TIME,
        detail=time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime()),
    )


def _rights(unread: UnreadKeys) -> Iterator[Finding]:
    """What the keys that were not read would let Minions do."""
    keys = ProjectFile.read(unread.file).keys
    for right in rights_of({key: keys[key] for key in unread.keys}, unread.file.parent):
        yield Finding(name=f"would, {right.key}", ok=False, detail=right.words, is_needed=False)


def _try_once(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name=name, ok=True, detail=look())
    except MinionsError as error:
        return Finding(name=name, ok=False, detail=error.message)


def _sandboxes() -> Iterator[Finding]:
    """What was tried in each sandbox. One that does not hold is never used, so it is no fault of
    the machine: what needs it is refused.
    """
    from minions.adapters.sandboxes.workspaces import BubblewrapSandbox, LandlockSandbox
    from minions.app.wiring.built_in_extensions import BuiltInSandboxes

    found: list[Sandbox] = [*BuiltInSandboxes().values(), BubblewrapSandbox(), LandlockSandbox()]
    for sandbox in found:
        probes = sandbox.probe()
        holds = all(probe.ok for probe in probes)
        detail = probe_words(probes)
        if not holds:
            detail = f"does not hold here, so nothing runs in it: {detail}. {sandbox.help}".strip()
        yield Finding(name=f"sandbox {sandbox.name}", ok=holds, detail=detail, is_needed=False)


def _lessons(context: CommandContext) -> Iterator[Finding]:
    """What runs of this project learned of servers, and how they are asked since."""
    now = SystemClock().now()
    for profile in user_profiles(context.project).profiles():
        for feature, lesson in profile.lessons.items():
            if lesson.counts(now):
                yield Finding(
                    name="learned", ok=True, detail=profile.words_of(feature), is_needed=False
                )


def _mcp_servers(context: CommandContext) -> Iterator[Finding]:
    """The configured servers; none is started or asked."""
    from minions.adapters.tools.mcp.mcp_toolsets import check_extra
    from minions.interfaces.cli.commands.mcp_commands import listed_servers

    try:
        found = list(listed_servers(context))
        if found:
            check_extra()
    except MinionsError as error:
        yield Finding(name="mcp", ok=False, detail=error.message, is_needed=False)
        return
    for each in found:
        count = f"{len(each.tools)} tools" if each.state == "locked" else "`minions mcp lock`"
        what = f"; {each.missing}" if each.missing is not None else ""
        yield Finding(
            name=f"mcp {each.name}",
            ok=each.state == "locked" and each.missing is None,
            detail=f"{each.state}, {count}{what}",
            is_needed=False,
        )


def _extensions(context: CommandContext) -> str:
    found = context.extensions()
    return (
        f"toolsets {', '.join(found.toolsets)}; own tools: {', '.join(found.tools.names) or 'none'}"
    )


def _policies(context: CommandContext) -> Iterator[Finding]:
    """The operator's policies that are about no tool: a call that one should let through is asked
    about, and one that it should keep back a recipe may allow.
    """
    if not context.settings.policies:
        return
    with contextlib.suppress(MinionsError):  # reported with the extensions already
        found = context.extensions()
        for tool in context.settings.policies:
            toolset = found.toolsets.get(tool.partition("__")[0])
            named = toolset.specs_under(None) if toolset is not None else ()
            names = [*(each.name for each in named), *found.tools.names]
            is_known = tool in names or (toolset is not None and toolset.unverified is not None)
            if not is_known:
                text = f"there is no tool of that name.{did_you_mean(tool, names)}"
                if toolset is None:
                    text += f" Toolsets are: {', '.join(found.toolsets)}."
                yield Finding(name=f"policy of {tool}", ok=False, detail=text)


def _database(context: CommandContext) -> str:
    if context.settings.no_store:
        return "none (--no-store)"
    place = place_of_journal(context.settings, context.folder_of("db"))
    if not has_database(context.settings, context.folder_of("db")):
        _refuse_unwritable(Path(place))
        return f"{place} (not there yet; the first run makes it)"

    async def count() -> int:
        journal = context.journal()
        try:
            return await journal.count_runs()
        finally:
            await journal.aclose()

    return f"{place}, {asyncio.run(count())} runs"


def _replica(context: CommandContext) -> Finding:
    """Whether the standby for lists is reached, and how far it is behind. Without it lists are read
    from the database, so that it is not needed.
    """
    from minions.adapters.stores.postgres_replica import ReplicaLag, ReplicatedJournal
    from minions.adapters.stores.postgres_url import without_password

    async def look() -> ReplicaLag:
        journal = context.journal()
        assert isinstance(journal, ReplicatedJournal)  # noqa: S101  # one is configured
        try:
            return await journal.lag()
        finally:
            await journal.aclose()

    place = without_password(context.settings.journal.replica or "")
    try:
        lag = asyncio.run(look())
    except MinionsError as error:
        return Finding(name="replica", ok=False, detail=error.message, is_needed=False)
    words = f"{place}, reached"
    if lag.log_bytes is None:
        words += "; how far it is behind is not known while the database does not answer"
    elif lag.log_bytes:
        since = "" if lag.newest_s is None else f", its newest change is {lag.newest_s:.0f} s old"
        words += f", but {lag.log_bytes:,} bytes of log behind{since}: lists come from the database"
    else:
        words += ", has everything"
    return Finding(name="replica", ok=not lag.log_bytes, detail=words, is_needed=False)


def _refuse_unwritable(path: Path) -> None:
    place = path.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise EnvironmentRefusedError(
            f"{path} cannot be made: {place} is not a writable folder. Name another one with --db."
        )


def _disk(context: CommandContext) -> Finding:
    place = database_of(context.settings, context.folder_of("db")).parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return Finding(
        name="disk",
        ok=free > _LEAST_FREE_BYTES,
        detail=f"{free / 2**30:.1f} GiB free at {Path(place)}",
    )
