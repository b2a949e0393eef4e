"""The budgets of a configuration in one form, with their periods, limits and thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from typing import Final, NamedTuple
from urllib.parse import quote

from attrs import frozen

from minions.contracts.budgets import (
    BudgetPeriod,
    BudgetRule,
    Budgets,
    BudgetSpender,
    BudgetStore,
    OnThreshold,
)
from minions.contracts.context import Limits
from minions.contracts.journal.run_rows import MOST_DAYS, Spender

_OFTEN: Final = {
    BudgetPeriod.DAY: "daily",
    BudgetPeriod.WEEK: "weekly",
    BudgetPeriod.MONTH: "monthly",
}
_WIDTHS: Final = tuple(BudgetSpender)[1:] + tuple(BudgetSpender)[:1]
"""Sessions first, and all runs last."""
_SPARED_DAYS: Final = MOST_DAYS + 7
"""Days after the first one of a period for which its records are kept at least: a run spends from
the budget of the day on which its execution began."""
RECORDS: Final = "minions:budget:"
"""What keys of records begin with."""


class Days(NamedTuple):
    """A period: its first day, as `day_of` numbers it, and how many it has."""

    first: int
    length: int

    @property
    def name(self) -> str:
        """Its first day in ISO 8601, in the order of time."""
        return date.fromordinal(self.first).isoformat()

    @property
    def end(self) -> datetime:
        """When the next one begins."""
        return datetime.combine(date.fromordinal(self.first + self.length), time(), UTC)


@frozen(kw_only=True)
class Rule:
    """One budget, with the usual values in place of those that are not set."""

    name: str
    """What it is called in lists and records."""
    per: BudgetSpender
    only: str | None
    period: BudgetPeriod | None
    limits: Limits
    names: Mapping[str, str]
    """What its limits are called where they are set."""
    threshold: float
    on_threshold: OnThreshold | None
    raise_to: float

    @property
    def whose(self) -> str:
        """For messages, before `limit`."""
        often = "" if self.period is None else _OFTEN[self.period]
        return often if self.per is BudgetSpender.ALL else f"{self.per.value}'s {often}".rstrip()

    @property
    def place(self) -> tuple[int, int, str]:
        """Its place among all: the narrowest first, so that all runs reserve in one order."""
        period = -1 if self.period is None else tuple(BudgetPeriod).index(self.period)
        return (_WIDTHS.index(self.per), period, self.name)

    @property
    def counts_for_every_run(self) -> bool:
        """Whether no run is without it."""
        always = (BudgetSpender.ALL, BudgetSpender.SESSION, BudgetSpender.RECIPE)
        return self.per in always and self.only is None

    def share(self, of_limits: float) -> Limits:
        """That share of the limits."""
        usd, tokens = self.limits.max_cost_usd, self.limits.max_tokens
        return Limits(
            max_cost_usd=None if usd is None else usd * of_limits,
            max_tokens=None if tokens is None else max(1, int(tokens * of_limits)),
        )

    def days_at(self, day: int) -> Days | None:
        """The period of that day; None: there is only one."""
        match self.period:
            case None:
                return None
            case BudgetPeriod.DAY:
                return Days(day, 1)
            case BudgetPeriod.WEEK:
                return Days(day - date.fromordinal(day).weekday(), 7)
            case BudgetPeriod.MONTH:
                first = date.fromordinal(day).replace(day=1)
                months = first.year * 12 + first.month
                following = date(months // 12, months % 12 + 1, 1)
                return Days(first.toordinal(), following.toordinal() - first.toordinal())

    def spender(self, who: str | None, day: int) -> Spender:
        """Whose spending is looked up.

        Args:
            who: The session, user, recipe and so on; None: all runs.
            day: Today.
        """
        days = self.days_at(day)
        named = {} if self.per is BudgetSpender.ALL else {_COLUMNS[self.per]: who}
        return Spender(
            day=None if days is None else days.first,
            days=1 if days is None else days.length,
            **named,
        )

    def key(self, who: str | None, day: int) -> str:
        """The key of the record of that spender."""
        return f"{self.key_of_period(day)}{quote(who or '', errors='surrogatepass')}"

    def key_of_period(self, day: int) -> str:
        """What the keys of all its records of the day begin with."""
        days = self.days_at(day)
        return f"{self.start_of_keys}{'' if days is None else days.name}:"

    def is_over(self, key: str, day: int) -> bool:
        """Whether the record with that key is of a period that was over some time before the day:
        no run spends from it any more.
        """
        name = key.removeprefix(self.start_of_keys).partition(":")[0]
        return bool(name) and name < date.fromordinal(day - _SPARED_DAYS).isoformat()

    @property
    def start_of_keys(self) -> str:
        """What the keys of all its records begin with."""
        return f"{RECORDS}{self.name}:"


_COLUMNS: Final = {
    BudgetSpender.SESSION: "session_id",
    BudgetSpender.USER: "user",
    BudgetSpender.RECIPE: "recipe",
    BudgetSpender.SCHEDULE: "schedule",
    BudgetSpender.TOKEN: "token",
    BudgetSpender.PROJECT: "project",
}


async def forget_budgets(store: BudgetStore, rules: Iterable[Rule], user: str) -> int:
    """Remove the records of budgets of a user, whose keys hold the label; how many there were."""
    end, count = f":{quote(user, errors='surrogatepass')}", 0
    for rule in rules:
        for key in await store.keys(rule.start_of_keys) if rule.per is BudgetSpender.USER else ():
            if key.endswith(end):
                await store.remove(key)
                count += 1
    return count


def rules_of(budgets: Budgets) -> tuple[Rule, ...]:
    """All budgets that have a limit, the narrowest first."""
    return tuple(sorted(_rules(budgets), key=lambda rule: rule.place))


def _rules(budgets: Budgets) -> Iterator[Rule]:
    all_runs, day = BudgetSpender.ALL, BudgetPeriod.DAY
    usual = {
        "session": BudgetRule(
            per=BudgetSpender.SESSION, usd=budgets.session_usd, tokens=budgets.session_tokens
        ),
        "user_per_day": BudgetRule(
            per=BudgetSpender.USER,
            period=day,
            usd=budgets.user_usd_per_day,
            tokens=budgets.user_tokens_per_day,
        ),
        "per_day": BudgetRule(
            per=all_runs, period=day, usd=budgets.usd_per_day, tokens=budgets.tokens_per_day
        ),
    }
    keys = {
        "session": ("session_usd", "session_tokens"),
        "user_per_day": ("user_usd_per_day", "user_tokens_per_day"),
        "per_day": ("usd_per_day", "tokens_per_day"),
    }
    keys |= {
        f"limits.{name}": (f"limits.{name}.usd", f"limits.{name}.tokens") for name in budgets.limits
    }
    usual |= {f"limits.{name}": rule for name, rule in budgets.limits.items()}
    for name, rule in usual.items():
        if rule.usd is None and rule.tokens is None:
            continue
        usd, tokens = keys[name]
        is_lasting = rule.per is BudgetSpender.SESSION and rule.period is None
        yield Rule(
            name=name,
            per=rule.per,
            only=rule.only,
            period=None if is_lasting else rule.period or day,
            limits=Limits(max_cost_usd=rule.usd, max_tokens=rule.tokens),
            names={"max_cost_usd": usd, "max_tokens": tokens},
            threshold=budgets.threshold if rule.threshold is None else rule.threshold,
            on_threshold=rule.on_threshold or budgets.on_threshold,
            raise_to=budgets.raise_to if rule.raise_to is None else rule.raise_to,
        )
