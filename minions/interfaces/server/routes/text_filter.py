"""The filter `?text=` of lists."""

from __future__ import annotations

from minions.data.words import has_words

__all__ = ["has_words"]
