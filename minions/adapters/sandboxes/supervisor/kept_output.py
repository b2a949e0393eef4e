"""The head and the tail of a stream, whatever its length."""

from __future__ import annotations


class KeptOutput:
    """Takes bytes, and keeps the first and the last of them."""

    def __init__(self, most: int) -> None:
        self._most_each = max(most // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """How many bytes there were."""

    def add(self, data: bytes) -> None:
        """Take more bytes."""
        self.total += len(data)
        room = self._most_each - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * self._most_each:
            del self._tail[: -self._most_each]

    @property
    def is_cut(self) -> bool:
        """Whether bytes between head and tail are missing."""
        return self.total > len(self._head) + min(len(self._tail), self._most_each)

    def text(self) -> str:
        """The kept bytes as text, with a line that says how many are missing between them."""
        tail = bytes(self._tail[-self._most_each :])
        if not self.is_cut:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        missing = self.total - len(self._head) - len(tail)
        head, end = (part.decode("utf-8", "replace") for part in (bytes(self._head), tail))
        return f"{head}\n[… {missing:,} bytes left out …]\n{end}"
