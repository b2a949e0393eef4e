"""State in the journal's own PostgreSQL database, in a table of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minions.adapters.stores.state_store import StateStore, behind
from minions.contracts.runtime import Sleep

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection
    from minions.adapters.stores.postgres_link import PostgresLink


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
    ) -> None:
        """No I/O here; the arguments are those of `PostgresJournal`."""
        self.url = url
        self._connect_timeout_s = connect_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._reconnect_within_s = reconnect_within_s
        self._sleep = sleep
        self._migrations = migrations
        self._made: PostgresLink | None = None

    async def put(self, key: str, text: str) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The database cannot be used, or the key has half a character.
        """
        await self._link.run(lambda attempt: _put(attempt.connection, key.encode(), text))

    async def get(self, key: str) -> str | None:
        """As the contract says.

        Raises:
            JournalError: The database cannot be used, or the key has half a character.
        """
        return await self._link.run(lambda attempt: _get(attempt.connection, key.encode()))

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
                migrations=self._migrations,
            )
        return self._made


async def _put(db: Connection, key: bytes, text: str) -> None:
    await db.execute(
        "INSERT INTO minions.state (key, value) VALUES (%s, %s) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        [key, text.encode()],
    )


async def _get(db: Connection, key: bytes) -> str | None:
    found = await db.execute("SELECT value FROM minions.state WHERE key = %s", [key], binary=True)
    row = await found.fetchone()
    return None if row is None else _text(row[0])


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
