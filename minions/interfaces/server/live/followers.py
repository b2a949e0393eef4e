"""One reader of a session's events: a bounded queue of frames that are encoded already."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from minions.interfaces.server.live.frames import Frame

__all__ = ["FollowedSession", "Follower"]


class FollowedSession(Protocol):
    """The session that a follower reads: its channel."""

    session_id: str
    watching: asyncio.Event
    """Set while new entries of the session are noticed."""

    def is_active(self, run_id: str) -> bool:
        """Whether this process executes that run."""

    def remove(self, follower: Follower) -> None:
        """It went away."""


class Follower:
    """What it is to be sent, and how far it is."""

    def __init__(self, channel: FollowedSession, run_id: str | None, after: int, most: int) -> None:
        self.channel = channel
        self.run_id = run_id
        """Only of this run; None: of all."""
        self.position = after
        """Of the last frame that it was given."""
        self.is_behind = True
        """Whether the journal is to be read before the queue."""
        self.is_reading = False
        """Whether that happens just now: then a full queue is not its fault."""
        self.is_cut = False
        """It was too slow."""
        self.is_closed = False
        self.on_cut: Callable[[], None] | None = None
        """Ends what it may be stuck in."""
        self._is_sending = False
        self._has_overflowed = False
        """While that same piece was being sent."""
        self._most = most
        self._queue: deque[Frame] = deque()
        self._wake: asyncio.Future[None] | None = None

    @property
    def has_frames(self) -> bool:
        """Whether something waits for it."""
        return bool(self._queue)

    def push(self, frame: Frame) -> None:
        """A frame for it, if it is meant. Returns at once, however slow it is."""
        if frame.run_id is not None and self.run_id is not None and frame.run_id != self.run_id:
            return
        if len(self._queue) >= self._most:
            self._overflow()
            return
        self._queue.append(frame)
        self.wake()

    def begin_sending(self) -> None:
        """A piece goes out; how long that takes is the reader's affair."""
        self._is_sending, self._has_overflowed = True, False

    def end_sending(self) -> None:
        """It is out."""
        self._is_sending = False

    def _overflow(self) -> None:
        """A burst is not the reader's fault: the journal has it all. Taking nothing is."""
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
        """Read the journal again before anything else: something may have been missed."""
        self.is_behind = True
        self.wake()

    def close(self) -> None:
        """Nothing more; whoever waits for a batch gets what there is."""
        self.is_closed = True
        self.wake()

    def wake(self) -> None:
        """End the waiting."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def batch(self) -> Sequence[Frame]:
        """What has come; empty where it is to read the journal, or is cut off or closed."""
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
        """Without what the journal told already, and pieces of answers that it told whole."""
        seen = 0
        for index, frame in enumerate(frames, 1):
            if frame.position is not None and frame.position <= self.position:
                seen = index
        return frames[seen:] if seen else frames
