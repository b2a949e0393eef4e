"""Patterns of strangers, matched within a time: which ones explode cannot be told beforehand."""

from __future__ import annotations

from typing import Final

__all__ = ["PATTERN_TIME_S", "search"]

PATTERN_TIME_S: Final = 0.5
"""For one pattern on one text."""


def search(pattern: str, text: str) -> str | None:
    """What matched first; None when nothing does.

    Raises:
        TimeoutError: The time is up.
        ValueError: No pattern that the engine knows.
    """
    import regex  # an engine that stops when its time is up; the stdlib's does not

    try:
        found = regex.search(pattern, text, timeout=PATTERN_TIME_S)
    except regex.error as error:
        raise ValueError(str(error)) from error
    return None if found is None else found[0]
