"""Coupons."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from shop.errors import CouponError
from shop.money import Money


@dataclass(frozen=True)
class Coupon:
    """So many percent, or an amount, off the price of goods; amounts apply in their currency."""

    code: str
    percent: int = 0
    amount: Money | None = None
    least: Money | None = None
    """Price of goods from which it applies."""
    last_day: date | None = None

    def discount(self, goods: Money, today: date) -> Money:
        """What is taken off; raises CouponError where it does not apply."""
        if self.last_day is not None and today > self.last_day:
            raise CouponError(f"the coupon {self.code} ended on {self.last_day}")
        for limit in (self.amount, self.least):
            if limit is not None and limit.currency != goods.currency:
                raise CouponError(f"the coupon {self.code} is for {limit.currency}")
        if self.least is not None and goods < self.least:
            raise CouponError(f"the coupon {self.code} is for {self.least} and more")
        return min(goods, goods.percent(self.percent) + (self.amount or goods.none))


def best(coupons: list[Coupon], goods: Money, today: date) -> Money:
    """The largest discount of those that apply."""
    found = [goods.none]
    for coupon in coupons:
        try:
            found.append(coupon.discount(goods, today))
        except CouponError:
            continue
    return max(found)
