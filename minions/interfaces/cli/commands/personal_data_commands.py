"""`minions sessions rekey`, and what is stored of a user: `export --user` and `rm --user`."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click
from attrs import frozen

from minions.app.wiring.logs import make_log
from minions.contracts.journal.journal import Journal
from minions.data.errors import NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.services.budget_rules import forget_budgets, rules_of
from minions.engine.services.run_services import Services
from minions.engine.sessions.archive import archive_lines, load_archive
from minions.engine.sessions.encryption import Rewritten, rewrite_journal
from minions.engine.sessions.user_data import (
    RemovedUser,
    UserData,
    find_user_data,
    remove_user_data,
)
from minions.interfaces.cli.console.console import counted, json_text, log_line, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    command_context,
    takes_options,
)


@frozen(kw_only=True)
class _RekeyCounts:
    """What was encrypted under the first key."""

    journal: Rewritten
    values: int
    """Values that recipes saved."""
    cached: int
    """Cached outputs that were removed: they cost only time."""
    key: str
    backups: tuple[str, ...]
    """Copies of the database from before its last migrations, which are as they were."""


@click.command("rekey")
@takes_options(DatabaseOption)
def rekey(options: DatabaseOption) -> int:
    """Encrypt everything that is stored under the first key of `encryption_key_file`.

    What is in clear, and what another key of the file encrypts, is written again; heads of chains
    change by that. Cached outputs are removed. The exit code is 1 if a session stays as it is:
    because a run of it is active, or because `minions sessions verify` finds something wrong.
    """
    context = command_context(options)
    done = asyncio.run(_rekey(context))
    if context.settings.json:
        say(json_text(_as_json(done)))
    else:
        for session_id, why in done.journal.left:
            say(f"left {session_id}: {why}")
        found = done.journal
        say(
            f"encrypted by the key {done.key}: {counted(found.sessions, 'session')} "
            f"({counted(found.entries, 'row')}), {counted(found.blobs, 'blob')}, "
            f"{counted(done.values, 'saved value')}; "
            f"{counted(done.cached, 'cached output')} removed"
        )
    for file in done.backups:
        tell(f"note: {file} is a copy from before a migration, as it was: remove it.")
    return 1 if done.journal.left else 0


async def _rekey(context: CommandContext) -> _RekeyCounts:
    from minions.app.wiring.databases import (
        cipher_of_settings,
        database_backups,
        make_state,
        rewrite_values,
    )

    settings, folder = context.known_stores(), context.folder_of("db")
    cipher = cipher_of_settings(settings)
    if cipher is None:
        raise UsageError(
            "There is no key to encrypt the journal with: name a file as `encryption_key_file` of "
            "`[journal]` in your configuration.",
            code="not-encrypted",
        )
    journal = context.known_journal()
    state, cache = make_state(settings, folder), context.cache()
    try:
        rewritten = await rewrite_journal(journal)
        values, cached = await rewrite_values(state), await cache.clear()
        await journal.compact()
    finally:
        await state.aclose()
        await cache.aclose()
        await journal.aclose()
    backups = tuple(map(str, database_backups(settings, folder)))
    return _RekeyCounts(
        journal=rewritten, values=values, cached=cached, key=cipher.first, backups=backups
    )


# --- everything of one user ----------------------------------------------------------------------


async def export_user(context: CommandContext, user: str) -> tuple[Iterator[str], str]:
    """The lines of a file with everything of a user, and what is told of it.

    Raises:
        NotFoundError: `unknown-user`; nothing is stored of such a user.
    """
    journal = context.known_journal()
    try:
        found = await _find_data(journal, user)
        archives = [await load_archive(journal, each) for each in found.sessions]
    finally:
        await journal.aclose()
    head: dict[str, JsonValue] = {"format": "minions-user", "version": 1, **_list_data(found)}
    lines = itertools.chain([json.dumps(head)], *map(archive_lines, archives))
    told = (
        f"Exported {counted(len(found.sessions), 'session')} of {user}. The file is in clear. "
        f"{_NOT_REACHED}"
    )
    return lines, told


async def remove_user(context: CommandContext, user: str, ask: Callable[[str], None] | None) -> int:
    """List everything of a user, and remove it.

    Args:
        ask: Raises where a person does not agree; None: somebody has agreed.
    Raises:
        NotFoundError: `unknown-user`; nothing is stored of such a user.
        UsageError: `not-agreed`; there is nobody to be asked.
        LeaseHeldError: A run of the user is active; nothing was removed.
    """
    from minions.app.wiring.databases import database_backups, make_state, shared_dispatch

    settings, folder = context.known_stores(), context.folder_of("db")
    journal, cache = context.known_journal(), context.cache()
    state = make_state(settings, folder)
    engine = shared_dispatch(settings, make_log(settings, log_line))
    try:
        found = await _find_data(journal, user)
        for line in _lines(found):
            tell(line)
        if ask is not None:
            ask(f"everything of {user}")
        jobs = 0
        if engine is not None:
            jobs = sum([await engine.cancel(run_id) for run_id in found.queued])
        done = await remove_user_data(Services(journal=journal), found, cache.forget_runs)
        records = await forget_budgets(state, rules_of(settings.budgets), user)
        is_erased = await journal.erase()
    finally:
        if engine is not None:
            await engine.aclose()
        await state.aclose()
        await cache.aclose()
        await journal.aclose()
    if context.settings.json:
        document = {**_list_data(found), "removed": list(done.sessions), "blobs": done.blobs}
        document |= {"cached": done.cached, "left": list(done.left), "is_erased": is_erased}
        document |= {"young_blobs": done.young_blobs, "jobs": jobs, "budgets": records}
        say(json_text(document))
    else:
        say(
            f"removed {counted(len(done.sessions), 'session')}, {counted(done.blobs, 'blob')}, "
            f"{counted(done.cached, 'cached output')}, {counted(records, 'record')} of budgets"
        )
    for note in _notes(done, is_erased, database_backups(settings, folder)):
        tell(f"note: {note}")
    tell(_NOT_REACHED)
    return 1 if done.left else 0


async def _find_data(journal: Journal, user: str) -> UserData:
    found = await find_user_data(journal, user)
    if found.is_empty:
        raise NotFoundError(
            f"The journal holds no session of a user '{user}'. A user is the label that runs were "
            "given: `minions sessions list --user LABEL --all`.",
            code="unknown-user",
        )
    return found


def _list_data(found: UserData) -> dict[str, JsonValue]:
    return {
        "user": found.user,
        "sessions": list(found.sessions),
        "runs": list(found.runs),
        "examples_in": list(found.examples),
        "runs_in": list(found.foreign),
        "judged_in": list(found.judged),
    }


def _lines(found: UserData) -> Iterator[str]:
    yield (
        f"of {found.user}: {counted(len(found.sessions), 'session')}, "
        f"{counted(len(found.runs), 'run')}"
        + (f", {len(found.queued)} of which have not ended" if found.queued else "")
    )
    yield from (f"  {each}" for each in found.sessions)
    for ids, words in (
        (found.examples, "examples taken from them are blanked in"),
        (found.foreign, "runs for the user stay in sessions of others"),
        (found.judged, "marks or decisions name the user in sessions of others, and stay"),
    ):
        if ids:
            yield f"{words}: {', '.join(ids)}"


def _notes(done: RemovedUser, is_erased: bool, backups: Sequence[Path]) -> Iterator[str]:
    for session_id in done.left:
        yield f"examples stay in {session_id}: a run of it is active, or it does not verify."
    if done.young_blobs:
        yield (
            f"{counted(done.young_blobs, 'blob')} of the last minutes, and of recipes of the last "
            "hour, stay for now: run `minions sessions gc` in an hour."
        )
    if not is_erased:
        yield (
            "free space of the database may still hold what was removed: on SQLite end what else "
            "uses the file and run this again or `minions sessions gc`; on PostgreSQL it is for "
            "VACUUM FULL."
        )
    for file in backups:
        yield f"{file} is a copy from before a migration, as it was: remove it."


_NOT_REACHED: Final = (
    "Not reached: backups, exported files, recordings, traces and logs, values that recipes saved, "
    "and what providers of models and tools keep."
)


def _as_json(done: _RekeyCounts) -> dict[str, JsonValue]:
    found = done.journal
    return {
        "key": done.key,
        "sessions": found.sessions,
        "entries": found.entries,
        "blobs": found.blobs,
        "values": done.values,
        "cached": done.cached,
        "left": [{"session_id": session_id, "why": why} for session_id, why in found.left],
        "backups": list(done.backups),
    }
