"""What a parcel costs."""

from __future__ import annotations

from shop.config import FREE_SHIPPING_FROM, HEAVY_FROM_GRAMS, SHIPPING_FEES
from shop.money import Money


def fee(goods: Money, grams: int) -> Money:
    """The fee for goods of that price and weight."""
    if goods >= _free_from(goods.currency) and grams < HEAVY_FROM_GRAMS:
        return goods.none
    one = Money(SHIPPING_FEES[goods.currency], goods.currency)
    return one * (2 if grams >= HEAVY_FROM_GRAMS else 1)


def missing(goods: Money) -> Money:
    """What is missing until shipping is free."""
    return max(goods.none, _free_from(goods.currency) - goods)


def _free_from(currency: str) -> Money:
    return Money(FREE_SHIPPING_FROM[currency], currency)
