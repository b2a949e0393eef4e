"""`minions sessions rm` and `gc`: remove sessions, and data that nothing needs any more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click
from attrs import evolve, frozen

from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.texts import seconds_of
from minions.engine.services.services import Services
from minions.engine.sessions.deletion import (
    CleanUp,
    child_sessions,
    clean_up,
    find_session,
    remove_sessions,
)
from minions.interfaces.cli.console.console import json_text, say
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    command_context,
    naming_the_journal,
    takes_options,
)


@click.command("rm")
@click.argument("names", metavar="ID…", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@takes_options(DatabaseOption)
def rm(options: DatabaseOption, names: Sequence[str], *, yes: bool) -> int:
    """Remove sessions, with all their runs.

    ID is a session's or a run's, or a unique start of one. `sessions gc` then frees the data that
    only they needed.
    """
    context = command_context(options)
    removed = asyncio.run(_remove(context, names, is_agreed=yes))
    if context.settings.json:
        say(json_text({"removed": list(removed)}))
        return 0
    for session_id in removed:
        say(f"removed {session_id}")
    return 0


async def _remove(
    context: CommandContext, names: Sequence[str], *, is_agreed: bool
) -> tuple[str, ...]:
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            ids = list(dict.fromkeys([await find_session(journal, name) for name in names]))
        if not is_agreed:
            _ask(ids, len(await child_sessions(journal, ids)))
        return await remove_sessions(Services(journal=journal), ids)
    finally:
        await journal.aclose()


def _ask(ids: Sequence[str], child_count: int) -> None:
    """Ask the person at the terminal; without a terminal nothing is removed.

    Args:
        child_count: How many sessions of child runs go with them.
    Raises:
        UsageError: `not-agreed`; there is no terminal.
        click.Abort: The person said no.
    """
    children = f" with {_counted(child_count, 'child run')}" if child_count else ""
    shown = f"{', '.join(ids)}{children}"
    if not _is_terminal():
        raise UsageError(
            f"Removing {shown} cannot be undone, and there is no terminal to ask at. Nothing was "
            "removed. Add --yes; `minions sessions export` makes a copy before.",
            code="not-agreed",
        )
    click.confirm(f"Remove {shown}, for good?", abort=True, err=True)


def _is_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


@frozen(kw_only=True)
class _CleanUpResult:
    """What a clean-up removed."""

    cleaned: CleanUp
    cached: int = 0
    """How many cached outputs of steps were removed."""
    bytes_of_file: int = 0
    """By how many bytes the database's file became smaller."""


@click.command("gc")
@click.option("--older-than", metavar="TIME", help="Remove finished sessions this old: 30d, 12h.")
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N, however old."
)
@click.option("--cache", is_flag=True, help="Remove outputs cached by `cache: true`, too.")
@click.option(
    "--dry-run", "only_tell", is_flag=True, help="Show what would be removed; remove nothing."
)
@takes_options(DatabaseOption)
def gc(
    options: DatabaseOption,
    older_than: str | None,
    keep: int | None,
    *,
    cache: bool,
    only_tell: bool,
) -> int:
    """Free data that nothing needs: blobs that no session names and, if asked for, old sessions.

    Without --older-than and --keep no session is removed. Sessions stay if a run in them may be
    resumed, or if a fork that stays reads from them.
    """
    context = command_context(options)
    age_s = None if older_than is None else seconds_of(older_than)
    freed = asyncio.run(_gc(context, age_s, keep, cache=cache, dry_run=only_tell))
    if context.settings.json:
        say(json_text({"dry_run": only_tell, **_as_json(freed)}))
        return 0
    for line in _lines(freed, dry_run=only_tell):
        say(line)
    return 0


async def _gc(
    context: CommandContext, age_s: float | None, keep: int | None, *, cache: bool, dry_run: bool
) -> _CleanUpResult:
    journal = context.known_journal()
    try:
        cleaned = await clean_up(
            Services(journal=journal), older_than_s=age_s, keep=keep, dry_run=dry_run
        )
        freed = _CleanUpResult(cleaned=cleaned)
        if dry_run:
            return freed
        cached = await _forget_cached(context) if cache else 0
        return evolve(freed, cached=cached, bytes_of_file=await journal.compact())
    finally:
        await journal.aclose()


async def _forget_cached(context: CommandContext) -> int:
    cache = context.cache()
    try:
        return await cache.clear()
    finally:
        await cache.aclose()


def _as_json(freed: _CleanUpResult) -> dict[str, JsonValue]:
    cleaned = freed.cleaned
    return {
        "sessions": list(cleaned.sessions),
        "kept": {"unfinished": list(cleaned.unfinished), "forked": list(cleaned.forked)},
        "blobs": encode(cleaned.collected),
        "cached": freed.cached,
        "bytes_of_file": freed.bytes_of_file,
    }


def _lines(freed: _CleanUpResult, *, dry_run: bool) -> Sequence[str]:
    cleaned, collected = freed.cleaned, freed.cleaned.collected
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {session_id}" for session_id in cleaned.sessions]
    for ids, why in (
        (cleaned.unfinished, "a run may be resumed"),
        (cleaned.forked, "a fork that stays reads from it"),
    ):
        lines += [f"kept {session_id}: {why}" for session_id in ids]
    freeing = "would free" if dry_run else "freed"
    lines.append(
        f"{freeing} {_counted(len(cleaned.sessions), 'session')}, "
        f"{_counted(collected.blobs, 'blob')} ({_size(collected.bytes)})"
    )
    if freed.cached:
        lines.append(f"removed {_counted(freed.cached, 'cached output')}")
    if freed.bytes_of_file:
        lines.append(f"the file is {_size(freed.bytes_of_file)} smaller")
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _size(count: int) -> str:
    """The size in the largest unit in which it is at least 1."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
