"""The outputs of a step in a recorded run, with what its goal read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from minions.contracts.journal.facts import RunBeginning, StepFinished, given, inputs_in
from minions.contracts.journal.journal import JournalEntry
from minions.data.json_values import JsonValue
from minions.engine.history.current_rows import current_rows
from minions.engine.history.entry_checks import fact_in
from minions.recipe.examples import ExampleStepSpec, name_of
from minions.recipe.expressions.template import Template
from minions.recipe.expressions.values import EvaluationError, Reference, is_same
from minions.recipe.model import AgentRecipe, StepSpec


class StepOutputs:
    """The outputs of one step in one run, and what led to them."""

    def __init__(
        self,
        recipe: AgentRecipe,
        step: ExampleStepSpec,
        rows: Sequence[JournalEntry],
    ) -> None:
        """Read the rows of the run.

        Args:
            recipe: As it is now: the run may have had another version.
            step: One of its steps.
            rows: All of the kinds `run` and `step`, oldest first.
        """
        self._input_specs = recipe.inputs
        self._templates = recipe.templates
        self._step = step
        starts = [row.fact for row in rows if isinstance(row.fact, RunBeginning)]
        self.inputs: Mapping[str, JsonValue] = inputs_in(starts)
        # A row that counts may be shown at the place of one that it replaced.
        self._positions = {
            (row.key, row.generation): row.position
            for row in rows
            if isinstance(row.fact, StepFinished)
        }
        self._current = [row for row in current_rows(rows) if isinstance(row.fact, StepFinished)]
        by_id = {
            finished_in(row).step_id: given(finished_in(row).output)
            for row in self._current
            if finished_in(row).index is None
        }
        specs = [each for each in recipe.steps if isinstance(each, StepSpec)]
        saved = {
            each.save_as: by_id[each.id] for each in specs if each.save_as and each.id in by_id
        }
        self._outputs: Mapping[str, JsonValue] = {**saved, **by_id}

    def rows(self) -> Iterator[JournalEntry]:
        """The rows of the step's outputs: of a loop those of its items."""
        is_loop = self._step.loop is not None
        for row in self._current:
            fact = finished_in(row)
            if fact.step_id == self._step.id and (fact.index is not None) is is_loop:
                yield row

    def ended_at(self, row: JournalEntry) -> int:
        """The position of the row with that output, as it was stored."""
        return self._positions[row.key, row.generation]

    def ends(self) -> Mapping[str, int]:
        """The positions of the last outputs of all steps, by id."""
        return {finished_in(row).step_id: self.ended_at(row) for row in self._current}

    def values_of(self, row: JournalEntry, goal: Template) -> dict[str, JsonValue] | str:
        """What the goal read, by the names that an example gives it; or why that is not known."""
        if row.key.split("/")[1:2] != ["1"]:
            return "the step ran several times in its run"
        values: dict[str, JsonValue] = {}
        for reference in goal.references:
            value = self._value_of(reference, row)
            if isinstance(value, _Unknown):
                return value.reason
            name = name_of(reference)
            if name in values and not is_same(values[name], value.value):
                return "an input and a step of its run have one name"
            values[name] = value.value
        return values

    def _value_of(self, reference: Reference, row: JournalEntry) -> _Known | _Unknown:
        root, name = str(reference.path[0]), name_of(reference)
        if root == "inputs":
            spec = self._input_specs.get(name)
            if spec is not None and spec.is_secret:
                return _Unknown("the goal reads a secret")
            return _known(self.inputs, name)
        if root == "loop":
            return self._item_of(row) if name == "item" else _Unknown("the goal reads the loop")
        if root in ("run", "env", "feedback"):
            return _Unknown(f"the goal reads '{root}'")
        if reference.is_status:
            return _Unknown("the goal reads the status of a step")
        return _known(self._outputs, name)

    def _item_of(self, row: JournalEntry) -> _Known | _Unknown:
        """The item of the loop, from what its list is made of."""
        loop, index = self._step.loop, finished_in(row).index
        missing = _Unknown("the item of its loop is not recorded")
        if loop is None or index is None:
            return missing
        over = self._templates.compile(loop.over)
        steps: dict[str, JsonValue] = {
            name: {"output": value} for name, value in self._outputs.items()
        }
        scope: dict[str, JsonValue] = {
            **self._outputs,
            "inputs": dict(self.inputs),
            "steps": steps,
        }
        try:
            items = over.render(scope)
        except EvaluationError:
            return missing
        if not isinstance(items, list | tuple) or index >= len(items):
            return missing
        return _Known(items[index])


@frozen
class _Known:
    value: JsonValue


@frozen
class _Unknown:
    reason: str


def _known(values: Mapping[str, JsonValue], name: str) -> _Known | _Unknown:
    if name in values:
        return _Known(values[name])
    return _Unknown("the run has not all that the goal reads now")


def finished_in(row: JournalEntry) -> StepFinished:
    """The output that the row holds."""
    return fact_in(row, StepFinished)
