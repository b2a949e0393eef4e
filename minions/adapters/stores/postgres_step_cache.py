"""The step cache in the journal's own PostgreSQL database, in a table of its own."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC
from typing import TYPE_CHECKING

from minions.contracts.json_values import JsonValue
from minions.contracts.runtime import Sleep
from minions.contracts.step_cache import CachedStep, StepCache

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection
    from minions.adapters.stores.postgres_link import PostgresLink

__all__ = ["PostgresStepCache"]


class PostgresStepCache(StepCache):
    """Shared by the workers of many machines; forgets nothing by itself.

    Connected at the first use: most runs cache nothing.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = 4.0,
        statement_timeout_s: float = 1.0,
        reconnect_within_s: float = 1.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """No I/O here.

        Args:
            url: Of the journal's database.
            connect_timeout_s: As of `PostgresJournal`.
            statement_timeout_s: Short: doing the step is better than waiting for a cache.
            reconnect_within_s: Likewise.
        """
        self.url = url
        self._connect_timeout_s = connect_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._reconnect_within_s = reconnect_within_s
        self._sleep = sleep
        self._made: PostgresLink | None = None

    async def get(self, key: str) -> CachedStep | None:
        """As the contract says.

        Raises:
            JournalError: The database cannot be used, or stayed busy.
        """
        return await self._link.run(lambda attempt: _get(attempt.connection, key))

    async def put(self, key: str, entry: CachedStep) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The database cannot be used, or stayed busy.
        """
        await self._link.run(lambda attempt: _put(attempt.connection, key, entry))

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


async def _get(db: Connection, key: str) -> CachedStep | None:
    found = await db.execute(
        "SELECT output, run_id, created_at FROM minions.step_cache WHERE key = %s",
        [key],
        binary=True,
    )
    row = await found.fetchone()
    if row is None:
        return None
    output, run_id, created_at = row
    return CachedStep(output=_value(output), run_id=run_id, created_at=created_at.astimezone(UTC))


async def _put(db: Connection, key: str, entry: CachedStep) -> None:
    await db.execute(
        "INSERT INTO minions.step_cache (key, output, run_id, created_at) "
        "VALUES (%s, %s, %s, %s) ON CONFLICT (key) DO UPDATE SET output = excluded.output, "
        "run_id = excluded.run_id, created_at = excluded.created_at",
        [key, json.dumps(entry.output).encode(), entry.run_id, entry.created_at],
    )


async def _clear(db: Connection) -> int:
    return (await db.execute("DELETE FROM minions.step_cache")).rowcount


def _value(stored: bytes) -> JsonValue:
    try:
        value: JsonValue = json.loads(stored)
    except ValueError as error:
        from minions.adapters.stores.postgres_link import DamageError

        raise DamageError("an output in its step cache is no JSON") from error
    return value
