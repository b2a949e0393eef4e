"""One PostgreSQL database in use: connected at its first use, taken up again when it was lost.

What is stored in it is not known here; how it is connected and migrated is in `postgres_database`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from attrs import field, frozen, mutable

from minions.adapters.stores.postgres_database import (
    bundled_migrations,
    connect,
    damaged,
    is_connection_lost,
    journal_error,
    require_psycopg,
)
from minions.adapters.stores.postgres_url import without_password
from minions.contracts.runtime import Sleep
from minions.data.errors import JournalError

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection


T = TypeVar("T")

_LONGEST_PAUSE_S: Final = 0.5
_GRACE_S: Final = 5.0
"""How much longer than the server we wait for its word that it gave a statement up."""


class DamageError(Exception):
    """A row holds what was never written to it; the text says what."""


@frozen
class Attempt:
    """What a piece of work gets to work with."""

    connection: Connection
    is_again: bool
    """Whether the connection was lost during an earlier attempt; it may have been carried out."""


Work: TypeAlias = Callable[[Attempt], Awaitable[T]]


@mutable
class _LoopConnection:
    """The connection of one event loop."""

    lock: asyncio.Lock = field(factory=asyncio.Lock)
    connection: Connection | None = None


class PostgresLink:
    """One connection per event loop; work is done in the order in which it came."""

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
        """No I/O here, and psycopg is not loaded.

        Args:
            url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=…`, as libpq reads it.
            connect_timeout_s: For a server that does not answer; `connect_timeout` in it wins.
            statement_timeout_s: How long a statement may wait for other connections.
            reconnect_within_s: How long a server that went away may take to come back.
            migrations: SQL by name, oldest first; None: those of this package.
        """
        self.url = url
        self._connect_timeout_s = connect_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._reconnect_within_s = reconnect_within_s
        self._sleep = sleep
        self._migrations = migrations
        self._seats: dict[asyncio.AbstractEventLoop, _LoopConnection] = {}
        self._guard = threading.Lock()  # of the seats: loops may run in several threads

    async def aclose(self) -> None:
        """Close what this event loop has open; a later call connects again."""
        self._clear_empty_seats()
        with self._guard:
            seat = self._seats.pop(asyncio.get_running_loop(), None)
        if seat is not None and seat.connection is not None:
            await seat.connection.close()

    async def run(self, work: Work[T]) -> T:
        """`work`, and once more over a new connection where the old one was lost.

        Once begun it is carried through: a cancellation arrives at the caller's next `await`, as
        with a journal that does not wait for anybody.

        Raises:
            JournalError: The database cannot be used, or went away and did not come back.
        """
        return await carried_through(asyncio.create_task(self.in_turn(work)))

    async def in_turn(self, work: Work[T]) -> T:
        """As `run`, for a task of its own that nobody cancels before its end.

        Raises:
            JournalError: The database cannot be used, or went away and did not come back.
        """
        seat = self._seat()
        async with seat.lock:
            try:
                return await self._attempt(seat, work)
            except DamageError as error:
                raise damaged(self.url, str(error)) from error
            except UnicodeEncodeError as error:
                raise self._bad_text(repr(error.object), error.reason) from error

    async def _attempt(self, seat: _LoopConnection, work: Work[T]) -> T:
        require_psycopg()
        import psycopg

        is_again = False
        while True:
            connection = seat.connection = await self._connected(seat, is_again=is_again)
            try:
                async with asyncio.timeout(self._statement_timeout_s + _GRACE_S):
                    return await work(Attempt(connection, is_again))
            except TimeoutError as error:
                await self._drop(seat)
                raise self._lost("it gives no answer") from error
            except psycopg.Error as error:
                if isinstance(error, psycopg.DataError) and "NUL" in str(error):
                    raise self._bad_text("an id or key", str(error)) from error
                if not (connection.closed or is_connection_lost(error)):
                    raise journal_error(self.url, error) from error
                await self._drop(seat)
                if is_again:
                    raise self._lost(str(error).strip().partition("\n")[0]) from error
            is_again = True

    async def _connected(self, seat: _LoopConnection, *, is_again: bool) -> Connection:
        if seat.connection is not None:
            return seat.connection
        if not is_again:
            return await self.connect()
        last: JournalError | None = None
        for pause_s in _pauses(self._reconnect_within_s):
            await self._sleep(pause_s)
            try:
                return await self.connect()
            except JournalError as error:
                if error.error_code != "database-unreachable":
                    raise
                last = error
        raise self._lost(f"it does not come back within {self._reconnect_within_s:g} s") from last

    async def beside(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """`work` that may take long, over a connection of its own: nobody waits for its end.

        Raises:
            JournalError: The database cannot be used, or went away: it is not begun again.
        """
        require_psycopg()
        import psycopg

        connection = await self.connect()
        try:
            return await work(connection)
        except DamageError as error:
            raise damaged(self.url, str(error)) from error
        except psycopg.Error as error:
            if connection.closed or is_connection_lost(error):
                raise self._lost(str(error).strip().partition("\n")[0]) from error
            raise journal_error(self.url, error) from error
        finally:
            await connection.close()

    async def connect(self) -> Connection:
        """One more connection, which is the caller's to close.

        Raises:
            JournalError: It cannot be had.
        """
        return await connect(
            self.url,
            self._migrations or bundled_migrations(),
            connect_timeout_s=self._connect_timeout_s,
            statement_timeout_s=self._statement_timeout_s,
        )

    async def _drop(self, seat: _LoopConnection) -> None:
        if seat.connection is not None:
            await seat.connection.close()
            seat.connection = None

    def _seat(self) -> _LoopConnection:
        self._clear_empty_seats()
        with self._guard:
            return self._seats.setdefault(asyncio.get_running_loop(), _LoopConnection())

    def _clear_empty_seats(self) -> None:
        """Those of loops that have ended; nobody else can close their connections any more."""
        with self._guard:
            for loop in [loop for loop in self._seats if loop.is_closed()]:
                seat = self._seats.pop(loop)
                if seat.connection is not None:
                    seat.connection.pgconn.finish()

    def _lost(self, what: str) -> JournalError:
        shown = without_password(self.url)
        return JournalError(
            f"The connection to the journal {shown} was lost: {what}. Whether the last fact was "
            "stored is not known here; the journal knows. Resume the run when the server is back: "
            "what was stored is not done again.",
            code="database-lost",
            where=shown,
        )

    def _bad_text(self, what: str, reason: str) -> JournalError:
        shown = without_password(self.url)
        return JournalError(
            f"A name of {what} cannot be stored in {shown}: {reason}. Keys and ids are plain "
            "Unicode text without NUL; odd text belongs in the body.",
            code="bad-text",
        )


def _pauses(total_s: float) -> Iterator[float]:
    """Short ones first; they add up to about `total_s`."""
    spent = 0.0
    for attempt in itertools.count(1):
        pause_s = min(_LONGEST_PAUSE_S, 0.02 * attempt)
        spent += pause_s
        if spent > total_s:
            return
        yield pause_s


async def carried_through(outcome: asyncio.Future[T]) -> T:
    """The outcome; a cancellation of the caller is held back until it is there.

    It arrives at the caller's next `await`.
    """
    me = asyncio.current_task()
    is_cancelled = False
    while not outcome.done():
        try:
            await asyncio.wait((outcome,))
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled and me is not None:
        asyncio.get_running_loop().call_soon(_cancel_again, me)
    return outcome.result()


def _cancel_again(task: asyncio.Task[object]) -> None:
    """Unless whoever wanted it has taken it back meanwhile: a timeout whose block was left."""
    if task.cancelling():
        task.uncancel()
        task.cancel()
