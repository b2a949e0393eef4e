"""Events as bytes of a stream, each encoded once, live or read from the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.events import RunCompleted, RunEvent, RunFailed, RunWaiting, event_to_json
from minions.contracts.journal import Journal
from minions.engine.history.stored_events import StoredEvents
from minions.interfaces.server.http.responses import json_bytes

__all__ = ["HEARTBEAT", "Frame", "History", "frame_of", "last_words"]


@frozen(eq=False)
class Frame:
    """One event as it is sent."""

    data: bytes
    position: int | None = None
    """The position of its entry in the session; None: it is not stored."""
    run_id: str | None = None
    """The run of the event; None: the frame is for all followers."""
    is_end: bool = False
    """Whether the run ends with this event."""
    address: str | None = None
    """Of the execution of a step; None: the event is of none."""


HEARTBEAT: Final = Frame(b": still here\n\n")


def last_words(text: str) -> bytes:
    """A comment that ends a stream."""
    return f": {text}\n\n".encode()


def frame_of(event: RunEvent) -> Frame:
    """The frame of an event: `id:` if it is stored, `event:`, and one line of `data:`."""
    place = b"" if event.position is None else b"id: %d\n" % event.position
    data = json_bytes(event_to_json(event))
    return Frame(
        place + b"event: " + event.type.encode() + b"\ndata: " + data + b"\n\n",
        event.position,
        event.run_id,
        isinstance(event, RunCompleted | RunWaiting | RunFailed),
        getattr(event, "address", None),
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
