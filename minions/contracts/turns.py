"""Work in an event loop that waits for nothing, done in turns with that of others."""

from __future__ import annotations

__all__ = ["Turns"]


class Turns:
    """Counts work, and says when it is somebody else's turn: after so much of it."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        """Begin a turn.

        Args:
            most: Units of work in a turn.
        """
        self._most = self._left = most

    def is_over(self, units: int = 1) -> bool:
        """Count work that is about to be done; whether the event loop should go on before."""
        self._left -= units
        if self._left >= 0:
            return False
        self._left = self._most - units
        return True
