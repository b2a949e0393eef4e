"""The place of pieces of answers, which come on another way, among the stored events of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from minions.adapters.dispatch.delta_reader import Piece
from minions.contracts.events import StepDeltaEvent

__all__ = ["DeltaOrder"]

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
