"""Step cache and saved values in the journal's own PostgreSQL database, each in its own table."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

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
from minions.data.json_values import JsonValue

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection
    from minions.adapters.stores.postgres_link import Attempt, PostgresLink

_EVICTION_LOCK: Final = 5_506_021_906_420_777_552
"""An advisory lock of the database: its holder alone evicts, so that nobody waits in a circle."""


class PostgresStepCache(StepCache):
    """Shared by the workers of many machines. Evicts the least recently used entries; each worker
    may exceed the bounds by a sixteenth.

    Connected at the first use: most runs cache nothing.
    """

    def __init__(
        self,
        url: str,
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        connect_timeout_s: float = 4.0,
        statement_timeout_s: float = 1.0,
        reconnect_within_s: float = 1.0,
        sleep: Sleep = asyncio.sleep,
        now: Now = utc_now,
    ) -> None:
        """No I/O here.

        Args:
            url: Of the journal's database.
            max_entries: The most entries that are kept.
            max_bytes: The most bytes that their outputs have, as JSON.
            connect_timeout_s: As of `PostgresJournal`.
            statement_timeout_s: Short: doing the step is better than waiting for a cache.
            reconnect_within_s: Likewise.
        """
        self.url = url
        self._connect_timeout_s = connect_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._reconnect_within_s = reconnect_within_s
        self._sleep = sleep
        self._now = now
        self._bounds = CacheBounds(max_entries, max_bytes)
        self._evictions = EvictionSchedule(self._bounds)
        self._made: PostgresLink | None = None

    async def get(self, key: str) -> CachedStep | None:
        """As the contract says; once an hour at most it is written that the entry was used.

        Raises:
            JournalError: The database cannot be used, or stayed busy.
        """
        now = self._now()
        return await self._link.run(lambda attempt: _get(attempt.connection, key, now))

    async def put(self, key: str, entry: CachedStep) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The database cannot be used, or stayed busy.
        """
        output, now = as_json(entry.output).encode(), self._now()
        if not self._bounds.has_room_for(len(output)):
            await self._link.run(lambda attempt: _delete(attempt.connection, key))
            return
        row = (key, output, entry.run_id, entry.created_at, now, len(output))
        bounds = self._bounds if self._evictions.is_due(len(output)) else None
        await self._link.run(lambda attempt: _put(attempt.connection, row, bounds))

    async def forget_runs(self, run_ids: Collection[str]) -> int:
        """Committed when this returns.

        Raises:
            JournalError: The database cannot be used, or stayed busy.
        """
        ids = list(run_ids)

        async def forget(attempt: Attempt) -> int:
            sql = "DELETE FROM minions.step_cache WHERE run_id = ANY(%s)"
            return (await attempt.connection.execute(sql, [ids])).rowcount

        return await self._link.run(forget)

    async def clear(self) -> int:
        """Committed when this returns.

        Raises:
            JournalError: The database cannot be used, or stayed busy.
        """
        return await self._link.run(lambda attempt: _clear(attempt.connection))

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._made is not None:
            await self._made.aclose()

    @property
    def _link(self) -> PostgresLink:
        if self._made is None:
            from minions.adapters.stores.postgres_link import PostgresLink

            self._made = PostgresLink(
                self.url,
                connect_timeout_s=self._connect_timeout_s,
                statement_timeout_s=self._statement_timeout_s,
                reconnect_within_s=self._reconnect_within_s,
                sleep=self._sleep,
            )
        return self._made


async def _get(db: Connection, key: str, now: datetime) -> CachedStep | None:
    found = await db.execute(
        "SELECT output, run_id, created_at, used_at FROM minions.step_cache WHERE key = %s",
        [key],
        binary=True,
    )
    row = await found.fetchone()
    if row is None:
        return None
    output, run_id, created_at, used_at = row
    entry = CachedStep(output=_value(output), run_id=run_id, created_at=created_at.astimezone(UTC))
    if now - used_at >= TOUCHED_AFTER:
        await _touch(db, key, now)
    return entry


async def _touch(db: Connection, key: str, now: datetime) -> None:
    """Left to a later hit where another connection has the row, or nothing can be written."""
    import psycopg

    with contextlib.suppress(psycopg.Error):
        await db.execute(
            "UPDATE minions.step_cache SET used_at = %s WHERE key = "
            "(SELECT key FROM minions.step_cache WHERE key = %s FOR UPDATE SKIP LOCKED)",
            [now, key],
        )


async def _put(
    db: Connection,
    row: tuple[str, bytes, str, datetime, datetime, int],
    bounds: CacheBounds | None,
) -> None:
    """Evict thereafter, if there are bounds, in the same transaction."""
    if bounds is None:
        await db.execute(_PUT, row)
        return
    async with db.transaction():
        await db.execute(_PUT, row)
        await _evict(db, bounds)


_PUT: Final = (
    "INSERT INTO minions.step_cache (key, output, run_id, created_at, used_at, size) "
    "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (key) DO UPDATE SET output = excluded.output, "
    "run_id = excluded.run_id, created_at = excluded.created_at, used_at = excluded.used_at, "
    "size = excluded.size"
)


async def _evict(db: Connection, bounds: CacheBounds) -> None:
    found = await db.execute("SELECT pg_try_advisory_xact_lock(%s)", [_EVICTION_LOCK])
    if await found.fetchone() != (True,):
        return  # another worker evicts just now
    found = await db.execute(
        "SELECT count(*), coalesce(sum(size), 0)::bigint FROM minions.step_cache"
    )
    entries, size = await found.fetchone() or (0, 0)
    if not bounds.hold(entries, size):
        surplus = [entries - bounds.max_entries, size - bounds.max_bytes]
        await db.execute(_EVICT, [EVICTED_AT_ONCE, *surplus])


_EVICT: Final = """
DELETE FROM minions.step_cache WHERE key IN (
    SELECT key FROM (
        SELECT key, row_number() OVER earlier AS number, sum(size) OVER earlier - size AS freed
        FROM (
            SELECT key, used_at, size FROM minions.step_cache ORDER BY used_at, key LIMIT %s
        ) AS oldest WINDOW earlier AS (ORDER BY used_at, key ROWS UNBOUNDED PRECEDING)
    ) AS entries WHERE number <= %s OR freed < %s
)"""


async def _delete(db: Connection, key: str) -> None:
    await db.execute("DELETE FROM minions.step_cache WHERE key = %s", [key])


async def _clear(db: Connection) -> int:
    return (await db.execute("DELETE FROM minions.step_cache")).rowcount


def _value(stored: bytes) -> JsonValue:
    try:
        value: JsonValue = json.loads(stored)
    except (ValueError, RecursionError) as error:
        from minions.adapters.stores.postgres_link import DamageError

        raise DamageError("an output in its step cache is no JSON") from error
    return value


# --- state in the journal's own PostgreSQL database, in a table of its own -----------------------


class PostgresState(StateStore):
    """Shared by the workers of many machines; connected at the first use: most runs keep none."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = 4.0,
        statement_timeout_s: float = 30.0,
        reconnect_within_s: float = 30.0,
        sleep: Sleep = asyncio.sleep,
        migrations: Mapping[str, str] | None = None,
        link: PostgresLink | None = None,
    ) -> None:
        """No I/O here; the arguments are those of `PostgresJournal`.

        Args:
            link: The connection of another store, which closes it; None: one of its own.
        """
        self.url = url
        self._connect_timeout_s = connect_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._reconnect_within_s = reconnect_within_s
        self._sleep = sleep
        self._migrations = migrations
        self._is_own = link is None
        self._made = link

    async def put(self, key: str, text: str) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The database cannot be used, or the key has half a character.
        """
        await self._link.run(lambda attempt: _put_value(attempt.connection, key.encode(), text))

    async def get(self, key: str) -> str | None:
        """As the contract says.

        Raises:
            JournalError: The database cannot be used, or the key has half a character.
        """
        return await self._link.run(lambda attempt: _get_value(attempt.connection, key.encode()))

    async def keys(self, start: str = "") -> Sequence[str]:
        """In the order of their code points.

        Raises:
            JournalError: The database cannot be used.
        """
        return await self._link.run(lambda attempt: _keys(attempt.connection, start))

    async def remove(self, key: str) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The database cannot be used, or the key has half a character.
        """
        await self._link.run(lambda attempt: _remove(attempt.connection, key.encode()))

    async def replace(self, key: str, known: str | None, text: str) -> bool:
        """Committed when this returns; the database compares.

        Raises:
            JournalError: The database cannot be used, or the key has half a character.
        """
        return await self._link.run(
            lambda attempt: _replace(attempt.connection, key.encode(), known, text)
        )

    async def aclose(self) -> None:
        """Close the connection, if there is one of its own."""
        if self._made is not None and self._is_own:
            await self._made.aclose()

    @property
    def _link(self) -> PostgresLink:
        if self._made is None:
            from minions.adapters.stores.postgres_link import PostgresLink

            self._made = PostgresLink(
                self.url,
                connect_timeout_s=self._connect_timeout_s,
                statement_timeout_s=self._statement_timeout_s,
                reconnect_within_s=self._reconnect_within_s,
                sleep=self._sleep,
                migrations=self._migrations,
            )
        return self._made


async def _put_value(db: Connection, key: bytes, text: str) -> None:
    await db.execute(
        "INSERT INTO minions.state (key, value) VALUES (%s, %s) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        [key, text.encode()],
    )


async def _get_value(db: Connection, key: bytes) -> str | None:
    found = await db.execute("SELECT value FROM minions.state WHERE key = %s", [key], binary=True)
    row = await found.fetchone()
    return None if row is None else _text(row[0])


async def _replace(db: Connection, key: bytes, known: str | None, text: str) -> bool:
    if known is None:
        done = await db.execute(
            "INSERT INTO minions.state (key, value) VALUES (%s, %s) ON CONFLICT (key) DO NOTHING",
            [key, text.encode()],
        )
    else:
        done = await db.execute(
            "UPDATE minions.state SET value = %s WHERE key = %s AND value = %s",
            [text.encode(), key, known.encode()],
        )
    return done.rowcount == 1


async def _remove(db: Connection, key: bytes) -> None:
    await db.execute("DELETE FROM minions.state WHERE key = %s", [key])


async def _keys(db: Connection, start: str) -> Sequence[str]:
    if not start:
        found = await db.execute("SELECT key FROM minions.state ORDER BY key", binary=True)
    else:
        found = await db.execute(
            "SELECT key FROM minions.state WHERE key >= %s AND key < %s ORDER BY key",
            [start.encode(), behind(start).encode()],
            binary=True,
        )
    return [_text(key) for (key,) in await found.fetchall()]


def _text(stored: bytes) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        from minions.adapters.stores.postgres_link import DamageError

        raise DamageError("a key or value of its state is no text") from error
