"""Amounts of money."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from shop.config import CURRENCIES
from shop.errors import CurrencyError


@dataclass(frozen=True, order=True)
class Money:
    """An amount in cents of a currency; negative for what is given back."""

    cents: int
    currency: str = "EUR"

    def __post_init__(self) -> None:
        if self.currency not in CURRENCIES:
            raise CurrencyError(f"{self.currency} is not taken")

    def __add__(self, other: Money) -> Money:
        return Money(self.cents + self._same(other).cents, self.currency)

    def __sub__(self, other: Money) -> Money:
        return Money(self.cents - self._same(other).cents, self.currency)

    def __mul__(self, count: int) -> Money:
        return Money(self.cents * count, self.currency)

    def percent(self, rate: int) -> Money:
        """That share of it, rounded to the nearest cent."""
        return Money(round(Fraction(self.cents * rate, 100)), self.currency)

    def __str__(self) -> str:
        sign = "-" if self.cents < 0 else ""
        symbol = CURRENCIES[self.currency]
        return f"{sign}{symbol}{abs(self.cents) // 100}.{abs(self.cents) % 100:02}"

    @property
    def none(self) -> Money:
        """Nothing, in the same currency."""
        return Money(0, self.currency)

    def _same(self, other: Money) -> Money:
        if other.currency != self.currency:
            raise CurrencyError(f"{other} is not in {self.currency}")
        return other


def total(amounts: Iterable[Money], currency: str = "EUR") -> Money:
    """The sum of amounts of one currency."""
    return sum(amounts, start=Money(0, currency))
