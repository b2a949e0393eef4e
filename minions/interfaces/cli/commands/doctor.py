"""`minions doctor`: checks the machine; contacts no server but the journal's, shows no key."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from attrs import frozen

from minions.app.settings.folder_trust import UnreadKeys
from minions.app.settings.setting_rights import rights_of
from minions.app.settings.setting_sources import ProjectFile
from minions.app.wiring.databases import (
    database_of,
    has_database,
    place_of_journal,
    postgres_of,
)
from minions.app.wiring.profiles import user_profiles
from minions.contracts.runtime import SystemClock
from minions.contracts.sandbox import Sandbox, probe_words
from minions.data.codec import encode
from minions.data.errors import EnvironmentRefusedError, MinionsError
from minions.interfaces.cli.console.console import json_text, say
from minions.interfaces.cli.console.render import painter, wants_color
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    takes_options,
)

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
@takes_options(CommonOptions)
def command(options: CommonOptions) -> int:
    """Check Python, the database, sandboxes, keys (never their values), disk and clock."""
    context = command_context(options)
    findings = list(_findings(context))
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


def _findings(context: CommandContext) -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding(
        name="python", ok=sys.version_info >= (3, 11), detail=f"{version}, 3.11 or newer is needed"
    )
    unread = context.origin.unread
    if unread is not None:
        yield Finding(name="configuration", ok=False, detail=unread.words, is_needed=False)
        yield from _rights(unread)
    yield _tried("extensions", lambda: _extensions(context))
    yield _tried("database", lambda: _database(context))
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


def _tried(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name=name, ok=True, detail=look())
    except MinionsError as error:
        return Finding(name=name, ok=False, detail=error.message)


def _sandboxes() -> Iterator[Finding]:
    """What was tried in each sandbox. One that does not hold is never used, so it is no fault of
    the machine: what needs it is refused.
    """
    from minions.adapters.sandboxes.workspaces import BubblewrapSandbox, LandlockSandbox
    from minions.app.wiring.built_in_sandboxes import BuiltInSandboxes

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
    from minions.adapters.tools.mcp.toolsets import check_extra
    from minions.interfaces.cli.commands.mcp import listed_servers

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
