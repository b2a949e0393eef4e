"""Budgets that runs share: of each session, each user on a day, each recipe in a week and so on.

What is spent is read from the rows of runs, and counted here from then on. Where other processes
write to the same journal, the rows are read again as runs start, at most once a second; and where
there is a store for it, the processes tell each other before each call what their runs spent that
no row says yet, and what they reserve.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import evolve, field, frozen
from msgspec.structs import replace

from minions.contracts.budgets import Budgets, BudgetSpender, BudgetStore, DayBudget, OnThreshold
from minions.contracts.context import Limits
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow, Spender, Spent, day_of
from minions.contracts.runtime import Clock, IsWorkerGone, Sleep
from minions.data.errors import BudgetSpentError, JournalError
from minions.engine.services.budget import RunBudget
from minions.engine.services.budget_records import BudgetAnswer, BudgetRecord, RunPart, StoredRecord
from minions.engine.services.budget_rules import Rule, rules_of
from minions.engine.services.event_loop import LoopLock, Waiter
from minions.engine.services.spending import (
    NOTHING_HELD,
    CallEstimate,
    CallHold,
    EarlierUsage,
    Held,
    Spending,
)

if TYPE_CHECKING:
    from minions.data.json_values import JsonValue

_MOST_ACCOUNTS: Final = 1_000
"""Sessions, users and days that are remembered; runs that are executed keep theirs beside them."""
_MOST_LOST: Final = 1_000
"""Runs without a recorded end that an account remembers."""
_MOST_SHARE: Final = 50
"""A look takes at most the 50th part of the time, however many runs a day has."""
_LOOK_EVERY_S: Final = 1.0
"""Seconds after which what other processes recorded is read again."""
_POLL_EVERY_S: Final = 0.2
"""Seconds after which a call looks again whether calls of other processes have ended."""


@frozen(kw_only=True)
class BudgetedRun:
    """A run that spends from the budgets."""

    run_id: str
    session_id: str
    user: str | None
    """The label of its user; None: it has none."""
    budget: RunBudget
    is_new: bool
    """Whether nothing is recorded of it."""
    recipe: str | None = None
    schedule: str | None = None
    """The schedule that started it; None: none did."""
    token: str | None = None
    """The name of the token with which it was started over HTTP; None: otherwise."""
    project: str | None = None

    def name_for(self, per: BudgetSpender) -> str | None:
        """Of its session, user, recipe and so on; None: it has none, or all runs are meant."""
        return {
            BudgetSpender.ALL: None,
            BudgetSpender.SESSION: self.session_id,
            BudgetSpender.USER: self.user,
            BudgetSpender.RECIPE: self.recipe,
            BudgetSpender.SCHEDULE: self.schedule,
            BudgetSpender.TOKEN: self.token,
            BudgetSpender.PROJECT: self.project,
        }[per]


# --- one budget -----------------------------------------------------------------------------------


class SharedSpending(Spending):
    """What is spent of one budget: up to its threshold, or up to its limit."""

    def __init__(self, rule: Rule, who: str | None, free_at: datetime | None) -> None:
        """Nothing is spent, and nobody was asked.

        Args:
            who: The session, user and so on that it is the budget of; None: all runs.
            free_at: When there is a new one; None: never.
        """
        self.rule = rule
        self.who = who
        self.account: _Account | None = None
        self._answer: BudgetAnswer | None = None
        self._holds: dict[CallHold, str] = {}
        """Calls in flight, with their runs."""
        self._present = rule.limits
        advice = _advice(free_at, " or ".join(rule.names.values()))
        super().__init__(
            lambda: self._present,
            whose=rule.whose,
            earlier=EarlierUsage(),
            names=rule.names,
            advice=advice,
        )
        self.set_answer(None)

    # --- the threshold ----------------------------------------------------------------------------

    def set_answer(self, answer: BudgetAnswer | None) -> None:
        """Spend up to what was said; None: nothing was."""
        rule, limits = self.rule, self.rule.limits
        about = (limits.max_cost_usd, limits.max_tokens)
        if answer is not None and answer.about != about:
            answer = None
        self._answer, present = answer, limits
        names: Mapping[str, str] = rule.names
        if answer is not None and answer.is_approved:
            most = rule.share(rule.raise_to)
            present = Limits(
                max_cost_usd=_least(answer.usd, limits.max_cost_usd, most.max_cost_usd),
                max_tokens=_least(answer.tokens, limits.max_tokens, most.max_tokens),
            )
        elif rule.on_threshold in (OnThreshold.ASK, OnThreshold.STOP):
            present = rule.share(rule.threshold)
            names = {key: f"{rule.threshold:.0%} of {name}" for key, name in names.items()}
        with self.guard:
            if present != self._present:
                self._present, self.reached = present, None
            self.names = {**self.names, **names}

    @property
    def is_asking(self) -> bool:
        """Whether a person is asked before more is spent, and could allow it."""
        if self.rule.on_threshold is not OnThreshold.ASK or self._answer is not None:
            return False
        most, cost = self.rule.share(self.rule.raise_to), self.cost_usd
        if most.max_tokens is not None and self.tokens >= most.max_tokens:
            return False
        return most.max_cost_usd is None or (cost is not None and cost < most.max_cost_usd)

    @property
    def warning(self) -> str | None:
        """For a run, that the threshold is reached; None: it is not, or nobody is warned."""
        rule = self.rule
        if rule.on_threshold is not OnThreshold.WARN:
            return None
        at, cost = rule.share(rule.threshold), self.cost_usd
        for name, most, used in (
            ("max_cost_usd", at.max_cost_usd, cost),
            ("max_tokens", at.max_tokens, self.tokens),
        ):
            if most is not None and used is not None and used >= most:
                limit = f"{rule.names[name]}={getattr(rule.limits, name):g}"
                return f"{rule.threshold:.0%} of the {rule.whose} limit {limit} are used."
        return None

    # --- over processes ---------------------------------------------------------------------------

    def add_elsewhere(self, amount: Spent, sign: int = 1) -> None:
        """Count what was spent, but not by calls that this one counts.

        Args:
            sign: -1: it is counted no more.
        """
        self.earlier.tokens += sign * amount.tokens
        self.earlier.cost_usd += sign * amount.cost_usd

    async def reserve(self, estimate: CallEstimate) -> CallHold | None:
        """Hold what the call may use, beside what calls of other processes may use."""
        account = self.account
        while True:
            hold = await super().reserve(estimate)
            if hold is None or account is None or not self.is_published:
                return hold
            with self.guard:
                self._holds[hold] = estimate.run_id
            try:
                if await account.publish(hold):
                    return hold
            except BaseException:
                self.release(hold)
                raise
            self.release(hold)
            if self.used_up() is None:
                await account.poll()

    def release(self, hold: CallHold) -> None:
        """Give back what was held for a call that has ended."""
        with self.guard:
            self._holds.pop(hold, None)
        super().release(hold)

    async def publish(self) -> None:
        """What is not told now is told with the next call, or at the end of the run."""
        if self.account is not None:
            with suppress(JournalError):
                await self.account.publish()

    async def _wait_for_room(self, waiter: Waiter) -> None:
        if self.account is None or not self.calls_elsewhere:
            await waiter.wait()
        else:
            await self.account.poll()

    def is_still_right(self, hold: CallHold) -> bool:
        """Whether a call that is held already may begin, after news of other processes."""
        if self.used_up() is not None:
            return False
        if self._in_flight == 1 and not self.calls_elsewhere:
            return True
        held = self.held_elsewhere
        for each in self._holds:
            held = held.plus(self._size_of(each))
        return self._fits(held)

    def held_by_run(self) -> Mapping[str, tuple[int, Held]]:
        """How many calls of each run are in flight, and what they may use."""
        found: dict[str, tuple[int, Held]] = {}
        for hold, run_id in self._holds.items():
            count, held = found.get(run_id, (0, NOTHING_HELD))
            found[run_id] = (count + 1, held.plus(self._size_of(hold)))
        return found

    def _size_of(self, hold: CallHold) -> Held:
        return hold.amount or self._at_most(hold.estimate)


_A = TypeVar("_A", int, float)


def _least(said: _A | None, limit: _A | None, most: _A | None) -> _A | None:
    """The new limit: what was said, but never more than is allowed."""
    if limit is None or most is None:
        return None
    return limit if said is None else min(said, most)


class _Account:
    """One budget as this process knows it: what is spent of it here and elsewhere."""

    def __init__(
        self,
        spender: Spender,
        spending: SharedSpending,
        free_at: datetime | None,
        record: StoredRecord,
        journal: Journal,
        clock: Clock,
        sleep: Sleep,
        is_worker_gone: IsWorkerGone,
    ) -> None:
        self.spender = spender
        self.spending = spending
        self._rule = spending.rule
        self.free_at = free_at
        """When there is a new budget; None: never, it is a session's."""
        self.record = record
        self.active: dict[str, Spent] = {}
        """Runs that are executed here, with what their rows say that they spent before."""
        self._own: dict[str, Callable[[], Spent]] = {}
        """What they spent since."""
        self._ended: dict[str, RunPart] = {}
        """Runs that ended here, of which other processes are still to be told."""
        self._lost: dict[str, Spent] = {}
        """What runs spent here whose end could not be recorded."""
        self._settled = Spent()
        """What runs spent here that have ended: their rows say it."""
        self._others = Spent()
        """What was not spent here since the account is open."""
        self._rows = Spent()
        """What the rows said, but for those of the runs in `_without`."""
        self._without: Collection[str] = ()
        self._next_look: float | None = None
        """The elapsed time from which rows are read again; None: they were not read yet."""
        self._journal = journal
        self._clock = clock
        self._sleep = sleep
        self._is_worker_gone = is_worker_gone
        self._lock = LoopLock()
        self._guard = spending.guard

    @property
    def spent(self) -> Spent:
        """What is known to be spent."""
        spending = self.spending
        with self._guard:
            known = (spending.usage.cost_usd or 0.0) + spending.earlier.cost_usd
            return Spent(spending.tokens, known)

    async def look(self) -> None:
        """Read what is recorded, unless that was done a moment ago or nobody else writes it."""
        async with self._lock:
            if self._next_look is None or (
                self._journal.is_shared and self._clock.monotonic() >= self._next_look
            ):
                await self._read()

    async def _read(self, *, is_waiting: bool = False) -> None:
        """Read the record, and the rows where they may say something else than before.

        Args:
            is_waiting: Whether a call waits for those of other processes: it is looked whether
                these are alive.
        """
        if self.spending.is_published or self._rule.on_threshold is OnThreshold.ASK:
            self._adopt(await self.record.read())
        runs, begin = self.record.runs, self._clock.monotonic()
        # A run may end, and its row change, while the rows are read: what is executed here or
        # elsewhere is left out of the sum, and counts with what was known of it before.
        with self._guard:
            before, lost, settled = dict(self.active), dict(self._lost), self._settled
        without = {*runs, *before}
        if self._next_look is None or begin >= self._next_look or self._has_news(without):
            self._rows = await self._journal.spent(self.spender, without=without)
            self._without = without
            took = self._clock.monotonic() - begin
            self._next_look = begin + max(_LOOK_EVERY_S, _MOST_SHARE * took)
        found = self._rows
        for run_id in without:
            if run_id not in before:
                found = found.plus(runs[run_id].spent).plus(lost.get(run_id, Spent()), -1)
            elif run_id in self._without:
                found = found.plus(before[run_id])
        alive = await self._alive() if is_waiting else None
        with self._guard:
            self._set_others(found.plus(settled, -1))
            self._set_held(alive)

    def _has_news(self, without: Collection[str]) -> bool:
        """Whether the rows that were read miss a run, or have one that counts otherwise now."""
        runs = self.record.runs
        return any(run_id not in without for run_id in self._without) or any(
            runs[run_id].had_row
            for run_id in runs
            if run_id not in self._without and run_id not in self.active
        )

    async def _alive(self) -> Collection[str]:
        """Ids of runs that a worker executes."""
        held = await self._journal.held_leases()
        return {
            each.lease.run_id
            for each in held
            if not (each.has_expired or self._is_worker_gone(each.lease.worker_id))
        }

    def _set_held(self, alive: Collection[str] | None) -> None:
        """Count the calls in flight of other processes.

        Args:
            alive: Runs that are executed; None: all that have calls in flight count as such.
        """
        calls, held, runs = 0, NOTHING_HELD, self.record.runs
        for run_id, part in runs.items():
            if part.calls and run_id not in self.active and (alive is None or run_id in alive):
                calls += part.calls
                held = held.plus(Held(part.held_tokens, part.held_usd))
        self.spending.calls_elsewhere, self.spending.held_elsewhere = calls, held

    def _adopt(self, record: BudgetRecord) -> None:
        self.spending.set_answer(record.answer)

    def _set_others(self, found: Spent) -> None:
        """Count what was found; what was deleted since stays spent."""
        known = self._others
        others = Spent(max(known.tokens, found.tokens), max(known.cost_usd, found.cost_usd))
        self.spending.add_elsewhere(others.plus(known, -1))
        self._others = others

    async def begin(self, run: BudgetedRun, row: RunRow | None) -> None:
        """Let the run spend, which has spent already what no row says yet."""
        async with self._lock:  # not while rows are read
            with self._guard:
                self._begin(run, row)

    def _begin(self, run: BudgetedRun, row: RunRow | None) -> None:
        if (again := self._lost.pop(run.run_id, None)) is not None:
            self.spending.add_elsewhere(again, -1)
        self.active[run.run_id] = self.spender.of(row) if row is not None else Spent()
        self._own[run.run_id] = lambda: _own(run, row)
        self.spending.add_elsewhere(_own(run, row))
        run.budget.share(self.spending, counts_replayed=False)

    def end(self, run: BudgetedRun, row: RunRow | None, *, is_recorded: bool) -> None:
        """Note that the run is not executed any more."""
        with self._guard:
            self._end(run, row, is_recorded=is_recorded)

    def _end(self, run: BudgetedRun, row: RunRow | None, *, is_recorded: bool) -> None:
        own = _own(run, row)
        if self.spending.is_published and (any(own) or run.run_id in self.record.runs):
            part = self._part_of(run.run_id)
            self._ended[run.run_id] = replace(part, is_over=is_recorded)
        del self.active[run.run_id], self._own[run.run_id]
        if is_recorded:
            self._settled = self._settled.plus(own)
            return
        self._lost[run.run_id] = own
        if len(self._lost) > _MOST_LOST:
            del self._lost[next(iter(self._lost))]

    @property
    def is_spent(self) -> bool:
        """Whether no call may begin."""
        with self._guard:
            if self.spending.is_asking:
                return False
            return (self.spending.reached or self.spending.used_up()) is not None

    # --- over processes ---------------------------------------------------------------------------

    async def publish(self, hold: CallHold | None = None) -> bool:
        """Tell other processes what is spent and held here.

        Args:
            hold: The call for which it is done; None: none.
        Returns:
            Whether that call may begin; True where there is none.
        Raises:
            JournalError: The store cannot be used.
        """
        async with self._lock:
            while True:
                with self._guard:
                    parts = self._parts()
                if await self.record.replace(lambda known: known.with_runs(parts)):  # noqa: B023  # called at once
                    with self._guard:
                        # A run may have ended meanwhile, of which its part does not tell yet.
                        told = [k for k, part in self._ended.items() if parts.get(k) is part]
                        for run_id in told:
                            del self._ended[run_id]
                    return True
                await self._read()
                with self._guard:
                    if hold is not None and not self.spending.is_still_right(hold):
                        return False

    async def poll(self) -> None:
        """Look again, after a moment, what calls of other processes use."""
        await self._sleep(_POLL_EVERY_S)
        async with self._lock:
            await self._read(is_waiting=True)

    def _parts(self) -> dict[str, RunPart]:
        """What is told of the runs that are executed here, and of those that have ended."""
        known, held = self.record.runs, self.spending.held_by_run()
        found = dict(self._ended)
        for run_id, own in self._own.items():
            if run_id in held or run_id in known or any(own()):
                found[run_id] = self._part_of(run_id, *held.get(run_id, (0, NOTHING_HELD)))
        return found

    def _part_of(self, run_id: str, calls: int = 0, held: Held = NOTHING_HELD) -> RunPart:
        before = self.active[run_id]
        spent = before.plus(self._own[run_id]())
        return RunPart(
            tokens=spent.tokens,
            usd=spent.cost_usd,
            held_tokens=held.tokens,
            held_usd=held.cost_usd,
            calls=calls,
            had_row=any(before),
        )

    # --- the threshold ----------------------------------------------------------------------------

    async def question(self, run_id: str, now: datetime) -> Mapping[str, JsonValue] | None:
        """What a person is asked at the threshold; None: somebody has answered already.

        Raises:
            JournalError: The store cannot be used.
        """
        async with self._lock:
            while True:
                await self._read()
                if not self.spending.is_asking:
                    return None
                at = now.isoformat(timespec="seconds")
                if await self.record.replace(
                    lambda known: replace(known, waits={run_id: at, **known.waits})  # noqa: B023  # at once
                ):
                    return self._question()

    def _question(self) -> dict[str, JsonValue]:
        spending, spent, rule = self.spending, self.spent, self._rule
        limits, most = rule.limits, rule.share(rule.raise_to)
        held = spending.held_elsewhere
        for _, own in spending.held_by_run().values():
            held = held.plus(own)
        asked: dict[str, JsonValue] = {"budget": rule.name, "key": self.record.key}
        if spending.who is not None:
            asked["of"] = spending.who
        if limits.max_cost_usd is not None and most.max_cost_usd is not None:
            left = limits.max_cost_usd - spent.cost_usd - held.cost_usd
            asked |= {
                "used_usd": _round_usd(spent.cost_usd),
                "reserved_usd": _round_usd(held.cost_usd),
                "left_usd": _round_usd(max(0.0, left)),
                "limit_usd": limits.max_cost_usd,
                "most_usd": _round_usd(most.max_cost_usd),
            }
        if limits.max_tokens is not None:
            asked |= {
                "used_tokens": spent.tokens,
                "reserved_tokens": held.tokens,
                "left_tokens": max(0, limits.max_tokens - spent.tokens - held.tokens),
                "limit_tokens": limits.max_tokens,
                "most_tokens": most.max_tokens,
            }
        return asked

    async def answer(self, answer: BudgetAnswer) -> None:
        """Store what a person said, unless somebody said something before.

        Raises:
            JournalError: The store cannot be used.
        """
        limits = self._rule.limits
        about = (limits.max_cost_usd, limits.max_tokens)
        async with self._lock:
            while True:
                known = await self.record.read()
                if known.answer is None or known.answer.about != about:
                    said = replace(answer, about=about)
                    changed = replace(known, answer=said, waits={})
                    if not await self.record.replace(lambda _: changed):  # noqa: B023  # at once
                        continue
                self._adopt(self.record.known)
                return


def _own(run: BudgetedRun, row: RunRow | None) -> Spent:
    """What the run spent since its row was read."""
    return run.budget.spent.plus(row.known if row is not None else Spent(), -1)


def _round_usd(usd: float) -> float:
    return round(usd, 6)


@frozen(eq=False)
class BudgetShare:
    """The accounts of one run while it is executed."""

    run: BudgetedRun
    row: RunRow | None
    """What was recorded of it before; None: nothing."""
    accounts: list[_Account]
    asked: set[str] = field(factory=set)
    """Keys of the records of budgets about which this execution asked."""


class SharedBudgets:
    """The budgets of a process. All runs whose services have the same object share them."""

    def __init__(
        self,
        limits: Budgets,
        store: BudgetStore | None = None,
        *,
        sleep: Sleep = asyncio.sleep,
        is_worker_gone: IsWorkerGone | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            store: In which processes tell each other what they reserve; None: each one counts what
                is under way in itself, and remembers what persons said at thresholds.
            is_worker_gone: Tells of workers that died, whose calls hold nothing; None: their leases
                tell it.
        """
        self.limits = limits
        self._rules = rules_of(limits)
        self._store = store
        self._answers = _Answers()
        self._sleep = sleep
        self._is_worker_gone = is_worker_gone or (lambda _: False)
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        """By the keys of their records."""
        self._shares: dict[str, BudgetShare] = {}
        """By the ids of runs that are executed."""
        self._guard = threading.RLock()
        """Of the accounts: event loops may run in several threads."""

    @property
    def cost_limit(self) -> tuple[float, str] | None:
        """The lowest limit on cost that counts for every run, and its name; None: there is none."""
        named = (
            (rule.limits.max_cost_usd, rule.names["max_cost_usd"])
            for rule in self._rules
            if rule.counts_for_every_run
        )
        return min(((most, name) for most, name in named if most is not None), default=None)

    async def begin(self, run: BudgetedRun, journal: Journal, clock: Clock) -> BudgetShare:
        """Let the run spend from its budgets; `end` or `close` follows in any case.

        Raises:
            JournalError: The journal cannot be read.
        """
        row = None
        if self._rules and not run.is_new:
            row = next(iter(await journal.runs(RunFilter(run_ids=[run.run_id]), limit=1)), None)
        if row is not None:  # what started it is not said again when it is resumed
            run = evolve(run, schedule=row.schedule, token=row.token, project=row.project)
        accounts = await self._looked_up(run, journal, clock)
        share = BudgetShare(run, row, [])
        try:
            for account in accounts:
                with self._guard:
                    self._accounts.setdefault(account.record.key, account)
                await account.begin(run, row)
                share.accounts.append(account)
        except BaseException:
            self.end(share, is_recorded=False)
            raise
        self._shares[run.run_id] = share
        return share

    def end(self, share: BudgetShare, *, is_recorded: bool) -> None:
        """Note that the run is not executed any more.

        Args:
            is_recorded: Whether the journal has its end, and with it what it spent.
        """
        self._shares.pop(share.run.run_id, None)
        for account in share.accounts:
            account.end(share.run, share.row, is_recorded=is_recorded)
        self._forget()

    async def close(self, share: BudgetShare, *, is_recorded: bool) -> None:
        """As `end`, and tell other processes. Where that fails, they count what they knew."""
        self.end(share, is_recorded=is_recorded)
        for account in share.accounts:
            if account.spending.is_published:
                await account.spending.publish()
                if account.record.is_created and account.spender.day is not None:
                    account.record.is_created = False
                    with suppress(JournalError):
                        await self._remove_old(account.spending.rule, account.spender.day)

    async def _remove_old(self, rule: Rule, day: int) -> None:
        """Remove the records of periods that were over long ago, once a period and spender."""
        if self._store is not None:
            for key in await self._store.keys(rule.start_of_keys):
                if rule.is_over(key, day):
                    await self._store.remove(key)

    async def check(self, run: BudgetedRun, journal: Journal, clock: Clock) -> None:
        """Refuse a run that could call no model.

        Raises:
            BudgetSpentError: Has the time from which there is a new budget.
            JournalError: The journal cannot be read.
        """
        for account in await self._looked_up(run, journal, clock):
            if account.is_spent:
                raise _refusal(account, clock.now())

    def day(self, now: datetime) -> DayBudget:
        """The budget of the day, as far as this process knows."""
        rule = next((each for each in self._rules if each.name == "per_day"), None)
        account = None if rule is None else self._accounts.get(rule.key(None, day_of(now)))
        spent = account.spent if account is not None else Spent()
        limits = self.limits
        return DayBudget(spent.tokens, limits.tokens_per_day, spent.cost_usd, limits.usd_per_day)

    # --- at a threshold ---------------------------------------------------------------------------

    async def question(
        self, spending: Spending, run_id: str, now: datetime
    ) -> tuple[Mapping[str, JsonValue], bool] | None:
        """What a person is asked at the threshold of a budget, and whether this execution of the
        run asks it for the first time; None: somebody has answered, the call may be tried again.

        Raises:
            JournalError: The store cannot be used.
        """
        account = spending.account if isinstance(spending, SharedSpending) else None
        if account is None:
            return None
        asked = await account.question(run_id, now)
        if asked is None:
            return None
        share = self._shares.get(run_id)
        is_first = share is None or account.record.key not in share.asked
        if share is not None:
            share.asked.add(account.record.key)
        return asked, is_first

    async def answer(self, run_id: str, key: str, answer: BudgetAnswer) -> None:
        """Store what a person said about the budget with that record; nothing where the run does
        not spend from it any more.

        Raises:
            JournalError: The store cannot be used.
        """
        share = self._shares.get(run_id)
        for account in share.accounts if share is not None else ():
            if account.record.key == key:
                await account.answer(answer)

    # --- accounts ---------------------------------------------------------------------------------

    async def _looked_up(
        self, run: BudgetedRun, journal: Journal, clock: Clock
    ) -> Sequence[_Account]:
        """The accounts of the run, the narrowest first: all runs reserve in this order."""
        with self._guard:
            accounts = [*self._accounts_of(run, journal, clock)]
        for account in accounts:
            await account.look()
        return accounts

    def _accounts_of(self, run: BudgetedRun, journal: Journal, clock: Clock) -> Iterator[_Account]:
        day = day_of(clock.now())
        for rule in self._rules:
            who = run.name_for(rule.per)
            if who is None and rule.per is not BudgetSpender.ALL:
                continue
            if rule.only is None or rule.only == who:
                yield self._account(rule, who, day, journal, clock)

    def _account(
        self, rule: Rule, who: str | None, day: int, journal: Journal, clock: Clock
    ) -> _Account:
        key = rule.key(who, day)
        account = self._accounts.get(key)
        if account is None:
            days = rule.days_at(day)
            free_at = None if days is None else days.end
            spending = SharedSpending(rule, who, free_at)
            spending.is_published = self._store is not None and journal.is_shared
            record = StoredRecord(self._store or self._answers, key)
            spender = rule.spender(who, day)
            account = _Account(
                spender,
                spending,
                free_at,
                record,
                journal,
                clock,
                self._sleep,
                self._is_worker_gone,
            )
            spending.account = self._accounts[key] = account
        self._accounts.move_to_end(key)
        self._forget()
        return account

    def _forget(self) -> None:
        """Drop accounts that were not needed for longest; what they count is in the rows."""
        with self._guard:
            self._forget_idle()

    def _forget_idle(self) -> None:
        more = len(self._accounts) - _MOST_ACCOUNTS
        if more <= 0:
            return
        idle = [
            key for key, account in list(self._accounts.items())[: more + 1] if not account.active
        ]
        for key in idle[:more]:
            del self._accounts[key]


class _Answers(BudgetStore):
    """What persons said, where no other process has to know it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def get(self, key: str) -> str | None:
        return self._texts.get(key)

    async def keys(self, start: str = "") -> Sequence[str]:
        return sorted(key for key in self._texts if key.startswith(start))

    async def replace(self, key: str, known: str | None, text: str) -> bool:
        if self._texts.get(key) != known:
            return False
        self._texts[key] = text
        return True

    async def remove(self, key: str) -> None:
        self._texts.pop(key, None)


def _advice(free_at: datetime | None, names: str) -> str:
    if free_at is None:
        return f"raise {names} under [budgets] to resume the run, or start another session."
    return (
        f"there is a new budget from {free_at:%Y-%m-%d %H:%M} UTC on: resume the run then, or "
        f"raise {names} under [budgets]."
    )


def _refusal(account: _Account, now: datetime) -> BudgetSpentError:
    spending = account.spending
    name = spending.reached or spending.used_up() or ""
    most = getattr(spending.limits(), name)
    spent = account.spent
    is_cost = name == "max_cost_usd"
    used = f"${spent.cost_usd:.6g} was spent" if is_cost else f"{spent.tokens} tokens were used"
    free_at = account.free_at
    when = f"There is a new budget from {free_at:%Y-%m-%d %H:%M} UTC on." if free_at else ""
    return BudgetSpentError(
        f"The {spending.whose} limit {spending.names[name]}={most:g} is reached: {used}. "
        f"Nothing new was started. {when or 'Start another session.'}",
        limit=spending.names[name],
        retry_after_s=_seconds_until(free_at, now) if free_at is not None else None,
    )


def _seconds_until(at: datetime, now: datetime) -> int:
    return max(1, -((now - at) // timedelta(seconds=1)))
