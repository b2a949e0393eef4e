"""The events of a session as they are stored, whichever process stored them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final

from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.run_events import RunEvent
from minions.engine.history.event_stream import EventMaker
from minions.engine.services.event_loop import breathe

_PAGE: Final = 100
"""How many rows are read at a time."""
_WAIT_S: Final = 60.0
"""Seconds of one wait for new rows."""


class StoredEvents:
    """Events of the rows of one session, in order. It remembers the state that events need."""

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

    async def after(self, position: int) -> AsyncIterator[Sequence[RunEvent]]:
        """Events of the rows after that position, in pages.

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
            yield [event for row in rows if (event := await self._event(row)) is not None]
            if len(rows) < _PAGE:
                return
            await breathe()  # neither a journal nor a reader need wait for anything

    async def follow(self, position: int = 0) -> AsyncGenerator[RunEvent, None]:
        """Events of the rows after that position, and of those that come; it has no end.

        Waiting costs next to nothing: where the database tells of new rows, one connection listens
        for all who wait, and what it missed is read when it is back.

        Raises:
            JournalError: The journal cannot be read.
        """
        while True:
            async for events in self.after(position):
                for event in events:
                    yield event
            position = max(position, self.position)
            while not await self._journal.wait(self._session_id, position, _WAIT_S):
                pass

    async def _event(self, row: JournalEntry) -> RunEvent | None:
        maker = self._makers.setdefault(row.run_id, EventMaker())
        maker.note(row)
        if maker.misses_call_of(row):  # it was recorded before the first row that was read
            await self._recall(maker, row)
        return maker.event_of(row)

    async def _recall(self, maker: EventMaker, row: JournalEntry) -> None:
        calls = await self._journal.entries(
            row.session_id, run_id=row.run_id, kinds={"tool_call"}, until=row.position
        )
        for call in calls:
            maker.note(call)
