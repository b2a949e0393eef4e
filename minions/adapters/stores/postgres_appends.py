"""Appends to the PostgreSQL journal: facts of many runs in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import frozen
from msgspec.structs import replace

from minions.adapters.stores import postgres_rows
from minions.adapters.stores.call_groups import GroupTerms
from minions.adapters.stores.pending_rows import folds_later
from minions.adapters.stores.postgres_entries import append_entry, append_with_rows
from minions.adapters.stores.postgres_groups import CallKind
from minions.adapters.stores.postgres_link import Attempt
from minions.contracts.journal.journal import JournalEntry, Lease
from minions.contracts.journal.run_rows import LISTED

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection


@frozen
class Append:
    """One fact that is to be stored."""

    lease: Lease
    entry: JournalEntry
    """Without its position."""
    body: bytes

    @property
    def changes_rows(self) -> bool:
        """Whether rows of lists are stored with it, and not made of it later."""
        return self.entry.kind in LISTED and not folds_later(self.lease)


async def _append_alone(attempt: Attempt, append: Append) -> JournalEntry:
    return await append_entry(attempt, append.lease, append.entry, append.body)


async def _append_together(db: Connection, appends: Sequence[Append]) -> Mapping[int, JournalEntry]:
    """Those whose lease is held and not locked; a duplicate among them makes it raise."""
    if appends[0].changes_rows:
        return await _append_listed(db, appends)
    columns = zip(*(_values(append) for append in appends), strict=True)
    found = await db.execute(_APPEND_TOGETHER, [list(column) for column in columns], binary=True)
    return {
        number - 1: replace(appends[number - 1].entry, position=position)
        for number, position, _ in await found.fetchall()
    }


def _values(append: Append) -> tuple[object, ...]:
    entry = append.entry
    return (
        entry.session_id, entry.run_id, entry.epoch, entry.generation, entry.key, entry.kind,
        entry.state, append.body, entry.at,
    )  # fmt: skip


# A lease whose row another connection has locked is left out: to wait for it would hold up the
# other runs, and two groups that wait for each other would never end. LATERAL: one look-up for each
# session, also by a plan that was made while the table was empty.
_APPEND_TOGETHER: Final = b"""
WITH appended AS (
    SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[],
        %s::text[], %s::text[], %s::bytea[], %s::timestamptz[]) WITH ORDINALITY
        AS a (session_id, run_id, epoch, generation, key, kind, state, body, at, number)
), held AS (
    SELECT l.* FROM (SELECT DISTINCT session_id FROM appended) a CROSS JOIN LATERAL (
        SELECT session_id, run_id, epoch, last_position FROM minions.leases
        WHERE session_id = a.session_id AND deadline IS NOT NULL FOR UPDATE SKIP LOCKED
    ) l
), placed AS (
    SELECT a.*, h.last_position
        + row_number() OVER (PARTITION BY a.session_id ORDER BY a.number) AS position
    FROM appended a JOIN held h USING (session_id, run_id, epoch)
), counted AS (
    UPDATE minions.leases l SET last_position = last.position
    FROM (SELECT session_id, max(position) AS position FROM placed GROUP BY session_id) last
    WHERE l.session_id = last.session_id
), added AS (
    INSERT INTO minions.entries
        (session_id, position, run_id, generation, key, kind, state, body, epoch, at)
    SELECT session_id, position, run_id, generation, key, kind, state, body, epoch, at
    FROM placed ORDER BY number
)
SELECT number, position, pg_notify('minions_facts', position || ' ' || session_id) FROM placed
ORDER BY number
"""


async def _append_listed(db: Connection, appends: Sequence[Append]) -> Mapping[int, JournalEntry]:
    """One for each session, with its rows: a statement each, sent together as one transaction."""
    import psycopg

    if not psycopg.Pipeline.is_supported():  # libpq before 14
        return {}
    known = await postgres_rows.rows_before(db, [append.lease for append in appends])
    async with db.pipeline():
        done = {
            number: await append_with_rows(
                db, appends[number].entry, appends[number].body, before, waits=False
            )
            for number, before in known.items()
        }
    return {
        number: replace(appends[number].entry, position=known[number].position + 1)
        for number, cursor in done.items()
        if cursor.rowcount
    }


def _terms(append: Append) -> GroupTerms:
    entry, size = append.entry, len(append.body)
    if append.changes_rows:  # one for each session: the rows are those before it
        return GroupTerms(entry.session_id, entry.session_id, size, variety="listed")
    name = (entry.run_id, entry.generation, entry.key, entry.kind, entry.state)
    return GroupTerms(entry.session_id, name, size)


APPENDS: Final = CallKind(alone=_append_alone, together=_append_together, terms=_terms)
