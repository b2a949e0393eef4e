"""The errors of the shop."""

from __future__ import annotations


class ShopError(Exception):
    """What a customer may be told."""


class UnknownItemError(ShopError):
    """There is no such item."""


class NotInStockError(ShopError):
    """Fewer are left than were asked for."""


class CouponError(ShopError):
    """The coupon does not apply."""
