"""The filter `?text=` of lists."""

from __future__ import annotations
