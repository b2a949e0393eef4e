"""Lists of a PostgreSQL journal, read from a standby of its server that is up to date."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from attrs import field, frozen

from minions.adapters.stores import postgres_rows
from minions.adapters.stores.body_cipher import BodyCipher
from minions.adapters.stores.postgres_database import damaged
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.postgres_link import Attempt
from minions.adapters.stores.postgres_url import without_password
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import Clock
from minions.data.errors import EnvironmentRefusedError, JournalError

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection

T = TypeVar("T")

_WAITED_S: Final = 0.5
"""How long a list waits for the standby; usually it has everything within milliseconds."""
_LONGEST_PAUSE_S: Final = 0.05
_UNUSED_S: Final = 10.0
"""How long a standby that could not be used is not asked again."""


@frozen(kw_only=True)
class Replica:
    """A standby of the journal's server."""

    url: str = field(repr=False)
    tell: Callable[[str], None]
    """Called with a line when it cannot be used, and when it can be used again."""


class _Mark(NamedTuple):
    """A state of the primary."""

    position: str
    """Behind everything that was committed then, in the server's log."""
    system: int
    """Which cluster it is; its standbys have the same."""


@frozen(kw_only=True)
class ReplicaLag:
    """How far a standby is behind its primary."""

    log_bytes: int | None
    """Of the primary's log that it has not replayed; None: the primary does not say how far it is
    itself."""
    newest_s: float | None
    """Seconds since the newest change that it has was committed; None: it has none."""


class ReplicatedJournal(PostgresJournal):
    """Lists are read from a standby once that has all that was committed when they were asked for;
    everything else, and lists that it cannot give in time, from the primary.
    """

    def __init__(
        self, url: str, clock: Clock, replica: Replica, *, cipher: BodyCipher | None = None
    ) -> None:
        """No I/O here, and psycopg is not loaded."""
        super().__init__(url, clock, cipher=cipher)
        self._replica = replica
        self._standby = _Standby(
            replica.url, clock, cipher=cipher, connect_timeout_s=2.0, reconnect_within_s=0.0
        )
        self._unused_until: datetime | None = None
        """None: it could be used the last time."""

    async def read_lists(self, read: Callable[[Journal], Awaitable[T]]) -> T:
        """Waits half a second at most for the standby."""
        if self._unused_until is not None and self._clock.now() < self._unused_until:
            return await read(self)
        mark = await self._looked_up(_read_mark)  # rows that are missing are made first
        try:
            await self._wait_for(mark)
            found = await read(self._standby)
        except JournalError as error:
            if self._unused_until is None:
                self._replica.tell(f"{error.message} Lists are read from {self._shown} meanwhile.")
            self._unused_until = self._clock.now() + timedelta(seconds=_UNUSED_S)
            return await read(self)
        if self._unused_until is not None:
            self._unused_until = None
            self._replica.tell(f"Lists are read from {self._standby.shown} again.")
        return found

    async def lag(self) -> ReplicaLag:
        """How far the standby is behind what was committed just now, after half a second at most.

        Raises:
            JournalError: The standby cannot be used: `database-unreachable`, `not-a-replica`.
        """
        try:
            mark = await self._looked_up(_read_mark)
        except (EnvironmentRefusedError, JournalError):
            return await self._standby.lag(None)
        with contextlib.suppress(_BehindError):
            await self._wait_for(mark)
        return await self._standby.lag(mark)

    @property
    def _shown(self) -> str:
        return without_password(self.url)

    async def _wait_for(self, mark: _Mark) -> None:
        """Return when the standby has that state.

        Raises:
            _BehindError: `replica-behind`; it does not have it in time.
            JournalError: `not-a-replica`; it never will.
        """
        waited_s, pause_s = 0.0, 0.002
        while not await self._standby.has(mark, self._shown):
            if waited_s >= _WAITED_S:
                raise _BehindError(
                    f"The replica {self._standby.shown} is behind: within {_WAITED_S:g} s it did "
                    "not have what the primary had. Look at pg_stat_replication there.",
                    code="replica-behind",
                )
            await self._sleep(pause_s)
            waited_s += pause_s
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def aclose(self) -> None:
        """Close the connections to both; a later call connects again."""
        await self._standby.aclose()
        await super().aclose()


class _BehindError(JournalError):
    """The standby is behind."""


class _Standby(PostgresJournal):
    """The journal as a standby has it; nothing can be stored there."""

    @property
    def shown(self) -> str:
        """Its URL without a password."""
        return without_password(self.url)

    async def has(self, mark: _Mark, primary: str) -> bool:
        """Whether everything up to that mark is visible here.

        Raises:
            JournalError: `not-a-replica`; it is no standby of the server with the mark.
        """

        async def look(attempt: Attempt) -> bool:
            found = await attempt.connection.execute(_REPLAYED, [mark.position])
            system, has_all = await found.fetchone() or (None, None)
            if system != mark.system or has_all is None:
                raise JournalError(
                    f"{self.shown} is no standby of {primary}. Name one that streams from it as "
                    "`replica` of `[journal]`, or none.",
                    code="not-a-replica",
                )
            return bool(has_all)

        return await self._link.run(look)

    async def lag(self, mark: _Mark | None) -> ReplicaLag:
        """How far it is behind that mark; None: it is not known.

        Raises:
            JournalError: It cannot be reached.
        """

        async def look(attempt: Attempt) -> ReplicaLag:
            found = await attempt.connection.execute(
                _LAG, [None if mark is None else mark.position]
            )
            behind, newest_s = await found.fetchone() or (None, None)
            return ReplicaLag(
                log_bytes=None if behind is None else max(0, int(behind)),
                newest_s=None if newest_s is None else float(newest_s),
            )

        return await self._link.run(look)

    async def _looked_up(self, look: Callable[[Connection], Awaitable[T]]) -> T:
        """The primary has made the rows that were missing."""
        try:
            return await self._link.run(lambda attempt: look(attempt.connection))
        except postgres_rows.DamagedRowsError as error:
            raise damaged(self.url, "rows of runs cannot be read") from error


async def _read_mark(db: Connection) -> _Mark:
    found = await db.execute(_COMMITTED)
    position, system = await found.fetchone() or ("0/0", 0)
    return _Mark(position, system)


_COMMITTED: Final = (
    "SELECT pg_current_wal_flush_lsn()::text, system_identifier FROM pg_control_system()"
)
_REPLAYED: Final = """
SELECT system_identifier, CASE WHEN pg_is_in_recovery()
    THEN coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false) END
FROM pg_control_system()
"""
_LAG: Final = """
SELECT pg_wal_lsn_diff(%s::pg_lsn, pg_last_wal_replay_lsn()),
    extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())
"""
