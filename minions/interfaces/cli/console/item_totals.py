"""How far loops have come: counted by events, and in words for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from attrs import evolve

from minions.contracts.events import StepFinished, StepStarted
from minions.contracts.journal.facts import StepOutcome
from minions.contracts.journal.facts import StepStarted as StepBegun
from minions.contracts.messages import TokenUsage
from minions.data.texts import spoken
from minions.engine.views.run_items import ItemSummary, ItemTotals, LoopItems, usage_of
from minions.interfaces.cli.console.money import dollars

_MOST_ITEMS: Final = 20
"""Items of a loop up to which all of them are shown."""


def totals_words(totals: ItemTotals) -> str:
    """The totals as `57/200, 2 failed, 1.1k tokens, $0.02`."""
    done = f"{totals.ended} done" if totals.total is None else f"{totals.ended}/{totals.total}"
    failed = [f"{totals.failed} failed"] if totals.failed else []
    return ", ".join([done, *failed, *_usage_words(totals.usage)])


def _usage_words(usage: TokenUsage) -> list[str]:
    """Tokens and cost as far as they are known; nothing where no model was asked."""
    if usage.total_tokens == 0:
        return []
    cost = [] if usage.cost_usd is None else [dollars(usage.cost_usd)]
    return [f"{_short(usage.total_tokens)} tokens", *cost]


def item_lines(step_id: str, loop: LoopItems, indent: str, *, shows_all: bool) -> Iterator[str]:
    """A line of totals, and a line for each item; of many items for those that did not complete."""
    yield f"{indent}{totals_words(loop.totals)}"
    is_short = len(loop.items) <= _MOST_ITEMS
    shown = [e for e in loop.items if shows_all or is_short or e.status != "completed"]
    for item in shown if shows_all else shown[:_MOST_ITEMS]:
        yield f"{indent}{step_id}[{item.index}]: {_item_words(item)}"
    if (left := len(loop.items) - len(shown if shows_all else shown[:_MOST_ITEMS])) > 0:
        yield f"{indent}… {left} more; --items shows all"


def _item_words(item: ItemSummary) -> str:
    took = [] if item.duration_ms is None else [spoken(item.duration_ms)]
    error = [f"{item.error.get('code')}: {item.error.get('message')}"] if item.error else []
    words = [" ".join(item.words.split())[:60]] if item.words else []
    return " · ".join([item.status, *took, *_usage_words(item.usage), *error, *words])


def _short(count: int) -> str:
    """A number of tokens with at most one digit behind the point: `999`, `1.1k`, `2M`."""
    for limit, sign in ((1_000_000, "M"), (1_000, "k")):
        if count >= limit:
            return f"{count / limit:.1f}".removesuffix(".0") + sign
    return str(count)


class ItemCounter:
    """Counts the items of loops by the events of a run; an item that runs again counts once."""

    def __init__(self) -> None:
        self._totals: dict[str, ItemTotals] = {}
        self._ended: dict[str, dict[int, tuple[bool, TokenUsage]]] = {}
        """By loop and index, whether the item failed, and its usage."""
        self._over: set[str] = set()

    def recall(self, recorded: Iterable[StepBegun | StepOutcome]) -> None:
        """Begin with the loops and the ended items that earlier executions of the run recorded."""
        for fact in recorded:
            if isinstance(fact, StepBegun):
                before = self._totals.get(fact.step_id, ItemTotals())
                self._totals[fact.step_id] = evolve(before, total=fact.total)
            elif fact.index is not None:
                self._add(fact.step_id, fact.index, fact.status, usage_of(fact.usage))

    def count(self, event: StepStarted | StepFinished) -> ItemTotals | None:
        """How far the loop of the event has come; None: the event is of no loop."""
        step_id = event.step_id
        if isinstance(event, StepStarted):
            self._start(event)
        elif event.index is None:
            self._over.add(step_id)
        else:
            self._add(step_id, event.index, event.status, usage_of(event.usage))
        return self._totals.get(step_id)

    def _start(self, event: StepStarted) -> None:
        step_id = event.step_id
        if event.index is not None:
            self._totals.setdefault(step_id, ItemTotals())
            self._forget(step_id, event.index)
            return
        if step_id in self._over:  # a further visit, in which all items run
            self._over.remove(step_id)
            self._ended.pop(step_id, None)
            self._totals.pop(step_id, None)
        if event.total is not None:
            before = self._totals.get(step_id, ItemTotals())
            self._totals[step_id] = evolve(before, total=event.total)

    def _add(self, step_id: str, index: int, status: str, usage: TokenUsage) -> None:
        if status not in ("completed", "failed"):
            return
        self._forget(step_id, index)
        has_failed = status == "failed"
        self._ended.setdefault(step_id, {})[index] = (has_failed, usage)
        totals = self._totals.get(step_id, ItemTotals())
        self._totals[step_id] = totals.plus(has_failed=has_failed, usage=usage)

    def _forget(self, step_id: str, index: int) -> None:
        """Take an item that runs again out of the totals."""
        ended = self._ended.get(step_id, {})
        if ended.pop(index, None) is None:
            return
        totals = ItemTotals(total=self._totals[step_id].total)
        for has_failed, usage in ended.values():
            totals = totals.plus(has_failed=has_failed, usage=usage)
        self._totals[step_id] = totals
