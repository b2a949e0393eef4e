"""The cost limit of a batch: what is reserved for a run, and when none may start."""

from __future__ import annotations

import asyncio

import pytest

from minions.engine.batches.batch import BatchBudget, Share


async def spend(budget: BatchBudget, cost: float | None, begun: list[Share]) -> bool:
    """Whether a run of that cost could start."""
    async with budget.share() as share:
        if share is None:
            return False
        begun.append(share)
        await asyncio.sleep(0)
        share.cost = cost
        return True


async def test_runs_start_as_long_as_their_worst_case_is_left() -> None:
    """A-116."""
    budget, begun = BatchBudget(1.0, 0.3), list[Share]()
    async with budget.share(), budget.share(), budget.share():
        waiting = asyncio.create_task(spend(budget, 0.1, begun))
        await asyncio.sleep(0)
        assert (begun, waiting.done()) == ([], False)
    assert not await waiting  # each of the three counts with its worst case: no cost was told
    assert round(budget.spent, 9) == 0.9
    assert budget.is_spent


async def test_what_a_run_did_not_use_is_left_to_the_next_ones() -> None:
    """A-116."""
    budget, begun = BatchBudget(1.0, 0.3), list[Share]()
    started = await asyncio.gather(*(spend(budget, 0.1, begun) for _ in range(20)))
    assert started.count(True) == 8  # at 0.8 a run of 0.3 could exceed the limit
    assert round(budget.spent, 9) == 0.8


async def test_where_the_worst_case_is_not_known_the_first_run_is_alone() -> None:
    """A-116."""
    budget, begun = BatchBudget(1.0, None), list[Share]()
    async with budget.share() as first:
        assert first is not None
        others = [asyncio.create_task(spend(budget, 0.2, begun)) for _ in range(9)]
        await asyncio.sleep(0)
        assert begun == []
        first.cost = 0.2
    assert (await asyncio.gather(*others)).count(True) == 4
    assert round(budget.spent, 9) == 1.0


async def test_a_worst_case_above_the_limit_does_not_stop_the_first_run() -> None:
    budget, begun = BatchBudget(0.05, 0.1), list[Share]()
    assert await spend(budget, 0.01, begun)
    assert budget.expected == 0.01


async def test_without_a_limit_every_run_starts() -> None:
    budget, begun = BatchBudget(None, None), list[Share]()
    assert all(await asyncio.gather(*(spend(budget, 9.0, begun) for _ in range(20))))
    assert not budget.is_limited
    assert BatchBudget(0.0, None).is_limited


async def test_a_worst_case_of_just_the_limit_is_one() -> None:
    budget, begun = BatchBudget(0.5, 0.5), list[Share]()
    assert budget.expected == 0.5
    assert await spend(budget, 0.5, begun)
    assert not await spend(budget, 0.0, begun)
    assert BatchBudget(None, 0.5).expected is None
    assert BatchBudget(0.5, 0.6).expected is None


async def test_what_is_left_but_for_rounding_is_left() -> None:
    budget, begun = BatchBudget(0.3, 0.1), list[Share]()
    started = [await spend(budget, 0.1, begun) for _ in range(4)]
    assert started == [True, True, True, False]  # 0.3 - 0.1 - 0.1 is less than 0.1
    rest = BatchBudget(1e-9, 0.0)
    assert not await spend(rest, None, begun)  # it is nothing


async def test_runs_of_earlier_processes_count_and_their_calls_too() -> None:
    """A-116."""
    budget = BatchBudget(1.0, None)
    for cost in (0.2, None, 0.6, 0.0, 0.1):
        budget.count_recorded(cost)
    assert round(budget.spent, 9) == 0.9
    assert budget.expected == 0.6
    assert budget.spending.usage.cost_usd == pytest.approx(0.9)
    assert not await spend(budget, 0.1, [])


async def test_the_dearest_run_so_far_is_what_the_next_one_may_cost() -> None:
    budget, begun = BatchBudget(1.0, None), list[Share]()
    for cost in (0.4, 0.1):
        assert await spend(budget, cost, begun)
    assert budget.expected == 0.4
    assert await spend(budget, 0.2, begun)
    assert not await spend(budget, 0.1, begun)
