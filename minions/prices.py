"""What model calls cost.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.adapters.models.price_books import GenaiPriceBook, OwnPrice
    from minions.contracts.runtime import PriceBook


__all__ = ["GenaiPriceBook", "OwnPrice", "PriceBook"]

_HOMES: Final = {
    "minions.adapters.models.price_books": (
        "GenaiPriceBook",
        "OwnPrice",
    ),
    "minions.contracts.runtime": ("PriceBook",),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
