"""Channels: one for each followed session, which passes on frames that are encoded once.

Runs of this process push their events; events of other processes are read from the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Final, Protocol

from attrs import frozen

from minions.app.runs.remote_deltas import RemoteDeltas, remote_deltas_of
from minions.contracts.journal.journal import Journal
from minions.contracts.run_events import (
    RunCompleted,
    RunEvent,
    RunFailed,
    RunWaiting,
    ServerWait,
    StepDeltaEvent,
    event_to_json,
)
from minions.contracts.runtime import BlockingCalls
from minions.data.errors import MinionsError
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.engine.views.stored_events import StoredEvents
from minions.interfaces.http.http_answers import RefusedError, json_bytes, json_bytes_in_parts

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


# --- a follower of a session's events ------------------------------------------------------------


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
        return () if self.is_behind or self.is_cut else self.take()

    def take(self) -> Sequence[Frame]:
        """The frames that wait, those after the position that the journal has already brought this
        follower to.
        """
        frames, seen = tuple(self._queue), 0
        self._queue.clear()
        for index, frame in enumerate(frames, 1):
            if frame.position is not None and frame.position <= self.position:
                seen = index
        return frames[seen:] if seen else frames


# --- how many streams there may be at a time, of all callers and of one --------------------------


_LEFT: Final = 4
"""Of the connections one in so many is left for requests that are no streams."""
_SHARE: Final = 2
"""One of several tokens may have one in so many of the places."""


class StreamPlaces:
    """Who has the streams that are open."""

    def __init__(self, most: int) -> None:
        """No stream is open yet."""
        self._most = most
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._taken.total()

    def keep_room(self, most_connections: int) -> None:
        """Leave some of so many connections for other requests."""
        self._most = min(self._most, max(1, most_connections - most_connections // _LEFT))

    def take(self, name: str | None) -> None:
        """Take a place, until `give`.

        Args:
            name: Of the caller's token; None: it is the only one of the server.
        Raises:
            RefusedError: `too-many-followers`.
        """
        most = self._most if name is None else max(1, self._most // _SHARE)
        own = self._taken[name or ""]
        if len(self) >= self._most:
            raise no_more_streams(f"{len(self)} streams are open")
        if own >= most:
            raise no_more_streams(f"{own} streams of the token '{name}' are open")
        self._taken[name or ""] = own + 1

    def give(self, name: str | None) -> None:
        """Give a place back."""
        self._taken[name or ""] -= 1
        self._taken += Counter()  # without callers that have none


def no_more_streams(count: str) -> RefusedError:
    """The refusal of a stream.

    Args:
        count: How many are open, in words.
    """
    return RefusedError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too-many-followers",
        f"{count}; no more at a time.",
        headers={"retry-after": "5"},
    )


# --- events as bytes of a stream, each encoded once, live or read from the journal ---------------


class LargeEvent:
    """An event that is encoded in a thread, once for all its readers, when it is sent."""

    def __init__(self, event: RunEvent) -> None:
        """Not encoded yet."""
        self._event: RunEvent | None = event
        self._data = b""
        self._encoding = asyncio.Lock()

    async def encoded(self, threads: BlockingCalls) -> bytes:
        """The bytes of its frame."""
        async with self._encoding:
            if (event := self._event) is not None:
                self._data = await threads.run(lambda: data_of(event))
                self._event = None
        return self._data


@frozen(eq=False)
class Frame:
    """One event as it is sent."""

    data: bytes
    """Empty where the event is `large`."""
    position: int | None = None
    """The position of its entry in the session; None: it is not stored."""
    run_id: str | None = None
    """The run of the event; None: the frame is for all followers."""
    is_end: bool = False
    """Whether the run ends with this event."""
    large: LargeEvent | None = None
    """The event, if it is too large to be encoded at once."""
    address: str | None = None
    """Of the execution of a step; None: the event is of none."""


HEARTBEAT: Final = Frame(b": still here\n\n")


def last_words(text: str) -> bytes:
    """A comment that ends a stream."""
    return f": {text}\n\n".encode()


def error_event(error: MinionsError) -> bytes:
    """An event that ends a stream: `error` with `code` and `message`."""
    data: JsonValue = {"type": "error", "code": error.error_code, "message": error.message}
    return b"event: error\ndata: " + json_bytes(data) + b"\n\n"


def frame_of(event: RunEvent) -> Frame:
    """The frame of an event: `id:` if it is stored, `event:`, and one line of `data:`."""
    large = LargeEvent(event) if is_large(event) else None
    return Frame(
        data=data_of(event) if large is None else b"",
        position=event.position,
        run_id=event.run_id,
        is_end=isinstance(event, RunCompleted | RunWaiting | RunFailed),
        large=large,
        address=getattr(event, "address", None),
    )


def data_of(event: RunEvent) -> bytes:
    """The bytes of the frame of an event."""
    place = b"" if event.position is None else b"id: %d\n" % event.position
    data = json_bytes_in_parts(event_to_json(event))
    return place + b"event: " + event.type.encode() + b"\ndata: " + data + b"\n\n"


async def bytes_of(frames: Sequence[Frame], threads: BlockingCalls) -> bytes:
    """The bytes of the frames, one after the other."""
    return b"".join(
        [
            frame.data if (large := frame.large) is None else await large.encoded(threads)
            for frame in frames
        ]
    )


class History:
    """Frames of stored rows of one session, in order."""

    def __init__(self, journal: Journal, session_id: str, run_id: str | None = None) -> None:
        """Nothing is read yet.

        Args:
            run_id: Only rows of this run; None: of all runs.
        """
        self._events = StoredEvents(journal, session_id, run_id)

    @property
    def position(self) -> int:
        """The position of the last row that was read."""
        return self._events.position

    async def after(self, position: int) -> AsyncIterator[Sequence[Frame]]:
        """Frames of the rows after that position, in pages.

        Raises:
            JournalError: The journal cannot be read.
        """
        async for events in self._events.after(position):
            yield [frame_of(event) for event in events]
