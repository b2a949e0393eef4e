"""Text search in lists."""

from __future__ import annotations

__all__ = ["has_words"]


def has_words(text: str | None, *places: str | None) -> bool:
    """Whether each word of `text` occurs in one of `places`, in
    any case; None matches everything.
    """
    where = "\n".join(place for place in places if place is not None).casefold()
    return all(word in where for word in (text or "").casefold().split())
