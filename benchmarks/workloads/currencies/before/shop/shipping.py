"""What a parcel costs."""

from __future__ import annotations

from shop.config import FREE_SHIPPING_FROM, HEAVY_FROM_GRAMS, SHIPPING_FEE
from shop.money import ZERO, Money


def fee(goods: Money, grams: int) -> Money:
    """The fee for goods of that price and weight."""
    if goods >= Money(FREE_SHIPPING_FROM) and grams < HEAVY_FROM_GRAMS:
        return ZERO
    return Money(SHIPPING_FEE) * (2 if grams >= HEAVY_FROM_GRAMS else 1)


def missing(goods: Money) -> Money:
    """What is missing until shipping is free."""
    return max(ZERO, Money(FREE_SHIPPING_FROM) - goods)
