"""A follower of a session's events: a bounded queue of encoded frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from minions.interfaces.server.live.frames import Frame


class FollowedSession(Protocol):
    """The session that a follower reads: its channel."""

    session_id: str
    watching: asyncio.Event
    """Set while new entries of the session are noticed."""

    def is_active(self, run_id: str) -> bool:
        """Whether this process executes that run."""

    def remove(self, follower: Follower) -> None:
        """Remove a follower that has left."""


class Follower:
    """The frames that wait for one reader, and the position that it has reached."""

    def __init__(
        self,
        channel: FollowedSession,
        run_id: str | None,
        after: int,
        most: int,
        caller: str | None = None,
    ) -> None:
        self.channel = channel
        self.caller = caller
        """The name of the caller's token; None: it has none."""
        self.run_id = run_id
        """Only events of this run; None: of all runs."""
        self.began_after = after
        """The position at which the reader came."""
        self.position = after
        """The position of the last frame that was sent."""
        self.is_behind = True
        """Whether the journal is to be read before the queue."""
        self.is_reading = False
        """Whether the journal is being read now; a full queue then is not the reader's fault."""
        self.is_cut = False
        """Whether the reader was too slow, so that its stream is ended."""
        self.is_closed = False
        self.on_cut: Callable[[], None] | None = None
        """Ends the send that may block."""
        self._is_sending = False
        self._has_overflowed = False
        """Whether the queue has overflowed during the present send."""
        self._most = most
        self._queue: deque[Frame] = deque()
        self._wake: asyncio.Future[None] | None = None

    @property
    def has_frames(self) -> bool:
        """Whether frames wait for it."""
        return bool(self._queue)

    def push(self, frame: Frame) -> None:
        """Add a frame, if it is for this follower. Returns at once, however slow the reader is."""
        if frame.run_id is not None and self.run_id is not None and frame.run_id != self.run_id:
            return
        if len(self._queue) >= self._most:
            self._overflow()
            return
        self._queue.append(frame)
        self.wake()

    def begin_sending(self) -> None:
        """Note that a send begins, which takes as long as the reader does."""
        self._is_sending, self._has_overflowed = True, False

    def end_sending(self) -> None:
        """Note that the send has ended."""
        self._is_sending = False

    def _overflow(self) -> None:
        """Drop the queue, and read the journal instead; cut off a reader whose send blocks
        meanwhile.

        A burst of events is not the reader's fault, and the journal has all of them.
        """
        self._queue.clear()
        if self.is_reading or not (self._is_sending and self._has_overflowed):
            self._has_overflowed = self._is_sending
            self.fall_behind()
            return
        self.is_cut = True
        if self.on_cut is not None:
            self.on_cut()
        self.wake()

    def fall_behind(self) -> None:
        """Read the journal before anything else: an event may have been missed."""
        self.is_behind = True
        self.wake()

    def close(self) -> None:
        """End the stream; a waiting `batch` returns what there is."""
        self.is_closed = True
        self.wake()

    def wake(self) -> None:
        """Wake a waiting `batch`."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def batch(self) -> Sequence[Frame]:
        """The frames that have come; empty: read the journal, or the stream has ended."""
        while not (self._queue or self.is_behind or self.is_cut or self.is_closed):
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        if self.is_behind or self.is_cut:
            return ()
        frames = tuple(self._queue)
        self._queue.clear()
        return self._unseen(frames)

    def _unseen(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        """The frames after the position that the journal has already brought this follower to."""
        seen = 0
        for index, frame in enumerate(frames, 1):
            if frame.position is not None and frame.position <= self.position:
                seen = index
        return frames[seen:] if seen else frames
