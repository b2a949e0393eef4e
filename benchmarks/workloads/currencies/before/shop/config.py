"""What the shop decides: rates and thresholds."""

from __future__ import annotations

TAX_RATES = {"standard": 19, "reduced": 7, "none": 0}
"""Percent, by class."""

SHIPPING_FEE = 490
"""Cents for one parcel."""

FREE_SHIPPING_FROM = 5_000
"""Cents of goods from which a parcel costs nothing."""

HEAVY_FROM_GRAMS = 10_000
"""Weight from which a parcel costs twice as much."""

LARGEST_QUANTITY = 99
