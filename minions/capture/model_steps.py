"""Model steps of a program: what no expression gives, with the results that it is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from minions.capture.alignment import Column
from minions.capture.captured_program import OUTPUT, JudgedField, JudgedNode, LoopOver, ToolNode
from minions.capture.choices import Choices, ChosenTemplate, Path
from minions.capture.json_places import put_value, value_at
from minions.capture.known_runs import KnownRuns, unique_name
from minions.capture.known_values import leaves
from minions.capture.seen_types import plain_schema, schema_at, schema_of
from minions.capture.template_writing import member, step_name, text_of
from minions.data.json_values import JsonValue, dumps


class ModelSteps:
    """Makes the model steps of a program."""

    def __init__(
        self, runs: KnownRuns, choices: Choices, steps: Sequence[ToolNode | JudgedNode]
    ) -> None:
        """Begin without any.

        Args:
            runs: To which the answers become known.
            choices: Which are told of each answer.
            steps: Those of the program; it grows while it is built.
        """
        self._runs = runs
        self._loops = runs.loops
        self._choices = choices
        self._steps = steps
        self._words: dict[str, frozenset[str]] = {}
        """By name of a step, the words of what it gave."""

    def judge_arguments(
        self,
        column: Column,
        step: str,
        loop: LoopOver | None,
        when: str | None,
        judged: Sequence[Path],
    ) -> JudgedNode:
        """The model step that gives arguments of the calls of a step.

        Args:
            column: The calls.
            step: Name of the step that makes them.
            loop: What both are executed for.
            when: The condition of both.
            judged: Paths of the arguments.
        """
        name = self._runs.take_name(f"decide_{step}")
        strange = (
            self._runs.strangers_words(column) if self._runs.is_exposed(column) else frozenset()
        )
        spec = self._runs.spec_of(column.tool)
        named = _names_of_fields(judged, are_arguments=True)
        fields = []
        for own, path in named.items():
            values = [value_at(call.arguments, path) for call in column.calls]
            schema = schema_at(spec, path) or schema_of(values)
            fields.append(
                JudgedField(
                    name=own,
                    schema=plain_schema(schema, values, strange),
                    place=".".join((step, *map(str, path))),
                )
            )
        answers: list[tuple[JsonValue, ...]] = [
            tuple(
                {own: value_at(call.arguments, path) for own, path in named.items()}
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
            when=when,
            answers=tuple(answers),
        )
        self._tell(node)
        for run, group, given in zip(self._runs.runs, column.groups, answers, strict=True):
            if group is None:
                continue
            run.scope[name] = list(given) if loop is not None else given[0]
            run.made_at[name] = tuple(call.answer - 1 for call in group.calls)
            run.known.add(leaves(name, run.scope[name], name))
        return node

    def judge_way(self, column: Column, step: str) -> JudgedNode:
        """The model step that says whether a step is to be executed, as its field `needed`."""
        name = self._runs.take_name(f"decide_whether_{step}")
        needed: list[JsonValue] = [group is not None for group in column.groups]
        node = JudgedNode(
            id=name,
            fields=(JudgedField(name="needed", schema={"type": "boolean"}, place=f"{step}.when"),),
            what_for=column.tool,
            reads=self._reads(column, None, []),
            answers=tuple(({"needed": each},) for each in needed),
            is_way=True,
        )
        self._tell(node)
        for run, each in zip(self._runs.runs, needed, strict=True):
            run.scope[name] = {"needed": each}
            run.made_at[name] = (0,)
        return node

    def judge_output(self, chosen: ChosenTemplate) -> tuple[JudgedNode, JsonValue]:
        """The model step that gives what is missing of the output, and the whole output."""
        outputs = [run.trace.output for run in self._runs.runs]
        is_whole = chosen.judged == ((),)
        is_text = is_whole and all(isinstance(each, str) for each in outputs)
        name = self._runs.take_name("answer")
        named = _names_of_fields(chosen.judged, are_arguments=False)
        fields = tuple(
            JudgedField(
                name=own,
                schema=schema_of([value_at(each, path) for each in outputs]),
                place=".".join((OUTPUT, *map(str, path))),
            )
            for own, path in named.items()
        )
        answers: list[JsonValue] = [
            each if is_text else {own: value_at(each, path) for own, path in named.items()}
            for each in outputs
        ]
        node = JudgedNode(
            id=name,
            fields=fields,
            what_for=OUTPUT,
            reads=self._reads(None, None, [dumps([each]) for each in answers]),
            answers=tuple((each,) for each in answers),
            is_text=is_text,
        )
        self._tell(node)
        if is_text:
            return node, f"{{{{ {name} }}}}"
        holder: dict[str, JsonValue] = {OUTPUT: chosen.template}
        for own, path in named.items():
            put_value(holder, (OUTPUT, *path), f"{{{{ {member(name, own)} }}}}")
        return node, holder[OUTPUT]

    def _tell(self, node: JudgedNode) -> None:
        read = ", ".join(node.reads) or "the task alone"
        for each in node.fields:
            source = node.id if node.what_for == OUTPUT else f"{node.id}.{each.name}"
            self._choices.tell(each.place, "judgement", source, f"made of {read}")

    def _reads(
        self, column: Column | None, loop: LoopOver | None, texts: Sequence[str]
    ) -> tuple[str, ...]:
        """The steps that a judgement has to see: those with words of it, and those that nothing
        else reads.

        Args:
            column: The calls before which it is made; None: after all.
            loop: What it is made for: it sees the item, and what was given for it.
            texts: What the model gave.
        """
        if loop is not None:
            same = [name for name, each in self._loops.items() if each.source == loop.source]
            return ("item", *same)
        first = min(call.answer for call in column.calls) if column is not None else None
        said = _telling_words([text.text for run in self._runs.runs for text in run.trace.task])
        words = _telling_words(texts) - said
        read = self._names_read()
        found: list[str] = []
        for step in self._steps:
            made = [run.made_at.get(step.id) for run in self._runs.runs]
            if any(at is None for at in made):
                continue
            if first is not None and any(at is not None and max(at) >= first for at in made):
                continue
            if step.id not in self._words:
                given = [text_of(run.scope[step.id]) for run in self._runs.runs]
                self._words[step.id] = _telling_words(given)
            if words & self._words[step.id] or step.id not in read:
                found.append(step.id)
        return tuple(found)

    def _names_read(self) -> frozenset[str]:
        """The steps that another one reads."""
        shown = {
            name for each in self._steps if isinstance(each, JudgedNode) for name in each.reads
        }
        text = " ".join(
            dumps(dict(each.params)) + (each.loop.source if each.loop else "")
            for each in self._steps
            if isinstance(each, ToolNode)
        )
        return frozenset(
            each.id
            for each in self._steps
            if each.id in shown or re.search(rf"\b{re.escape(each.id)}\b", text) is not None
        )


def _names_of_fields(paths: Sequence[Path], *, are_arguments: bool) -> dict[str, Path]:
    """The fields of a model step that give what stands at these paths; a field for an argument as
    a whole has its name.
    """
    named: dict[str, Path] = {}
    for path in paths:
        is_argument = are_arguments and len(path) == 1
        own = str(path[0]) if is_argument else step_name("_".join(map(str, path or (OUTPUT,))))
        named[unique_name(own, named)] = path
    return named


def _telling_words(texts: Sequence[str]) -> frozenset[str]:
    """Numbers and longer words, in lower case."""
    return frozenset(word.lower() for text in texts for word in re.findall(r"\w{4,}|[0-9]+", text))
