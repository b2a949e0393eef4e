"""Orders: a cart that was paid for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date

from shop import discounts, shipping
from shop.cart import Cart, Line
from shop.discounts import Coupon
from shop.errors import ShopError
from shop.money import Money
from shop.stock import Stock


@dataclass(frozen=True)
class Order:
    """What was bought, and for how much."""

    number: int
    day: date
    lines: tuple[Line, ...]
    goods: Money
    discount: Money
    shipping: Money
    is_cancelled: bool = False

    @property
    def total(self) -> Money:
        """What the customer pays."""
        return self.goods - self.discount + self.shipping


class Orders:
    """Orders, numbered from 1."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._orders: list[Order] = []

    def place(self, cart: Cart, today: date, coupons: list[Coupon] | None = None) -> Order:
        """Order what is in the cart, with the best of the coupons."""
        if not cart.lines:
            raise ShopError("the cart is empty")
        self._stock.take(cart.lines)
        discount = discounts.best(coupons or [], cart.goods, today)
        order = Order(
            number=len(self._orders) + 1,
            day=today,
            lines=tuple(cart.lines),
            goods=cart.goods,
            discount=discount,
            shipping=shipping.fee(cart.goods - discount, cart.grams),
        )
        self._orders.append(order)
        return order

    def cancel(self, number: int) -> Order:
        """Cancel an order, whose items are then in stock again."""
        order = self._orders[number - 1]
        if not order.is_cancelled:
            self._stock.give_back(order.lines)
            self._orders[number - 1] = replace(order, is_cancelled=True)
        return self._orders[number - 1]

    def all(self) -> list[Order]:
        """All orders, the oldest first."""
        return list(self._orders)
