"""The errors of the shop."""

from __future__ import annotations


class ShopError(Exception):
    """What a customer may be told."""


class UnknownItemError(ShopError):
    """There is no such item."""


class NotInStockError(ShopError):
    """Fewer are left than were asked for."""


class CurrencyError(ShopError):
    """Amounts of different currencies, or a currency that the shop does not take."""


class CouponError(ShopError):
    """The coupon does not apply."""
