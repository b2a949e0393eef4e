"""A price book for tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from attrs import field, frozen

from minions.contracts.messages import TokenUsage
from minions.contracts.runtime import PriceBook


@frozen
class FlatPrices(PriceBook):
    """Dollars per token, the same for input and output."""

    prices: Mapping[str, float]
    asked: list[str] = field(factory=list)

    def cost_usd(
        self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
    ) -> float | None:
        self.asked.append(model)
        price = self.prices.get(model)
        return None if price is None else price * usage.total_tokens
