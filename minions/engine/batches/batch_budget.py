"""The cost limit of a batch: a run starts only if what it may cost is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import mutable

from minions.contracts.context import Limits
from minions.contracts.messages import TokenUsage
from minions.engine.services.spending import Spending

_ROUNDING = 1e-9
"""US dollars by which sums of costs may differ."""


@mutable(eq=False)
class Share:
    """The part of the budget that is reserved for one run."""

    reserved: float
    """US dollars that it is expected to cost at most."""
    cost: float | None = None
    """What it cost, in US dollars; None: not known, so that the reserved amount counts."""


class BatchBudget:
    """The US dollars that a batch may cost in total, with those of earlier processes.

    A running run counts with what it may cost at most. Where that is not known, it counts with the
    cost of the dearest run so far, and the first run is executed alone. The calls of all runs spend
    from `spending`, so that runs that are dearer than expected do not exceed the limit together.
    """

    def __init__(self, most: float | None, worst_case: float | None) -> None:
        """Start with nothing spent.

        Args:
            most: The limit; None: unlimited.
            worst_case: What one run may cost at most; None: not known.
        """
        self._most = most
        known = worst_case is not None and most is not None and worst_case <= most
        self._worst_case = worst_case if known else None
        self._dearest: float | None = None
        self._shares: list[Share] = []
        self._changed = asyncio.Condition()
        self.spending = Spending(lambda: Limits(max_cost_usd=most), whose="batch's")
        self.spent = 0.0
        self.is_spent = False
        """Whether a run could not start because too little is left."""

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._most is not None

    @property
    def expected(self) -> float | None:
        """What one further run is expected to cost at most; None: not known yet."""
        return self._dearest if self._worst_case is None else self._worst_case

    @property
    def left(self) -> float:
        """What is neither spent nor reserved."""
        reserved = sum(share.reserved for share in self._shares)
        return (self._most or 0.0) - self.spent - reserved

    def count_recorded(self, cost: float | None) -> None:
        """Count a run that an earlier process executed; None: its cost is not known."""
        self.count(cost)
        if cost:
            self.spending.add(TokenUsage(cost_usd=cost))

    def count(self, cost: float | None) -> None:
        """Count the cost of a run; None: it is not known, and nothing is counted."""
        if cost:  # a run that cost nothing says nothing about the others
            self.spent += cost
            self._dearest = max(self._dearest or 0.0, cost)

    @asynccontextmanager
    async def share(self) -> AsyncIterator[Share | None]:
        """The share of one run, as soon as it is left; None: it will not be."""
        share = await self._reserve()
        try:
            yield share
        finally:
            if share is not None:
                await self._settle(share)

    async def _reserve(self) -> Share | None:
        async with self._changed:
            while not self.is_spent:
                if self._fits():
                    share = Share(reserved=min(self.expected or 0.0, self.left))
                    self._shares.append(share)
                    return share
                if not self._shares:
                    self.is_spent = True
                    break
                await self._changed.wait()
            return None

    def _fits(self) -> bool:
        if self._most is None:
            return True
        if self.left <= _ROUNDING:
            return False
        if self.expected is None:
            return not self._shares
        return self.expected <= self.left + _ROUNDING

    async def _settle(self, share: Share) -> None:
        async with self._changed:
            self._shares.remove(share)
            self.count(share.reserved if share.cost is None else share.cost)
            self._changed.notify_all()
