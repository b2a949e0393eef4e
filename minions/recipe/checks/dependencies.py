"""Dependencies between steps: `depends_on`, references in templates, cycles, forward references."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from minions.data.errors import Fault
from minions.recipe.checks.references import Readings
from minions.recipe.drafts import RecipeDraft, StepDraft, is_lost_name
from minions.recipe.model import ExecutionMode
from minions.recipe.text.nodes import Place, ScalarNode
from minions.recipe.text.sections import Report, Texts, read_texts, suggestion

Edges: TypeAlias = Mapping[tuple[int, int], Callable[[], Place]]
"""Consumer and producer of each dependency, with a function that locates it in the text:
places are computed only for faults.
"""


def link_steps(
    draft: RecipeDraft, readings: tuple[Readings, ...], report: Report
) -> frozenset[str]:
    """Set `depends_on` and `after` of every step; report dependencies that allow no order.

    Returns:
        The names that `depends_on` mentions.
    """
    used: set[str] = set()
    names = _Names(draft)
    edges: dict[tuple[int, int], Callable[[], Place]] = {}
    talker: int | None = None
    for step, reading in zip(draft.steps, readings, strict=True):
        declared = []
        for text in _declared(step, report):
            used.add(text.text)
            producer = names.find(step, text, report)
            if producer is not None:
                declared.append(producer.index)
                edges.setdefault((step.index, producer.index), partial(_place_of, text))
        implied = [index for index in reading.values if index not in declared]
        step.depends_on = tuple(dict.fromkeys((*declared, *implied)))
        step.declared = tuple(dict.fromkeys(declared))
        reading.declared = frozenset(declared)
        step.after = tuple(index for index in reading.states if index not in step.depends_on)
        is_conversation = step.section.text("memory") == "conversation"
        if is_conversation and draft.mode is ExecutionMode.SEQUENTIAL and not draft.has_graph:
            if talker is not None and talker not in (*step.depends_on, *step.after):
                step.after = (
                    *step.after,
                    talker,
                )  # a conversation has one step at a time, also while that step waits for a person
            talker = step.index
        for index, use in (*reading.values.items(), *reading.states.items()):
            edges.setdefault((step.index, index), partial(use.place_of, reading.places[index]))
    on_cycles = _report_cycles(draft, edges, report)
    if draft.mode is ExecutionMode.SEQUENTIAL:
        _report_forward(draft, edges, on_cycles, report)
    return frozenset(used)


def _declared(step: StepDraft, report: Report) -> tuple[Texts, ...]:
    node = step.section.node("depends_on")
    if isinstance(node, ScalarNode):
        return read_texts((node,), "a step's name", report)
    return read_texts(step.section.items("depends_on"), "a step's name", report)


def _place_of(text: Texts) -> Place:
    return text.node.place


class _Names:
    """Steps by the names that `depends_on` may use."""

    def __init__(self, draft: RecipeDraft) -> None:
        self._draft = draft
        self._ids: dict[str, StepDraft] = {}
        self._saved: dict[str, list[StepDraft]] = {}
        for step in draft.steps:
            if step.is_named:
                self._ids.setdefault(step.id, step)
            if step.save_as is not None:
                self._saved.setdefault(step.save_as, []).append(step)

    def find(self, step: StepDraft, name: Texts, report: Report) -> StepDraft | None:
        """The step that `name` refers to in `step`; None: a fault was reported."""
        own = self._ids.get(name.text)
        found = [own] if own is not None else self._saved.get(name.text, [])
        if not found and is_lost_name(self._draft, name.text):
            return None
        if not found:
            report(self._unknown(name))
        elif len(found) > 1:
            report(
                name.node.place.fault(
                    "ambiguous-name",
                    f"'{name.text}' is the save_as name of several steps",
                    help=f"name one of them: {', '.join(other.id for other in found)}",
                )
            )
        elif found[0] is step:
            report(name.node.place.fault("cycle", f"the step '{step.id}' depends on itself"))
        else:
            return found[0]
        return None

    def _unknown(self, name: Texts) -> Fault:
        return name.node.place.fault(
            "unknown-step",
            f"unknown step '{name.text:.60}' in depends_on",
            label=suggestion(name.text, (*self._ids, *self._saved)),
            help=f"steps are: {', '.join(self._ids)}",
        )


def _report_cycles(draft: RecipeDraft, edges: Edges, report: Report) -> set[tuple[int, int]]:
    """Report one fault per cycle; returns the edges that lie on a cycle."""
    following: dict[int, list[int]] = {}
    for consumer, producer in edges:
        following.setdefault(consumer, []).append(producer)
    on_cycles: set[tuple[int, int]] = set()
    for cycle in _cycles(following, len(draft.steps)):
        pairs = list(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
        on_cycles.update(pairs)
        ids = [draft.steps[index].id for index in (*cycle, cycle[0])]
        report(
            edges[pairs[0]]().fault(
                "cycle",
                f"these steps wait for each other: {' → '.join(ids)}",
                help="remove one of these dependencies",
            )
        )
    return on_cycles


def _cycles(following: Mapping[int, list[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Cycles by a depth-first search without recursion: a chain may be as long as the recipe."""
    done: set[int] = set()
    for start in range(count):
        path: list[int] = [start]
        on_path = {start: 0}
        pending = [iter(following.get(start, ()))] if start not in done else []
        while pending:
            step = next(pending[-1], None)
            if step is None:
                pending.pop()
                left = path.pop()
                del on_path[left]
                done.add(left)
            elif step in on_path:
                yield tuple(path[on_path[step] :])
            elif step not in done:
                on_path[step] = len(path)
                path.append(step)
                pending.append(iter(following.get(step, ())))


def _report_forward(
    draft: RecipeDraft,
    edges: Edges,
    on_cycles: set[tuple[int, int]],
    report: Report,
) -> None:
    for (consumer, producer), place in edges.items():
        if producer > consumer and (consumer, producer) not in on_cycles:
            names = f"{draft.steps[consumer].title} needs '{draft.steps[producer].id}'"
            report(
                place().fault(
                    "forward-dependency",
                    f"{names}, which comes later",
                    help="move that step up, or set execution_mode: planned",
                )
            )
