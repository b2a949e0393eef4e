"""Whole sessions in the PostgreSQL journal: import, removal, rows that are folded later."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from minions.adapters.stores import postgres_rows
from minions.adapters.stores.postgres_entries import (
    LISTED_OF,
    EntriesQuery,
    duplicate_error,
    find_entry,
    read_entries,
)
from minions.adapters.stores.postgres_leases import busy_error, find_lease
from minions.adapters.stores.postgres_link import Attempt
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.stored_sessions import session_exists

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection


async def last_positions(db: Connection, sessions: Collection[str]) -> Mapping[str, int]:
    """The position of the newest entry of each session; sessions without entries are left out."""
    found = await db.execute(
        "SELECT session_id, last_position FROM minions.leases WHERE session_id = ANY(%s)",
        [list(sessions)],
        binary=True,
    )
    return dict(await found.fetchall())


async def adopt_entries(
    attempt: Attempt,
    session_id: str,
    entries: Sequence[JournalEntry],
    bodies: Sequence[bytes],
    now: datetime | None,
) -> None:
    """Import the entries of a session, as `Journal.adopt` says."""
    db = attempt.connection
    async with db.transaction():
        await _lock_lease(db, session_id, now)
        if stored := (await last_positions(db, [session_id])).get(session_id, 0):
            if attempt.is_again and await _is_same(db, session_id, entries, bodies):
                return  # stored, and then the connection was lost
            raise session_exists(session_id, stored)
        await _insert_as_they_were(db, entries, bodies)
        last = max(entries, key=lambda entry: entry.epoch)
        await db.execute(
            "INSERT INTO minions.leases AS held (session_id, run_id, worker_id, epoch, "
            "generation, deadline, last_position) VALUES (%s, %s, '', %s, %s, NULL, %s) "
            "ON CONFLICT (session_id) DO UPDATE SET deadline = NULL, "
            "epoch = greatest(held.epoch, excluded.epoch), last_position = excluded.last_position",
            [session_id, last.run_id, last.epoch, last.generation, len(entries)],
        )
        await postgres_rows.make_anew(db, [session_id], entries)
        await db.execute(
            "SELECT pg_notify('minions_facts', %s || ' ' || %s)", [str(len(entries)), session_id]
        )


async def _insert_as_they_were(
    db: Connection, entries: Sequence[JournalEntry], bodies: Sequence[bytes]
) -> None:
    from psycopg.errors import UniqueViolation

    rows = [
        (
            entry.session_id, entry.position, entry.run_id, entry.generation, entry.key,
            entry.kind, entry.state, body, entry.epoch, entry.at,
        )
        for entry, body in zip(entries, bodies, strict=True)
    ]  # fmt: skip
    try:
        async with db.transaction(), db.cursor() as cursor:
            await cursor.executemany(_INSERT, rows)
    except UniqueViolation:
        for entry in entries:
            if (found := await find_entry(db, entry)) is not None:
                raise duplicate_error(entry, found.position) from None
        raise


_INSERT: Final = """
INSERT INTO minions.entries
    (session_id, position, run_id, generation, key, kind, state, body, epoch, at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


async def _is_same(
    db: Connection, session_id: str, entries: Sequence[JournalEntry], bodies: Sequence[bytes]
) -> bool:
    found = await db.execute(
        "SELECT run_id, key, kind, state, body FROM minions.entries WHERE session_id = %s "
        "ORDER BY position",
        [session_id],
        binary=True,
    )
    wanted = [
        (entry.run_id, entry.key, entry.kind, entry.state, body)
        for entry, body in zip(entries, bodies, strict=True)
    ]
    return await found.fetchall() == wanted


async def remove_session(db: Connection, session_id: str, now: datetime | None) -> bool:
    """Remove a session, as `Journal.remove_session` says; False: there is none."""
    async with db.transaction():
        await _lock_lease(db, session_id, now)
        removed = await db.execute(
            "DELETE FROM minions.entries WHERE session_id = %s", [session_id]
        )
        await db.execute(  # the row stays: epochs only grow
            "UPDATE minions.leases SET deadline = NULL, last_position = 0 WHERE session_id = %s",
            [session_id],
        )
        await postgres_rows.make_anew(db, [session_id], ())
    return removed.rowcount > 0


async def fold_damaged_rows(db: Connection) -> bool:
    """Make the rows of some sessions anew that somebody changed; whether there were any."""
    if not await postgres_rows.changed_sessions(db):
        return False
    async with db.transaction():
        ids = await postgres_rows.changed_sessions(db)
        await db.execute(  # nobody appends to them meanwhile
            "SELECT 1 FROM minions.leases WHERE session_id = ANY(%s) ORDER BY session_id "
            "FOR UPDATE",
            [ids],
        )
        await postgres_rows.make_anew(
            db, ids, await read_entries(db, EntriesQuery(LISTED_OF, [ids]))
        )
    return True


async def _lock_lease(db: Connection, session_id: str, now: datetime | None) -> None:
    """Nobody begins, and nobody is at work there."""
    found = await db.execute(
        "SELECT coalesce(deadline > coalesce(%s::timestamptz, clock_timestamp()), false) "
        "FROM minions.leases WHERE session_id = %s FOR UPDATE",
        [now, session_id],
    )
    row = await found.fetchone()
    if row is not None and row[0]:
        raise busy_error(await find_lease(db, session_id), session_id, None)
