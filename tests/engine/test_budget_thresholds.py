"""Budgets that ask at a threshold: once, durably, over processes, and nothing above the limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from builders import answer_of, deterministic_services, executor_of
from minions.adapters.stores.memory_stores import MemoryState, StateStore
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.postgres_side_tables import PostgresState
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.contracts.budgets import (
    BudgetPeriod,
    BudgetRule,
    Budgets,
    BudgetSpender,
    OnThreshold,
)
from minions.contracts.calls import ModelCallResponse, Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import DecisionRecorded
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import MOST_DAYS, Spender, Spent, day_of
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.budget_records import BudgetRecord, read_record
from minions.engine.services.budget_rules import _OFTEN, rules_of
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.services.shared_budgets import SharedBudgets
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import World
from patience import HANG_S

CALL = 15
"""Tokens of a call."""
DAY_S = 86_400
ASK = OnThreshold.ASK


def recipe(steps: int = 1, name: str = "recipe") -> AgentRecipe:
    found = [{"id": f"step{number}", "goal": "Go on."} for number in range(steps)]
    return recipe_from_document({"id": name, "steps": found}, Catalog())


def loop(items: int) -> AgentRecipe:
    step: dict[str, JsonValue] = {
        "id": "each",
        "goal": "Do {{ loop.item }}.",
        "loop": list(range(items)),
        "max_parallel": items,
    }
    return recipe_from_document({"id": "loop", "steps": [step]}, Catalog())


class Place:
    """A journal and a store, a clock, and processes that have them."""

    def __init__(self, journal: Journal, store: StateStore) -> None:
        self.journal = journal
        self.store = store
        self.clock = FakeClock()
        self.asked = 0

    def process(self, budgets: Budgets) -> AgentExecutor:
        """One that has just started, with these budgets."""

        async def pause(_seconds: float) -> None:
            await asyncio.sleep(0)

        shared = SharedBudgets(budgets, self.store, sleep=pause)
        services = evolve(deterministic_services(self.journal), clock=self.clock, budgets=shared)
        # Ids of its own: processes do not count together.
        services = evolve(services, ids=Services().ids)
        return executor_of(World().model(self._answer), services=services)

    async def _answer(self, _prompt: Prompt) -> ModelCallResponse:
        self.asked += 1
        for _ in range(3):
            await asyncio.sleep(0)
        return answer_of("done")

    async def spent(self) -> Spent:
        return await self.journal.spent(Spender(day=day_of(self.clock.now())))

    async def record(self) -> BudgetRecord:
        (key,) = await self.store.keys("minions:budget:")
        return read_record(key, await self.store.get(key))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    clock = FakeClock()
    journal: Journal = MemoryJournal(clock)
    store: StateStore = MemoryState()
    if request.param == "sqlite":
        journal = SqliteJournal(tmp_path / "journal.db", clock)
        store = SqliteState(tmp_path / "journal.db")
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        journal, store = PostgresJournal(url, clock, lease_clock=clock), PostgresState(url)
    made = Place(journal, store)
    made.clock = clock
    yield made
    await journal.aclose()
    await store.aclose()


def per_day(calls: float, **more: object) -> Budgets:
    """A budget of a day for so many calls, that asks when a half is used."""
    settings = {"threshold": 0.5, "on_threshold": ASK, **more}
    return Budgets(tokens_per_day=int(calls * CALL), **settings)  # type: ignore[arg-type]  # of it


async def ran(executor: AgentExecutor, steps: int = 1) -> AgentResult[object]:
    return await executor.prepare(recipe(steps)).execute()


def waits(result: AgentResult[object]) -> str:
    assert result.status is RunStatus.NEEDS_DECISION
    assert result.error is not None
    return result.error.message


async def decided(
    executor: AgentExecutor, run: AgentResult[object], word: str, step: str = "step2"
) -> AgentResult[object]:
    return await executor.resume(run.run_id, decisions={step: word})


# --- at the threshold -----------------------------------------------------------------------------


async def test_a_run_asks_at_the_threshold_and_spends_up_to_the_limit_when_approved(
    place: Place,
) -> None:
    """A-170: on each store; the run ends, and a later process has the answer."""
    budgets = per_day(4)
    run = await ran(place.process(budgets), 6)
    said = waits(run)
    assert "the budget per_day is at its threshold: 30 of 60 tokens are used, 0 reserved" in said
    assert f"minions approve {run.run_id}" in said
    assert place.asked == 2
    stopped = await decided(place.process(budgets), run, "approve")
    assert stopped.status is RunStatus.LIMIT_REACHED
    assert stopped.error is not None
    assert "The daily limit tokens_per_day=60 is reached" in stopped.error.message
    assert place.asked == 4
    assert await place.spent() == Spent(60, 0.0)


async def test_a_rejected_budget_ends_its_runs_at_the_threshold(place: Place) -> None:
    budgets = per_day(4)
    run = await ran(place.process(budgets), 3)
    stopped = await decided(place.process(budgets), run, "reject")
    assert stopped.status is RunStatus.LIMIT_REACHED
    assert stopped.error is not None
    assert "limit 50% of tokens_per_day=30 is reached" in stopped.error.message
    other = await ran(place.process(budgets))
    assert other.status is RunStatus.LIMIT_REACHED
    assert place.asked == 2


async def test_an_answered_budget_asks_no_other_run_of_the_same_day(place: Place) -> None:
    """A-170: the answer is looked up by every process."""
    if not place.journal.is_shared:
        pytest.skip("one process")
    budgets = per_day(6)
    first = await ran(place.process(budgets), 4)
    second = await ran(place.process(budgets), 1)  # asks, too: nobody has answered yet
    assert "at its threshold" in waits(second)
    assert set((await place.record()).waits) == {first.run_id, second.run_id}
    assert (await decided(place.process(budgets), first, "approve", "step3")).status is (
        RunStatus.COMPLETED
    )
    assert (await place.record()).waits == {}
    assert (await place.process(budgets).resume(second.run_id)).status is RunStatus.COMPLETED
    assert (await ran(place.process(budgets))).status is RunStatus.COMPLETED
    assert place.asked == 6
    place.clock.advance(DAY_S)
    waits(await ran(place.process(budgets), 4))


async def test_parallel_calls_ask_once(place: Place) -> None:
    budgets = per_day(10)
    executor = place.process(budgets)
    run = await executor.prepare(loop(10)).execute()
    waits(run)
    rows = await place.journal.entries(run.session_id, kinds={"decision"})
    assert len(rows) == 1
    assert place.asked <= 6
    done = await decided(place.process(budgets), run, "approve", "each")
    assert done.status is RunStatus.COMPLETED
    assert place.asked == 10
    rows = await place.journal.entries(run.session_id, kinds={"decision"})
    assert [type(row.fact) for row in rows[1:]] == [DecisionRecorded]


async def test_an_approval_names_another_limit_within_what_the_operator_allows(
    place: Place,
) -> None:
    budgets = per_day(4, raise_to=2.0)
    run = await ran(place.process(budgets), 9)
    with pytest.raises(
        UsageError, match="limit_tokens is 121, and has to be above 0 and up to 120"
    ):
        await decided(place.process(budgets), run, 'approve::{"limit_tokens": 121}')
    with pytest.raises(UsageError, match="name neither limit_usd nor limit_tokens"):
        await decided(place.process(budgets), run, 'approve::{"limit": 1}')
    stopped = await decided(place.process(budgets), run, 'approve::{"limit_tokens": 90}')
    assert stopped.error is not None
    assert "tokens_per_day=90 is reached" in stopped.error.message
    assert place.asked == 6


async def test_a_new_day_needs_no_decision_of_the_day_before(place: Place) -> None:
    budgets = per_day(4)
    run = await ran(place.process(budgets), 3)
    waits(run)
    place.clock.advance(DAY_S)
    done = await place.process(budgets).resume(run.run_id)
    assert done.status is RunStatus.COMPLETED
    (waited, settled) = await place.journal.entries(run.session_id, kinds={"decision"})
    assert isinstance(settled.fact, DecisionRecorded)
    assert settled.fact.is_default
    assert waited.key == settled.key


async def test_a_raised_limit_asks_again(place: Place) -> None:
    run = await ran(place.process(per_day(4)), 3)
    await decided(place.process(per_day(4)), run, "approve")
    assert place.asked == 3
    assert "45 of 90 tokens are used" in waits(await ran(place.process(per_day(6))))


async def test_a_threshold_that_warns_lets_runs_spend_up_to_the_limit(place: Place) -> None:
    process = place.process(per_day(4, on_threshold=OnThreshold.WARN))
    done = await ran(process, 4)
    assert done.status is RunStatus.COMPLETED
    (warned,) = done.warnings
    assert warned.code == "budget-threshold"
    assert warned.message == "50% of the daily limit tokens_per_day=60 are used."
    assert (await ran(process)).status is RunStatus.LIMIT_REACHED


async def test_a_threshold_that_stops_is_a_limit(place: Place) -> None:
    process = place.process(per_day(4, on_threshold=OnThreshold.STOP))
    assert (await ran(process, 4)).status is RunStatus.LIMIT_REACHED
    assert place.asked == 2


# --- over processes -------------------------------------------------------------------------------


async def test_runs_of_several_processes_never_exceed_a_limit_by_more_than_a_call(
    place: Place,
) -> None:
    """A-170: what is under way in one process is known to the others."""
    if not place.journal.is_shared:
        pytest.skip("one process")
    budgets = Budgets(tokens_per_day=10 * CALL)
    processes = [place.process(budgets) for _ in range(4)]
    results = await asyncio.gather(*(ran(each, 4) for each in processes for _ in range(2)))
    spent = (await place.spent()).tokens
    assert spent in (10 * CALL, 11 * CALL)
    assert sum(result.usage.total_tokens for result in results) == spent
    record = await place.record()
    assert all(part.is_over and not part.calls for part in record.runs.values())


async def test_runs_of_several_processes_spend_nothing_above_the_threshold(place: Place) -> None:
    """A-170: all of them ask, and none makes a further call."""
    if not place.journal.is_shared:
        pytest.skip("one process")
    budgets = per_day(20)
    processes = [place.process(budgets) for _ in range(4)]
    results = await asyncio.gather(*(ran(each, 12) for each in processes))
    spent = (await place.spent()).tokens
    assert spent in (10 * CALL, 11 * CALL)
    for each in results:
        waits(each)


# --- spenders and periods -------------------------------------------------------------------------


def of(per: BudgetSpender, calls: int = 2, **more: object) -> Budgets:
    """One budget of such spenders, for so many calls."""
    rule = BudgetRule(per=per, tokens=calls * CALL, **more)  # type: ignore[arg-type]  # of it
    return Budgets(limits={"own": rule})


@pytest.mark.parametrize(
    ("per", "mine", "others"),
    [
        (BudgetSpender.RECIPE, {"name": "mine"}, {"name": "other"}),
        (BudgetSpender.USER, {"user": "ann"}, {"user": "bob"}),
        (BudgetSpender.SESSION, {"session_id": "ses_a"}, {"session_id": "ses_b"}),
        (BudgetSpender.SCHEDULE, {"note": {"schedule": {"name": "night"}}}, {}),
        (BudgetSpender.TOKEN, {"note": {"token": "ci"}}, {"note": {"token": "app"}}),
        (BudgetSpender.PROJECT, {"project": "/a"}, {"project": "/b"}),
    ],
)
async def test_each_spender_has_a_budget_of_its_own(
    place: Place,
    per: BudgetSpender,
    mine: dict[str, Any],  # Any: arguments of `prepare`
    others: dict[str, Any],
) -> None:
    async def run(arguments: Mapping[str, Any]) -> RunStatus:
        rest = dict(arguments)
        made = recipe(name=rest.pop("name", "recipe"))
        return (await place.process(of(per)).prepare(made, **rest).execute()).status

    assert [await run(mine) for _ in range(2)] == [RunStatus.COMPLETED] * 2
    assert await run(others) is RunStatus.COMPLETED
    assert await run(mine) is RunStatus.LIMIT_REACHED
    assert await run(others) is RunStatus.COMPLETED
    place.clock.advance(2)  # the rows are read, not what processes told each other
    for key in await place.store.keys():
        await place.store.remove(key)
    assert await run(mine) is RunStatus.LIMIT_REACHED


async def test_a_budget_of_one_recipe_alone_is_nobody_elses(place: Place) -> None:
    budgets = of(BudgetSpender.RECIPE, only="mine")
    for _ in range(3):
        assert (await ran(place.process(budgets))).status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("period", "days"), [(BudgetPeriod.DAY, 1), (BudgetPeriod.WEEK, 7), (BudgetPeriod.MONTH, 31)]
)
async def test_a_budget_lasts_for_its_period(place: Place, period: BudgetPeriod, days: int) -> None:
    budgets = of(BudgetSpender.ALL, 3, period=period)
    begin = rules_of(budgets)[0].days_at(day_of(place.clock.now()) + days)
    assert begin is not None
    place.clock.advance((begin.end - place.clock.now()).total_seconds())  # its first moment
    first = await ran(place.process(budgets), 2)
    place.clock.advance(begin.length * DAY_S / 2)
    assert (await ran(place.process(budgets))).status is RunStatus.COMPLETED
    stopped = await ran(place.process(budgets))
    assert stopped.status is RunStatus.LIMIT_REACHED
    assert stopped.error is not None
    assert f"{_OFTEN[period]} limit limits.own.tokens=45 is reached" in stopped.error.message
    place.clock.advance(31 * DAY_S)
    assert (await place.process(budgets).resume(stopped.run_id)).status is RunStatus.COMPLETED
    assert first.status is RunStatus.COMPLETED


async def test_what_a_run_spent_on_earlier_days_of_a_month_counts_in_it(place: Place) -> None:
    month = Budgets(limits={"own": BudgetRule(tokens=4 * CALL, period=BudgetPeriod.MONTH)})
    day = BudgetRule(tokens=CALL, period=BudgetPeriod.DAY)
    both = Budgets(limits={**month.limits, "day": day})
    rule = rules_of(month)[0]
    days = rule.days_at(day_of(place.clock.now()))
    assert days is not None
    place.clock.advance((days.end - place.clock.now()).total_seconds() + 1)
    run = await ran(place.process(both), 9)
    for _ in range(3):
        place.clock.advance(DAY_S)
        run = await place.process(both).resume(run.run_id)
        assert run.status is RunStatus.LIMIT_REACHED
    today = day_of(place.clock.now())
    assert await place.journal.spent(rule.spender(None, today)) == Spent(60, 0.0)
    assert await Journal.spent(place.journal, rule.spender(None, today)) == Spent(60, 0.0)
    (row,) = await place.journal.runs()
    assert [spent for _, spent in row.earlier] == [Spent(15, 0.0)] * 3
    place.clock.advance(DAY_S)
    stopped = await ran(place.process(month))
    assert stopped.error is not None
    assert "monthly limit limits.own.tokens=60 is reached" in stopped.error.message


async def test_records_of_periods_that_are_long_over_are_removed(place: Place) -> None:
    if not place.journal.is_shared:
        pytest.skip("nothing is told to other processes")
    budgets = of(BudgetSpender.USER)
    kept = await place.store.keys()
    for days in (0, 37, 1):
        place.clock.advance(days * DAY_S)
        await place.process(budgets).prepare(recipe(), user="ann").execute()
    assert len(await place.store.keys()) == len(kept) + 3
    place.clock.advance(DAY_S)
    await place.process(budgets).prepare(recipe(), user="bob").execute()
    assert len(await place.store.keys()) == len(kept) + 3


# --- found by search ------------------------------------------------------------------------------


@given(
    processes=st.integers(1, 4),
    runs=st.integers(1, 3),
    steps=st.integers(1, 4),
    calls=st.integers(2, 14),
    asks=st.booleans(),
)
def test_however_many_processes_and_runs_no_limit_is_exceeded_by_more_than_a_call(
    processes: int, runs: int, steps: int, calls: int, asks: bool
) -> None:
    """A-170: neither the threshold nor, after an answer, the limit."""
    asyncio.run(_no_limit_is_exceeded(processes, runs, steps, calls, asks=asks))


async def _no_limit_is_exceeded(
    processes: int, runs: int, steps: int, calls: int, *, asks: bool
) -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock)
    journal.is_shared = True  # as if each executor were a process of its own
    place = Place(journal, MemoryState())
    place.clock = clock
    budgets = per_day(calls) if asks else Budgets(tokens_per_day=calls * CALL)
    most = budgets.tokens_per_day or 0
    executors = [place.process(budgets) for _ in range(processes)]
    results = await asyncio.gather(*(ran(each, steps) for each in executors for _ in range(runs)))
    spent = (await place.spent()).tokens
    bound = int(most * 0.5) if asks else most
    wanted = processes * runs * steps * CALL
    assert spent < bound + CALL
    assert spent >= min(bound, wanted)
    waiting = [each for each in results if each.status is RunStatus.NEEDS_DECISION]
    assert bool(waiting) == (asks and wanted > spent)
    if not waiting:
        return
    entries = await journal.entries(waiting[0].session_id, kinds={"decision"})
    await place.process(budgets).resume(waiting[0].run_id, decisions={entries[0].key: "approve"})
    again = (place.process(budgets).resume(each.run_id) for each in waiting[1:])
    ended = [each.status for each in await asyncio.gather(*again)]
    assert RunStatus.NEEDS_DECISION not in ended
    assert min(most, wanted) <= (await place.spent()).tokens < most + CALL


@given(st.integers(date(1970, 1, 1).toordinal(), date(2100, 1, 1).toordinal()))
def test_each_day_is_in_one_period_and_the_next_one_begins_where_it_ends(day: int) -> None:
    for period in BudgetPeriod:
        (rule,) = rules_of(of(BudgetSpender.ALL, period=period))
        days = rule.days_at(day)
        assert days is not None
        assert days.first <= day < days.first + days.length <= days.first + MOST_DAYS
        after = rule.days_at(days.first + days.length)
        assert after is not None
        assert after.first == days.first + days.length == day_of(days.end)
        assert rule.days_at(days.first) == days


# --- event loops of several threads ---------------------------------------------------------------


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_threads_with_event_loops_of_their_own_tell_each_other_what_they_reserve(
    place: Place,
) -> None:
    """Two processes of three threads each: nobody hangs, and the limit holds for all."""
    executors = [place.process(Budgets(tokens_per_day=10 * CALL)) for _ in range(2)]

    def work(executor: AgentExecutor) -> list[AgentResult[object]]:
        async def runs() -> list[AgentResult[object]]:
            return list(await asyncio.gather(*(ran(executor, 2) for _ in range(2))))

        return asyncio.run(runs())

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(work, each) for each in executors for _ in range(3)]
        results = [result for each in futures for result in each.result(timeout=HANG_S)]
    codes = {result.error.code for result in results if result.error is not None}
    assert codes == {"limit-reached"}
    assert (await place.spent()).tokens in (10 * CALL, 11 * CALL)
