"""Formats amounts of money for people."""

from __future__ import annotations

import math


def dollars(amount: float) -> str:
    """An amount as `$12.50` or `$0.0042`: cents, or two digits of less; `$0` for nothing."""
    if amount <= 0:
        return "$0"
    if amount >= 1:
        return f"${amount:,.2f}"
    digits = max(2, 1 - math.floor(math.log10(amount)))
    return f"${amount:.{digits}f}"
