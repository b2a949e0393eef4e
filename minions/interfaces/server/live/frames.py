"""Events as bytes of a stream, each encoded once, live or read from the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.events import RunCompleted, RunEvent, RunFailed, RunWaiting, event_to_json
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import BlockingCalls
from minions.data.json_parts import is_large
from minions.engine.views.stored_events import StoredEvents
from minions.interfaces.http.responses import json_bytes_in_parts


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
