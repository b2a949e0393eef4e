"""Follows the pieces of answers of runs that other processes execute, as far as they offer them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from minions.adapters.dispatch.delta_reader import Piece, StreamLostError, read_pieces
from minions.app.settings.settings import Settings
from minions.app.wiring.databases import postgres_of
from minions.contracts.journal.journal import Journal, Lease
from minions.contracts.run_events import StepDeltaEvent
from minions.contracts.runtime import Log
from minions.contracts.secrets import SecretRef, SecretSource
from minions.data.errors import UsageError, words_of
from minions.engine.views.run_states import read_leases

NoteStored: TypeAlias = Callable[[int | None, str | None], None]
"""Called after each stored event was told: with its position, and the address of its step."""
_PAUSE_S: Final = 1.0
"""Seconds between two looks for the worker of a session, at the least."""
_LONGER_PAUSE_S: Final = 10.0
"""After a stream that was lost."""


class RemoteDeltas:
    """Finds the worker that executes a run, and reads its stream.

    Whatever goes wrong there costs pieces alone: what is stored is told in another way.
    """

    def __init__(
        self,
        journal: Journal,
        stream_url: Callable[[str], Awaitable[str | None]],
        aclose: Callable[[], Awaitable[None]],
        token: str,
        log: Log,
    ) -> None:
        """Nothing is opened yet.

        Args:
            stream_url: The base URL of the worker of that name; None: it offers nothing.
            aclose: Closes what `stream_url` opened.
            token: Sent to workers.
        """
        self._journal = journal
        self._stream_url = stream_url
        self._aclose = aclose
        self._token = token
        self._log = log

    def of_session(
        self, session_id: str, tell: Callable[[Piece], None], *, run_id: str | None = None
    ) -> FollowedDeltas:
        """The pieces of that session from now on, until they are closed.

        Args:
            tell: Called with each piece; returns at once.
            run_id: Only pieces of this run; None: of all runs.
        """

        async def read(lease: Lease) -> str | None:
            return await self._read(lease, tell)

        return FollowedDeltas(self._journal, session_id, run_id, read, self._log)

    async def _read(self, lease: Lease, tell: Callable[[Piece], None]) -> str | None:
        """Read until the worker no longer executes the run; why that failed, None: it did not."""
        try:
            url = await self._stream_url(lease.worker_id.rpartition(".")[0])
            if url is None:
                return None
            pieces = read_pieces(url, self._token, session_id=lease.session_id, run_id=lease.run_id)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    tell(piece)
        except StreamLostError as error:
            return str(error)
        return None

    async def aclose(self) -> None:
        """Close what was opened."""
        await self._aclose()


class FollowedDeltas:
    """The pieces of one session. It looks for a worker when something was stored, never idly."""

    def __init__(
        self,
        journal: Journal,
        session_id: str,
        run_id: str | None,
        read: Callable[[Lease], Awaitable[str | None]],
        log: Log,
    ) -> None:
        """Begin to look; a loop has to run."""
        self._journal = journal
        self._session_id = session_id
        self._run_id = run_id
        self._read = read
        self._log = log
        self._news = asyncio.Event()
        self._news.set()
        self._has_logged = False
        self._task = asyncio.ensure_future(self._follow())

    def note_stored(self) -> None:
        """Note that an event was stored: a worker may have begun with the run."""
        self._news.set()

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.sleep(_PAUSE_S if await self._look_once() else _LONGER_PAUSE_S)

    async def _look_once(self) -> bool:
        """Look for the worker, and read what it sends; whether nothing failed."""
        try:
            lease = await self._lease()
            problem = None if lease is None else await self._read(lease)
        except Exception as error:  # noqa: BLE001  # stored events are told all the same
            problem = words_of(error)
        if problem is not None and not self._has_logged:
            self._has_logged = True
            self._log.warning("deltas_not_read", session_id=self._session_id, reason=problem)
        return problem is None

    async def _lease(self) -> Lease | None:
        """Of the run that is executed now, if it is followed."""
        leases = await read_leases(self._journal, lambda _: False)  # of workers on any machine
        own = [each for each in leases.executed if each.session_id == self._session_id]
        return own[0] if own and self._run_id in (None, own[0].run_id) else None

    async def aclose(self) -> None:
        """End the following, and close its connection."""
        self._task.cancel()
        await asyncio.wait((self._task,))


@asynccontextmanager
async def remote_deltas_of(
    remote: RemoteDeltas | None,
    session_id: str,
    tell: Callable[[StepDeltaEvent], None],
    *,
    run_id: str | None = None,
    after: int = 0,
) -> AsyncIterator[NoteStored]:
    """Tell the pieces of a session within the block, each in its place among the stored events.

    Args:
        remote: None: there are no pieces.
        run_id: Only pieces of this run; None: of all runs.
        after: What was stored up to this position is told in another way.
    """
    if remote is None:
        yield lambda _position, _address: None
        return
    order = DeltaOrder(after)

    def tell_all(events: Iterable[StepDeltaEvent]) -> None:
        for event in events:
            tell(event)

    followed = remote.of_session(
        session_id, lambda piece: tell_all(order.placed(piece)), run_id=run_id
    )

    def note_stored(position: int | None, address: str | None) -> None:
        tell_all(order.after_event(position, address))
        followed.note_stored()

    try:
        yield note_stored
    finally:
        await followed.aclose()


# --- the place of pieces of answers, which come on another way, among the stored events of a ru---


_MOST_HELD: Final = 2_000
_MOST_ADDRESSES: Final = 1_000


class DeltaOrder:
    """Holds a piece until the event before it was told, and drops one that comes too late."""

    def __init__(self, after: int = 0) -> None:
        """No event was told yet.

        Args:
            after: All events up to this position are told in another way.
        """
        self._position = after
        self._newest: dict[str, int] = {}
        """The position of the newest event of an address; of many, those of the newest."""
        self._held: deque[Piece] = deque()

    def after_event(self, position: int | None, address: str | None) -> Sequence[StepDeltaEvent]:
        """The pieces that can be told after a stored event was.

        Args:
            address: Of the execution of a step; None: the event is of none.
        """
        if position is None:
            return ()
        self._position = max(self._position, position)
        if address is not None:
            self._newest.pop(address, None)
            self._newest[address] = position
            if len(self._newest) > _MOST_ADDRESSES:
                del self._newest[next(iter(self._newest))]
        ready: list[StepDeltaEvent] = []
        while self._held and self._held[0].position <= self._position:
            ready += self._in_time(self._held.popleft())
        return ready

    def placed(self, piece: Piece) -> Sequence[StepDeltaEvent]:
        """The piece, if it can be told now."""
        if piece.position <= self._position:
            return self._in_time(piece)
        if len(self._held) >= _MOST_HELD:  # the journal is far behind: its answers are whole
            self._held.clear()
        self._held.append(piece)
        return ()

    def _in_time(self, piece: Piece) -> Sequence[StepDeltaEvent]:
        event = piece.event
        return (event,) if self._newest.get(event.address, 0) <= piece.position else ()


_DEAD_AFTER_S: Final = 20.0


def remote_deltas(
    settings: Settings, journal: Journal, log: Log, secrets: SecretSource
) -> RemoteDeltas | None:
    """What follows pieces of answers at workers; None: `worker_token` is not set, or the journal is
    in a file, where workers are not listed. Opens nothing yet.

    Raises:
        UsageError: The setting is no reference to a secret.
        EnvironmentRefusedError: The secret cannot be read.
    """
    if settings.no_store or settings.worker_token is None or (url := postgres_of(settings)) is None:
        return None
    try:
        reference = SecretRef.parse(settings.worker_token)
    except UsageError as error:
        raise UsageError(f"worker_token: {error.message}", code="bad-configuration") from error
    from minions.adapters.dispatch.postgres_workers import PostgresWorkers

    workers = PostgresWorkers(url, dead_after_s=_DEAD_AFTER_S)
    return RemoteDeltas(journal, workers.stream_url, workers.aclose, secrets(reference), log)
