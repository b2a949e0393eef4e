"""Amounts of money."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, order=True)
class Money:
    """An amount in cents of euros; negative for what is given back."""

    cents: int

    def __add__(self, other: Money) -> Money:
        return Money(self.cents + other.cents)

    def __sub__(self, other: Money) -> Money:
        return Money(self.cents - other.cents)

    def __mul__(self, count: int) -> Money:
        return Money(self.cents * count)

    def percent(self, rate: int) -> Money:
        """That share of it, rounded to the nearest cent."""
        return Money(round(Fraction(self.cents * rate, 100)))

    def __str__(self) -> str:
        sign = "-" if self.cents < 0 else ""
        return f"{sign}€{abs(self.cents) // 100}.{abs(self.cents) % 100:02}"


ZERO = Money(0)


def total(amounts: Iterable[Money]) -> Money:
    """The sum of amounts."""
    return sum(amounts, start=ZERO)
