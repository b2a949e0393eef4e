"""Step cache and saved values in the journal's own SQLite file, each in its own table."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from minions.adapters.stores.memory_stores import (
    EVICTED_AT_ONCE,
    MAX_BYTES,
    MAX_ENTRIES,
    TOUCHED_AFTER,
    CacheBounds,
    EvictionSchedule,
    Now,
    StateStore,
    as_json,
    behind,
    utc_now,
)
from minions.contracts.runtime import Sleep
from minions.contracts.steps import CachedStep, StepCache

if TYPE_CHECKING:
    import sqlite3

    from minions.adapters.stores.sqlite_file import SqliteFile

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_Row: TypeAlias = tuple[str, str, str, int, int, int]
"""Key, output, run id, times of creation and use, size."""


class SqliteStepCache(StepCache):
    """Shared by the processes of one machine. Evicts the least recently used entries; each process
    may exceed the bounds by a sixteenth.

    SQLite is loaded and the file opened at the first use: most runs cache nothing.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        busy_timeout_s: float = 1.0,
        sleep: Sleep = asyncio.sleep,
        now: Now = utc_now,
    ) -> None:
        """No I/O here.

        Args:
            path: Of the journal's database.
            max_entries: The most entries that are kept.
            max_bytes: The most bytes that their outputs have, as JSON.
            busy_timeout_s: Of all calls together. Short: doing the step is better than waiting for
                a cache.
        """
        self.path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._sleep = sleep
        self._now = now
        self._bounds = CacheBounds(max_entries, max_bytes)
        self._evictions = EvictionSchedule(self._bounds)
        self._made: SqliteFile | None = None

    async def get(self, key: str) -> CachedStep | None:
        """As the contract says; once an hour at most it is written that the entry was used.

        Raises:
            JournalError: The file cannot be used, or stayed busy.
        """
        now = _as_micros(self._now())
        return await self._file.run(lambda db: _get(db, key, now), is_landmark=True)

    async def put(self, key: str, entry: CachedStep) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or stayed busy.
        """
        output = as_json(entry.output)
        size = len(output)
        if not self._bounds.has_room_for(size):
            await self._file.run(lambda db: _delete(db, key), is_landmark=True)
            return
        created_at, used_at = _as_micros(entry.created_at), _as_micros(self._now())
        row: _Row = (key, output, entry.run_id, created_at, used_at, size)
        bounds = self._bounds if self._evictions.is_due(size) else None
        await self._file.run(lambda db: _put(db, row, bounds), is_landmark=True)

    async def forget_runs(self, run_ids: Collection[str]) -> int:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or stayed busy.
        """
        ids = list(run_ids)
        return await self._file.run(lambda db: _forget_runs(db, ids), is_landmark=True)

    async def clear(self) -> int:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or stayed busy.
        """
        return await self._file.run(
            lambda db: db.execute("DELETE FROM step_cache").rowcount, is_landmark=True
        )

    async def aclose(self) -> None:
        """Close the file, if it was opened."""
        if self._made is not None:
            self._made.close()

    @property
    def _file(self) -> SqliteFile:
        if self._made is None:
            from minions.adapters.stores.sqlite_file import SqliteFile

            self._made = SqliteFile(
                self.path, busy_timeout_s=self._busy_timeout_s, sleep=self._sleep
            )
        return self._made


def _get(db: sqlite3.Connection, key: str, now: int) -> CachedStep | None:
    row = db.execute(
        "SELECT output, run_id, created_at, used_at FROM step_cache WHERE key = ?", (key,)
    ).fetchone()
    if row is None:
        return None
    *stored, used_at = row
    entry = _entry(*stored)
    if not isinstance(used_at, int) or now - used_at >= TOUCHED_AFTER // _MICROSECOND:
        _touch(db, key, now)
    return entry


def _touch(db: sqlite3.Connection, key: str, now: int) -> None:
    """Left to a later hit where the file cannot be written just now."""
    import sqlite3

    with contextlib.suppress(sqlite3.OperationalError):
        db.execute("UPDATE step_cache SET used_at = ? WHERE key = ?", (now, key))


def _put(db: sqlite3.Connection, row: _Row, bounds: CacheBounds | None) -> None:
    """Evict thereafter, if there are bounds, in the same transaction."""
    from minions.adapters.stores.sqlite_database import transaction

    if bounds is None:
        db.execute(_PUT, row)
        return
    with transaction(db):
        db.execute(_PUT, row)
        _evict(db, bounds)


_PUT: Final = (
    "INSERT INTO step_cache (key, output, run_id, created_at, used_at, size) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET output = excluded.output, "
    "run_id = excluded.run_id, created_at = excluded.created_at, used_at = excluded.used_at, "
    "size = excluded.size"
)


def _evict(db: sqlite3.Connection, bounds: CacheBounds) -> None:
    entries, size = db.execute("SELECT count(*), coalesce(sum(size), 0) FROM step_cache").fetchone()
    if bounds.hold(entries, size):
        return
    db.execute(_EVICT, (EVICTED_AT_ONCE, entries - bounds.max_entries, size - bounds.max_bytes))


_EVICT: Final = """
DELETE FROM step_cache WHERE rowid IN (
    SELECT id FROM (
        SELECT id, row_number() OVER earlier AS number, sum(size) OVER earlier - size AS freed
        FROM (
            SELECT rowid AS id, used_at, size FROM step_cache ORDER BY used_at, rowid LIMIT ?
        ) WINDOW earlier AS (ORDER BY used_at, id ROWS UNBOUNDED PRECEDING)
    ) WHERE number <= ? OR freed < ?
)"""


def _delete(db: sqlite3.Connection, key: str) -> None:
    db.execute("DELETE FROM step_cache WHERE key = ?", (key,))


def _forget_runs(db: sqlite3.Connection, run_ids: Sequence[str]) -> int:
    db.execute("PRAGMA secure_delete = ON")  # what was removed is overwritten
    sql = "DELETE FROM step_cache WHERE run_id IN (SELECT value FROM json_each(?))"
    return db.execute(sql, (json.dumps(run_ids),)).rowcount


def _as_micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _entry(output: object, run_id: object, at: object) -> CachedStep:
    if not (isinstance(output, str) and isinstance(run_id, str) and isinstance(at, int)):
        raise _damage("a value in its step cache is of another type")
    try:
        value = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise _damage("an output in its step cache is no JSON") from error
    try:
        created_at = _EPOCH + at * _MICROSECOND
    except OverflowError as error:
        raise _damage("a time in its step cache is none") from error
    return CachedStep(output=value, run_id=run_id, created_at=created_at)


def _damage(what: str) -> Exception:
    from minions.adapters.stores.sqlite_file import DamageError

    return DamageError(what)


# --- state in the journal's own SQLite file, in a table of its own -------------------------------


class SqliteState(StateStore):
    """Survives `kill -9`; shared by the processes of one machine.

    SQLite is loaded and the file opened at the first use: most runs keep no state.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        busy_timeout_s: float = 30.0,
        sleep: Sleep = asyncio.sleep,
        migrations: Mapping[str, str] | None = None,
    ) -> None:
        """No I/O here; the arguments are those of `SqliteJournal`."""
        self.path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._sleep = sleep
        self._migrations = migrations
        self._made: SqliteFile | None = None

    async def put(self, key: str, text: str) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or the key has half a character.
        """
        await self._file.run(lambda db: _put_value(db, key, text), is_landmark=True)

    async def get(self, key: str) -> str | None:
        """As the contract says.

        Raises:
            JournalError: The file cannot be used, or the key has half a character.
        """
        return await self._file.run(lambda db: _get_value(db, key), is_landmark=True)

    async def keys(self, start: str = "") -> Sequence[str]:
        """In the order of their code points.

        Raises:
            JournalError: The file cannot be used.
        """
        return await self._file.run(lambda db: _keys(db, start), is_landmark=True)

    async def remove(self, key: str) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or the key has half a character.
        """
        await self._file.run(lambda db: _remove(db, key), is_landmark=True)

    async def replace(self, key: str, known: str | None, text: str) -> bool:
        """Committed when this returns; the database compares.

        Raises:
            JournalError: The file cannot be used, or the key has half a character.
        """
        return await self._file.run(lambda db: _replace(db, key, known, text), is_landmark=True)

    async def aclose(self) -> None:
        """Close the file, if it was opened."""
        if self._made is not None:
            self._made.close()

    @property
    def _file(self) -> SqliteFile:
        if self._made is None:
            from minions.adapters.stores.sqlite_file import SqliteFile

            self._made = SqliteFile(
                self.path,
                busy_timeout_s=self._busy_timeout_s,
                sleep=self._sleep,
                migrations=self._migrations,
            )
        return self._made


def _put_value(db: sqlite3.Connection, key: str, text: str) -> None:
    db.execute(
        "INSERT INTO state (key, value) VALUES (?, ?) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, text),
    )


def _get_value(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    return None if row is None else _text(row[0])


def _replace(db: sqlite3.Connection, key: str, known: str | None, text: str) -> bool:
    if known is None:
        done = db.execute("INSERT OR IGNORE INTO state (key, value) VALUES (?, ?)", (key, text))
    else:
        changed = "UPDATE state SET value = ? WHERE key = ? AND value = ?"
        done = db.execute(changed, (text, key, known))
    return done.rowcount == 1


def _remove(db: sqlite3.Connection, key: str) -> None:
    db.execute("DELETE FROM state WHERE key = ?", (key,))


def _keys(db: sqlite3.Connection, start: str) -> Sequence[str]:
    if not start:
        found = db.execute("SELECT key FROM state ORDER BY key")
    else:
        found = db.execute(
            "SELECT key FROM state WHERE key >= ? AND key < ? ORDER BY key", (start, behind(start))
        )
    return [_text(key) for (key,) in found]


def _text(stored: object) -> str:
    if not isinstance(stored, str):
        from minions.adapters.stores.sqlite_file import DamageError

        raise DamageError("a key or value of its state is no text")
    return stored
