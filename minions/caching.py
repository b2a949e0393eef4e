"""The cache of outputs of steps with `cache: true`, shared between runs.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.adapters.stores.memory_stores import MemoryStepCache, NoStepCache
    from minions.adapters.stores.postgres_side_tables import PostgresStepCache
    from minions.adapters.stores.sqlite_side_tables import SqliteStepCache
    from minions.contracts.steps import CachedStep, StepCache


__all__ = [
    "CachedStep",
    "MemoryStepCache",
    "NoStepCache",
    "PostgresStepCache",
    "SqliteStepCache",
    "StepCache",
]

_HOMES: Final = {
    "minions.adapters.stores.memory_stores": (
        "MemoryStepCache",
        "NoStepCache",
    ),
    "minions.adapters.stores.postgres_side_tables": ("PostgresStepCache",),
    "minions.adapters.stores.sqlite_side_tables": ("SqliteStepCache",),
    "minions.contracts.steps": (
        "CachedStep",
        "StepCache",
    ),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
