"""How much a server may send: what is more ends its connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define, field

__all__ = ["MOST_MESSAGE_BYTES", "Inflow"]

MOST_MESSAGE_BYTES: Final = 8 * 1_048_576
"""Bytes of one message: a few images in base64."""
_BURST: Final = 2_000
"""Messages that may come at once."""
_PER_S: Final = 500.0
"""Messages a second that may come for long."""
_MOST_GARBAGE: Final = 20
"""Lines that are no messages."""


@define(eq=False)
class Inflow:
    """Counts what a connection receives."""

    clock: Callable[[], float]
    """Seconds that never go back."""
    _credit: float = field(default=float(_BURST), init=False)
    _counted_at: float | None = field(default=None, init=False)
    _garbage: int = field(default=0, init=False)

    def asked(self) -> None:
        """A message was sent, which may have an answer."""
        self._credit = min(_BURST, self._credit + 1)

    def message(self) -> str | None:
        """Count a message; why it is one too many, None: it is not."""
        now = self.clock()
        if self._counted_at is not None:
            self._credit = min(_BURST, self._credit + (now - self._counted_at) * _PER_S)
        self._counted_at = now
        self._credit -= 1
        if self._credit >= 0:
            return None
        return f"sent more than {_BURST:,} messages, and more than {_PER_S:,.0f} a second"

    def garbage(self, line: bytes) -> str | None:
        """Count a line that is no message; why the connection ends, None: it does not."""
        self._garbage += 1
        if self._garbage <= _MOST_GARBAGE:
            return None
        return f"wrote what is no message of the protocol to its standard output: {line[:80]!r}"
