"""The tax that prices include."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from shop.cart import Line
from shop.config import TAX_RATES
from shop.money import ZERO, Money


def included(price: Money, tax_class: str) -> Money:
    """The tax within a price."""
    rate = TAX_RATES[tax_class]
    return Money(round(Fraction(price.cents * rate, 100 + rate)))


def by_class(lines: Sequence[Line]) -> dict[str, Money]:
    """The tax within lines, by class; classes without tax are left out."""
    prices: dict[str, Money] = defaultdict(lambda: ZERO)
    for line in lines:
        prices[line.item.tax_class] += line.price
    taxes = {name: included(price, name) for name, price in sorted(prices.items())}
    return {name: tax for name, tax in taxes.items() if tax != ZERO}
