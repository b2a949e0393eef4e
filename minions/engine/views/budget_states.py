"""What is left of the budgets of a configuration, and which runs wait at their thresholds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from urllib.parse import unquote

from attrs import frozen

from minions.contracts.budgets import Budgets, BudgetSpender, BudgetStore
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import Spent, day_of
from minions.data.json_values import JsonValue
from minions.engine.services.budget_records import BudgetRecord, read_record
from minions.engine.services.budget_rules import Rule, rules_of


@frozen(kw_only=True)
class BudgetState:
    """One budget of the present period."""

    rule: Rule
    who: str | None
    """Whose it is: the user, the recipe and so on; None: of all runs, or nobody spent of it yet."""
    day: int
    """Today, as `day_of` numbers it."""
    record: BudgetRecord
    used: Spent
    reserved: Spent
    """What calls in flight may still use."""

    def to_json(self) -> dict[str, JsonValue]:
        """The document for programs."""
        rule, days, answer = self.rule, self.rule.days_at(self.day), self.record.answer
        limits = rule.limits
        document: dict[str, JsonValue] = {
            "budget": rule.name,
            "per": rule.per.value,
            "of": self.who,
            "period": None if rule.period is None else rule.period.value,
            "since": None if days is None else days.name,
            "until": None if days is None else days.end.isoformat(),
            "threshold": rule.threshold,
            "on_threshold": None if rule.on_threshold is None else rule.on_threshold.value,
            "waiting": sorted(self.record.waits),
            "answer": None,
        }
        if limits.max_cost_usd is not None:
            left = limits.max_cost_usd - self.used.cost_usd - self.reserved.cost_usd
            document["usd"] = _amounts(
                limits.max_cost_usd, self.used.cost_usd, self.reserved.cost_usd, left
            )
        if limits.max_tokens is not None:
            rest = limits.max_tokens - self.used.tokens - self.reserved.tokens
            document["tokens"] = _amounts(
                limits.max_tokens, self.used.tokens, self.reserved.tokens, rest
            )
        if answer is not None and answer.about == (limits.max_cost_usd, limits.max_tokens):
            document["answer"] = {
                "approved": answer.is_approved,
                "run_id": answer.run_id,
                "at": answer.at,
                "limit_usd": answer.usd,
                "limit_tokens": answer.tokens,
            }
        return document


def _amounts(limit: float, used: float, reserved: float, left: float) -> dict[str, JsonValue]:
    return {
        "limit": limit,
        "used": round(used, 6),
        "reserved": round(reserved, 6),
        "left": round(max(left, 0), 6),
    }


async def budget_states(
    budgets: Budgets, store: BudgetStore, journal: Journal, now: datetime
) -> Sequence[BudgetState]:
    """All budgets of the present periods, of each spender of whom processes told something.

    Raises:
        JournalError: The journal or the store cannot be read.
    """
    day, found = day_of(now), list[BudgetState]()
    held = await journal.held_leases()
    alive = {each.lease.run_id for each in held if not each.has_expired}
    for rule in rules_of(budgets):
        start = rule.key_of_period(day)
        named = [unquote(key.removeprefix(start)) for key in await store.keys(start)]
        spenders: list[str | None] = [rule.only] if rule.only is not None else [*named]
        if rule.per is BudgetSpender.ALL:
            spenders = [None]
        for who in spenders:
            found.append(await _state(rule, who, day, store, journal, alive))
        if not spenders:
            none = BudgetRecord()
            found.append(
                BudgetState(
                    rule=rule, who=None, day=day, record=none, used=Spent(), reserved=Spent()
                )
            )
    return found


async def _state(
    rule: Rule,
    who: str | None,
    day: int,
    store: BudgetStore,
    journal: Journal,
    alive: Collection[str],
) -> BudgetState:
    key = rule.key(who, day)
    record = read_record(key, await store.get(key))
    used, reserved = await journal.spent(rule.spender(who, day), without=record.runs), Spent()
    for run_id, part in record.runs.items():
        used = used.plus(part.spent)
        if run_id in alive:
            reserved = reserved.plus(Spent(part.held_tokens, part.held_usd))
    return BudgetState(rule=rule, who=who, day=day, record=record, used=used, reserved=reserved)
