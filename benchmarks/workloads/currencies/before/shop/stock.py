"""How many of each item are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shop.cart import Line
from shop.errors import NotInStockError


class Stock:
    """Quantities by item number."""

    def __init__(self, quantities: Mapping[str, int]) -> None:
        self._quantities = dict(quantities)

    def left(self, sku: str) -> int:
        """How many are left."""
        return self._quantities.get(sku, 0)

    def take(self, lines: Sequence[Line]) -> None:
        """Take all lines, or raise NotInStockError and take none."""
        for line in lines:
            if self.left(line.item.sku) < line.quantity:
                raise NotInStockError(f"{self.left(line.item.sku)} of {line.item.name} are left")
        for line in lines:
            self._quantities[line.item.sku] -= line.quantity

    def give_back(self, lines: Sequence[Line]) -> None:
        """Put lines back, after a cancellation."""
        for line in lines:
            self._quantities[line.item.sku] = self.left(line.item.sku) + line.quantity
