"""Channels: one for each followed session, which passes on frames that are encoded once.

Runs of this process push their events; events of other processes are read from the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from minions.app.runs.remote_deltas import RemoteDeltas, remote_deltas_of
from minions.contracts.events import RunEvent, ServerWait, StepDeltaEvent
from minions.contracts.journal.journal import Journal
from minions.interfaces.server.live.followers import Follower
from minions.interfaces.server.live.frames import HEARTBEAT, Frame, History, frame_of
from minions.interfaces.server.live.stream_places import StreamPlaces, no_more_streams

_WAIT_S = 30.0
"""How long one wait for a new entry takes at most, in seconds."""
_PATIENCE_S = 1.0
"""How long followers have to end when the server stops, in seconds."""


class Channel:
    """All followers of one session."""

    def __init__(
        self,
        session_id: str,
        journal: Journal,
        on_empty: Callable[[str], None],
        remote: RemoteDeltas | None = None,
    ) -> None:
        """Nobody follows yet.

        Args:
            remote: Pieces of answers of runs of other processes; None: they are not followed.
        """
        self.session_id = session_id
        self._remote = remote
        self._journal = journal
        self._on_empty = on_empty
        self._followers: set[Follower] = set()
        self._active: set[str] = set()
        """Ids of the runs of the session that this process executes."""
        self._server_waits: dict[tuple[str, str], ServerWait] = {}
        """By run and address the newest wait for a server, which no journal holds: whoever comes
        later sees it, too."""
        self._watch: asyncio.Task[None] | None = None
        self.watching = asyncio.Event()
        """Set while new entries of the session are noticed."""

    # --- followers --------------------------------------------------------------------------

    def add(self, follower: Follower) -> None:
        """Add a follower, which gets every frame from the next one on, and what waits now."""
        self._followers.add(follower)
        for wait in self._server_waits.values():
            follower.push(frame_of(wait))
        self._set_watch()

    def remove(self, follower: Follower) -> None:
        """Remove a follower that has left."""
        self._followers.discard(follower)
        self._set_watch()

    def is_active(self, run_id: str) -> bool:
        """Whether this process executes that run."""
        return run_id in self._active

    # --- events of this process ------------------------------------------------------------------

    def begin(self, run_id: str) -> None:
        """Note that this process executes a run, whose events it pushes itself."""
        self._active.add(run_id)
        self._set_watch()
        self._all_behind()

    def tell(self, event: RunEvent) -> None:
        """Push an event; the listener of the runs of this process."""
        address: str | None = getattr(event, "address", None)
        if address is not None:
            if isinstance(event, ServerWait):
                self._server_waits[event.run_id, address] = event
            elif self._server_waits:  # whatever else is told of it: it went on
                self._server_waits.pop((event.run_id, address), None)
        if self._followers:
            self.push(frame_of(event))

    def end(self, run_id: str, *, ends_streams: bool) -> None:
        """Note that this process no longer executes a run.

        Args:
            ends_streams: Whether followers get no more of the run; else another process may execute
                it, whose events are read from the journal.
        """
        self._active.discard(run_id)
        for key in [key for key in self._server_waits if key[0] == run_id]:
            del self._server_waits[key]
        if ends_streams:
            self.push(Frame(b"", None, run_id, is_end=True))
        self._set_watch()

    def push(self, frame: Frame) -> None:
        """Push a frame to all followers; they share its bytes."""
        for follower in tuple(self._followers):
            follower.push(frame)

    def close(self) -> None:
        """Close the streams of all followers."""
        for follower in tuple(self._followers):
            follower.close()

    def abandon(self) -> None:
        """Remove the followers that have not left; the journal is not watched for them."""
        self._followers.clear()
        self._set_watch()

    # --- events of other processes --------------------------------------------------------------

    def _set_watch(self) -> None:
        """Watch the journal while there are followers and no run of the session is executed
        here.
        """
        wanted = bool(self._followers) and not self._active
        if wanted and self._watch is None:
            self.watching.clear()
            self._watch = asyncio.ensure_future(self._follow_journal())
        elif not wanted and self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if not wanted:
            self.watching.set()
        if not self._followers and not self._active:
            self._on_empty(self.session_id)

    async def _follow_journal(self) -> None:
        try:
            newest = await self._journal.entries(
                self.session_id, limit=1, newest_first=True, with_damaged=True
            )
            position = newest[0].position if newest else 0
            self.watching.set()
            self._all_behind()
            history = History(self._journal, self.session_id)
            deltas = remote_deltas_of(
                self._remote, self.session_id, self._push_delta, after=position
            )
            async with deltas as note_stored:
                while True:
                    if await self._journal.wait(self.session_id, position, _WAIT_S):
                        async for frames in history.after(position):
                            for frame in frames:
                                self.push(frame)
                                note_stored(frame.position, frame.address)
                        position = max(position, history.position)
        except Exception:  # noqa: BLE001  # followers reconnect, and get the error when they read
            self._watch = None
            self.watching.set()
            self.close()

    def _push_delta(self, event: StepDeltaEvent) -> None:
        self.push(frame_of(event))

    def _all_behind(self) -> None:
        """Let all followers read the journal: an entry may have come before it was watched."""
        for follower in self._followers:
            follower.fall_behind()


class Channels:
    """The channels of all sessions that have followers or active runs."""

    def __init__(
        self,
        journal: Journal,
        *,
        places: StreamPlaces,
        queue_frames: int,
        heartbeat_s: float,
        remote: RemoteDeltas | None = None,
    ) -> None:
        """Start without channels.

        Args:
            places: How many streams there may be, and whose they are.
            queue_frames: How many frames may wait for one follower.
            heartbeat_s: Seconds between two heartbeats of a stream.
            remote: Pieces of answers of runs of other processes, closed here; None: they are not
                followed.
        """
        self._journal = journal
        self._places = places
        self._queue_frames = queue_frames
        self._heartbeat_s = heartbeat_s
        self._remote = remote
        self._channels: dict[str, Channel] = {}
        self._count = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._heart: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def count(self) -> int:
        """The number of followers of all channels together."""
        return self._count

    def of(self, session_id: str) -> Channel:
        """The channel of that session, made if there is none."""
        channel = self._channels.get(session_id)
        if channel is None:
            channel = Channel(session_id, self._journal, self._forget, self._remote)
            self._channels[session_id] = channel
        return channel

    def follow(
        self,
        session_id: str,
        *,
        run_id: str | None = None,
        after: int = 0,
        caller: str | None = None,
    ) -> Follower:
        """Add a follower of a session, or of one of its runs, until `leave`.

        Args:
            caller: The name of the caller's token; None: it has none.
        Raises:
            RefusedError: There are too many.
        """
        if self._is_closed:
            raise no_more_streams(f"{self._count} streams are open")
        self._places.take(caller)
        channel = self.of(session_id)
        follower = Follower(channel, run_id, after, self._queue_frames, caller)
        self._count += 1
        self._empty.clear()
        channel.add(follower)
        self._beat_later()
        return follower

    def leave(self, follower: Follower) -> None:
        """Remove a follower that has left."""
        self._count -= 1
        self._places.give(follower.caller)
        follower.channel.remove(follower)
        if self._count == 0:
            self._empty.set()

    def close_session(self, session_id: str) -> None:
        """Close the streams of a session that was deleted."""
        if (channel := self._channels.get(session_id)) is not None:
            channel.close()

    def close(self) -> None:
        """Close all streams, and refuse new ones."""
        self._is_closed = True
        if self._heart is not None:
            self._heart.cancel()
        for channel in tuple(self._channels.values()):
            channel.close()

    async def aclose(self) -> None:
        """Close all streams, wait a moment for their end, and stop to watch the journal."""
        self.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), _PATIENCE_S)
        for channel in tuple(self._channels.values()):
            channel.abandon()
        if self._remote is not None:
            await self._remote.aclose()

    def _forget(self, session_id: str) -> None:
        self._channels.pop(session_id, None)

    def _beat_later(self) -> None:
        if self._heart is None:
            loop = asyncio.get_running_loop()
            self._heart = loop.call_later(self._heartbeat_s, self._beat)

    def _beat(self) -> None:
        self._heart = None
        for channel in tuple(self._channels.values()):
            channel.push(HEARTBEAT)
        if self._count and not self._is_closed:
            self._beat_later()
