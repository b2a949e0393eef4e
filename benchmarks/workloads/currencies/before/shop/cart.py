"""The cart: what a customer means to buy."""

from __future__ import annotations

from dataclasses import dataclass

from shop.config import LARGEST_QUANTITY
from shop.errors import ShopError
from shop.items import Catalog, Item
from shop.money import Money, total


@dataclass(frozen=True)
class Line:
    """Some of one item."""

    item: Item
    quantity: int

    @property
    def price(self) -> Money:
        """Of all of them."""
        return self.item.price * self.quantity


class Cart:
    """Lines in the order in which items were put in."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._quantities: dict[str, int] = {}

    def put(self, sku: str, quantity: int = 1) -> None:
        """Put items in; a negative quantity takes some out."""
        item = self._catalog.find(sku)
        wanted = self._quantities.get(item.sku, 0) + quantity
        if wanted > LARGEST_QUANTITY:
            raise ShopError(f"at most {LARGEST_QUANTITY} of one item")
        self._quantities[item.sku] = max(0, wanted)

    @property
    def lines(self) -> list[Line]:
        """What is in the cart."""
        return [
            Line(self._catalog.find(sku), quantity)
            for sku, quantity in self._quantities.items()
            if quantity
        ]

    @property
    def goods(self) -> Money:
        """The price of all lines."""
        return total(each.price for each in self.lines)

    @property
    def grams(self) -> int:
        """The weight of all lines."""
        return sum(each.item.grams * each.quantity for each in self.lines)
