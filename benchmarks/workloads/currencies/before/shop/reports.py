"""What was sold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shop.money import Money, total
from shop.orders import Order


@dataclass(frozen=True)
class Month:
    """The orders of one month that were not cancelled."""

    name: str
    """As 2026-03."""
    orders: int
    revenue: Money


def months(orders: Iterable[Order]) -> list[Month]:
    """The months in which something was sold, the oldest first."""
    groups: dict[str, list[Order]] = {}
    for order in orders:
        if not order.is_cancelled:
            groups.setdefault(f"{order.day:%Y-%m}", []).append(order)
    return [
        Month(name, len(group), total(each.total for each in group))
        for name, group in sorted(groups.items())
    ]


def best_sellers(orders: Iterable[Order], count: int = 3) -> list[tuple[str, int]]:
    """Names of the items of which most were sold, with how many."""
    sold: Counter[str] = Counter()
    for order in orders:
        if not order.is_cancelled:
            for line in order.lines:
                sold[line.item.name] += line.quantity
    return sold.most_common(count)
