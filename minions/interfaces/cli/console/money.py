"""Amounts as people read them."""

from __future__ import annotations

import math

__all__ = ["dollars"]


def dollars(amount: float) -> str:
    """`$12.50`, `$0.0042`: cents, and two digits of what is less. Something is never `$0.00`."""
    if amount <= 0:
        return "$0"
    if amount >= 1:
        return f"${amount:,.2f}"
    digits = max(2, 1 - math.floor(math.log10(amount)))
    return f"${amount:.{digits}f}"
