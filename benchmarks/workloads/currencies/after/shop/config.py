"""What the shop decides: rates and thresholds."""

from __future__ import annotations

TAX_RATES = {"standard": 19, "reduced": 7, "none": 0}
"""Percent, by class."""

CURRENCIES = {"EUR": "€", "USD": "$", "CHF": "CHF "}
"""What stands before an amount, by currency; the first one is the shop's own."""

SHIPPING_FEES = {"EUR": 490, "USD": 590, "CHF": 550}
"""Cents for one parcel."""

FREE_SHIPPING_FROM = {"EUR": 5_000, "USD": 6_000, "CHF": 5_500}
"""Cents of goods from which a parcel costs nothing."""

HEAVY_FROM_GRAMS = 10_000
"""Weight from which a parcel costs twice as much."""

LARGEST_QUANTITY = 99
