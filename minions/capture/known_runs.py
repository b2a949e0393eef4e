"""What is known of each trace while its program is built: results, and words and who said them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, field

from minions.capture.alignment import Column, Group
from minions.capture.captured_program import LoopOver
from minions.capture.json_places import is_equal, keys_of, part_of, plain_leaves
from minions.capture.known_values import (
    MOST_TEXT,
    Known,
    KnownThen,
    KnownValues,
    Sight,
    Values,
    has_words,
    is_telling,
    leaves,
)
from minions.capture.template_writing import member, quoted, text_of
from minions.capture.traces import Trace, TracedCall, is_effect
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue, texts_in


@define
class KnownRun:
    """One trace, with what the steps of the program gave so far."""

    trace: Trace
    inputs: dict[str, JsonValue]
    scope: dict[str, JsonValue]
    """What templates read: `inputs`, and outputs by the names of steps."""
    known: KnownValues = field(factory=KnownValues)
    """What of `scope` something may have been made of."""
    made_at: dict[str, tuple[int, ...]] = field(factory=dict)
    """By name of a step, the numbers of the answers that asked for its calls."""
    made_calls: dict[str, tuple[TracedCall, ...]] = field(factory=dict)
    """By name of a step that calls a tool, its calls."""

    def late_after(self, answer: int) -> frozenset[str]:
        """Names of the steps whose results this answer did not know yet."""
        return frozenset(name for name, at in self.made_at.items() if max(at) >= answer)

    def says(self, value: JsonValue) -> bool:
        """Whether the task has the value, in its words."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return False
        text = text_of(value)
        if isinstance(value, float) and value == int(value):
            text = str(int(value))
        return bool(text.strip()) and any(has_words(each.text, text) for each in self.trace.task)


class KnownRuns:
    """The traces side by side, column by column."""

    def __init__(self, traces: Sequence[Trace], specs: Mapping[str, ToolSpec]) -> None:
        self.specs = specs
        self.values = Values()
        self.runs: list[KnownRun] = []
        self.loops: dict[str, LoopOver] = {}
        """By name of a step that is a loop."""
        self._names: set[str] = {"inputs", "steps", "loop", "run", "env", "feedback"}
        for trace in traces:
            given = dict(trace.inputs)
            run = KnownRun(trace, given, {"inputs": given})
            for name, value in trace.inputs.items():
                run.known.add(leaves(member("inputs", name), value, "inputs", label=name))
            self.runs.append(run)

    def spec_of(self, tool: str) -> ToolSpec | None:
        """The declaration of that tool; None: it is not known."""
        return self.specs.get(tool)

    def take_name(self, wanted: str) -> str:
        """A name for a step: the wanted one, with a number where another has it."""
        found = unique_name(wanted, self._names)
        self._names.add(found)
        return found

    # --- results ---------------------------------------------------------------------------------

    def record_calls(self, name: str, column: Column, loop: LoopOver | None) -> None:
        """Make known what the calls of a step gave."""
        for run, group in zip(self.runs, column.groups, strict=True):
            if group is None:
                if loop is not None:
                    run.scope[name] = []  # there was no item
                continue
            outputs = [call.result for call in group.calls]
            is_list = loop is not None or column.cursor is not None
            output: JsonValue = list(outputs) if is_list else outputs[0]
            run.scope[name] = output
            run.made_calls[name] = group.calls
            run.made_at[name] = tuple(call.answer for call in group.calls)
            run.known.add(_without_echoes(leaves(name, output, name), group.calls, run.known))
            if column.cursor is not None:
                run.known.add(_lists_of_pages(name, outputs))
        if loop is not None:
            self.loops[name] = loop

    def sights_of_calls(self, column: Column, loop: LoopOver | None) -> list[Sight]:
        """What was known at each call of the column, with its arguments as the value."""
        found: list[Sight] = []
        for run, group in zip(self.runs, column.groups, strict=True):
            if group is None:
                continue
            late = run.late_after(min(call.answer for call in group.calls))
            if loop is None:
                call, known = group.calls[0], KnownThen(run.known, late)
                found.append(Sight(value=dict(call.arguments), scope=run.scope, known=known))
            else:
                found += self._sights_of_items(run, group, loop, late)
        return found

    def _sights_of_items(
        self, run: KnownRun, group: Group, loop: LoopOver, late: frozenset[str]
    ) -> Iterator[Sight]:
        items = self.values.give(loop.source, run.scope)
        assert isinstance(items, list | tuple)  # noqa: S101  # the loop was chosen so
        for at, (call, item) in enumerate(zip(group.calls, items, strict=True)):
            more = KnownValues()
            more.add(leaves("loop.item", item, "loop"))
            for other, its_loop in self.loops.items():
                made = run.made_at.get(other, ())
                if its_loop.source != loop.source or at >= len(made):
                    continue
                outputs = run.scope[other]
                if made[at] < call.answer and isinstance(outputs, list):
                    own = leaves(f"{other}[loop.index]", outputs[at], "loop")
                    calls = run.made_calls.get(other, ())[at : at + 1]
                    more.add(_without_echoes(own, calls, run.known))
            yield Sight(
                value=dict(call.arguments),
                scope={**run.scope, "loop": {"item": item, "index": at}},
                known=KnownThen(run.known, late, more),
            )

    def sights_of_output(self) -> list[Sight]:
        """What was known at the end of each trace, with its output as the value."""
        return [
            Sight(value=run.trace.output, scope=run.scope, known=KnownThen(run.known))
            for run in self.runs
        ]

    def comes_after_results(self, column: Column) -> bool:
        """Whether something had been given when the calls were asked for."""
        return any(
            min(at) < first
            for run, first in self._first_answers(column)
            for at in run.made_at.values()
        )

    def _first_answers(self, column: Column) -> Iterator[tuple[KnownRun, int]]:
        """The traces that made the calls, each with the first answer that asked for one."""
        for run, group in zip(self.runs, column.groups, strict=True):
            if group is not None:
                yield run, min(call.answer for call in group.calls)

    # --- words, and who said them ----------------------------------------------------------------

    def is_said_by_author(self, text: str) -> bool:
        """Whether the task or the agent's recipe has these words, in every trace."""
        return all(
            bool(text)
            and any(
                has_words(each, text)
                for each in (run.trace.goal, run.trace.system, *(t.text for t in run.trace.task))
            )
            for run in self.runs
        )

    def is_judged(self, value: JsonValue) -> bool:
        """Whether a step in which a model answers gave the value, in every trace."""
        return is_telling(value) and all(
            any(
                is_equal(value, part) for held in run.trace.judged for _, part in plain_leaves(held)
            )
            for run in self.runs
        )

    def is_exposed(self, column: Column) -> bool:
        """Whether the calls reach others, and a stranger's words may have led to them."""
        spec = self.specs.get(column.tool)
        if spec is not None and not is_effect(spec) and not spec.is_asking_others:
            return False
        return any(
            self._is_strange(calls[0]) and min(run.made_at[name]) < first
            for run, first in self._first_answers(column)
            for name, calls in run.made_calls.items()
        )

    def strangers_words(self, column: Column) -> frozenset[str]:
        """The words that strangers had said before the calls, in lower case."""
        return frozenset(
            word
            for run, first in self._first_answers(column)
            for call in run.trace.calls
            if call.answer < first and self._is_strange(call)
            for text in texts_in(call.result)
            for word in words_in(text.lower())
        )

    def has_strangers_words(self, column: Column, text: str) -> bool:
        """Whether the calls are exposed, and a word of the text is a stranger's and not also one of
        the task or the recipe.
        """
        if not self.is_exposed(column):
            return False
        strange = self.strangers_words(column)
        return any(
            word.lower() in strange and not self.is_said_by_author(word) for word in words_in(text)
        )

    def _is_strange(self, call: TracedCall) -> bool:
        spec = self.specs.get(call.tool)
        return spec is None or spec.is_untrusted


def words_in(text: str) -> list[str]:
    """Its words of two letters or more."""
    return re.findall(r"[^\W\d_]{2,}", text)


def unique_name(wanted: str, taken: Iterable[str]) -> str:
    """The wanted name, with a number where it is taken."""
    number, found = 2, wanted
    while found in taken:
        found, number = f"{wanted}_{number}", number + 1
    return found


def _without_echoes(
    known: Iterable[Known], calls: Sequence[TracedCall], before: KnownValues
) -> list[Known]:
    """What calls gave, without what only repeats their own arguments, or words in these that were
    known before.
    """
    echoes = {
        (type(part).__name__, part)
        for call in calls
        for _, part in plain_leaves(call.arguments)
        if is_telling(part) and isinstance(part, str | int | float)
    }
    texts = [each for _, each in echoes if isinstance(each, str) and len(each) <= MOST_TEXT]

    def is_echo(value: JsonValue) -> bool:
        if isinstance(value, str | int | float) and (type(value).__name__, value) in echoes:
            return True
        return (
            isinstance(value, str)
            and is_telling(value)
            and any(before.equal_to(value))  # the look-up first: few values are known already
            and any(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", each) for each in texts)
        )

    return [each for each in known if not is_echo(each.value)]


def _lists_of_pages(name: str, outputs: Sequence[JsonValue]) -> Iterator[Known]:
    """The lists that pages are parts of."""
    for key in keys_of(outputs[0]):
        parts = [part_of(each, key) for each in outputs]
        if "." not in key and all(isinstance(each, list | tuple) for each in parts):
            whole = [item for part in parts if isinstance(part, list | tuple) for item in part]
            text = f"({name} | map(attribute={quoted(key)}) | flatten)"
            yield Known(text=text, value=whole, root=name, label=key)
