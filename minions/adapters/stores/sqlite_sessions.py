"""Whole sessions in the SQLite journal: import, removal, and rows of runs that are folded later."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from minions.adapters.stores import sqlite_rows
from minions.adapters.stores.sqlite_blobs import put_blob
from minions.adapters.stores.sqlite_database import readable_rows, transaction
from minions.adapters.stores.sqlite_entries import (
    INSERT,
    LISTED_OF,
    EntriesQuery,
    StoredBody,
    as_text,
    duplicate_error,
    read_entries,
)
from minions.adapters.stores.sqlite_leases import find_lease, refuse_if_active
from minions.adapters.stores.sqlite_numbers import as_count, as_micros
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.stored_sessions import session_exists


def data_version(db: sqlite3.Connection) -> int:
    """Another number after each change by another connection."""
    (version,) = db.execute("PRAGMA data_version").fetchone()
    return as_count(version)


def last_positions(db: sqlite3.Connection, sessions: Collection[str]) -> Mapping[str, int]:
    """The position of the newest entry of each session; sessions without entries are left out."""
    rows = db.execute(
        "SELECT value, (SELECT max(position) FROM entries WHERE session_id = value) "
        "FROM json_each(?)",
        (json.dumps(list(sessions)),),
    )
    return {session_id: as_count(position) for session_id, position in rows}


def adopt_entries(
    db: sqlite3.Connection,
    session_id: str,
    entries: Sequence[JournalEntry],
    bodies: Sequence[StoredBody],
    now: datetime,
) -> None:
    """Import the entries of a session, as `Journal.adopt` says."""
    with transaction(db):
        if last := last_positions(db, [session_id])[session_id]:
            raise session_exists(session_id, last)
        held = find_lease(db, session_id)
        if held is not None:
            refuse_if_active(held, session_id, None, None, now)
        for entry, body in zip(entries, bodies, strict=True):
            _insert_as_it_was(db, entry, body, now)
        last_lease = max(entries, key=lambda entry: entry.epoch)
        epoch = max(last_lease.epoch, held.epoch if held else 0)
        db.execute(
            "INSERT OR REPLACE INTO leases "
            "(session_id, run_id, worker_id, epoch, generation, deadline) VALUES (?,?,'',?,?,NULL)",
            (session_id, last_lease.run_id, epoch, last_lease.generation),
        )
        _make_anew(db, [session_id])


def _insert_as_it_was(
    db: sqlite3.Connection, entry: JournalEntry, body: StoredBody, now: datetime
) -> None:
    if body.digest is not None:
        put_blob(db, body.digest, body.packed, as_micros(now))
    row = (
        entry.session_id, entry.position, entry.run_id, entry.generation, entry.key, entry.kind,
        entry.state, body.text, body.digest, entry.epoch, as_micros(entry.at),
    )  # fmt: skip
    try:
        db.execute(INSERT, row)
    except sqlite3.IntegrityError as error:
        raise duplicate_error(db, entry, entry) from error


def remove_session(db: sqlite3.Connection, session_id: str, now: datetime) -> bool:
    """Remove a session, as `Journal.remove_session` says; False: there is none."""
    with transaction(db):
        held = find_lease(db, session_id)
        if held is not None:
            refuse_if_active(held, session_id, None, None, now)
        removed = db.execute("DELETE FROM entries WHERE session_id = ?", (session_id,)).rowcount
        # The row stays: epochs only grow.
        db.execute("UPDATE leases SET deadline = NULL WHERE session_id = ?", (session_id,))
        _make_anew(db, [session_id])
    return removed > 0


def _make_anew(db: sqlite3.Connection, session_ids: Collection[str]) -> None:
    """The rows of these sessions, of all their entries."""
    ids = json.dumps(list(session_ids))
    sqlite_rows.remove_rows(db, session_ids)
    query = EntriesQuery(LISTED_OF.format("SELECT value FROM json_each(?)"), (ids,))
    sqlite_rows.make_anew(db, read_entries(db, query))
    db.execute(
        "DELETE FROM changed_sessions WHERE session_id IN (SELECT value FROM json_each(?))", (ids,)
    )


def fold_damaged_rows(db: sqlite3.Connection) -> bool:
    """Make the rows of some sessions anew that somebody changed; whether there were any.

    All is done in SQL, by the numbers of the sessions: their ids may be damaged, too.
    """
    if sqlite_rows.changed_sessions(db) is None:
        return False
    with transaction(db):
        if (last := sqlite_rows.changed_sessions(db)) is None:
            return False
        some = "SELECT session_id FROM changed_sessions WHERE id <= ?"
        ids = [as_text(session_id) for (session_id,) in readable_rows(db, some, (last,))]
        sqlite_rows.remove_rows(db, ids)
        sqlite_rows.make_anew(db, read_entries(db, EntriesQuery(LISTED_OF.format(some), (last,))))
        sqlite_rows.forget_changed(db, last)
    return True


def mark_all_rows(db: sqlite3.Connection) -> None:
    """Mark the rows of all sessions, which are folded from the entries at the next look."""
    with transaction(db):
        db.execute("DELETE FROM runs")
        db.execute("DELETE FROM sessions")
        sqlite_rows.doubt_all(db)
