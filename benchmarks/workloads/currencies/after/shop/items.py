"""Items and the catalog that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shop.errors import UnknownItemError
from shop.money import Money


@dataclass(frozen=True)
class Item:
    """What can be bought."""

    sku: str
    name: str
    price: Money
    grams: int = 0
    tax_class: str = "standard"


class Catalog:
    """Items by their number."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = {each.sku: each for each in items}

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, str]]) -> Catalog:
        """The catalog in the rows of a table: sku, name, price in cents, currency, grams,
        tax_class.
        """
        return cls(_item(row) for row in rows)

    def find(self, sku: str) -> Item:
        """The item of that number; raises UnknownItemError."""
        if sku not in self._items:
            raise UnknownItemError(f"there is no item {sku}")
        return self._items[sku]

    def search(self, words: str) -> list[Item]:
        """Items whose names hold all words, by name."""
        wanted = words.casefold().split()
        found = (
            each
            for each in self._items.values()
            if all(word in each.name.casefold() for word in wanted)
        )
        return sorted(found, key=lambda each: each.name)


def _item(row: Mapping[str, str]) -> Item:
    return Item(
        sku=row["sku"],
        name=row["name"],
        price=Money(int(row["price"]), row.get("currency") or "EUR"),
        grams=int(row.get("grams") or 0),
        tax_class=row.get("tax_class") or "standard",
    )
