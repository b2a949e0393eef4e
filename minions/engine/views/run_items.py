"""The items of a recorded loop: one row each, and their totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec import field as struct_field
from msgspec.structs import replace

from minions.contracts.executions import RunState
from minions.contracts.journal.facts import StepFact, StepOutcome, StepStarted, ToolCallStarted
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.messages import Message, TokenUsage
from minions.contracts.run_events import StepFinished as FinishedEvent
from minions.contracts.run_events import StepStarted as StartedEvent
from minions.contracts.runtime import BlockingCalls
from minions.data.json_values import JsonValue
from minions.engine.history.keys import base_key, enclosing, execution_key, head_of
from minions.engine.services.event_loop import FEW_ROWS, beside

if TYPE_CHECKING:
    from minions.engine.views.run_summary import RunSummary

_COMPARED: Final = 4_000
"""Characters of a prompt in which items are looked for that differ."""
_COMMON: Final = 24
"""Characters that all prompts may start with and are shown nevertheless."""
_LED_BY: Final = 1
"""Common words that stand before the first one that differs."""
_SHOWN: Final = 100
"""Characters of the words of an item."""


class ItemSummary(Struct, frozen=True, kw_only=True):
    """One item of a loop, or one iteration of a `while`."""

    index: int
    """From 0, as in the address `step[index]`."""
    status: str
    """The status of its step; `running` or `interrupted` where no end is recorded."""
    words: str = ""
    """The first words that set its prompt apart from those of other items, else the arguments of
    its first tool call; empty: it has neither."""
    error: Mapping[str, JsonValue] | None = None
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    duration_ms: float | None = None
    model_calls: int = 0
    tool_calls: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether its result counts; False also of an item that waits for a decision."""
        return self.status in ("completed", "failed")


class ItemTotals(Struct, frozen=True, kw_only=True):
    """How far a loop has come."""

    total: int | None = None
    """The number of items; None: it is not known, as of a `while`."""
    ended: int = 0
    failed: int = 0
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    """The usage of the items that have ended."""

    def plus(self, *, has_failed: bool, usage: TokenUsage) -> ItemTotals:
        """The totals after one more item has ended."""
        return replace(
            self,
            ended=self.ended + 1,
            failed=self.failed + has_failed,
            usage=self.usage + usage,
        )


class LoopItems(Struct, frozen=True, kw_only=True):
    """The items of the newest visit of a loop, by index, and their totals."""

    items: tuple[ItemSummary, ...] = ()
    totals: ItemTotals = struct_field(default_factory=ItemTotals)


async def items_of_run(
    journal: Journal,
    run: RunSummary,
    step_id: str,
    *,
    threads: BlockingCalls | None = None,
) -> LoopItems:
    """The items of one loop of a run; none where there is no such loop.

    Args:
        step_id: The address of the loop, as in its events: `each`, `outer[1]/each`.
        threads: Compute beside the event loop where the run is long; None: they do not.
    Raises:
        JournalError: `corrupt-entry`; the run cannot be read.
    """
    from minions.engine.history.current_rows import current_rows

    rows = await journal.entries(run.session_id, run_id=run.run_id)
    is_running = run.status == RunState.RUNNING

    def found() -> LoopItems:
        return loops_in(current_rows(rows), is_running=is_running).get(step_id, LoopItems())

    return await beside(threads, len(rows) > FEW_ROWS, found)


def loops_in(rows: Sequence[JournalEntry], *, is_running: bool) -> Mapping[str, LoopItems]:
    """The items of each loop, by the address of its step.

    Args:
        rows: The current rows of a run.
        is_running: Whether an item without an end is being executed; else it was interrupted.
    """
    open_state = (RunState.RUNNING if is_running else RunState.INTERRUPTED).value
    steps: dict[str, list[JournalEntry]] = {}
    for row in rows:
        if isinstance(row.fact, StepFact):
            steps.setdefault(row.fact.step_id, []).append(row)
    visits = {step_id: _newest_visit(own) for step_id, own in steps.items()}
    items = {
        step_id: found for step_id, own in visits.items() if (found := _items(own, open_state))
    }
    texts = _texts(rows, {key for found in items.values() for key in found}) if items else {}
    return {step_id: _loop(visits[step_id], found, texts) for step_id, found in items.items()}


def _newest_visit(rows: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
    visit = head_of(base_key(rows[-1].key))
    return [row for row in rows if head_of(base_key(row.key)) == visit]


def _loop(
    rows: Sequence[JournalEntry], items: Mapping[str, ItemSummary], texts: Mapping[str, str]
) -> LoopItems:
    words = _words({key: texts[key] for key in items if key in texts})
    found = [replace(item, words=words.get(key, "")) for key, item in items.items()]
    found.sort(key=lambda item: item.index)
    total = _total(rows)
    # A retry with other inputs may have fewer items; nothing discards the rows of the others.
    found = [item for item in found if total is None or item.index < total]
    return LoopItems(items=tuple(found), totals=_totals(total, found))


def _items(rows: Sequence[JournalEntry], open_state: str) -> Mapping[str, ItemSummary]:
    items: dict[str, ItemSummary] = {}
    for row in rows:
        fact, key = row.fact, base_key(row.key)
        if isinstance(fact, StepStarted) and fact.index is not None:
            items[key] = ItemSummary(index=fact.index, status=open_state)
        elif isinstance(fact, StepOutcome) and fact.index is not None:
            items[key] = _ended_item(fact, fact.index)
    return items


def _ended_item(fact: StepOutcome, index: int) -> ItemSummary:
    return ItemSummary(
        index=index,
        status=fact.status,
        error=fact.error,
        usage=usage_of(fact.usage),
        duration_ms=fact.duration_ms,
        model_calls=fact.model_calls or 0,
        tool_calls=fact.tool_calls or 0,
    )


def usage_of(recorded: Mapping[str, JsonValue] | None) -> TokenUsage:
    """The usage of a recorded body or an event; what is missing is none, or of unknown cost."""
    known = recorded or {}
    counts = {name: known.get(name) for name in ("input_tokens", "output_tokens", "cached_tokens")}
    cost = known.get("cost_usd")
    return TokenUsage(
        **{name: int(n) for name, n in counts.items() if isinstance(n, int | float)},
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
    )


def _total(rows: Sequence[JournalEntry]) -> int | None:
    """The number of items, as it was recorded last; None: it is not known.

    The end of a `while` says how often it was executed, its start says nothing.
    """
    loops = [row.fact for row in rows if isinstance(row.fact, StepStarted | StepOutcome)]
    known = [fact for fact in loops if fact.index is None and fact.total is not None]
    is_known = any(isinstance(fact, StepStarted) for fact in known)
    return known[-1].total if is_known else None


def _totals(total: int | None, items: Sequence[ItemSummary]) -> ItemTotals:
    totals = ItemTotals(total=total)
    for item in items:
        if item.has_ended:
            totals = totals.plus(has_failed=item.status == "failed", usage=item.usage)
    return totals


# --- what an item is about ------------------------------------------------------------------------


def _texts(rows: Sequence[JournalEntry], items: set[str]) -> Mapping[str, str]:
    """By the key of an item, the first prompt or the first arguments of its work."""
    texts: dict[str, str] = {}
    for row in rows:
        text = _text(row)
        if not text:
            continue
        own = base_key(execution_key(row.key))
        for key in (own, *enclosing(own)):
            if key in items:
                texts.setdefault(key, text)
    return texts


def _text(row: JournalEntry) -> str:
    fact = row.fact
    if isinstance(fact, StepStarted):
        return " ".join(_contents(fact.messages or ()))[:_COMPARED]
    if isinstance(fact, ToolCallStarted):
        return str(fact.arguments)[:_COMPARED]
    return ""


def _contents(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.content and message.role != "system":
            yield " ".join(message.content[:_COMPARED].split())


def _words(texts: Mapping[str, str]) -> Mapping[str, str]:
    """The first words of each text behind those that all have in common."""
    start = _common(list(texts.values())) if len(texts) > 1 else 0
    return {key: _shorten_text(text, start) for key, text in texts.items()}


def _common(texts: Sequence[str]) -> int:
    """Where the first word starts that not all have; 0: too little is common to leave it out."""
    first, last = min(texts), max(texts)  # what these two share, all share
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    common = "".join(letter for letter, _ in pairs)
    before = common.rsplit(" ", 1 + _LED_BY)
    start = len(before[0]) + 1 if len(before) > 1 else 0
    return start if start > _COMMON else 0


def _shorten_text(text: str, start: int) -> str:
    rest = f"… {text[start:]}" if start else text
    return rest if len(rest) <= _SHOWN else f"{rest[: _SHOWN - 1]}…"


# --- the same, counted by the events of a run ----------------------------------------------------


class ItemCounter:
    """Counts the items of loops by the events of a run; an item that runs again counts once."""

    def __init__(self) -> None:
        self._totals: dict[str, ItemTotals] = {}
        self._ended: dict[str, dict[int, tuple[bool, TokenUsage]]] = {}
        """By loop and index, whether the item failed, and its usage."""
        self._over: set[str] = set()

    def recall(self, recorded: Iterable[StepStarted | StepOutcome]) -> None:
        """Begin with the loops and the ended items that earlier executions of the run recorded."""
        for fact in recorded:
            if isinstance(fact, StepStarted):
                before = self._totals.get(fact.step_id, ItemTotals())
                self._totals[fact.step_id] = replace(before, total=fact.total)
            elif fact.index is not None:
                self._add(fact.step_id, fact.index, fact.status, usage_of(fact.usage))

    def count(self, event: StartedEvent | FinishedEvent) -> ItemTotals | None:
        """How far the loop of the event has come; None: the event is of no loop."""
        step_id = event.step_id
        if isinstance(event, StartedEvent):
            self._start(event)
        elif event.index is None:
            self._over.add(step_id)
        else:
            self._add(step_id, event.index, event.status, usage_of(event.usage))
        return self._totals.get(step_id)

    def _start(self, event: StartedEvent) -> None:
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
            self._totals[step_id] = replace(before, total=event.total)

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
