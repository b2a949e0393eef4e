"""Batches: one run for each of many inputs, from `Minions.batch`.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.engine.batches.batch import Batch
    from minions.engine.batches.result import BatchResult


__all__ = ["Batch", "BatchResult"]

_HOMES: Final = {
    "minions.engine.batches.batch": ("Batch",),
    "minions.engine.batches.result": ("BatchResult",),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
