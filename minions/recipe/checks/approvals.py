"""Approvals by a person between steps: which `ask` steps show a value, and which steps run only by
their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from minions.data.json_values import JsonValue
from minions.recipe.checks.carried_text import carried_references
from minions.recipe.control_flow import OnError
from minions.recipe.expressions.template import Reference, compile_condition, compile_template
from minions.recipe.expressions.values import TemplateError
from minions.recipe.graph_paths import GraphPaths
from minions.recipe.model import AgentRecipe, ExecutionMode, OnFailure, StepSpec

__all__ = ["Approvals"]

_Sources: TypeAlias = Callable[[Iterable[Reference]], Iterable["int | str"]]
"""The steps, by index, and the inputs that references read."""

_REFUSALS: Final = frozenset({"no", "reject", "deny", "refuse", "stop", "cancel"})
"""Answers that approve nothing, as the default of a question that nobody answered in time."""
_MOST_IN_GRAPH: Final = 64
"""Steps of a transition graph that are looked at as approvals: each costs a walk of the graph."""


class Approvals(Struct, frozen=True):
    """What persons see and decide in a recipe, each `ask` step as one bit."""

    shown: Mapping[int | str, int]
    """By step and input: the questions that show its value."""
    needs: Sequence[int]
    """By step: the questions without whose answer it does not run."""

    @classmethod
    def of(cls, recipe: AgentRecipe, sources: _Sources) -> Approvals:
        """The approvals of a recipe."""
        asks = [
            at
            for at, step in enumerate(recipe.steps)
            if isinstance(step, StepSpec)
            and step.asks_person
            and not step.asks_model
            and not _approves_itself(step)
        ]
        if not asks:
            return cls({}, ())
        bits = {at: 1 << number for number, at in enumerate(asks)}
        shown: dict[int | str, int] = {}
        for at in asks:
            step = recipe.steps[at]
            assert isinstance(step, StepSpec)  # noqa: S101  # as selected
            for source in sources(carried_references(list(step.sources))):
                shown[source] = shown.get(source, 0) | bits[at]
        return cls(shown, _needs(recipe, bits, sources))

    def cut(self, source: int | str, reader: int) -> bool:
        """Whether somebody saw the value of `source` and decided whether `reader` runs."""
        return bool(self.needs) and bool(self.shown.get(source, 0) & self.needs[reader])


def _approves_itself(step: StepSpec) -> bool:
    """Whether an approval stands where nobody answers in time."""
    question = step.question
    return question is not None and question.has_default and not _is_refusal(question.default)


def _is_refusal(value: JsonValue) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _REFUSALS
    if isinstance(value, Mapping):
        return any(map(_is_refusal, value.values()))
    return value is False or value is None


def _needs(recipe: AgentRecipe, bits: Mapping[int, int], sources: _Sources) -> list[int]:
    own = [_own_needs(step, bits, sources) for step in recipe.steps]
    if recipe.graph is not None:
        return _with_graph(recipe, own, bits)
    needs = own
    if recipe.execution_mode is ExecutionMode.SEQUENTIAL and recipe.on_failure is OnFailure.STOP:
        needs = list(_after_asserts(recipe, own))
    return _with_dependencies(recipe, needs)


def _own_needs(step: object, bits: Mapping[int, int], sources: _Sources) -> int:
    """The questions whose answers the step itself reads."""
    if not isinstance(step, StepSpec):
        return 0
    read = {each for each in sources(_references(step)) if isinstance(each, int)}
    return sum(bits.get(at, 0) for at in read)


def _references(step: StepSpec) -> Iterator[Reference]:
    """Everything that the step reads, also in its conditions."""
    repeat = step.repeat.condition if step.repeat is not None else None
    conditions = [step.when, repeat, *step.checks]
    values = [*step.sources, step.loop.over if step.loop is not None else None]
    try:
        for condition in conditions:
            if condition is not None:
                yield from compile_condition(condition).references
        for value in values:
            yield from compile_template(value).references
    except TemplateError:  # reported where the recipe was read
        return


def _after_asserts(recipe: AgentRecipe, own: Sequence[int]) -> Iterator[int]:
    """In sequence, what comes after an assertion that must hold runs only if it holds."""
    passed = 0
    for step, needs in zip(recipe.steps, own, strict=True):
        yield needs | passed
        if isinstance(step, StepSpec) and _must_hold(step):
            passed |= needs


def _must_hold(step: StepSpec) -> bool:
    is_certain = step.when is None and step.loop is None and not step.optional
    return bool(step.checks) and is_certain and step.on_error.action is OnError.FAIL


def _with_dependencies(recipe: AgentRecipe, needs: list[int]) -> list[int]:
    """A step that needs another one does not run without it either."""
    places = {step.id: at for at, step in enumerate(recipe.steps)}
    dependents: dict[int, list[int]] = {}
    for at, step in enumerate(recipe.steps):
        for name in step.depends_on if isinstance(step, StepSpec) else ():
            dependents.setdefault(places.get(name, at), []).append(at)
    pending = [at for at, mask in enumerate(needs) if mask]
    while pending:
        at = pending.pop()
        for other in dependents.get(at, ()):
            if needs[at] & ~needs[other]:
                needs[other] |= needs[at]
                pending.append(other)
    return needs


def _with_graph(recipe: AgentRecipe, own: list[int], bits: Mapping[int, int]) -> list[int]:
    """In a transition graph: the steps that are reached only through a choice after the answer, or
    through an assertion about it.
    """
    edges = recipe.graph if isinstance(recipe.graph, Mapping) else {}
    paths = GraphPaths.of([step.id for step in recipe.steps], edges)
    needs = list(own)
    for at, step in enumerate(recipe.steps):
        mask = bits.get(at, 0) if len(paths.following[at]) > 1 else 0
        if isinstance(step, StepSpec) and _must_hold(step):
            mask |= own[at]
        if mask and sum(map(bool, needs)) < _MOST_IN_GRAPH:
            for other in _behind(paths, at):
                needs[other] |= mask
    return needs


def _behind(paths: GraphPaths, step: int) -> Iterator[int]:
    """The steps that a run reaches only through that step, and not by each of its successors."""
    around = _reached_around(paths, step)
    ways = [paths.after(each) | {each} for each in paths.following[step]]
    for other in paths.reached - around - {step}:
        if len(ways) == 1 or any(other not in way for way in ways):
            yield other


def _reached_around(paths: GraphPaths, step: int) -> set[int]:
    """The steps that are reached without passing that one."""
    found = set[int]() if step == 0 else {0}
    pending = list(found)
    while pending:
        for other in paths.following[pending.pop()]:
            if other != step and other not in found:
                found.add(other)
                pending.append(other)
    return found
