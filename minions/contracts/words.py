"""The words that a list is searched for."""

from __future__ import annotations

__all__ = ["has_words"]


def has_words(text: str | None, *places: str | None) -> bool:
    """Whether each word of `text` is in one of these places, in letters of any case."""
    where = "\n".join(place for place in places if place is not None).casefold()
    return all(word in where for word in (text or "").casefold().split())
