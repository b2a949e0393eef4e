"""The filter `?text=` of lists."""

from __future__ import annotations

from minions.contracts.words import has_words

__all__ = ["has_words"]
