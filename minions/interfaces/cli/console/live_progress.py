"""Shows the progress of a run: plain lines, or a live list on a terminal."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from textwrap import indent
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeGuard

from minions.contracts.executions import StepStatus
from minions.contracts.journal.child_run_links import WAITS_FOR_RUNS
from minions.contracts.journal.facts import StepOutcome
from minions.contracts.journal.facts import StepStarted as StepBegun
from minions.contracts.messages import TokenUsage
from minions.contracts.run_events import (
    AttemptFailed,
    LimitReached,
    ModelReplaced,
    OutputChecked,
    PlanLookup,
    PlanReplaced,
    RunEvent,
    RunStarted,
    ServerWait,
    StepDeltaEvent,
    StepFinished,
    StepStarted,
    StepWaiting,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from minions.data.texts import spoken
from minions.interfaces.cli.console.console import hanging
from minions.interfaces.cli.console.render import dollars, painter, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from minions.engine.views.run_items import ItemCounter, ItemSummary, ItemTotals, LoopItems

_GLYPHS: Final = {
    "completed": ("✓", "green"),
    "partial": ("◐", "yellow"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "in_progress": ("?", "yellow"),
}

_LONG: Final = 20
"""Items from which on a loop tells lines of its progress."""


_UNREAL: Final = {"scripted": "scripted", "replay": "replayed"}


def model_line(recipe: str, model_name: str | None) -> str:
    """A line on the recipe and its model; a scripted or replayed model is marked as such."""
    if model_name is None:
        return f"recipe {recipe} · no model needed"
    kind = next((word for word in ("replay", "scripted") if f"{word}/" in model_name), None)
    note = f" ({_UNREAL[kind]}: no real model is asked)" if kind is not None else ""
    return f"recipe {recipe} · model {model_name}{note}"


class Progress(ABC):
    """Shows the progress of one run by its events."""

    @abstractmethod
    def on_event(self, event: RunEvent) -> None:
        """Show the event; must return at once."""

    def recall(self, recorded: Iterable[StepBegun | StepOutcome]) -> None:
        """Count what earlier executions of the run recorded of its loops."""

    def close(self) -> None:
        """End the output, so that other lines can follow."""

    def paused(self) -> AbstractContextManager[None]:
        """A context in which nothing is drawn, while a question is asked."""
        return nullcontext()


class _Headers:
    """The line on a run's recipe and model, which each of its executions tells again."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None

    def new(self, event: RunStarted) -> str | None:
        """The line; None: it is what was shown last, and of the same run."""
        shown = event.run_id, model_line(event.recipe, event.model_name)
        is_new, self._last = shown != self._last, shown
        return shown[1] if is_new else None


def _waits_for_runs(event: StepFinished) -> bool:
    """Whether only this execution of the step ended, and the step waits for its child runs."""
    code = event.error.get("code") if event.error else None
    return code == WAITS_FOR_RUNS and event.status == StepStatus.IN_PROGRESS


class PlainProgress(Progress):
    """Prints one line at the start and one at the end of each step."""

    def __init__(self, write: Callable[[str], None], paint: painter) -> None:
        self._write = write
        self._paint = paint
        self._items = _Loops()
        self._headers = _Headers()

    def recall(self, recorded: Iterable[StepBegun | StepOutcome]) -> None:
        """Count what earlier executions of the run recorded of its loops."""
        self._items.recall(recorded)

    def on_event(self, event: RunEvent) -> None:
        """Print the line of the event, if it has one; of a long loop one for each tenth."""
        line = self._line(event)
        if line is not None:
            self._write(line)
        if isinstance(event, StepStarted | StepFinished):
            totals = self._items.count(event)
            if isinstance(event, StepFinished) and event.index is not None and _is_tenth(totals):
                self._write(f"    {event.step_id}: {totals_words(totals)}")

    def _line(self, event: RunEvent) -> str | None:
        if isinstance(event, RunStarted):
            return self._headers.new(event)
        if isinstance(event, StepStarted):
            return None if event.index is not None else self._start_line(event)
        if isinstance(event, StepFinished):
            is_quiet = event.index is not None and event.status == "completed"
            return None if is_quiet or _waits_for_runs(event) else f"  {self._end_line(event)}"
        if isinstance(event, AttemptFailed | OutputChecked | ModelReplaced | ServerWait):
            detail = model_detail(event)
            return f"    {event.address}: {detail}" if detail else None
        if isinstance(event, StepWaiting):
            asked = event.data.get("question") or event.data.get("tool")
            return f"    {event.address} waits for an {event.what}: {asked}"
        if isinstance(event, PlanLookup):
            return f"    {event.address}: {event.text}"
        if isinstance(event, PlanReplaced):
            return f"    {event.address} is planned again:\n{indent(event.text, '    ')}"
        if isinstance(event, LimitReached):
            return f"  {self._paint('limit reached', 'yellow')}: {event.message}"
        return None

    def _start_line(self, event: StepStarted) -> str:
        return f"  {self._paint('▸', 'blue')} {event.address}"

    def _end_line(self, event: StepFinished) -> str:
        glyph, color = _GLYPHS["partial" if event.partial else event.status]
        is_work = event.status != "skipped" and event.pinned_from is None
        facts = [spoken(event.duration_ms)] if is_work else []
        facts += _facts(event)
        detail = f" ({', '.join(facts)})" if facts else ""
        reason = f": {reason_of(event)}" if event.reason else ""
        return f"{self._paint(glyph, color)} {event.address}{detail}{reason}"


def _is_tenth(totals: ItemTotals | None) -> TypeGuard[ItemTotals]:
    """Whether a further tenth of a long loop has ended."""
    if totals is None or totals.total is None or totals.total < _LONG:
        return False
    tenth, before = (n * 10 // totals.total for n in (totals.ended, totals.ended - 1))
    return tenth > before and totals.ended < totals.total


def reason_of(event: StepFinished) -> str:
    """The reason in short: the code of an error, whose message is printed with the result."""
    return str(event.error.get("code")) if event.error else event.reason or ""


def _facts(event: StepFinished) -> list[str]:
    facts = []
    if event.partial:
        facts.append("partial")
    if event.cached_from is not None:
        facts.append(f"cached, from {event.cached_from}")
    if event.pinned_from is not None:
        facts.append(f"pinned, from {event.pinned_from}")
    if event.model_calls:
        facts.append(f"{event.model_calls} model call{'s' if event.model_calls > 1 else ''}")
    if event.tool_calls:
        facts.append(f"{event.tool_calls} tool call{'s' if event.tool_calls > 1 else ''}")
    if event.attempts > 1:
        facts.append(f"{event.attempts} attempts")
    if tokens := event.usage.get("total_tokens"):
        facts.append(f"{tokens} tokens")
    if isinstance(cost := event.usage.get("cost_usd"), int | float):
        facts.append(dollars(cost))
    return facts


def _tool_progress(event: ToolProgress) -> str:
    done = f"{event.progress:g}" + (f" of {event.total:g}" if event.total is not None else "")
    return f"{event.tool} {done} {event.message or ''}".rstrip()


def model_detail(event: AttemptFailed | OutputChecked | ModelReplaced | ServerWait) -> str:
    """What happens to a call, in words; empty: nothing that a person has to know."""
    if isinstance(event, AttemptFailed):
        return retry_text(event)
    if isinstance(event, ModelReplaced):
        return replaced_text(event)
    if isinstance(event, ServerWait):
        return server_wait_text(event)
    return "" if event.is_valid else rung_text(event)


def retry_text(event: AttemptFailed) -> str:
    """Which attempt failed, why, and when the next one follows."""
    code = event.error.get("code")
    return f"{event.what}: attempt {event.attempt} failed ({code}), again in {event.delay_s:.1f} s"


def replaced_text(event: ModelReplaced) -> str:
    """Which model failed, and which is asked instead."""
    return f"{event.failed} failed ({event.code}), {event.instead} is asked instead"


def server_wait_text(event: ServerWait) -> str:
    """Which server is waited for, and until when, in the time of this machine."""
    return f"waits for {event.server} until {event.until.astimezone():%H:%M:%S} ({event.model})"


def rung_text(event: OutputChecked) -> str:
    """Which rung gave no output, and why."""
    reason = (event.reason or "").partition("\n")[0]
    return f"{event.rung}: no valid output ({reason[:200]})"


class _Row:
    """The state of one step on the screen."""

    def __init__(self) -> None:
        self.begin = monotonic()
        self.doing = ""
        self.text = ""
        self.end: StepFinished | None = None
        self.items: ItemTotals | None = None
        """Of a loop: how far it has come."""


class LiveProgress(Progress):
    """A list that is drawn again four times a second; steps that do not fit are counted."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, _Row] = {}
        self._items = _Loops()
        self._headers = _Headers()
        self._live = self._list()
        self._is_started = False

    def _list(self) -> Live:
        from rich.live import Live

        return Live(
            get_renderable=self._table, console=self._console, refresh_per_second=4, transient=False
        )

    def recall(self, recorded: Iterable[StepBegun | StepOutcome]) -> None:
        """Count what earlier executions of the run recorded of its loops."""
        self._items.recall(recorded)

    def on_event(self, event: RunEvent) -> None:
        """Update the row; the screen is drawn by itself."""
        if isinstance(event, RunStarted):
            if (line := self._headers.new(event)) is not None:
                self._console.print(line, highlight=False)
            self._live.start()
            self._is_started = True
        elif isinstance(event, StepStarted | StepFinished):
            self._on_step(event)
        elif isinstance(event, PlanLookup):
            self._console.print(
                plain(f"{event.address}: {event.text}"), highlight=False, markup=False
            )
        elif isinstance(event, PlanReplaced):
            self._console.print(_new_plan(event, self._console.width))
        else:
            self._on_detail(event)

    def _on_step(self, event: StepStarted | StepFinished) -> None:
        if event.index is None and isinstance(event, StepStarted):
            self._rows[event.step_id] = _Row()
        row = self._rows.setdefault(event.step_id, _Row())
        row.items = self._items.count(event) or row.items
        if event.index is not None:
            row.doing = f"item {event.index}"
        elif isinstance(event, StepFinished) and _waits_for_runs(event):
            row.doing, row.items = "waits for child runs", None  # they are not items of this run
        elif isinstance(event, StepFinished):
            row.end = event

    def _on_detail(self, event: RunEvent) -> None:
        step_id = getattr(event, "step_id", None)
        row = self._rows.get(step_id) if step_id else None
        if row is None:
            return
        if isinstance(event, ToolStarted):
            row.doing = event.tool
        elif isinstance(event, ToolProgress):
            row.doing = _tool_progress(event)
        elif isinstance(event, ToolFinished):
            row.doing = ""
        elif isinstance(event, AttemptFailed | OutputChecked | ModelReplaced | ServerWait):
            row.doing = model_detail(event)
        elif isinstance(event, StepDeltaEvent):
            row.text = (row.text + (event.delta.content or ""))[-80:]

    def close(self) -> None:
        """Draw the last state and stop."""
        if self._is_started:
            self._live.stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop drawing inside the block."""
        self.close()
        try:
            yield
        finally:
            if self._is_started:
                # A new one: the old would draw over what was printed since.
                self._live = self._list()
                self._live.start()

    def _table(self) -> Text:
        """One line for each step, cut to the terminal's width."""
        from rich.text import Text

        rows = list(self._rows.items())
        room = max(3, self._console.height - 4)
        width = min(max((len(step_id) for step_id, _ in rows), default=0), self._console.width // 2)
        lines = [_line(step_id, row, width) for step_id, row in rows[-room:]]
        if len(rows) > room:
            lines.insert(0, Text(f"  … {len(rows) - room} steps before", style="dim"))
        for line in lines:
            line.truncate(self._console.width, overflow="ellipsis")
        return Text("\n").join(lines)


def _new_plan(event: PlanReplaced, width: int) -> Text:
    from rich.text import Text

    text = f"{event.address} is planned again:\n{event.text}"
    return Text("\n".join(hanging(plain(line), width) for line in text.splitlines()))


def _line(step_id: str, row: _Row, width: int) -> Text:
    """A line as plain text: a model's words may contain brackets, which are markup."""
    from rich.text import Text

    glyph, color = _glyph(row)
    name = Text(step_id)
    name.truncate(width, overflow="ellipsis", pad=True)
    elapsed = row.end.duration_ms if row.end else (monotonic() - row.begin) * 1000
    line = Text.assemble((glyph, color), " ", name, f" {spoken(elapsed):>7} ")
    return line.append(plain(_detail(row)), style="dim")


def _glyph(row: _Row) -> tuple[str, str]:
    if row.end is None:
        return "▸", "blue"
    return _GLYPHS["partial" if row.end.partial else row.end.status]


def _detail(row: _Row) -> str:
    if row.end is not None:
        return reason_of(row.end) or ", ".join([*_failed_items(row.items), *_facts(row.end)])
    if row.items is not None:
        return totals_words(row.items)
    return row.doing or " ".join(row.text.split())


def _failed_items(items: ItemTotals | None) -> list[str]:
    return [f"{items.failed} of {items.ended} items failed"] if items and items.failed else []


# --- how far loops have come ---------------------------------------------------------------------


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


class _Loops:
    """Counts the items of loops; what counts them is loaded with the first loop."""

    def __init__(self) -> None:
        self._counter: ItemCounter | None = None

    def recall(self, recorded: Iterable[StepBegun | StepOutcome]) -> None:
        """Begin with what earlier executions of the run recorded."""
        if facts := [*recorded]:
            self._make_counter().recall(facts)

    def count(self, event: StepStarted | StepFinished) -> ItemTotals | None:
        """How far the loop of the event has come; None: the event is of no loop."""
        total = event.total if isinstance(event, StepStarted) else None
        is_loop = event.index is not None or total is not None
        if self._counter is None and not is_loop:
            return None
        return self._make_counter().count(event)

    def _make_counter(self) -> ItemCounter:
        if self._counter is None:
            from minions.engine.views.run_items import ItemCounter

            self._counter = ItemCounter()
        return self._counter
