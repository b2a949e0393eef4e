"""`minions budgets`: what is left of the configured budgets, and who waits at their thresholds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from minions.interfaces.cli.console.console import json_text, say, say_table, tell
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    command_context,
    naming_the_journal,
    takes_options,
)

if TYPE_CHECKING:
    from minions.contracts.journal.run_rows import Spent
    from minions.engine.views.budget_states import BudgetState


@click.command("budgets")
@takes_options(DatabaseOption)
def budgets_command(options: DatabaseOption) -> int:
    """List the budgets: what is used, reserved and left, and which runs wait for a person.

    They are set under [budgets] in minions.toml. A budget of each user, recipe and so on is listed
    for those whose runs spent of it in the present period.
    """
    context = command_context(options)
    with naming_the_journal(context):
        states = asyncio.run(_states(context))
    if context.settings.json:
        say(json_text({"budgets": [each.to_json() for each in states]}))
        return 0
    say_table(("BUDGET", "OF", "PERIOD", "SPENT", "NOTES"), [_row(each) for each in states])
    if not states:
        tell("No budget is configured. Set one under [budgets] in minions.toml: usd_per_day = 5")
    return 0


async def _states(context: CommandContext) -> Sequence[BudgetState]:
    from minions.app.wiring.databases import make_state
    from minions.contracts.runtime import SystemClock
    from minions.engine.views.budget_states import budget_states

    journal = context.known_journal()
    store = make_state(context.known_stores(), context.folder_of("db"))
    try:
        now = SystemClock().now()
        return await budget_states(context.settings.budgets, store, journal, now)
    finally:
        await store.aclose()
        await journal.aclose()


def _row(state: BudgetState) -> tuple[str, ...]:
    rule, days = state.rule, state.rule.days_at(state.day)
    whose = state.who or (f"each {rule.per.value}" if _is_of_each(state) else "")
    period = "" if days is None else f"{rule.period} from {days.name}"
    parts, limits = list[str](), rule.limits
    if limits.max_cost_usd is not None:
        parts.append(_amount_words(state, limits.max_cost_usd, is_usd=True))
    if limits.max_tokens is not None:
        parts.append(_amount_words(state, limits.max_tokens, is_usd=False))
    return (rule.name, whose, period, "; ".join(parts), "; ".join(_threshold_words(state)))


def _is_of_each(state: BudgetState) -> bool:
    from minions.contracts.budgets import BudgetSpender

    return state.rule.per is not BudgetSpender.ALL


def _amount_words(state: BudgetState, limit: float, *, is_usd: bool) -> str:
    def told(amount: Spent) -> str:
        return f"${amount.cost_usd:.6g}" if is_usd else f"{amount.tokens}"

    both = state.used.plus(state.reserved)
    rest = max(0.0, limit - (both.cost_usd if is_usd else both.tokens))
    most, left = (f"${limit:g}", f"${rest:.6g}") if is_usd else (f"{limit:g} tokens", f"{rest:g}")
    return f"{told(state.used)} of {most} used, {told(state.reserved)} reserved, {left} left"


def _threshold_words(state: BudgetState) -> Iterator[str]:
    rule, answer = state.rule, state.record.answer
    if rule.on_threshold is not None:
        yield f"{rule.on_threshold.value} at {rule.threshold:.0%}"
    if answer is not None:
        yield f"{'approved' if answer.is_approved else 'rejected'} in {answer.run_id}"
    if state.record.waits:
        yield f"waiting: {', '.join(sorted(state.record.waits))}"
