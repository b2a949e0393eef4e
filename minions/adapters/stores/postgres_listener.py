"""Who listens to what other workers store: one connection of its own while somebody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from minions.contracts.journal.entry_waiters import EntryWaiters
from minions.contracts.runtime import Sleep
from minions.data.errors import JournalError

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection
    from minions.adapters.stores.postgres_link import PostgresLink

__all__ = ["PostgresListener"]

_LOOK_EVERY_S: Final = 2.0
"""Also while it listens: a connection may be dead without a word."""
_LINGERS_S: Final = 60.0
"""Most who waited wait again: connecting each time would cost more than the waiting."""


class PostgresListener:
    """Tells a room of new facts, at once where the server tells of them."""

    def __init__(self, link: PostgresLink, *, sleep: Sleep = asyncio.sleep) -> None:
        """No I/O here."""
        self._link = link
        self._sleep = sleep

    async def listen(
        self,
        room: EntryWaiters,
        look: Callable[[Collection[str]], Awaitable[Mapping[str, int]]],
    ) -> None:
        """Until nobody has waited for a minute.

        Args:
            look: Gives the last positions of some sessions, by another connection.
        Raises:
            JournalError: The database is gone and does not come back.
        """
        idle_s = 0.0
        connection: Connection | None = None
        try:
            while idle_s < _LINGERS_S:
                if connection is None:
                    connection = await self._connected()
                if sessions := room.sessions():  # after the server was told: nothing is missed
                    room.tell_all(await look(sessions))
                idle_s = 0.0 if sessions else idle_s + _LOOK_EVERY_S
                if connection is None:
                    await self._sleep(_LOOK_EVERY_S)
                elif not await _heard(connection, room):
                    await connection.close()
                    connection = None
        finally:
            if connection is not None:
                await connection.close()

    async def _connected(self) -> Connection | None:
        """None where it cannot be had now: then it is looked instead."""
        import psycopg

        try:
            connection = await self._link.connect()
        except JournalError:
            return None
        try:
            await connection.execute("LISTEN minions_facts")
        except psycopg.Error:
            await connection.close()
            return None
        except BaseException:  # such as a cancellation: nobody waits any more
            await connection.close()
            raise
        return connection


async def _heard(connection: Connection, room: EntryWaiters) -> bool:
    """Whether the connection still stood at the end of a while of listening."""
    import psycopg

    try:
        async for notify in connection.notifies(timeout=_LOOK_EVERY_S):
            position, _, session_id = notify.payload.partition(" ")
            room.tell(session_id, int(position))
    except psycopg.Error:
        return False
    return True
