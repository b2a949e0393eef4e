"""Events as bytes of a stream, each encoded once, live or read from the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.events import RunCompleted, RunEvent, RunFailed, RunWaiting, event_to_json
from minions.contracts.journal import Journal, JournalEntry
from minions.engine.history.events import EventMaker
from minions.interfaces.server.http.responses import json_bytes

__all__ = ["HEARTBEAT", "Frame", "History", "frame_of", "last_words"]

_PAGE: Final = 500
"""How many rows are read at a time."""


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
    )


class History:
    """Frames of stored rows of one session, in order. It remembers the state that events need."""

    def __init__(self, journal: Journal, session_id: str, run_id: str | None = None) -> None:
        """Nothing is read yet.

        Args:
            run_id: Only rows of this run; None: of all runs.
        """
        self._journal = journal
        self._session_id = session_id
        self._run_id = run_id
        self._makers: dict[str, EventMaker] = {}
        self.position = 0
        """The position of the last row that was read."""

    async def after(self, position: int) -> AsyncIterator[Sequence[Frame]]:
        """Frames of the rows after that position, in pages.

        Raises:
            JournalError: The journal cannot be read.
        """
        while True:
            rows = await self._journal.entries(
                self._session_id, run_id=self._run_id, after=position, limit=_PAGE
            )
            if not rows:
                return
            position = self.position = rows[-1].position
            yield [frame for row in rows if (frame := await self._frame(row)) is not None]
            if len(rows) < _PAGE:
                return

    async def _frame(self, row: JournalEntry) -> Frame | None:
        maker = self._makers.setdefault(row.run_id, EventMaker())
        maker.note(row)
        if maker.misses_call_of(row):  # it was recorded before the first row that was read
            await self._recall(maker, row)
        event = maker.event_of(row)
        return None if event is None else frame_of(event)

    async def _recall(self, maker: EventMaker, row: JournalEntry) -> None:
        calls = await self._journal.entries(
            row.session_id, run_id=row.run_id, kinds={"tool_call"}, until=row.position
        )
        for call in calls:
            maker.note(call)
