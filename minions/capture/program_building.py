"""From traces to a program: steps that make the same calls, each argument with its origin."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import define, evolve, field

from minions.capture.alignment import (
    Column,
    Cursor,
    Group,
    LeftOut,
    align,
    choose_calls,
    group_calls,
)
from minions.capture.captured_program import (
    OUTPUT,
    Evidence,
    InputMade,
    JudgedField,
    JudgedNode,
    LoopOver,
    Program,
    Question,
    ToolNode,
)
from minions.capture.json_places import (
    first_given,
    keys_of,
    part_of,
    plain_leaves,
    put_value,
    value_at,
)
from minions.capture.origins import (
    MOST_TEXT,
    PERCENT,
    STATES,
    Kind,
    Known,
    KnownThen,
    KnownValues,
    Origin,
    Sight,
    Values,
    as_expression,
    constant_words,
    has_words,
    is_equal,
    is_telling,
    leaves,
    literal_template,
    member,
    origins_of,
    quoted,
    step_name,
    text_of,
)
from minions.capture.recipe_writing import templated_task
from minions.capture.seen_types import plain_schema, schema_at, schema_of
from minions.capture.traces import Trace, TracedCall, is_effect
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue, dumps, texts_in
from minions.data.schema import JsonSchema

_FEW_WORDS: Final = 3
"""Words around known values that are constant after one trace: more are written by a model."""
_PART: Final = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
"""A part of a path, address or other name."""
_PERCENTAGE: Final = re.compile(r"(?<![\w.])([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%")
_TOKEN: Final = re.compile(r"[\w@][\w@.+/-]*[\w/]|\w")


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
    builder = _Builder(list(traces), specs, answers or {}, before or {}, accepts=accepts)
    builder.described = frozenset(described)
    return builder.build()


@define
class _Run:
    """What is known of one trace while the program is built."""

    trace: Trace
    scope: dict[str, JsonValue]
    known: KnownValues = field(factory=KnownValues)
    made_at: dict[str, tuple[int, ...]] = field(factory=dict)
    """By name of a step, the numbers of the answers that asked for its calls."""


class _Builder:
    """Builds one program, column by column."""

    def __init__(
        self,
        traces: list[Trace],
        specs: Mapping[str, ToolSpec],
        answers: Mapping[str, str],
        before: Mapping[str, str],
        *,
        accepts: bool,
    ) -> None:
        self._specs = specs
        self.described: frozenset[str] = frozenset()
        self._answers = answers
        self._before = before
        self._accepts = accepts
        self._values = Values()
        self._runs = [_Run(each, {"inputs": dict(each.inputs)}) for each in traces]
        self._inputs: list[InputMade] = []
        self._steps: list[ToolNode | JudgedNode] = []
        self._evidence: list[Evidence] = []
        self._questions: list[Question] = []
        self._problems: list[str] = []
        self._left: list[LeftOut] = []
        self._loops: dict[str, LoopOver] = {}
        self._made: list[dict[str, tuple[TracedCall, ...]]] = [{} for _ in traces]
        """By trace and name of a step, the calls that it makes."""
        self._items: dict[str, list[Sequence[JsonValue]]] = {}
        """By source of a loop, its items by trace."""
        self._held: dict[str, frozenset[str]] = {}
        """By name of a step, the words of what it gave."""
        self._when: str | None = None
        """The condition of the column that is being added."""
        self._ways: dict[frozenset[int], str] = {}
        """By the traces that went there, the condition."""
        self._decisive: set[str] = set()
        """Names of fields that a condition reads."""
        self._names: set[str] = {"inputs", "steps", "loop", "run", "env", "feedback"}
        for run in self._runs:
            for name, value in run.trace.inputs.items():
                run.known.add(leaves(member("inputs", name), value, "inputs", label=name))
        self._add_answers()

    # --- the whole -------------------------------------------------------------------------------

    def build(self) -> Program:
        grouped = []
        for run in self._runs:
            kept, left = choose_calls(run.trace, self._specs)
            self._left += left
            grouped.append(group_calls(kept, self._specs))
        columns = list(align(grouped))
        self._find_inputs(columns)
        for column in columns:
            self._add_column(column)
        output = self._add_output()
        for run in self._runs:
            if run.known.is_cut:
                self._problems.append(
                    f"{run.trace.name} has more values than origins are looked for in"
                )
        steps, left = self._without_unread(output)
        inputs = self._used_inputs(steps, output)
        if any(isinstance(each, JudgedNode) for each in steps):
            self._compare_tasks(inputs)
        return Program(
            inputs=inputs,
            steps=tuple(steps),
            output=output,
            evidence=tuple(self._evidence),
            questions=tuple(self._questions),
            left_out=(*self._left, *left),
            problems=tuple(self._problems),
            decisive=frozenset(self._decisive),
        )

    def _compare_tasks(self, inputs: Sequence[InputMade]) -> None:
        """Refuse to let a model judge by the words of one task what another one decided."""
        tasks = [
            templated_task(
                "\n".join(each.text for each in run.trace.task),
                [(each.name, each.values[number]) for each in inputs],
            )
            for number, run in enumerate(self._runs)
        ]
        for other in tasks[1:]:
            if other != tasks[0]:
                self._problems.append(
                    f"the tasks differ in more than their inputs: '{tasks[0]:.80}' and "
                    f"'{other:.80}'; capture runs whose tasks have one form"
                )
                return

    # --- inputs that stand for words of the task -------------------------------------------------

    def _add_answers(self) -> None:
        """Make an input of what a person answered while the agent worked."""
        asked = [[each.step_id for each in run.trace.answers] for run in self._runs]
        if any(each != asked[0] for each in asked):
            return
        for number, step_id in enumerate(asked[0]):
            answers = [run.trace.answers[number] for run in self._runs]
            self._add_input(step_id, [each.value for each in answers], "", is_answer=True)

    def _find_inputs(self, columns: Sequence[Column]) -> None:
        """Make an input of each value in the arguments that the person said in the task."""
        for column in columns:
            names = dict.fromkeys(name for call in column.calls for name in call.arguments)
            for name in names:
                self._find_input(column, name)
        outputs = [run.trace.output for run in self._runs]
        if all(isinstance(each, Mapping) for each in outputs):
            for name in dict.fromkeys(key for each in outputs for key in keys_of(each)):
                self._make_input(name, [part_of(each, name) for each in outputs], "")
        self._find_percentages()

    def _find_percentages(self) -> None:
        """Make an input of each percentage of the task, where there are numbers that neither the
        task nor a result has.
        """
        trace = self._runs[0].trace
        held = [part for call in trace.calls for _, part in plain_leaves(call.result)]
        used = [trace.output, *(call.arguments for call in trace.calls)]
        if not any(
            isinstance(part, float)
            and not self._says(0, part)
            and not any(is_equal(part, each) for each in held)
            for each in used
            for _, part in plain_leaves(each)
        ):
            return
        said = [
            [float(each) for text in run.trace.task for each in _PERCENTAGE.findall(text.text)]
            for run in self._runs
        ]
        if len({len(each) for each in said}) == 1:
            for together in zip(*said, strict=True):
                values = [int(each) if each == int(each) else each for each in together]
                self._add_input(PERCENT, values, "")

    def _find_input(self, column: Column, name: str) -> None:
        firsts = [
            group.calls[0].arguments.get(name) if group is not None else None
            for group in column.groups
        ]
        spec = self._specs.get(column.tool) if column.tool in self.described else None
        description = _description(spec, name)
        for path, _ in plain_leaves(firsts[0] if firsts[0] is not None else first_given(firsts)):
            values = [value_at(each, path) for each in firsts]
            key = str(path[-1]) if path and isinstance(path[-1], str) else name
            self._make_input(key, values, description)
        whole = firsts[0]
        if isinstance(whole, list | tuple) and len(whole) > 1 and len(self._runs) == 1:
            said = all(isinstance(each, str) and self._says(0, each) for each in whole)
            if said:
                self._add_input(name, [list(whole)], description)

    def _make_input(self, name: str, values: Sequence[JsonValue], description: str) -> None:
        present = [each for each in values if each is not None]
        if not present or isinstance(present[0], bool | Mapping | list | tuple):
            return
        varies = any(not is_equal(present[0], each) for each in present)
        if self._all_said(values):
            if varies or self._is_specific(present[0]):
                self._add_input(name, values, description)
            return
        if any(not isinstance(each, str) or len(each) > MOST_TEXT for each in present):
            return
        for pattern in (_TOKEN, _PART):
            tokens = [
                [
                    token
                    for token in pattern.findall(str(each))
                    if varies or self._is_specific(token)
                ]
                for each in values
                if each is not None
            ]
            if len(present) < len(values) or len({len(each) for each in tokens}) > 1:
                continue
            if str(present[0]).count(" ") > 12:
                continue
            for together in zip(*tokens, strict=True):
                is_same = all(each == together[0] for each in together)
                if varies and is_same and not self._is_specific(together[0]):
                    continue
                if self._all_said(list(together)):
                    self._add_input(self._label_of(together[0]) or name, list(together), "")

    def _label_of(self, value: str) -> str | None:
        """The name of a field that has the value, in a result or the output; None: none has."""
        trace = self._runs[0].trace
        for held in (trace.output, *(each.result for each in trace.calls)):
            for path, part in plain_leaves(held):
                names = [each for each in path if isinstance(each, str)]
                if part == value and names:
                    return names[-1]
        return None

    def _is_specific(self, value: JsonValue) -> bool:
        """Whether words of the task may be others in the next one: a name, a number, a path."""
        if isinstance(value, int | float):
            return value not in (0, 1)
        text = str(value).strip()
        if not re.search(r"[0-9@_/]|\w\.\w", text) and " " not in text:
            if not any(each.isupper() for each in text):
                return False
            begin = rf"(?:^|[.!?]\s+){re.escape(text)}\b"  # a word like others, with a capital
            is_name = any(each.isupper() for each in text[1:])
            return is_name or not any(re.search(begin, t.text) for t in self._runs[0].trace.task)
        return True

    def _all_said(self, values: Sequence[JsonValue]) -> bool:
        return all(
            value is None or self._says(number, value) for number, value in enumerate(values)
        ) and any(value is not None for value in values)

    def _says(self, number: int, value: JsonValue) -> bool:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return False
        text = text_of(value)
        task = self._runs[number].trace.task
        if isinstance(value, float) and value == int(value):
            text = str(int(value))
        return bool(text.strip()) and any(has_words(each.text, text) for each in task)

    def _add_input(
        self,
        name: str,
        values: Sequence[JsonValue],
        description: str,
        *,
        is_answer: bool = False,
    ) -> None:
        together = list(values)
        for each in self._inputs:
            if all(
                value is None or is_equal(value, given)
                for value, given in zip(together, each.values, strict=True)
            ):
                return
        for number, run in enumerate(self._runs):
            given = together[number]
            if is_telling(given) and any(run.known.equal_to(given)):
                return
        if any(value is None for value in together):
            return
        own = self._unique(step_name(name), {each.name for each in self._inputs})
        own = self._unique(own, set(self._runs[0].trace.inputs))
        made = InputMade(
            name=own,
            values=tuple(together),
            description=description,
            schema=schema_of(together),
            is_answer=is_answer,
        )
        self._inputs.append(made)
        for number, run in enumerate(self._runs):
            inputs = run.scope["inputs"]
            assert isinstance(inputs, dict)  # noqa: S101  # made so
            inputs[own] = together[number]
            text, value = f"inputs.{own}", together[number]
            parts = leaves(text, value, "said", label=own) if is_answer else ()
            run.known.add(parts or [Known(text=text, value=value, root="said", label=own)])

    def _unique(self, name: str, taken: set[str]) -> str:
        number, found = 2, name
        while found in taken:
            found, number = f"{name}_{number}", number + 1
        return found

    def _used_inputs(
        self, steps: Sequence[ToolNode | JudgedNode], output: JsonValue
    ) -> tuple[InputMade, ...]:
        texts = [output, *(each.params for each in steps if isinstance(each, ToolNode))]
        texts += [each.loop.source for each in steps if each.loop is not None]
        text = dumps(list(texts))
        return tuple(
            each
            for each in self._inputs
            if re.search(rf"inputs\.{re.escape(each.name)}\b", text)
            or (any(isinstance(step, JudgedNode) for step in steps) and self._runs[0].trace.task)
        )

    # --- one column ------------------------------------------------------------------------------

    def _add_column(self, column: Column) -> None:
        if column.cursor is not None:
            self._add_step(column, None)
            return
        if column.repeats:
            source = self._loop_source(column)
            if source is not None:
                self._add_step(column, source)
                return
            for each in self._split(column):
                self._add_step(each, None)
            return
        self._add_step(column, None)

    def _split(self, column: Column) -> Iterator[Column]:
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

    def _add_step(self, column: Column, loop: LoopOver | None) -> None:
        own = self._name_for(column.tool)
        self._when = None if loop is not None else self._condition(column, own)
        params: dict[str, JsonValue] = {}
        judged: list[tuple[str, tuple[str | int, ...]]] = []
        names = dict.fromkeys(name for call in column.calls for name in call.arguments)
        for name in names:
            place = f"{own}.{name}"
            if column.cursor is not None and name == column.cursor.parameter:
                continue
            given = [name in call.arguments for call in column.calls]
            if not all(given):
                self._problems.append(f"{place} was given in some calls only: it is left out")
                continue
            params[name] = self._argument(column, loop, own, name, (), judged)
        if column.cursor is not None:
            params[column.cursor.parameter] = self._page(column, column.cursor, own)
        if judged:
            node = self._judged(column, loop, own, judged)
            for name, path in judged:
                put_value(params, (name, *path), self._judged_template(node, loop, name, path))
        self._record(column, loop, own, params)

    # --- ways ------------------------------------------------------------------------------------

    def _condition(self, column: Column, own: str) -> str | None:
        """The condition under which the call is made; None: each trace made it."""
        present = column.present
        if len(present) == len(self._runs):
            return None
        if present in self._ways:
            return self._ways[present]
        place = f"{own}.when"
        found = self._dividing(present)
        if place in self._answers:
            self._ways[present] = self._answers[place]
            self._tell(place, "chosen", self._answers[place], "a person chose it")
            return self._ways[present]
        if not found:
            self._ways[present] = self._judged_way(column, own)
            return self._ways[present]
        found = [each for each in found if each[2] == self._before.get(place)] or found
        best = [each for each in found if each[0] == found[0][0]]
        conditions = [each[2] for each in found]
        if len(best) > 1 and not self._accepts:
            self._questions.append(Question(place=place, value=True, choices=tuple(conditions[:6])))
        self._tell(place, "condition", conditions[0], "it tells the traces apart")
        self._decisive.add(best[0][1].rpartition(".")[2])
        self._ways[present] = conditions[0]
        return conditions[0]

    def _dividing(self, present: frozenset[int]) -> list[tuple[int, str, str]]:
        """Conditions that hold in these traces alone: rank, what is read, condition."""
        found: list[tuple[int, str, str]] = []
        for known in self._runs[0].known.values:
            if known.is_picked or not isinstance(known.value, str | bool):
                continue
            values = [self._values.give(f"{{{{ {known.text} }}}}", run.scope) for run in self._runs]
            inside = [value for at, value in enumerate(values) if at in present]
            outside = [value for at, value in enumerate(values) if at not in present]
            if any(type(each) is not type(known.value) for each in values) or any(
                is_equal(one, other) for one in inside for other in outside
            ):
                continue
            if isinstance(known.value, bool):
                text = known.text if inside[0] else f"not {known.text}"
                found.append((0, known.text, text))
                continue
            words = list(dict.fromkeys(str(each) for each in inside))
            if not all(re.fullmatch(r"[A-Za-z][A-Za-z_ -]*", str(each)) for each in values):
                continue
            is_state = known.label.lower() in STATES
            if not is_state and (
                len({str(each) for each in values}) == len(values)
                or any(self._says(at, value) for at, value in enumerate(values))
            ):
                continue  # a name of each trace's own says nothing of what kind it is
            listed = ", ".join(_literal(each) for each in words)
            text = f"{known.text} == {listed}" if len(words) == 1 else f"{known.text} in [{listed}]"
            found.append((1 if is_state else 2, known.text, text))
        return sorted(found, key=lambda each: each[0])

    def _judged_way(self, column: Column, own: str) -> str:
        name = self._unique_name(f"decide_whether_{own}")
        answers: list[tuple[JsonValue, ...]] = [
            ({"needed": number in column.present},) for number in range(len(self._runs))
        ]
        node = JudgedNode(
            id=name,
            fields=(JudgedField(name="needed", schema={"type": "boolean"}, place=f"{own}.when"),),
            what_for=column.tool,
            reads=self._reads(column, None, []),
            answers=tuple(answers),
            is_way=True,
        )
        self._steps.append(node)
        self._tell(f"{own}.when", "judgement", f"{name}.needed", f"made of {', '.join(node.reads)}")
        for number, run in enumerate(self._runs):
            run.scope[name] = {"needed": number in column.present}
            run.made_at[name] = (0,)
        return f"{name}.needed"

    def _record(
        self, column: Column, loop: LoopOver | None, own: str, params: Mapping[str, JsonValue]
    ) -> None:
        until, polls = self._until(column)
        if column.cursor is not None:
            until = self._more_pages(column, column.cursor)
            polls = max(len(each.calls) for each in column.groups if each is not None)
        self._steps.append(
            ToolNode(
                id=own,
                tool=column.tool,
                params=params,
                loop=loop,
                when=self._when,
                until=until,
                polls=polls,
                is_paged=column.cursor is not None,
                attempts=max(each.attempts for each in column.groups if each is not None),
                results=tuple(
                    call.result
                    for each in column.groups
                    if each is not None
                    for call in (*each.polls, *each.calls)
                ),
            )
        )
        for number, group in enumerate(column.groups):
            run = self._runs[number]
            if group is None:
                if loop is not None:
                    run.scope[own] = []  # there was no item
                continue
            outputs = [call.result for call in group.calls]
            is_list = loop is not None or column.cursor is not None
            output: JsonValue = list(outputs) if is_list else outputs[0]
            run.scope[own] = output
            self._made[number][own] = group.calls
            run.made_at[own] = tuple(call.answer for call in group.calls)
            found = _without_echoes(leaves(own, output, own), group.calls, run.known)
            run.known.add(found)
            if column.cursor is not None:
                run.known.add(_of_pages(own, outputs))
        if loop is not None:
            self._loops[own] = loop

    def _until(self, column: Column) -> tuple[str | None, int]:
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
                expression = member(expression, key) if isinstance(key, str) else expression
            return f"{expression} != {_literal(value)}", most
        return None, most

    def _page(self, column: Column, cursor: Cursor, own: str) -> str:
        """The template of the parameter that names the page."""
        first = [
            each.calls[0].arguments.get(cursor.parameter)
            for each in column.groups
            if each is not None
        ]
        schema = schema_at(self._specs.get(column.tool), (cursor.parameter,))
        begin: JsonValue = next((each for each in first if each is not None), None)
        if begin is None:
            begin = schema.get("default", 1 if cursor.path is None else None)
        place = f"{own}.{cursor.parameter}"
        if cursor.path is None:
            template = f"{{{{ loop.index + {_literal(begin)} }}}}"
        else:
            after = "loop.last"
            for key in cursor.path:
                after = member(after, key)
            template = f"{{{{ {after} if loop.index > 0 else {_literal(begin)} }}}}"
        self._tell(place, "page", template, "each call asks for the page after the one before")
        return template

    def _more_pages(self, column: Column, cursor: Cursor) -> str:
        """The condition under which there is another page."""
        lasts = [each.calls[-1].result for each in column.groups if each is not None]
        if cursor.path is not None:
            text = "loop.last"
            for key in cursor.path:
                text = member(text, key)
            is_there = all(value_at(each, cursor.path) is not None for each in lasts)
            return text if is_there else f"{text} is defined and {text}"
        before = [
            call.result for each in column.groups if each is not None for call in each.calls[:-1]
        ]
        for key in keys_of(lasts[0]):
            ends = [part_of(each, key) for each in lasts]
            goes = [part_of(each, key) for each in before]
            if all(each in (False, []) for each in ends) and all(bool(each) for each in goes):
                return member("loop.last", key)
        self._problems.append(f"nothing tells when the last page of '{column.tool}' is reached")
        return "false"

    # --- arguments -------------------------------------------------------------------------------

    def _argument(
        self,
        column: Column,
        loop: LoopOver | None,
        own: str,
        name: str,
        path: tuple[str | int, ...],
        judged: list[tuple[str, tuple[str | int, ...]]],
    ) -> JsonValue:
        sights = [
            evolve(each, value=value_at(each.value, (name, *path)))
            for each in self._sights(column, loop)
        ]
        values = [each.value for each in sights]
        place = ".".join((own, name, *map(str, path)))
        key = next((str(each) for each in reversed(path) if isinstance(each, str)), name)
        spec = self._specs.get(column.tool)
        chosen = self._chosen(sights, key, place, column)
        if chosen is not None:
            return chosen
        keys = keys_of(values[0])
        if all(isinstance(each, Mapping) and keys_of(each) == keys for each in values):
            return {
                part: self._argument(column, loop, own, name, (*path, part), judged)
                for part in keys_of(values[0])
            }
        lengths = {len(each) if isinstance(each, list | tuple) else -1 for each in values}
        if len(lengths) == 1 and 0 <= (length := lengths.pop()) <= 20:
            return [
                self._argument(column, loop, own, name, (*path, at), judged) for at in range(length)
            ]
        schema = schema_at(spec, (name, *path))
        constant = self._constant_reason(sights, column, schema, spec)
        if constant is not None:
            self._tell(place, "constant", dumps(values[0]), constant)
            return _escaped(values[0])
        judged.append((name, path))
        return None

    def _sights(self, column: Column, loop: LoopOver | None) -> list[Sight]:
        """What was known at each call of the column, with its arguments as the value."""
        found: list[Sight] = []
        for number, group in enumerate(column.groups):
            if group is None:
                continue
            run = self._runs[number]
            first = min(call.answer for call in group.calls)
            late = {name for name, at in run.made_at.items() if max(at) >= first}
            if loop is None:
                call, known = group.calls[0], KnownThen(run.known, late)
                found.append(Sight(value=dict(call.arguments), scope=run.scope, known=known))
                continue
            items = self._items[loop.source][number]
            for at, call in enumerate(group.calls):
                item = items[at]
                more = KnownValues()
                more.add(leaves("loop.item", item, "loop"))
                for other in self._loops:
                    made = run.made_at.get(other, ())
                    if self._loops[other].source == loop.source and at < len(made):
                        outputs = run.scope[other]
                        if made[at] < call.answer and isinstance(outputs, list):
                            own = leaves(f"{other}[loop.index]", outputs[at], "loop")
                            calls = self._made[number].get(other, ())[at : at + 1]
                            more.add(_without_echoes(own, calls, run.known))
                scope = {**run.scope, "loop": {"item": item, "index": at}}
                found.append(
                    Sight(
                        value=dict(call.arguments),
                        scope=scope,
                        known=KnownThen(run.known, late, more),
                    )
                )
        return found

    def _chosen(
        self, sights: Sequence[Sight], key: str, place: str, column: Column | None = None
    ) -> str | None:
        """The template that gives the value; None: none does, or it may not stand for it.

        Args:
            column: The calls whose argument it is; None: it is a part of the output.
        """
        value = sights[0].value
        if isinstance(value, bool) or value is None or value == "":
            return None
        found = [
            each
            for each in origins_of(sights, key, self._values)
            if self._may_be(each, sights, column)
        ]
        found = self._without_same_lengths(found)
        if not found:
            return None
        if place in self._answers:
            template = self._answers[place]
            self._tell(place, "chosen", template, "a person chose it")
            return template
        kept = next((each for each in found if each.template == self._before.get(place)), None)
        if kept is not None:
            self._tell(place, _HOW[kept.kind], kept.template, _because(kept, sights))
            return kept.template
        best = found[0]
        if len(found) > 1 and not self._is_plain_choice(found):
            choices = tuple(each.template for each in found[:6])
            if not self._accepts:
                self._questions.append(Question(place=place, value=value, choices=choices))
            self._tell(place, "asked", best.template, f"it may also be {', '.join(choices[1:])}")
            return best.template
        self._tell(place, _HOW[best.kind], best.template, _because(best, sights))
        return best.template

    def _without_same_lengths(self, found: Sequence[Origin]) -> list[Origin]:
        """The choices without the lengths that always are that of one before: a loop gives as many
        results as its list has items.
        """
        lengths = {
            f"{{{{ {name} | length }}}}": f"{loop.source[:-3]} | length }}}}"
            for name, loop in self._loops.items()
        }
        same: dict[str, Origin] = {}
        for each in found:
            same.setdefault(lengths.get(each.template, each.template), each)
        return list(same.values())

    def _is_plain_choice(self, found: Sequence[Origin]) -> bool:
        """Whether the first is better than the others without a doubt: of one result alone, and
        the only one that has the parameter's name.
        """
        first = found[0]
        if first.kind is not found[1].kind:
            return True
        same = all(each.roots == first.roots for each in found)
        alike = sum(each.is_alike for each in found)
        is_of_item = first.roots == {"loop"} and any(each.roots != {"loop"} for each in found)
        return (same and first.is_alike and alike == 1) or is_of_item

    def _may_be(
        self, origin: Origin, sights: Sequence[Sight], column: Column | None = None
    ) -> bool:
        """Whether words around known values may be constant: not where they say much, nor where
        they are a stranger's and go into what has an effect.
        """
        if origin.kind is not Kind.TEXT:
            return True
        words = re.findall(r"[^\W\d_]{2,}", constant_words(origin.template))
        several = len(sights) > 1 and any(
            not is_equal(sights[0].value, each.value) for each in sights
        )
        if several:
            return True
        if column is not None and self._is_exposed(column):
            strange = self._strangers_words(column)
            if not all(
                self._is_said_by_author(each) or each.lower() not in strange for each in words
            ):
                return False
        text = str(sights[0].value)
        return " " not in text.strip() or len(words) <= _FEW_WORDS

    def _is_exposed(self, column: Column) -> bool:
        """Whether the calls reach others, and a stranger's words may have led to them."""
        spec = self._specs.get(column.tool)
        reaches = is_effect(spec) or (spec is not None and spec.is_asking_others)
        return reaches and self._has_strangers(column)

    def _constant_reason(
        self,
        sights: Sequence[Sight],
        column: Column,
        schema: JsonSchema,
        spec: ToolSpec | None,
    ) -> str | None:
        """Why a value that no expression gives is a constant; None: it is not."""
        value = sights[0].value
        if any(not is_equal(value, each.value) for each in sights):
            return None
        if self._is_judged(value):
            return None
        several = len(sights) > 1 and len(self._runs) > 1
        if isinstance(value, bool) or value is None or "enum" in schema or "const" in schema:
            return "a choice of few, the same in each run"
        if value == schema.get("default", _NOTHING):
            return "it is the default"
        if several:
            return f"the same in {len(self._runs)} runs"
        texts = [value] if isinstance(value, str) else list(texts_in(value))
        effect = is_effect(spec)
        if isinstance(value, int | float):
            if effect and is_telling(value):
                return None
            return "a number that nothing known gives"
        text = " ".join(texts)
        if self._is_said_by_author(text):
            return "the task or the recipe says it"
        if self._is_exposed(column):
            return None
        if len(re.findall(r"\w+", text)) > (_FEW_WORDS if effect else 8) and " " in text:
            return None
        if " " in text and self._comes_after_results(column):
            return None
        return "nothing known has it"

    def _is_judged(self, value: JsonValue) -> bool:
        """Whether a step in which a model answers gave the value, in every trace."""
        return is_telling(value) and all(
            any(
                is_equal(value, part) for held in run.trace.judged for _, part in plain_leaves(held)
            )
            for run in self._runs
        )

    def _is_said_by_author(self, text: str) -> bool:
        return all(
            bool(text)
            and any(
                has_words(each, text)
                for each in (run.trace.goal, run.trace.system, *(t.text for t in run.trace.task))
            )
            for run in self._runs
        )

    def _strangers_words(self, column: Column) -> frozenset[str]:
        """The words that strangers had said before the calls, in lower case."""
        first = min(call.answer for call in column.calls)
        return frozenset(
            word.lower()
            for run in self._runs
            for call in run.trace.calls
            if call.answer < first and _is_strange(self._specs.get(call.tool))
            for text in texts_in(call.result)
            for word in re.findall(r"[^\W\d_]{2,}", text)
        )

    def _has_strangers(self, column: Column) -> bool:
        """Whether words of strangers were read before."""
        first = min(call.answer for call in column.calls)
        return any(
            isinstance(step, ToolNode)
            and _is_strange(self._specs.get(step.tool))
            and any(min(run.made_at.get(step.id, (first,))) < first for run in self._runs)
            for step in self._steps
        )

    def _comes_after_results(self, column: Column) -> bool:
        first = min(call.answer for call in column.calls)
        return any(min(at) < first for run in self._runs for at in run.made_at.values())

    # --- loops -----------------------------------------------------------------------------------

    def _loop_source(self, column: Column) -> LoopOver | None:
        """The list over whose items the calls were made; None: there is none."""
        longest = max(
            (number for number, each in enumerate(column.groups) if each is not None),
            key=lambda number: len(column.groups[number].calls),  # type: ignore[union-attr]
        )
        run, group = self._runs[longest], column.groups[longest]
        assert group is not None  # noqa: S101  # it was chosen so
        first = min(call.answer for call in group.calls)
        late = {name for name, at in run.made_at.items() if max(at) >= first}
        known_loops = dict.fromkeys(each.source for each in self._loops.values())
        sources = [*known_loops]
        for known in run.known.values:
            if known.root in late or known.is_picked or not isinstance(known.value, list | tuple):
                continue
            if len(known.value) >= len(group.calls):
                sources.append(f"{{{{ {known.text} }}}}")
                sources += self._filtered(known, group)
        for source in dict.fromkeys(sources):
            items = self._items_of(source, column)
            if items is None:
                continue
            loop = LoopOver(source=source, by_effect=is_effect(self._specs.get(column.tool)))
            self._items[source] = items
            return loop
        return None

    def _items_of(self, source: str, column: Column) -> list[Sequence[JsonValue]] | None:
        """The items by trace, where each call of the column is about the item in its place."""
        found: list[Sequence[JsonValue]] = []
        for number, group in enumerate(column.groups):
            items = self._values.give(source, self._runs[number].scope)
            if not isinstance(items, list | tuple):
                items = ()
            calls = group.calls if group is not None else ()
            if len(items) != len(calls):
                return None
            if not all(map(_is_about, calls, items)):
                return None
            found.append(items)
        return found

    def _filtered(self, known: Known, group: Group) -> Iterator[str]:
        """Choices of a list's items by one of their fields, as many as there are calls."""
        items = known.value
        assert isinstance(items, list | tuple)  # noqa: S101  # the caller looked
        if len(items) == len(group.calls) or not all(isinstance(each, Mapping) for each in items):
            return
        chosen = [any(_is_about(call, item) for call in group.calls) for item in items]
        if sum(chosen) != len(group.calls):
            return
        first = items[0]
        for key in keys_of(first):
            parts = [part_of(each, key) for each in items]
            inside = [part for part, is_in in zip(parts, chosen, strict=True) if is_in]
            outside = [part for part, is_in in zip(parts, chosen, strict=True) if not is_in]
            if "." in key or any(isinstance(part, Mapping | list | tuple) for part in parts):
                continue
            if all(is_equal(inside[0], each) for each in inside) and not any(
                is_equal(inside[0], each) for each in outside
            ):
                test = f"'{key}', 'eq', {_literal(inside[0])}"
                yield f"{{{{ {known.text} | selectattr({test}) | list }}}}"
            elif all(is_equal(outside[0], each) for each in outside) and not any(
                is_equal(outside[0], each) for each in inside
            ):
                test = f"'{key}', 'eq', {_literal(outside[0])}"
                yield f"{{{{ {known.text} | rejectattr({test}) | list }}}}"

    # --- judgements ------------------------------------------------------------------------------

    def _judged(
        self,
        column: Column,
        loop: LoopOver | None,
        own: str,
        judged: Sequence[tuple[str, tuple[str | int, ...]]],
    ) -> JudgedNode:
        spec = self._specs.get(column.tool)
        name = self._unique_name(f"decide_{own}")
        strange = self._strangers_words(column) if self._is_exposed(column) else frozenset()
        fields = []
        for each, path in judged:
            values = [value_at(call.arguments, (each, *path)) for call in column.calls]
            schema = schema_at(spec, (each, *path)) or schema_of(values)
            fields.append(
                JudgedField(
                    name=_field_name(each, path),
                    schema=plain_schema(schema, values, strange),
                    place=".".join((own, each, *map(str, path))),
                )
            )
        answers = [
            tuple(
                {
                    _field_name(each, path): value_at(call.arguments, (each, *path))
                    for each, path in judged
                }
                for call in (group.calls if group is not None else ())
            )
            for group in column.groups
        ]
        node = JudgedNode(
            id=name,
            fields=tuple(fields),
            what_for=column.tool,
            reads=self._reads(column, loop, [dumps(list(each)) for each in answers]),
            loop=loop,
            when=self._when,
            answers=tuple(answers),
        )
        self._steps.append(node)
        read = ", ".join(node.reads) or "the task alone"
        for made_field in fields:
            source = f"{name}.{made_field.name}"
            self._tell(made_field.place, "judgement", source, f"made of {read}")
        for number, group in enumerate(column.groups):
            if group is None:
                continue
            run = self._runs[number]
            made = list(node.answers[number])
            run.scope[name] = made if loop is not None else made[0]
            run.made_at[name] = tuple(call.answer - 1 for call in group.calls)
            run.known.add(leaves(name, run.scope[name], name))
        return node

    def _judged_template(
        self, node: JudgedNode, loop: LoopOver | None, name: str, path: tuple[str | int, ...]
    ) -> str:
        base = f"{node.id}[loop.index]" if loop is not None else node.id
        return f"{{{{ {member(base, _field_name(name, path))} }}}}"

    def _reads(
        self, column: Column | None, loop: LoopOver | None, texts: Sequence[str]
    ) -> tuple[str, ...]:
        """The steps that a judgement has to see: those with words of it, and those that nothing
        else reads.
        """
        first = min(call.answer for call in column.calls) if column is not None else None
        found: list[str] = []
        words = {word.lower() for text in texts for word in re.findall(r"\w{4,}|[0-9]+", text)} - {
            word.lower()
            for run in self._runs
            for text in run.trace.task
            for word in re.findall(r"\w{4,}|[0-9]+", text.text)
        }
        read = self._read_names()
        for step in self._steps:
            made = [run.made_at.get(step.id) for run in self._runs]
            if any(at is None for at in made):
                continue
            if first is not None and any(at is not None and max(at) >= first for at in made):
                continue
            held = self._words_of(step.id)
            if (words & held) or step.id not in read:
                found.append(step.id)
        if loop is not None:
            same = [name for name, each in self._loops.items() if each.source == loop.source]
            return ("item", *same)
        return tuple(found)

    def _words_of(self, step_id: str) -> frozenset[str]:
        """The words of what a step gave, in lower case."""
        if step_id not in self._held:
            shown = " ".join(text_of(run.scope[step_id]) for run in self._runs)
            self._held[step_id] = frozenset(re.findall(r"\w{4,}|[0-9]+", shown.lower()))
        return self._held[step_id]

    def _read_names(self) -> frozenset[str]:
        text = " ".join(
            dumps(dict(each.params)) + (each.loop.source if each.loop else "")
            for each in self._steps
            if isinstance(each, ToolNode)
        )
        shown = {
            name for each in self._steps if isinstance(each, JudgedNode) for name in each.reads
        }
        return frozenset(
            each.id
            for each in self._steps
            if each.id in shown or re.search(rf"\b{re.escape(each.id)}\b", text)
        )

    # --- the output ------------------------------------------------------------------------------

    def _add_output(self) -> JsonValue:
        judged: list[tuple[str | int, ...]] = []
        template = self._output_part((), judged)
        if not judged:
            return template
        outputs = [run.trace.output for run in self._runs]
        is_text = judged == [()] and all(isinstance(each, str) for each in outputs)
        name = self._unique_name("answer")
        fields = tuple(
            JudgedField(
                name=_field_name("output", path) if path == () else _field_name("", path),
                schema=schema_of([value_at(each, path) for each in outputs]),
                place=".".join((OUTPUT, *map(str, path))),
            )
            for path in judged
        )
        answers: list[tuple[JsonValue, ...]] = [
            (each,)
            if is_text
            else (
                {
                    field_.name: value_at(each, path)
                    for field_, path in zip(fields, judged, strict=True)
                },
            )
            for each in outputs
        ]
        node = JudgedNode(
            id=name,
            fields=fields,
            what_for=OUTPUT,
            reads=self._reads(None, None, [dumps(list(each)) for each in answers]),
            answers=tuple(answers),
            is_text=is_text,
        )
        self._steps.append(node)
        read = ", ".join(node.reads) or "the task alone"
        for each in fields:
            self._tell(each.place, "judgement", name, f"made of {read}")
        if is_text:
            return f"{{{{ {name} }}}}"
        if judged == [()]:
            return f"{{{{ {member(name, fields[0].name)} }}}}"
        assert isinstance(template, dict | list)  # noqa: S101  # it has parts
        holder: dict[str, JsonValue] = {OUTPUT: template}
        for each, path in zip(fields, judged, strict=True):
            put_value(holder, (OUTPUT, *path), f"{{{{ {member(name, each.name)} }}}}")
        return holder[OUTPUT]

    def _output_part(
        self, path: tuple[str | int, ...], judged: list[tuple[str | int, ...]]
    ) -> JsonValue:
        sights = [
            Sight(
                value=value_at(run.trace.output, path), scope=run.scope, known=KnownThen(run.known)
            )
            for run in self._runs
        ]
        values = [each.value for each in sights]
        place = ".".join((OUTPUT, *map(str, path)))
        key = next((str(each) for each in reversed(path) if isinstance(each, str)), "")
        chosen = self._chosen(sights, key, place)
        if chosen is not None:
            return chosen
        keys = keys_of(values[0])
        if all(isinstance(each, Mapping) and keys_of(each) == keys for each in values):
            return {part: self._output_part((*path, part), judged) for part in keys_of(values[0])}
        lengths = {len(each) if isinstance(each, list | tuple) else -1 for each in values}
        if len(lengths) == 1 and 0 <= (length := lengths.pop()) <= 20 and len(values) > 1:
            return [self._output_part((*path, at), judged) for at in range(length)]
        by_way = self._by_way(path, place, key)
        if by_way is not None:
            return by_way
        same = all(is_equal(values[0], each) for each in values)
        if same and (len(values) > 1 or values[0] is None):
            self._tell(place, "constant", dumps(values[0]), "the same in each run")
            return _escaped(values[0])
        judged.append(path)
        return None

    def _by_way(self, path: tuple[str | int, ...], place: str, key: str) -> str | None:
        """A choice between what each way gave; None: no condition tells them apart."""
        for present, condition in self._ways.items():
            parts: list[str] = []
            for wanted in (True, False):
                runs = [run for at, run in enumerate(self._runs) if (at in present) is wanted]
                sights = [
                    Sight(
                        value=value_at(run.trace.output, path),
                        scope=run.scope,
                        known=KnownThen(run.known),
                    )
                    for run in runs
                ]
                found = [
                    each
                    for each in origins_of(sights, key, self._values)
                    if self._may_be(each, sights)
                ]
                if found and not isinstance(sights[0].value, bool):
                    parts.append(as_expression(found[0].template))
                elif len(runs) > 1 and all(is_equal(sights[0].value, s.value) for s in sights):
                    parts.append(_literal(sights[0].value))
            if len(parts) == 2:
                template = f"{{{{ {parts[0]} if {condition} else {parts[1]} }}}}"
                self._tell(place, "condition", template, "the ways gave different outputs")
                return template
        return None

    # --- names, evidence, what nothing reads -----------------------------------------------------

    def _name_for(self, tool: str) -> str:
        return self._unique_name(step_name(tool.rpartition("__")[2]))

    def _unique_name(self, name: str) -> str:
        found = self._unique(name, self._names)
        self._names.add(found)
        return found

    def _tell(self, place: str, how: str, source: str, because: str) -> None:
        self._evidence.append(Evidence(place=place, how=how, source=source, because=because))

    def _without_unread(
        self, output: JsonValue
    ) -> tuple[list[ToolNode | JudgedNode], list[LeftOut]]:
        """The steps without those that change nothing, that nothing reads and that came before
        nothing that they could have decided.
        """
        kept: list[ToolNode | JudgedNode] = []
        left: list[LeftOut] = []
        text = dumps(output)
        decides = False
        for step in reversed(self._steps):
            if isinstance(step, JudgedNode):
                decides = True
                text += " ".join(step.reads) + (step.loop.source if step.loop else "")
                text += step.when or ""
                kept.append(step)
                continue
            is_read = re.search(rf"\b{re.escape(step.id)}\b", text) is not None
            effect = is_effect(self._specs.get(step.tool))
            if not (is_read or effect or decides):
                left += [
                    LeftOut(call=call, reason="nothing reads its result")
                    for call in self._calls_of(step)
                ]
                continue
            decides = decides or effect
            text += dumps(dict(step.params)) + (step.loop.source if step.loop else "")
            text += step.when or ""
            kept.append(step)
        return kept[::-1], left

    def _calls_of(self, step: ToolNode) -> Iterator[TracedCall]:
        for run in self._runs:
            for call in run.trace.calls:
                if call.tool == step.tool and any(
                    is_equal(call.result, each) for each in step.results
                ):
                    yield call


_NOTHING: Final = object()
_HOW: Final[Mapping[Kind, str]] = {
    Kind.PATH: "path",
    Kind.FILTER: "filter",
    Kind.LOOKUP: "lookup",
    Kind.COMPUTED: "computed",
    Kind.TEXT: "text",
}


def _because(origin: Origin, sights: Sequence[Sight]) -> str:
    times = f" in {len(sights)} places" if len(sights) > 1 else ""
    if origin.is_said:
        return f"the task says it{times}"
    return f"it has that value{times}"


def _is_strange(spec: ToolSpec | None) -> bool:
    return spec is None or spec.is_untrusted


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


def _of_pages(own: str, outputs: Sequence[JsonValue]) -> Iterator[Known]:
    """The lists that pages are parts of."""
    for key in keys_of(outputs[0]):
        parts = [part_of(each, key) for each in outputs]
        if "." not in key and all(isinstance(each, list | tuple) for each in parts):
            whole = [item for part in parts if isinstance(part, list | tuple) for item in part]
            text = f"({own} | map(attribute='{key}') | flatten)"
            yield Known(text=text, value=whole, root=own, label=key)


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


def _literal(value: JsonValue) -> str:
    """The value as an expression writes it."""
    return quoted(value) if isinstance(value, str) else dumps(value)


def _escaped(value: JsonValue) -> JsonValue:
    """The value as a recipe writes it: braces of a constant are no template."""
    if isinstance(value, str):
        return literal_template(value)
    if isinstance(value, Mapping):
        return {key: _escaped(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(part) for part in value]
    return value


def _field_name(name: str, path: tuple[str | int, ...]) -> str:
    return step_name("_".join((name, *map(str, path)))) if path else name


def _description(spec: ToolSpec | None, name: str) -> str:
    described = schema_at(spec, (name,)).get("description")
    return described if isinstance(described, str) else ""
