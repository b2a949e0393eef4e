"""From traces to a program: steps that make the same calls, each argument with its origin."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from minions.capture.alignment import (
    Column,
    Cursor,
    Group,
    LeftOut,
    align,
    choose_calls,
    group_calls,
)
from minions.capture.captured_program import OUTPUT, JudgedNode, LoopOver, Program, ToolNode
from minions.capture.choices import Choices, ChosenTemplate, Path, length_of_lists
from minions.capture.json_places import (
    is_equal,
    keys_of,
    part_of,
    plain_leaves,
    put_value,
    value_at,
)
from minions.capture.known_runs import KnownRuns
from minions.capture.known_values import STATES, Known, Sight, has_words
from minions.capture.model_steps import ModelSteps
from minions.capture.seen_types import schema_at
from minions.capture.task_inputs import TaskInputs
from minions.capture.template_writing import (
    as_expression,
    literal,
    literal_templates,
    member,
    quoted,
    step_name,
)
from minions.capture.traces import Trace, TracedCall, is_effect
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


# --- conditions that tell apart the traces that made a call, and outputs -------------------------


@frozen(kw_only=True)
class Condition:
    """An expression that is true in some traces, and false in the others."""

    rank: int
    """The better the smaller: a truth value, a state, another word."""
    read: str
    """The expression of what it reads."""
    text: str


class Ways:
    """Where traces differ in their calls: by which condition."""

    def __init__(self, runs: KnownRuns, choices: Choices) -> None:
        self._runs = runs
        self._values = runs.values
        self._choices = choices
        self._before = choices.before
        self._found: dict[frozenset[int], str] = {}
        """By the traces that went there, the condition."""
        self.decisive: set[str] = set()
        """Names of fields that a condition reads."""

    def take_condition(self, present: frozenset[int], condition: str) -> None:
        """Take the condition of these traces from elsewhere: a model gives it."""
        self._found[present] = condition

    def find_condition(self, column: Column, step: str) -> str | None:
        """The condition under which the step is executed; None: nothing known tells it."""
        present = column.present
        if present in self._found:
            return self._found[present]
        place = f"{step}.when"
        found = self._dividing(present)
        if place in self._choices.answers:
            condition = self._choices.answers[place]
            self._choices.tell(place, "chosen", condition, "a person chose it")
        elif found:
            before = self._before.get(place)
            found = [each for each in found if each.text == before] or found
            best = found[0]
            if sum(each.rank == best.rank for each in found) > 1:
                self._choices.ask(place, [each.text for each in found], value=True)
            self._choices.tell(place, "condition", best.text, "it tells the traces apart")
            self.decisive.add(best.read.rpartition(".")[2])
            condition = best.text
        else:
            return None
        self._found[present] = condition
        return condition

    def _dividing(self, present: frozenset[int]) -> list[Condition]:
        """Conditions that hold in these traces alone, the best first."""
        runs = self._runs.runs
        found: list[Condition] = []
        for known in runs[0].known.values:
            if known.is_picked or not isinstance(known.value, str | bool):
                continue
            template = f"{{{{ {known.text} }}}}"
            values = [self._values.give(template, run.scope) for run in runs]
            inside = [value for at, value in enumerate(values) if at in present]
            outside = [value for at, value in enumerate(values) if at not in present]
            if any(type(each) is not type(known.value) for each in values) or any(
                is_equal(one, other) for one in inside for other in outside
            ):
                continue
            if isinstance(known.value, bool):
                text = known.text if inside[0] else f"not {known.text}"
                found.append(Condition(rank=0, read=known.text, text=text))
                continue
            if not all(re.fullmatch(r"[A-Za-z][A-Za-z_ -]*", str(each)) for each in values):
                continue
            is_state = known.label.lower() in STATES
            if not is_state and (
                len({str(each) for each in values}) == len(values)
                or any(run.says(value) for run, value in zip(runs, values, strict=True))
            ):
                continue  # a name of each trace's own says nothing of what kind it is
            words = [literal(each) for each in dict.fromkeys(str(each) for each in inside)]
            is_one = f"== {words[0]}" if len(words) == 1 else f"in [{', '.join(words)}]"
            rank = 1 if is_state else 2
            found.append(Condition(rank=rank, read=known.text, text=f"{known.text} {is_one}"))
        return sorted(found, key=lambda each: each.rank)

    # --- the output ------------------------------------------------------------------------------

    def choose_output(self) -> ChosenTemplate:
        """What stands for the output, where the traces went different ways a choice between what
        each of them gave.
        """
        judged: list[Path] = []
        template = self._choose_part((), self._runs.sights_of_output(), judged)
        return ChosenTemplate(template=template, judged=tuple(judged))

    def _choose_part(self, path: Path, sights: Sequence[Sight], judged: list[Path]) -> JsonValue:
        values = [each.value for each in sights]
        place = ".".join((OUTPUT, *map(str, path)))
        key = next((str(each) for each in reversed(path) if isinstance(each, str)), "")
        chosen = self._choices.choose_origin(sights, key, place)
        if chosen is not None:
            return chosen

        def choose_at(part: str | int) -> JsonValue:
            below = [evolve(each, value=value_at(each.value, (part,))) for each in sights]
            return self._choose_part((*path, part), below, judged)

        keys = keys_of(values[0])
        if all(isinstance(each, Mapping) and keys_of(each) == keys for each in values):
            return {part: choose_at(part) for part in keys}
        length = length_of_lists(values)
        if length is not None and len(values) > 1:
            return [choose_at(at) for at in range(length)]
        by_way = self._choose_by_way(sights, key)
        if by_way is not None:
            self._choices.tell(place, "condition", by_way, "the ways gave different outputs")
            return by_way
        same = all(is_equal(values[0], each) for each in values)
        if same and (len(values) > 1 or values[0] is None):
            self._choices.tell(place, "constant", dumps(values[0]), "the same in each run")
            return literal_templates(values[0])
        judged.append(path)
        return None

    def _choose_by_way(self, sights: Sequence[Sight], key: str) -> str | None:
        """A choice between what each way gave; None: no condition tells them apart."""
        for present, condition in self._found.items():
            parts: list[str] = []
            for is_inside in (True, False):
                own = [each for at, each in enumerate(sights) if (at in present) is is_inside]
                value = own[0].value
                found = self._choices.origins_of(own, key)
                if found and not isinstance(value, bool):
                    parts.append(as_expression(found[0].template))
                elif len(own) > 1 and all(is_equal(value, each.value) for each in own):
                    parts.append(literal(value))
            if len(parts) == 2:
                return f"{{{{ {parts[0]} if {condition} else {parts[1]} }}}}"
        return None


# --- for each item of a list ---------------------------------------------------------------------


def find_loop(column: Column, runs: KnownRuns) -> LoopOver | None:
    """The list over whose items the calls of a column were made; None: there is none."""
    run, group = max(
        ((run, g) for run, g in zip(runs.runs, column.groups, strict=True) if g is not None),
        key=lambda each: len(each[1].calls),
    )
    late = run.late_after(min(call.answer for call in group.calls))
    sources = [each.source for each in runs.loops.values()]
    for known in run.known.values:
        if known.root in late or known.is_picked or not isinstance(known.value, list | tuple):
            continue
        if len(known.value) >= len(group.calls):
            sources.append(f"{{{{ {known.text} }}}}")
            sources += _choices_of_items(known, known.value, group)
    for source in dict.fromkeys(sources):
        if _has_item_for_each_call(source, column, runs):
            return LoopOver(source=source, by_effect=is_effect(runs.specs.get(column.tool)))
    return None


def _has_item_for_each_call(source: str, column: Column, runs: KnownRuns) -> bool:
    """Whether in each trace each call is about the item in its place."""
    for run, group in zip(runs.runs, column.groups, strict=True):
        items = runs.values.give(source, run.scope)
        if not isinstance(items, list | tuple):
            items = ()
        calls = group.calls if group is not None else ()
        if len(items) != len(calls) or not all(map(_is_about, calls, items)):
            return False
    return True


def _choices_of_items(known: Known, items: Sequence[JsonValue], group: Group) -> Iterator[str]:
    """Choices of a list's items by one of their fields, as many as there are calls."""
    if len(items) == len(group.calls) or not all(isinstance(each, Mapping) for each in items):
        return
    chosen = [any(_is_about(call, item) for call in group.calls) for item in items]
    if sum(chosen) != len(group.calls):
        return
    for key in sorted(keys_of(items[0]), key=lambda key: key.lower() not in STATES):
        parts = [part_of(each, key) for each in items]
        if "." in key or any(isinstance(part, Mapping | list | tuple) for part in parts):
            continue
        is_kind = key.lower() in STATES or all(isinstance(part, bool) for part in parts)
        if not is_kind and len({literal(part) for part in parts}) == len(parts):
            continue  # a name of each item's own says nothing of what kind it is
        inside = [part for part, is_in in zip(parts, chosen, strict=True) if is_in]
        outside = [part for part, is_in in zip(parts, chosen, strict=True) if not is_in]
        for form, same, others in (
            ("selectattr", inside, outside),
            ("rejectattr", outside, inside),
        ):
            if all(is_equal(same[0], each) for each in same) and not any(
                is_equal(same[0], each) for each in others
            ):
                test = f"{quoted(key)}, 'eq', {literal(same[0])}"
                yield f"{{{{ {known.text} | {form}({test}) | list }}}}"
                break


def _is_about(call: TracedCall, item: JsonValue) -> bool:
    """Whether an argument of the call holds a telling part of the item."""
    given = [part for _, part in plain_leaves(call.arguments)]
    for _, part in plain_leaves(item):
        if part is None or isinstance(part, bool):
            continue
        if any(is_equal(part, each) for each in given):
            return True
        held = (each for each in given if isinstance(each, str))
        if isinstance(part, str) and len(part) >= 3 and any(has_words(each, part) for each in held):
            return True
    return False


def split_column(column: Column) -> Iterator[Column]:
    """The calls of a column that is no loop, one column for each."""
    most = max(len(each.calls) for each in column.groups if each is not None)
    for at in range(most):
        groups = [
            Group(tool=each.tool, calls=(each.calls[at],), attempts=each.attempts)
            if each is not None and at < len(each.calls)
            else None
            for each in column.groups
        ]
        yield Column(tool=column.tool, groups=tuple(groups))


# --- until a state is reached --------------------------------------------------------------------


def find_until(column: Column) -> tuple[str | None, int]:
    """The condition under which a call was repeated, with the most calls of a trace."""
    polled = [each for each in column.groups if each is not None and each.polls]
    if not polled:
        return None, 0
    most = max(len(each.polls) + 1 for each in polled)
    last = [each.calls[-1].result for each in column.groups if each is not None]
    before = [call.result for each in polled for call in each.polls]
    for path, value in plain_leaves(last[0]):
        ends = [value_at(each, path) for each in last]
        if not all(is_equal(value, each) for each in ends):
            continue
        if any(is_equal(value_at(each, path), value) for each in before):
            continue
        expression = "loop.last"
        for key in path:
            expression = member(expression, key) if isinstance(key, str) else f"{expression}[{key}]"
        return f"{expression} != {literal(value)}", most
    return None, most


# --- page by page --------------------------------------------------------------------------------


def page_template(column: Column, cursor: Cursor, spec: ToolSpec | None) -> str:
    """The template of the parameter that names the page."""
    firsts = [
        each.calls[0].arguments.get(cursor.parameter) for each in column.groups if each is not None
    ]
    begin: JsonValue = next((each for each in firsts if each is not None), None)
    if begin is None:
        default = 1 if cursor.path is None else None
        begin = schema_at(spec, (cursor.parameter,)).get("default", default)
    if cursor.path is None:
        return f"{{{{ loop.index + {literal(begin)} }}}}"
    return f"{{{{ {_next_page(cursor.path)} if loop.index > 0 else {literal(begin)} }}}}"


def page_condition(column: Column, cursor: Cursor) -> str | None:
    """The condition under which there is another page; None: nothing tells it."""
    groups = [each for each in column.groups if each is not None]
    lasts = [each.calls[-1].result for each in groups]
    if cursor.path is not None:
        text, path = _next_page(cursor.path), cursor.path
        is_there = all(value_at(each, path) is not None for each in lasts)
        return text if is_there else f"{text} is defined and {text}"
    before = [call.result for each in groups for call in each.calls[:-1]]
    for key in keys_of(lasts[0]):
        ends = [part_of(each, key) for each in lasts]
        goes = [part_of(each, key) for each in before]
        if all(each in (False, []) for each in ends) and all(bool(each) for each in goes):
            return member("loop.last", key)
    return None


def _next_page(path: Sequence[str]) -> str:
    """The expression of what the page before says of the next one."""
    text = "loop.last"
    for key in path:
        text = member(text, key)
    return text
