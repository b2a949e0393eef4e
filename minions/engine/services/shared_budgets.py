"""Budgets that the runs of a process share: of each session, of each user on a day, of each day.

What is spent is read from the rows of runs once, and counted here from then on. Where other
processes write to the same journal, it is read again as runs start, at most once a second.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Final

from attrs import frozen

from minions.contracts.budgets import Budgets, DayBudget
from minions.contracts.context import Limits
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow, Spender, Spent, day_of
from minions.contracts.runtime import Clock
from minions.data.errors import BudgetSpentError
from minions.engine.services.budget import RunBudget
from minions.engine.services.event_loop import LoopLock
from minions.engine.services.spending import EarlierUsage, Spending

_MOST_ACCOUNTS: Final = 1_000
"""Sessions, users and days that are remembered; runs that are executed keep theirs beside them."""
_MOST_LOST: Final = 1_000
"""Runs without a recorded end that an account remembers."""
_MOST_SHARE: Final = 50
"""A look takes at most the 50th part of the time, however many runs a day has."""
_LOOK_EVERY_S: Final = 1.0
"""Seconds after which what other processes recorded is read again."""


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


class _Account:
    """The budget of one session, one user on a day, or one day."""

    def __init__(self, spender: Spender, spending: Spending, free_at: datetime | None) -> None:
        self.spender = spender
        self.spending = spending
        self.free_at = free_at
        """When there is a new budget; None: never, it is a session's."""
        self.active: dict[str, Spent] = {}
        """Runs that are executed here, with what their rows say that they spent before."""
        self._lost: dict[str, Spent] = {}
        """What runs spent here whose end could not be recorded."""
        self._settled = Spent()
        """What runs spent here that have ended: their rows say it."""
        self._others = Spent()
        """What the rows say that was not spent here since the account is open."""
        self._next_look: float | None = None
        """The elapsed time from which rows are read again; None: they were not read yet."""
        self._lock = LoopLock()
        self._guard = spending.guard

    @property
    def spent(self) -> Spent:
        """What is known to be spent."""
        spending = self.spending
        with self._guard:
            known = (spending.usage.cost_usd or 0.0) + spending.earlier.cost_usd
            return Spent(spending.tokens, known)

    async def look(self, journal: Journal, clock: Clock) -> None:
        """Read what is recorded, unless that was done a moment ago or nobody else writes it."""
        async with self._lock:
            begin = clock.monotonic()
            if self._next_look is not None and (not journal.is_shared or begin < self._next_look):
                return
            # A run may end, and its row change, while the rows are read: what is executed here is
            # left out of the sum, and counts with what was known of it before.
            with self._guard:
                before, settled = dict(self.active), self._settled
            found = await journal.spent(self.spender, without=before)
            for amount in before.values():
                found = found.plus(amount)
            with self._guard:
                self._set_others(found.plus(settled, -1))
            took = clock.monotonic() - begin
            self._next_look = begin + max(_LOOK_EVERY_S, _MOST_SHARE * took)

    def _set_others(self, found: Spent) -> None:
        """Count what was found; what was deleted since stays spent."""
        known = self._others
        others = Spent(max(known.tokens, found.tokens), max(known.cost_usd, found.cost_usd))
        self._add(others.plus(known, -1))
        self._others = others

    async def begin(self, run: BudgetedRun, row: RunRow | None) -> None:
        """Let the run spend, which has spent already what no row says yet."""
        async with self._lock:  # not while rows are read
            with self._guard:
                self._begin(run, row)

    def _begin(self, run: BudgetedRun, row: RunRow | None) -> None:
        if (again := self._lost.pop(run.run_id, None)) is not None:
            self._add(again, -1)
        self.active[run.run_id] = self.spender.of(row) if row is not None else Spent()
        self._add(run.budget.spent.plus(row.known if row is not None else Spent(), -1))
        run.budget.share(self.spending, counts_replayed=False)

    def end(self, run: BudgetedRun, row: RunRow | None, *, is_recorded: bool) -> None:
        """Note that the run is not executed any more."""
        with self._guard:
            self._end(run, row, is_recorded=is_recorded)

    def _end(self, run: BudgetedRun, row: RunRow | None, *, is_recorded: bool) -> None:
        del self.active[run.run_id]
        own = run.budget.spent.plus(row.known if row is not None else Spent(), -1)
        if is_recorded:
            self._settled = self._settled.plus(own)
            return
        self._lost[run.run_id] = own
        if len(self._lost) > _MOST_LOST:
            del self._lost[next(iter(self._lost))]

    def _add(self, amount: Spent, sign: int = 1) -> None:
        self.spending.earlier.tokens += sign * amount.tokens
        self.spending.earlier.cost_usd += sign * amount.cost_usd

    @property
    def is_spent(self) -> bool:
        """Whether no call may begin."""
        with self._guard:
            return (self.spending.reached or self.spending.used_up()) is not None


@frozen(eq=False)
class BudgetShare:
    """The accounts of one run while it is executed."""

    run: BudgetedRun
    row: RunRow | None
    """What was recorded of it before; None: nothing."""
    accounts: list[_Account]


class SharedBudgets:
    """The budgets of a process. All runs whose services have the same object share them."""

    def __init__(self, limits: Budgets) -> None:
        """Nothing is read yet."""
        self.limits = limits
        self._accounts: OrderedDict[Spender, _Account] = OrderedDict()
        self._guard = threading.RLock()
        """Of the accounts: event loops may run in several threads."""

    @property
    def cost_limit(self) -> tuple[float, str] | None:
        """The lowest limit on cost that counts for every run, and its name; None: there is none."""
        limits = self.limits
        named = ((limits.session_usd, "session_usd"), (limits.usd_per_day, "usd_per_day"))
        return min(((most, name) for most, name in named if most is not None), default=None)

    async def begin(self, run: BudgetedRun, journal: Journal, clock: Clock) -> BudgetShare:
        """Let the run spend from its budgets; `end` follows in any case.

        Raises:
            JournalError: The journal cannot be read.
        """
        accounts = await self._looked_up(run, journal, clock)
        row = None
        if accounts and not run.is_new:
            row = next(iter(await journal.runs(RunFilter(run_ids=[run.run_id]), limit=1)), None)
        share = BudgetShare(run, row, [])
        try:
            for account in accounts:
                with self._guard:
                    self._accounts.setdefault(account.spender, account)
                await account.begin(run, row)
                share.accounts.append(account)
        except BaseException:
            self.end(share, is_recorded=False)
            raise
        return share

    def end(self, share: BudgetShare, *, is_recorded: bool) -> None:
        """Note that the run is not executed any more.

        Args:
            is_recorded: Whether the journal has its end, and with it what it spent.
        """
        for account in share.accounts:
            account.end(share.run, share.row, is_recorded=is_recorded)
        self._forget()

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
        account = self._accounts.get(Spender(day=day_of(now)))
        spent = account.spent if account is not None else Spent()
        limits = self.limits
        return DayBudget(spent.tokens, limits.tokens_per_day, spent.cost_usd, limits.usd_per_day)

    async def _looked_up(
        self, run: BudgetedRun, journal: Journal, clock: Clock
    ) -> Sequence[_Account]:
        """The accounts of the run, the narrowest first: all runs reserve in this order."""
        with self._guard:
            accounts = [*self._accounts_of(run, clock.now())]
        for account in accounts:
            await account.look(journal, clock)
        return accounts

    def _accounts_of(self, run: BudgetedRun, now: datetime) -> Iterator[_Account]:
        limits, day = self.limits, day_of(now)
        yield from self._account(
            Spender(session_id=run.session_id),
            "session's",
            {"max_cost_usd": "session_usd", "max_tokens": "session_tokens"},
            Limits(max_cost_usd=limits.session_usd, max_tokens=limits.session_tokens),
        )
        if run.user is not None:
            yield from self._account(
                Spender(day=day, user=run.user),
                "user's daily",
                {"max_cost_usd": "user_usd_per_day", "max_tokens": "user_tokens_per_day"},
                Limits(max_cost_usd=limits.user_usd_per_day, max_tokens=limits.user_tokens_per_day),
            )
        yield from self._account(
            Spender(day=day),
            "daily",
            {"max_cost_usd": "usd_per_day", "max_tokens": "tokens_per_day"},
            Limits(max_cost_usd=limits.usd_per_day, max_tokens=limits.tokens_per_day),
        )

    def _account(
        self, spender: Spender, whose: str, names: Mapping[str, str], limits: Limits
    ) -> Iterator[_Account]:
        """The account, if it is limited."""
        if limits.max_cost_usd is None and limits.max_tokens is None:
            return
        account = self._accounts.get(spender)
        if account is None:
            free_at = _start_of(spender.day + 1) if spender.day is not None else None
            advice = _advice(free_at, " or ".join(names.values()))
            spending = Spending(
                lambda: limits, whose=whose, earlier=EarlierUsage(), names=names, advice=advice
            )
            account = self._accounts[spender] = _Account(spender, spending, free_at)
        self._accounts.move_to_end(spender)
        self._forget()
        yield account

    def _forget(self) -> None:
        """Drop accounts that were not needed for longest; what they count is in the rows."""
        with self._guard:
            self._forget_idle()

    def _forget_idle(self) -> None:
        more = len(self._accounts) - _MOST_ACCOUNTS
        if more <= 0:
            return
        idle = [
            spender
            for spender, account in list(self._accounts.items())[: more + 1]
            if not account.active
        ]
        for spender in idle[:more]:
            del self._accounts[spender]


def _start_of(day: int) -> datetime:
    return datetime.combine(datetime.fromordinal(day), time(), UTC)


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
