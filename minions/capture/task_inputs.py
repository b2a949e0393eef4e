"""Inputs that stand for words of a task: which there are, and the task as a template over them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from minions.capture.alignment import Column
from minions.capture.captured_program import InputMade, JudgedNode, ToolNode
from minions.capture.json_places import (
    first_given,
    is_equal,
    keys_of,
    part_of,
    plain_leaves,
    value_at,
)
from minions.capture.known_runs import KnownRuns, unique_name
from minions.capture.known_values import MOST_TEXT, Known, is_telling, leaves, pattern_of_words
from minions.capture.origins import PERCENT
from minions.capture.seen_types import schema_at, schema_of
from minions.capture.template_writing import literal_template, step_name, template_parts, text_of
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.schema import JsonSchema, SchemaValidator

_PART: Final = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
"""A part of a path, address or other name."""
_PERCENTAGE: Final = re.compile(r"(?<![\w.])([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%")
_TOKEN: Final = re.compile(r"[\w@][\w@.+/-]*[\w/]|\w")
_MOST_SPACES: Final = 12
"""Spaces of an argument in which words of the task are looked for."""


class TaskInputs:
    """Makes the inputs of a program; each is known as soon as it is made."""

    def __init__(self, runs: KnownRuns, described: Collection[str]) -> None:
        """Make an input of what a person answered while the agent worked.

        Args:
            runs: To which the inputs become known.
            described: Tools whose descriptions the operator wrote.
        """
        self._known = runs
        self._runs = runs.runs
        self._described = described
        self.inputs: list[InputMade] = []
        asked = [[each.step_id for each in run.trace.answers] for run in self._runs]
        if all(each == asked[0] for each in asked):
            for number, step_id in enumerate(asked[0]):
                answers = [run.trace.answers[number].value for run in self._runs]
                self._add(step_id, answers, is_answer=True)

    def find(self, columns: Sequence[Column]) -> None:
        """Make an input of each value in the calls and outputs that the person said in the task."""
        for column in columns:
            for name in dict.fromkeys(name for call in column.calls for name in call.arguments):
                self._find_in_argument(column, name)
        outputs = [run.trace.output for run in self._runs]
        if all(isinstance(each, Mapping) for each in outputs):
            for name in dict.fromkeys(key for each in outputs for key in keys_of(each)):
                self._find_in_values(name, [part_of(each, name) for each in outputs], "")
        self._find_percentages()

    def used_by(
        self, steps: Sequence[ToolNode | JudgedNode], output: JsonValue
    ) -> tuple[InputMade, ...]:
        """The inputs that something reads: a model step reads all, since it is told the task."""
        if any(isinstance(each, JudgedNode) for each in steps) and self._runs[0].trace.task:
            return tuple(self.inputs)
        texts = [output, *(each.params for each in steps if isinstance(each, ToolNode))]
        texts += [each.loop.source for each in steps if each.loop is not None]
        text = dumps(list(texts))
        return tuple(
            each
            for each in self.inputs
            if re.search(rf"inputs\.{re.escape(each.name)}\b", text) is not None
        )

    def tasks_with(self, inputs: Sequence[InputMade]) -> list[str]:
        """By trace the task as a template over these inputs."""
        return [
            templated_task(
                "\n".join(each.text for each in run.trace.task),
                [(each.name, each.values[number]) for each in inputs],
            )
            for number, run in enumerate(self._runs)
        ]

    def _find_in_argument(self, column: Column, name: str) -> None:
        firsts = [
            group.calls[0].arguments.get(name) if group is not None else None
            for group in column.groups
        ]
        spec = self._known.spec_of(column.tool) if column.tool in self._described else None
        described = schema_at(spec, (name,)).get("description")
        description = described if isinstance(described, str) else ""
        whole = firsts[0]
        for path, _ in plain_leaves(whole if whole is not None else first_given(firsts)):
            values = [value_at(each, path) for each in firsts]
            key = str(path[-1]) if path and isinstance(path[-1], str) else name
            self._find_in_values(key, values, description)
        if isinstance(whole, list | tuple) and len(whole) > 1 and len(self._runs) == 1:
            says = self._runs[0].says
            if all(isinstance(each, str) and says(each) for each in whole):
                self._add(name, [list(whole)], description)

    def _find_in_values(self, name: str, values: Sequence[JsonValue], description: str) -> None:
        """Make inputs of one value, by trace, or of its parts, where the tasks say them."""
        present = [each for each in values if each is not None]
        if not present or isinstance(present[0], bool | Mapping | list | tuple):
            return
        varies = any(not is_equal(present[0], each) for each in present)
        if self._are_said(values):
            if varies or self._is_specific(present[0]):
                self._add(name, values, description)
            return
        if any(not isinstance(each, str) or len(each) > MOST_TEXT for each in present):
            return
        if len(present) < len(values) or str(present[0]).count(" ") > _MOST_SPACES:
            return
        for pattern in (_TOKEN, _PART):
            tokens = [
                [
                    token
                    for token in pattern.findall(str(each))
                    if varies or self._is_specific(token)
                ]
                for each in values
            ]
            if len({len(each) for each in tokens}) > 1:
                continue
            for together in zip(*tokens, strict=True):
                is_same = all(each == together[0] for each in together)
                if varies and is_same and not self._is_specific(together[0]):
                    continue
                if self._are_said(together):
                    self._add(self._label_of(together[0]) or name, together)

    def _find_percentages(self) -> None:
        """Make an input of each percentage of the task, where there are numbers that neither the
        task nor a result has.
        """
        trace = self._runs[0].trace
        held = [part for call in trace.calls for _, part in plain_leaves(call.result)]
        used = [trace.output, *(call.arguments for call in trace.calls)]
        if not any(
            isinstance(part, float)
            and not self._runs[0].says(part)
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
                self._add(PERCENT, values)

    def _are_said(self, values: Sequence[JsonValue]) -> bool:
        """Whether the task of each trace has its value, those that have one."""
        given = [
            (run, value) for run, value in zip(self._runs, values, strict=True) if value is not None
        ]
        return bool(given) and all(run.says(value) for run, value in given)

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

    def _label_of(self, value: str) -> str | None:
        """The name of a field that has the value, in a result or the output; None: none has."""
        trace = self._runs[0].trace
        for held in (trace.output, *(each.result for each in trace.calls)):
            for path, part in plain_leaves(held):
                names = [each for each in path if isinstance(each, str)]
                if part == value and names:
                    return names[-1]
        return None

    def _add(
        self,
        name: str,
        values: Sequence[JsonValue],
        description: str = "",
        *,
        is_answer: bool = False,
    ) -> None:
        """Make an input, unless there is one of these values, or something else has them."""
        if any(
            all(
                value is None or is_equal(value, given)
                for value, given in zip(values, each.values, strict=True)
            )
            for each in self.inputs
        ):
            return
        if any(value is None for value in values) or any(
            is_telling(value) and any(run.known.equal_to(value))
            for run, value in zip(self._runs, values, strict=True)
        ):
            return
        own = unique_name(step_name(name), self._runs[0].inputs)
        self.inputs.append(
            InputMade(
                name=own,
                values=tuple(values),
                description=description,
                schema=schema_of(values),
                is_answer=is_answer,
            )
        )
        for run, value in zip(self._runs, values, strict=True):
            run.inputs[own] = value
            text = f"inputs.{own}"
            parts = list(leaves(text, value, "said", label=own)) if is_answer else ()
            run.known.add(parts or [Known(text=text, value=value, root="said", label=own)])


# --- the task as a template ----------------------------------------------------------------------


def templated_task(text: str, values: Sequence[tuple[str, JsonValue]]) -> str:
    """The words of a task with a template in place of each value that is an input."""
    pieces: list[tuple[bool, str]] = [(False, text)]
    for name, value in sorted(values, key=lambda each: -len(text_of(each[1]))):
        words = text_of(value)
        if isinstance(value, float) and value == int(value):
            words = str(int(value))
        if not words:
            continue
        pattern = pattern_of_words(words)
        found: list[tuple[bool, str]] = []
        for is_filled, piece in pieces:
            if is_filled:
                found.append((True, piece))
                continue
            at = 0
            for match in pattern.finditer(piece):
                found.append((False, piece[at : match.start()]))
                found.append((True, f"{{{{ inputs.{name} }}}}"))
                at = match.end()
            found.append((False, piece[at:]))
        pieces = found
    return "".join(piece if is_filled else literal_template(piece) for is_filled, piece in pieces)


def inputs_of_task(
    template: str, text: str, schemas: Mapping[str, JsonSchema]
) -> dict[str, JsonValue] | None:
    """The inputs with which the template of a task gives the text; None: it never does.

    Args:
        schemas: The declared inputs.
    """
    found: dict[str, str] = {}
    rest, name = text.strip(), None
    for part, is_expression in (*template_parts(template.strip()), ("", False)):
        if is_expression:
            if name is not None:
                return None  # nothing stands between two inputs
            name = part.removeprefix("inputs.")
            if name == part or name not in schemas:
                return None
            continue
        if name is None:
            if not rest.startswith(part):
                return None
            rest = rest[len(part) :]
            continue
        words, sign, after = rest.partition(part) if part else (rest, "end", "")
        if not words or not sign or found.setdefault(name, words) != words:
            return None
        rest, name = after, None
    if rest:
        return None
    typed = {key: _as_typed(words, schemas.get(key, {})) for key, words in found.items()}
    return None if any(each is None for each in typed.values()) else typed


def _as_typed(words: str, schema: JsonSchema) -> JsonValue:
    """The words as a value of that type; None: they are none."""
    value: JsonValue = words
    if schema.get("type") in ("number", "integer", "boolean", "array", "object"):
        try:
            value = parse_json(words)
        except ValueError:
            return None
    return None if SchemaValidator(schema).errors(value, limit=1) else value
