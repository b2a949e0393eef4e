"""Budgets of a session, of a user on a day, and of a day: who spends from them, and how far."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from builders import answer_of, deterministic_services, executor_of
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.budgets import Budgets, _is_amount, checked_user
from minions.contracts.calls import ModelCallResponse, Prompt
from minions.contracts.context import Limits
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow, Spender, Spent, day_of
from minions.contracts.messages import TokenUsage
from minions.data.errors import BudgetSpentError, UsageError
from minions.data.failure_categories import FailureCategory
from minions.engine.history.imported_entries import imported_entry
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.budget import RunBudget
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.services.shared_budgets import BudgetedRun, SharedBudgets, _Account
from minions.engine.services.spending import EarlierUsage
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import World
from prices import FlatPrices

CALL_USD = 15.0  # ten tokens of input and five of output at a dollar each
CALL = Spent(15, CALL_USD)
DAY_S = 86_400


def recipe(steps: int = 1) -> AgentRecipe:
    found = [{"id": f"step{number}", "goal": "Go on."} for number in range(steps)]
    return recipe_from_document({"id": "recipe", "steps": found}, Catalog())


class Place:
    """A journal, a clock, and processes that have both."""

    def __init__(self, journal: Journal, clock: FakeClock) -> None:
        self.journal = journal
        self.clock = clock
        base = deterministic_services(journal)
        prices = FlatPrices({"scripted/answers": 1.0})
        self._base = evolve(base, clock=clock, prices=prices)
        self.asked = 0

    def process(self, **budgets: float) -> AgentExecutor:
        """One that has just started, with these budgets."""
        shared = SharedBudgets(Budgets(**budgets))  # type: ignore[arg-type]  # tokens are whole
        return executor_of(World().model(self._answer), services=self.services(shared))

    def services(self, shared: SharedBudgets) -> Services:
        return evolve(self._base, budgets=shared)

    async def _answer(self, _prompt: Prompt) -> ModelCallResponse:
        self.asked += 1
        for _ in range(3):
            await asyncio.sleep(0)
        return answer_of("done")

    @property
    def today(self) -> int:
        return day_of(self.clock.now())


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    clock = FakeClock()
    made: Journal = MemoryJournal(clock)
    if request.param == "sqlite":
        made = SqliteJournal(tmp_path / "journal.db", clock)
    elif request.param == "postgres":
        made = PostgresJournal(request.getfixturevalue("postgres_url"), clock, lease_clock=clock)
    yield Place(made, clock)
    await made.aclose()


@pytest.fixture
def memory() -> Place:
    clock = FakeClock()
    return Place(MemoryJournal(clock), clock)


async def ran(
    executor: AgentExecutor,
    steps: int = 1,
    *,
    user: str | None = None,
    session: str | None = None,
) -> AgentResult[object]:
    return await executor.prepare(recipe(steps), user=user, session_id=session).execute()


def why(result: AgentResult[object]) -> str:
    assert result.status is RunStatus.LIMIT_REACHED
    assert result.error is not None
    assert result.error.category is FailureCategory.RESOURCE
    return result.error.message


# --- at the limit -------------------------------------------------------------------------------


async def test_a_day_that_has_spent_its_budget_starts_no_call_until_the_next_day(
    place: Place,
) -> None:
    process = place.process(usd_per_day=2 * CALL_USD)
    assert (await ran(process, 2)).status is RunStatus.COMPLETED
    stopped = await ran(process, user="ann")
    assert "The daily limit usd_per_day=30.0 is reached: $30 was spent." in why(stopped)
    assert "there is a new budget from " in why(stopped)
    assert place.asked == 2
    place.clock.advance(DAY_S)
    assert (await ran(process)).status is RunStatus.COMPLETED
    assert (await process.resume(stopped.run_id)).status is RunStatus.COMPLETED
    assert place.asked == 4


async def test_users_have_a_budget_of_their_own_each_day(place: Place) -> None:
    process = place.process(user_usd_per_day=CALL_USD)
    assert (await ran(process, user="ann")).status is RunStatus.COMPLETED
    assert "The user's daily limit user_usd_per_day=15.0 is" in why(await ran(process, user="ann"))
    assert (await ran(process, user="bob")).status is RunStatus.COMPLETED
    assert (await ran(process)).status is RunStatus.COMPLETED
    place.clock.advance(DAY_S)
    assert (await ran(process, user="ann")).status is RunStatus.COMPLETED


async def test_a_session_has_a_budget_for_all_its_runs_on_any_day(place: Place) -> None:
    process = place.process(session_tokens=15)
    assert (await ran(process, session="ses_a")).status is RunStatus.COMPLETED
    place.clock.advance(3 * DAY_S)
    stopped = why(await ran(process, session="ses_a"))
    assert "The session's limit session_tokens=15 is reached: 15 tokens were used." in stopped
    assert "start another session" in stopped
    assert (await ran(process, session="ses_b")).status is RunStatus.COMPLETED


async def test_a_new_process_knows_what_was_spent_before_it(place: Place) -> None:
    for number in range(3):
        await ran(place.process(usd_per_day=1e9), user="ann", session=f"ses_{number}")
    assert await place.journal.spent(Spender(day=place.today)) == Spent(45, 45.0)
    assert await place.journal.spent(Spender(day=place.today, user="ann")) == Spent(45, 45.0)
    assert await place.journal.spent(Spender(day=place.today, user="bob")) == Spent()
    assert await place.journal.spent(Spender(session_id="ses_1")) == CALL
    for spender in (Spender(day=place.today, user="ann"), Spender(session_id="ses_1")):
        by_default = await Journal.spent(place.journal, spender, without=["run_2"])
        assert by_default == await place.journal.spent(spender, without=["run_2"])
    why(await ran(place.process(usd_per_day=45.0)))
    why(await ran(place.process(user_tokens_per_day=45), user="ann"))
    why(await ran(place.process(session_usd=15.0), session="ses_1"))
    assert place.asked == 3


async def test_what_another_process_records_counts_a_second_later(place: Place) -> None:
    if not place.journal.is_shared:
        pytest.skip("one process")
    one, other = place.process(usd_per_day=4 * CALL_USD), place.process()
    await ran(one)
    await ran(other, 2)
    place.clock.advance(2)
    assert (await ran(one)).status is RunStatus.COMPLETED
    why(await ran(one))
    assert place.asked == 4


async def test_sixty_runs_of_one_user_at_once_exceed_the_budget_by_one_call_at_most(
    place: Place,
) -> None:
    process = place.process(user_usd_per_day=20 * CALL_USD + 1)
    results = await asyncio.gather(*(ran(process, user="ann") for _ in range(60)))
    done = [each for each in results if each.status is RunStatus.COMPLETED]
    assert len(done) == place.asked == 21
    spent = await place.journal.spent(Spender(day=place.today, user="ann"))
    assert spent == Spent(21 * 15, 21 * CALL_USD)
    exceeded = [each.warnings[0].message for each in results if each.warnings]
    assert any("the user's daily limit: $315 was spent, and user_usd" in each for each in exceeded)


# --- recorded runs --------------------------------------------------------------------------------


async def test_a_run_that_is_resumed_or_retried_counts_once(place: Place) -> None:
    process = place.process(usd_per_day=2 * CALL_USD)
    stopped = await ran(process, 3)
    why(stopped)
    await process.resume(stopped.run_id)
    assert await place.journal.spent(Spender(day=place.today)) == Spent(30, 30.0)
    more = place.process(usd_per_day=3 * CALL_USD)
    assert (await more.resume(stopped.run_id)).status is RunStatus.COMPLETED
    assert await place.journal.spent(Spender(day=place.today)) == Spent(45, 45.0)
    why(await ran(more))


async def test_calls_that_a_retry_makes_again_stay_spent(place: Place) -> None:
    process = place.process(usd_per_day=3 * CALL_USD)
    first = await ran(process, 2)
    await process.retry(first.run_id, from_step="step0")
    assert place.asked == 3
    assert await place.journal.spent(Spender(day=place.today)) == Spent(45, 45.0)
    (row,) = await place.journal.runs(RunFilter(run_ids=[first.run_id]))
    assert row.usage["cost_usd"] == 45.0
    assert row.usage["discarded_cost_usd"] == 15.0
    why(await ran(process))
    why(await ran(place.process(usd_per_day=3 * CALL_USD)))


async def test_a_run_that_is_resumed_on_another_day_spends_of_that_day(place: Place) -> None:
    first = await ran(place.process(usd_per_day=CALL_USD), 2, session="ses_a")
    before = place.today
    place.clock.advance(DAY_S)
    assert (await place.process(usd_per_day=CALL_USD).resume(first.run_id)).status is (
        RunStatus.COMPLETED
    )
    assert await place.journal.spent(Spender(day=place.today)) == CALL
    assert await place.journal.spent(Spender(day=before)) == Spent()
    assert await place.journal.spent(Spender(session_id="ses_a")) == Spent(30, 30.0)


async def test_what_a_killed_run_spent_counts_when_it_is_resumed() -> None:
    world, clock = World(), FakeClock()
    place = Place(world.journal, clock)
    shared = SharedBudgets(Budgets(usd_per_day=1e9))
    executor = executor_of(world.model(place._answer), services=place.services(shared))  # its own
    assert await world.killed(executor, recipe(3), 6)
    asked = place.asked
    again = place.process(usd_per_day=1e9)
    await again.resume("run_1")
    assert await world.journal.spent(Spender(day=place.today)) == Spent(
        15 * place.asked, CALL_USD * place.asked
    )
    budgets = again.services.budgets
    assert budgets is not None
    assert budgets.day(clock.now()).cost_usd == CALL_USD * place.asked
    assert place.asked > asked > 0


async def test_an_imported_run_spends_only_what_it_spends_here(place: Place) -> None:
    stopped = await ran(place.process(usd_per_day=CALL_USD), 2, user="ann", session="ses_a")
    elsewhere = MemoryJournal(place.clock)
    entries = await place.journal.entries("ses_a")
    for entry in entries:  # with the recipe
        if (digest := getattr(entry.fact, "document", None)) is not None:
            await elsewhere.put_blob(await place.journal.get_blob(digest))
    await elsewhere.adopt("ses_a", [imported_entry(entry, None) for entry in entries])
    other = Place(elsewhere, place.clock)
    (row,) = await elsewhere.runs()
    assert (row.user, row.spent, row.foreign) == (None, Spent(), CALL)
    process = other.process(usd_per_day=CALL_USD, user_usd_per_day=0.01)
    assert (await process.resume(stopped.run_id)).status is RunStatus.COMPLETED
    budgets = process.services.budgets
    assert budgets is not None
    assert budgets.day(place.clock.now()).cost_usd == CALL_USD
    why(await process.prepare(recipe(), run_id="run_new", session_id="ses_new").execute())


async def test_deleting_a_session_gives_no_budget_back(place: Place) -> None:
    """Neither while some is left, nor of what another process spent."""
    process, other = place.process(usd_per_day=3 * CALL_USD), place.process()
    await ran(process, session="ses_a")
    await ran(other if place.journal.is_shared else process, session="ses_b")
    place.clock.advance(2)
    await process.prepare(recipe()).check_budgets()
    for session in ("ses_a", "ses_b"):
        await place.journal.remove_session(session)
    place.clock.advance(2)
    assert (await ran(process)).status is RunStatus.COMPLETED
    why(await ran(process))


# --- refused before it begins ---------------------------------------------------------------------


async def test_a_new_run_without_a_budget_is_refused_with_the_time_of_the_next(
    place: Place,
) -> None:
    limits = {"usd_per_day": CALL_USD, "session_usd": CALL_USD}
    process = place.process(**limits)
    await ran(process, session="ses_a")
    for asked in (process, place.process(**limits)):  # also one that knows of rows alone
        with pytest.raises(BudgetSpentError, match=r"\$15 was spent\. .*There is a new") as refused:
            await asked.prepare(recipe()).check_budgets()
    now = place.clock.now()
    left = DAY_S - (now.hour * 3600 + now.minute * 60 + now.second)
    assert (refused.value.limit, refused.value.retry_after_s) == ("usd_per_day", left)
    with pytest.raises(BudgetSpentError, match="Start another session") as session:
        await process.prepare(recipe(), session_id="ses_a").check_budgets()
    assert session.value.retry_after_s is None
    assert await place.journal.count_runs() == 1


async def test_a_model_without_a_price_is_refused_under_a_budget(memory: Place) -> None:
    services = evolve(
        memory.services(SharedBudgets(Budgets(usd_per_day=1.0))), prices=FlatPrices({})
    )
    executor = executor_of(World().model(memory._answer), services=services)  # its own
    with pytest.raises(Exception, match=r"\$1 \(usd_per_day\)") as refused:
        executor.prepare(recipe())
    assert getattr(refused.value, "error_code", None) == "unknown-price"
    users = evolve(services, budgets=SharedBudgets(Budgets(user_usd_per_day=1.0)))
    executor = executor_of(World().model(memory._answer), services=users)  # its own
    failed = await ran(executor, user="ann")
    assert failed.error is not None
    assert failed.error.code in ("unknown-price", "step-failed")
    assert memory.asked == 0


async def test_a_budget_in_tokens_is_refused_with_the_tokens(memory: Place) -> None:
    process = memory.process(tokens_per_day=15)
    await ran(process)
    with pytest.raises(BudgetSpentError, match=r"tokens_per_day=15 is reached: 15 tokens were us"):
        await process.prepare(recipe()).check_budgets()


@pytest.mark.parametrize(("left_s", "retry_s"), [(1.0, 1), (0.5, 1), (1.5, 2), (-1.0, 1)])
async def test_the_time_until_the_next_budget_is_a_second_at_least(
    memory: Place, left_s: float, retry_s: int
) -> None:
    """Also where the day ends while it is looked up."""
    now = memory.clock.now()
    left = DAY_S - (now.hour * 3600 + now.minute * 60 + now.second) - now.microsecond / 1e6
    shared = SharedBudgets(Budgets(tokens_per_day=1))
    memory.clock.advance(left - 2)
    share = await shared.begin(budgeted(), memory.journal, memory.clock)
    share.accounts[0].spending.add(TokenUsage(input_tokens=1))
    share.accounts[0]._next_look = None  # it is looked up again
    spent = memory.journal.spent

    async def slowly(spender: Spender, *, without: Collection[str] = ()) -> Spent:
        memory.clock.advance(2 - left_s)
        return await spent(spender, without=without)

    memory.journal.spent = slowly  # type: ignore[method-assign]  # the clock goes on meanwhile
    with pytest.raises(BudgetSpentError) as refused:
        await shared.check(budgeted(2), memory.journal, memory.clock)
    assert refused.value.retry_after_s == retry_s


def test_the_lowest_limit_on_cost_is_the_one_that_counts_for_every_run() -> None:
    assert SharedBudgets(Budgets(user_usd_per_day=1)).cost_limit is None
    assert SharedBudgets(Budgets(usd_per_day=2)).cost_limit == (2, "usd_per_day")
    both = Budgets(session_usd=3, usd_per_day=2)
    assert SharedBudgets(both).cost_limit == (2, "usd_per_day")


@pytest.mark.parametrize("label", ["a", "x" * 100, "Ann Ä"])
def test_a_label_is_taken_as_it_is(label: str) -> None:
    assert checked_user(label) == label


@pytest.mark.parametrize("usd", [0, -1.0, math.inf, math.nan])
def test_a_budget_is_an_amount(usd: float) -> None:
    assert not _is_amount(usd)  # in a file of settings
    with pytest.raises(ValueError, match="usd_per_day"):
        Budgets(usd_per_day=usd)
    assert _is_amount(0.5)


@pytest.mark.parametrize("label", ["", " ann", "a\nb", "x" * 101, "\x7f"])
def test_a_label_of_a_user_is_short_and_printable(label: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked_user(label)
    assert refused.value.error_code == "bad-user"


# --- what an account remembers --------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=30))
def test_a_process_counts_what_the_rows_come_to_whatever_ends_in_between(
    work: list[tuple[int, bool, bool]],
) -> None:
    """Looks in between, of runs that are executed, count nothing twice and lose nothing."""

    async def all_of_it() -> None:
        clock = FakeClock()
        place = Place(MemoryJournal(clock), clock)
        place.journal.is_shared = True
        process = place.process(usd_per_day=1e9)
        other = place.process()
        shared = process.services.budgets
        assert shared is not None
        tasks: list[asyncio.Task[AgentResult[object]]] = []
        for steps, is_other, waits in work:
            tasks.append(asyncio.ensure_future(ran(other if is_other else process, steps + 1)))
            clock.advance(1)
            for _ in range(steps * 5 if waits else 0):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        clock.advance(1)
        await process.prepare(recipe()).check_budgets()
        assert shared.day(clock.now()).tokens == 15 * place.asked
        assert (await place.journal.spent(Spender(day=place.today))).tokens == 15 * place.asked

    asyncio.run(all_of_it())


def budgeted(number: int = 1, spent: int = 0, *, is_new: bool = True) -> BudgetedRun:
    """A run of a session of its own, which spent so many tokens that are in no row."""
    usage = TokenUsage(input_tokens=spent)
    earlier = EarlierUsage([("call", usage)] if spent else [])
    return BudgetedRun(
        run_id=f"run_{number}",
        session_id=f"ses_{number}",
        user=None,
        budget=RunBudget(Limits, earlier=earlier),
        is_new=is_new,
    )


async def test_accounts_of_sessions_that_are_done_are_forgotten(memory: Place) -> None:
    shared = SharedBudgets(Budgets(session_usd=1.0, usd_per_day=1.0))
    for number in range(1_500):
        run = budgeted(number)
        share = await shared.begin(run, memory.journal, memory.clock)
        for account in share.accounts:
            account.spending.add(TokenUsage(input_tokens=1, cost_usd=0.0001))
        shared.end(share, is_recorded=True)
    assert len(shared._accounts) == 1_000  # that it does not grow
    assert shared.day(memory.clock.now()).tokens == 1_500


async def test_accounts_of_runs_that_are_executed_are_kept_until_they_end(memory: Place) -> None:
    shared = SharedBudgets(Budgets(session_usd=1.0))
    shares = [await shared.begin(budgeted(n), memory.journal, memory.clock) for n in range(1_002)]
    assert len(shared._accounts) == 1_002
    shared.end(shares.pop(0), is_recorded=True)
    assert len(shared._accounts) == 1_001
    for number in range(2_000, 2_010):  # of runs that are only looked up
        await shared.check(budgeted(number), memory.journal, memory.clock)
    assert {each.accounts[0].record.key for each in shares} <= set(shared._accounts)
    for share in shares:
        shared.end(share, is_recorded=True)
    assert len(shared._accounts) == 1_000


async def test_accounts_that_are_only_looked_up_are_forgotten_too(memory: Place) -> None:
    shared = SharedBudgets(Budgets(session_usd=1.0))
    for number in range(1_010):
        await shared.check(budgeted(number), memory.journal, memory.clock)
    assert len(shared._accounts) == 1_000


async def test_an_account_that_was_forgotten_while_it_was_looked_up_is_there_again(
    memory: Place,
) -> None:
    shared, run = SharedBudgets(Budgets(session_usd=1.0)), budgeted()
    spent = memory.journal.spent

    async def meanwhile(spender: Spender, *, without: Collection[str] = ()) -> Spent:
        shared._accounts.clear()  # as a thousand others would do
        return await spent(spender, without=without)

    memory.journal.spent = meanwhile  # type: ignore[method-assign]  # see above
    share = await shared.begin(run, memory.journal, memory.clock)
    assert list(shared._accounts.values()) == share.accounts


async def test_what_is_not_limited_has_no_account(memory: Place) -> None:
    shared = SharedBudgets(Budgets(usd_per_day=1.0))
    share = await shared.begin(budgeted(), memory.journal, memory.clock)
    assert [each.spender for each in share.accounts] == [Spender(day=memory.today)]


async def test_the_row_of_a_run_is_read_where_a_budget_needs_it(memory: Place) -> None:
    asked: list[object] = []
    runs = memory.journal.runs

    async def counted(wanted: RunFilter, **more: Any) -> Sequence[RunRow]:  # Any: of the journal
        asked.append(wanted)
        return await runs(wanted, **more)

    memory.journal.runs = counted  # type: ignore[method-assign,assignment]  # counts
    limited, free = SharedBudgets(Budgets(usd_per_day=1.0)), SharedBudgets(Budgets())
    await limited.begin(budgeted(1), memory.journal, memory.clock)
    await free.begin(budgeted(2, is_new=False), memory.journal, memory.clock)
    assert asked == []
    await limited.begin(budgeted(3, is_new=False), memory.journal, memory.clock)
    assert len(asked) == 1


async def test_what_a_run_spent_whose_end_was_lost_counts_once(memory: Place) -> None:
    """Of the last thousand such runs; an older one counts again, rather than not at all."""
    shared = SharedBudgets(Budgets(tokens_per_day=1_000_000))

    async def lost(number: int) -> None:
        run = budgeted(number, spent=1)
        shared.end(await shared.begin(run, memory.journal, memory.clock), is_recorded=False)

    def tokens() -> int:
        return shared.day(memory.clock.now()).tokens

    for number in range(1_001):
        await lost(number)
    assert tokens() == 1_001
    await lost(1_000)
    await lost(1)
    assert tokens() == 1_001
    await lost(0)
    assert tokens() == 1_002


async def test_a_run_that_could_not_begin_at_all_its_budgets_spends_from_none(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedBudgets(Budgets(session_tokens=100, tokens_per_day=100))
    run = budgeted(spent=5)
    begin = _Account.begin

    async def cancelled(account: _Account, *begun: Any) -> None:  # Any: handed on
        if account.free_at is not None:
            raise asyncio.CancelledError
        await begin(account, *begun)

    with monkeypatch.context() as patched:
        patched.setattr(_Account, "begin", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await shared.begin(run, memory.journal, memory.clock)
    assert [dict(each.active) for each in shared._accounts.values()] == [{}, {}]
    share = await shared.begin(budgeted(spent=5), memory.journal, memory.clock)
    assert [each.spent.tokens for each in share.accounts] == [5, 5]


@pytest.mark.parametrize(
    ("is_shared", "took_s", "looks"),
    [
        (False, 0.0, {0.0: 1, 100.0: 1}),
        (True, 0.0, {0.0: 1, 0.5: 1, 1.0: 2, 1.5: 2}),
        (True, 0.25, {0.0: 1, 12.375: 1, 12.5: 2}),
    ],
)
async def test_rows_are_read_again_after_a_second_or_fifty_times_what_that_takes(
    memory: Place, is_shared: bool, took_s: float, looks: Mapping[float, int]
) -> None:
    memory.journal.is_shared = is_shared
    shared = SharedBudgets(Budgets(tokens_per_day=100))
    begin, count = memory.clock.monotonic(), 0

    async def slowly(_: Spender, *, without: Collection[str] = ()) -> Spent:
        nonlocal count
        count += 1
        memory.clock.advance(took_s)
        return Spent()

    memory.journal.spent = slowly  # type: ignore[method-assign,assignment]  # it takes its time
    for at, expected in looks.items():
        memory.clock.advance(max(0.0, begin + at - memory.clock.monotonic()))
        await shared.check(budgeted(), memory.journal, memory.clock)
        assert count == expected, at


# --- event loops of several threads ---------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "sqlite"], indirect=True)
async def test_threads_with_event_loops_of_their_own_share_a_days_budget(place: Place) -> None:
    """Nobody hangs, nobody fails, and what is spent is counted once."""
    shared = SharedBudgets(Budgets(tokens_per_day=150, user_tokens_per_day=10_000))
    services = evolve(place.services(shared), ids=Services().ids)
    executors = [
        executor_of(ScriptedModel(_slowly), services=evolve(services, worker_id=f"w{n}"))
        for n in range(6)
    ]

    def work(executor: AgentExecutor) -> list[AgentResult[object]]:
        async def runs() -> list[AgentResult[object]]:
            return list(await asyncio.gather(*(ran(executor, 2, user="ann") for _ in range(4))))

        return asyncio.run(runs())

    with ThreadPoolExecutor(len(executors)) as pool:
        futures = [pool.submit(work, each) for each in executors]
        results = [result for each in futures for result in each.result(timeout=120)]
    codes = {result.error.code for result in results if result.error is not None}
    assert codes == {"limit-reached"}
    tokens = sum(result.usage.total_tokens for result in results)
    assert tokens in (150, 165)  # exceeded by one call at most
    assert shared.day(place.clock.now()).tokens == tokens
    assert (await place.journal.spent(Spender(day=place.today))).tokens == tokens


async def _slowly(_prompt: Prompt) -> ModelCallResponse:
    for _ in range(5):
        await asyncio.sleep(0)
    return answer_of("done")
