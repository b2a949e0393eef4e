"""Orders as a table for the accountant."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from shop import tax
from shop.money import total
from shop.orders import Order

COLUMNS = ("number", "day", "state", "currency", "goods", "discount", "shipping", "total", "tax")


def table(orders: Iterable[Order]) -> str:
    """The orders as CSV, amounts in cents."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for order in orders:
        writer.writerow(_row(order))
    return file.getvalue()


def _row(order: Order) -> list[str | int]:
    taxes = total(tax.by_class(order.lines).values(), order.currency)
    return [
        order.number,
        order.day.isoformat(),
        "cancelled" if order.is_cancelled else "paid",
        order.currency,
        order.goods.cents,
        order.discount.cents,
        order.shipping.cents,
        order.total.cents,
        taxes.cents,
    ]
