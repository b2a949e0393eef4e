"""Streams of the pieces of answers (`step_delta`) of the runs that a worker executes now.

A follower that reads too slowly is dropped: pieces are never stored, and no run waits for a reader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from attrs import field, mutable

from minions.contracts.run_events import RunEvent, StepDeltaEvent
from minions.engine.run.agent_run import AgentRun
from minions.interfaces.server.live.channels import HEARTBEAT, data_of

MOST_FOLLOWERS: Final = 64
"""Followers of all runs of a worker together."""
_MOST_WAITING: Final = 256 * 1024
"""Bytes that may wait for one follower."""
_HEARTBEAT_S: Final = 10.0


class DeltaFollower:
    """The bytes that wait for one reader."""

    def __init__(self, on_cut: Callable[[], None], most_bytes: int) -> None:
        """Nothing waits yet.

        Args:
            on_cut: Called when the reader is too slow: its connection is to be ended at once.
        """
        self._on_cut = on_cut
        self._most_bytes = most_bytes
        self._frames: deque[bytes] = deque()
        self._waiting = 0
        self._is_closed = False
        self._news = asyncio.Event()

    def push(self, data: bytes) -> None:
        """Add the bytes of a frame; returns at once, however slow the reader is."""
        if self._is_closed:
            return
        if self._waiting + len(data) > self._most_bytes:
            self.cut()
            return
        self._frames.append(data)
        self._waiting += len(data)
        self._news.set()

    def cut(self) -> None:
        """End the stream and its connection at once."""
        self._frames.clear()
        self.close()
        self._on_cut()

    def close(self) -> None:
        """End the stream, after what waits."""
        self._is_closed = True
        self._news.set()

    async def batch(self) -> bytes:
        """What is to be sent next, a heartbeat where nothing has come for long; empty: the end."""
        if not self._frames and not self._is_closed:
            self._news.clear()
            try:
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._news.wait()
            except TimeoutError:
                return HEARTBEAT.data
        data = b"".join(self._frames)
        self._frames.clear()
        self._waiting = 0
        return data


@mutable(eq=False)
class _FollowedRun:
    """A run that is executed now."""

    position: int = 0
    """Of its newest stored event; 0: there was none yet."""
    followers: set[DeltaFollower] = field(factory=set)


class DeltaStreams:
    """The runs of one worker, and who reads their pieces."""

    def __init__(
        self, *, most_followers: int = MOST_FOLLOWERS, most_bytes: int = _MOST_WAITING
    ) -> None:
        """No run is executed yet.

        Args:
            most_followers: Of all runs together.
            most_bytes: How many may wait for one follower.
        """
        self._most_followers = most_followers
        self._most_bytes = most_bytes
        self._runs: dict[str, _FollowedRun] = {}
        self._followers: set[DeltaFollower] = set()
        """Also those of runs that have ended, which still take what waited for them."""

    @contextmanager
    def executing(self, run: AgentRun) -> Iterator[None]:
        """Offer the pieces of a run, which is executed within the block."""
        known = self._runs[run.run_id] = _FollowedRun()
        run.listen(lambda event: _tell(known, event))
        try:
            yield
        finally:
            self._runs.pop(run.run_id, None)
            for follower in tuple(known.followers):
                follower.close()

    def has_run(self, run_id: str) -> bool:
        """Whether that run is executed now."""
        return run_id in self._runs

    @property
    def has_room(self) -> bool:
        """Whether one more follower may come."""
        return self.count < self._most_followers

    @property
    def count(self) -> int:
        """The followers that there are."""
        return len(self._followers)

    @contextmanager
    def following(self, run_id: str, on_cut: Callable[[], None]) -> Iterator[DeltaFollower]:
        """A follower of a run that is executed now, within the block.

        Args:
            on_cut: As for `DeltaFollower`.
        """
        run = self._runs[run_id]
        follower = DeltaFollower(on_cut, self._most_bytes)
        run.followers.add(follower)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            follower.close()
            run.followers.discard(follower)
            self._followers.discard(follower)

    def cut(self) -> None:
        """End all streams at once, whatever their readers have not taken."""
        for follower in tuple(self._followers):
            follower.cut()


def _tell(run: _FollowedRun, event: RunEvent) -> None:
    """Note where the record of the run stands, and pass a piece on.

    The `id` of a piece is the position of the stored event before it: a reader puts it in its
    place among the stored ones.
    """
    if event.position is not None:
        run.position = event.position
    if isinstance(event, StepDeltaEvent) and run.followers:
        data = b"id: %d\n" % run.position + data_of(event)
        for follower in tuple(run.followers):
            follower.push(data)
