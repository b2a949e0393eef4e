"""What a fuzzer runs: a function of bytes with the inputs from which it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

__all__ = ["Target", "text_of"]


def _nothing() -> None:
    """Most readers open nothing."""


@frozen(kw_only=True)
class Target:
    """One reader of strangers' data."""

    name: str
    check: Callable[[bytes], None]
    """Raises nothing, unless the reader breaks its contract: whatever it raises is a finding."""
    seeds: Callable[[], Sequence[bytes]]
    """Inputs that are changed into others."""
    words: Sequence[str] = ()
    """What the language of the inputs consists of, beside letters and digits."""
    is_json: bool = False
    """Whether the inputs are JSON: then values are changed rather than bytes."""
    most_bytes: int = 16_384
    """The longest input."""
    few: int = 100
    """How many inputs the suite tries: a slow reader gets fewer."""
    close: Callable[[], None] = _nothing
    """Closes what `check` has opened."""


def text_of(data: bytes) -> str:
    """The bytes as a text as JSON may hold it; what is no UTF-8 becomes halves of characters."""
    return data.decode("utf-8", "surrogateescape")
