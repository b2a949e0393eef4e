"""What is in the basket and what it costs."""

FREE_SHIPPING_FROM = 100.0
SHIPPING = 4.9


def total(prices: list[float], discount_percent: float = 0.0) -> float:
    """The basket's total with shipping."""
    goods = sum(prices)
    goods -= goods * discount_percent / 100
    return goods if goods > FREE_SHIPPING_FROM else goods + SHIPPING
