"""Invoices as text."""

from __future__ import annotations

from shop import tax
from shop.cart import Line
from shop.money import ZERO, Money
from shop.orders import Order

WIDTH = 44


def invoice(order: Order) -> str:
    """The invoice of an order."""
    lines = [f"Invoice {order.number:05} of {order.day.isoformat()}", ""]
    lines += [_line(each) for each in order.lines]
    if order.discount != ZERO:
        lines.append(_row("Discount", ZERO - order.discount))
    lines.append(_row("Shipping", order.shipping))
    lines.append("-" * WIDTH)
    lines.append(_row("Total", order.total))
    for name, amount in tax.by_class(order.lines).items():
        lines.append(_row(f"of which tax ({name})", amount))
    return "\n".join(lines) + "\n"


def _line(line: Line) -> str:
    return _row(f"{line.quantity} x {line.item.name}", line.price)


def _row(text: str, amount: Money) -> str:
    return f"{text[:32]:<32}{amount!s:>12}"
