"""Work in an event loop that waits for nothing, done in slices: others work in between."""

from __future__ import annotations


class WorkSlices:
    """Counts work, and says when a slice of it is full."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        """Begin a slice.

        Args:
            most: Units of work in a slice.
        """
        self._most = self._left = most

    def is_over(self, units: int = 1) -> bool:
        """Count work that is about to be done; whether others should work before that."""
        self._left -= units
        if self._left >= 0:
            return False
        self._left = self._most - units
        return True
