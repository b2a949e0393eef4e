"""`minions sessions rekey`: encrypts what is stored under the first key of the operator."""

from __future__ import annotations

import asyncio

import click
from attrs import frozen

from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.sessions.encryption import Rewritten, rewrite_journal
from minions.interfaces.cli.commands.session_archives import counted
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    command_context,
    takes_options,
)


@frozen(kw_only=True)
class _Rekeyed:
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


async def _rekey(context: CommandContext) -> _Rekeyed:
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
    return _Rekeyed(
        journal=rewritten, values=values, cached=cached, key=cipher.first, backups=backups
    )


def _as_json(done: _Rekeyed) -> dict[str, JsonValue]:
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
