"""From traces to a program: steps that make the same calls, each argument with its origin."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from minions.capture.alignment import Column, LeftOut, align, choose_calls, group_calls
from minions.capture.captured_program import (
    JudgedNode,
    LoopOver,
    Program,
    ToolNode,
)
from minions.capture.choices import Choices
from minions.capture.json_places import is_equal, put_value
from minions.capture.known_runs import KnownRuns
from minions.capture.model_steps import ModelSteps
from minions.capture.repetitions import (
    find_loop,
    find_until,
    page_condition,
    page_template,
    split_column,
)
from minions.capture.task_inputs import TaskInputs
from minions.capture.template_writing import member, step_name
from minions.capture.traces import Trace, TracedCall, is_effect
from minions.capture.ways import Ways
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue, dumps


def build_program(
    traces: Sequence[Trace],
    specs: Mapping[str, ToolSpec],
    *,
    answers: Mapping[str, str] | None = None,
    accepts: bool = False,
    before: Mapping[str, str] | None = None,
    described: Collection[str] = (),
) -> Program:
    """The program that makes the calls of the traces again.

    Args:
        traces: At least one, of the same kind of task.
        specs: The tools by full name, as far as they are known.
        answers: To questions: by place the chosen template.
        accepts: Whether the proposed choice counts where no answer was given.
        before: By place the template of the recipe that is extended, which stays where it can.
        described: Tools whose descriptions the operator wrote: those of others are a stranger's
            words, and describe no input.
    """
    runs = KnownRuns(traces, specs)
    inputs = TaskInputs(runs, described)
    left_out: list[LeftOut] = []
    grouped = []
    for trace in traces:
        kept, left = choose_calls(trace, specs)
        left_out += left
        grouped.append(group_calls(kept, specs))
    columns = align(grouped)
    inputs.find(columns)
    choices = Choices(runs, answers or {}, before or {}, accepts=accepts)
    builder = _Builder(runs, choices)
    for column in columns:
        builder.add_column(column)
    output = builder.add_output()
    problems = [
        *builder.problems,
        *(
            f"{run.trace.name} has more values than origins are looked for in"
            for run in runs.runs
            if run.known.is_cut
        ),
    ]
    steps, unread = _without_unread(builder.steps, output, runs)
    used = inputs.used_by(steps, output)
    if any(isinstance(each, JudgedNode) for each in steps):
        # A model may not judge by the words of one task what another one decided.
        first, *others = inputs.tasks_with(used)
        other = next((each for each in others if each != first), None)
        if other is not None:
            problems.append(
                f"the tasks differ in more than their inputs: '{first:.80}' and "
                f"'{other:.80}'; capture runs whose tasks have one form"
            )
    return Program(
        inputs=used,
        steps=tuple(steps),
        output=output,
        evidence=tuple(choices.evidence),
        questions=tuple(choices.questions),
        left_out=(*left_out, *unread),
        problems=tuple(problems),
        decisive=frozenset(builder.ways.decisive),
    )


class _Builder:
    """Makes the steps, column by column."""

    def __init__(self, runs: KnownRuns, choices: Choices) -> None:
        self._runs = runs
        self._choices = choices
        self.ways = Ways(runs, choices)
        self.steps: list[ToolNode | JudgedNode] = []
        self._model_steps = ModelSteps(runs, choices, self.steps)
        self.problems: list[str] = []

    def add_column(self, column: Column) -> None:
        """Add the steps that make the calls of a column."""
        if not column.repeats or column.cursor is not None:
            self._add_step(column, None)
            return
        loop = find_loop(column, self._runs)
        for each in (column,) if loop is not None else split_column(column):
            self._add_step(each, loop)

    def _add_step(self, column: Column, loop: LoopOver | None) -> None:
        name = self._runs.take_name(step_name(column.tool.rpartition("__")[2]))
        when = self._condition(column, name) if loop is None else None
        params = self._params(column, loop, name, when)
        until, most_calls = find_until(column)
        cursor = column.cursor
        groups = [each for each in column.groups if each is not None]
        if cursor is not None:
            until = page_condition(column, cursor)
            most_calls = max(len(each.calls) for each in groups)
            if until is None:
                self.problems.append(
                    f"nothing tells when the last page of '{column.tool}' is reached"
                )
                until = "false"
        self.steps.append(
            ToolNode(
                id=name,
                tool=column.tool,
                params=params,
                loop=loop,
                when=when,
                until=until,
                polls=most_calls,
                is_paged=cursor is not None,
                attempts=max(each.attempts for each in groups),
                results=tuple(
                    call.result for each in groups for call in (*each.polls, *each.calls)
                ),
            )
        )
        self._runs.record_calls(name, column, loop)

    def _condition(self, column: Column, name: str) -> str | None:
        """The condition of a step; None: each trace executed it."""
        if all(each is not None for each in column.groups):
            return None
        found = self.ways.find_condition(column, name)
        if found is None:
            node = self._model_steps.judge_way(column, name)
            self.steps.append(node)
            found = f"{node.id}.needed"
            self.ways.take_condition(column.present, found)
        return found

    def _params(
        self, column: Column, loop: LoopOver | None, name: str, when: str | None
    ) -> dict[str, JsonValue]:
        """The arguments of a step, after the model step that gives what no expression does."""
        params: dict[str, JsonValue] = {}
        judged: list[tuple[str | int, ...]] = []
        sights = self._runs.sights_of_calls(column, loop)
        for own in dict.fromkeys(each for call in column.calls for each in call.arguments):
            if column.cursor is not None and own == column.cursor.parameter:
                continue
            if not all(own in call.arguments for call in column.calls):
                self.problems.append(f"{name}.{own} was given in some calls only: it is left out")
                continue
            chosen = self._choices.choose_argument(column, name, own, sights)
            params[own] = chosen.template
            judged += chosen.judged
        if column.cursor is not None:
            spec = self._runs.spec_of(column.tool)
            page = page_template(column, column.cursor, spec)
            place = f"{name}.{column.cursor.parameter}"
            because = "each call asks for the page after the one before"
            self._choices.tell(place, "page", page, because)
            params[column.cursor.parameter] = page
        if judged:
            node = self._model_steps.judge_arguments(column, name, loop, when, judged)
            self.steps.append(node)
            base = node.id if loop is None else f"{node.id}[loop.index]"
            for path, given in zip(judged, node.fields, strict=True):
                put_value(params, path, f"{{{{ {member(base, given.name)} }}}}")
        return params

    def add_output(self) -> JsonValue:
        """The template of the output, after the model step that it needs."""
        chosen = self.ways.choose_output()
        if not chosen.judged:
            return chosen.template
        node, template = self._model_steps.judge_output(chosen)
        self.steps.append(node)
        return template


def _without_unread(
    steps: Sequence[ToolNode | JudgedNode], output: JsonValue, runs: KnownRuns
) -> tuple[list[ToolNode | JudgedNode], list[LeftOut]]:
    """The steps without those that change nothing, that nothing reads and that came before nothing
    that they could have decided.
    """
    kept: list[ToolNode | JudgedNode] = []
    left: list[LeftOut] = []
    text = dumps(output)
    decides = False
    for step in reversed(steps):
        if isinstance(step, JudgedNode):
            decides = True
            text += " ".join(step.reads)
        else:
            is_read = re.search(rf"\b{re.escape(step.id)}\b", text) is not None
            effect = is_effect(runs.specs.get(step.tool))
            if not (is_read or effect or decides):
                left += [
                    LeftOut(call=call, reason="nothing reads its result")
                    for call in _calls_of(step, runs)
                ]
                continue
            decides = decides or effect
            text += dumps(dict(step.params))
        text += (step.loop.source if step.loop else "") + (step.when or "")
        kept.append(step)
    return kept[::-1], left


def _calls_of(step: ToolNode, runs: KnownRuns) -> Iterator[TracedCall]:
    for run in runs.runs:
        for call in run.trace.calls:
            if call.tool == step.tool and any(is_equal(call.result, each) for each in step.results):
                yield call
