"""Cases of evaluations from what persons corrected in recorded runs: the inputs of a run with the
output that it should have given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Final

from attrs import field, frozen

from minions.app.settings.settings import masked
from minions.contracts.decision_types import Reject
from minions.contracts.journal.facts import (
    DecisionRecorded,
    RunBeginning,
    StepFinished,
    UnreadableFact,
    given,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.run_rows import RunRow
from minions.contracts.journal.start_note import StartNote
from minions.data.codec import encode
from minions.data.json_values import JsonValue, dumps
from minions.engine.history.current_rows import current_rows
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.event_loop import breathe
from minions.engine.views.judgements import ExampleReason, Judgements
from minions.engine.views.recorded_examples import JUDGED_KINDS, MOST_RUNS, judged_runs
from minions.engine.views.step_outputs import StepOutputs
from minions.recipe.examples import ExampleStepSpec
from minions.recipe.expressions.values import EvaluationError, Reference
from minions.recipe.model import AgentRecipe, ExecutionMode, StepSpec

_REASONS: Final = frozenset({ExampleReason.APPROVED, ExampleReason.CORRECTED})


@frozen(kw_only=True)
class CorrectedCases:
    """What persons' corrections give as cases."""

    cases: tuple[Mapping[str, JsonValue], ...] = ()
    """`{name, inputs, expected}` each, the oldest run first."""
    left_out: Mapping[str, int] = field(factory=dict)
    """How many runs with a correction or rejection give none, by the reason."""


async def corrected_cases(
    journal: Journal, recipe: AgentRecipe, *, project: str | None = None
) -> CorrectedCases:
    """The cases of the newest runs of a recipe in which a person corrected or rejected an output.

    What is expected is the output that the recipe makes of what persons corrected or approved: the
    whole, or those of its fields that are made of nothing else but inputs. A rejected output gives
    a case where a later one of its run was approved or corrected: else what is right is not known.

    Args:
        project: The folder of the project whose runs are looked through; None: all.
    Raises:
        JournalError: The journal cannot be read.
    """
    judged = await judged_runs(journal, recipe.id, limit=MOST_RUNS, project=project)
    cases: list[Mapping[str, JsonValue]] = []
    left_out = Counter[str]()
    for run in reversed(judged.runs):
        if run.problem is not None or run.ended_at is None:
            continue
        case = await _case_of(journal, run, recipe)
        await breathe()  # a journal may answer without waiting for anything
        if isinstance(case, str):
            left_out[case] += 1
        elif case is not None:
            cases.append(case)
    return CorrectedCases(cases=tuple(cases), left_out=dict(sorted(left_out.items())))


async def _case_of(
    journal: Journal, run: RunRow, recipe: AgentRecipe
) -> Mapping[str, JsonValue] | str | None:
    """The case; why there is none; or None: no person corrected or rejected anything."""
    rows = await journal.entries(
        run.session_id, run_id=run.run_id, kinds=JUDGED_KINDS, with_damaged=True
    )
    starts = [row.fact for row in rows if isinstance(row.fact, RunBeginning)]
    noted = StartNote.of(starts[0].note if starts else None)
    is_damaged = any(isinstance(row.fact, UnreadableFact) for row in rows)
    if is_damaged or noted.evaluation is not None or noted.is_strangers:
        return None
    is_rejected = any(
        isinstance(row.fact, DecisionRecorded)
        and isinstance(row.fact.decision, Reject)
        and not row.fact.is_default
        for row in rows
    )
    secret = {name for name, spec in recipe.inputs.items() if spec.is_secret}
    newest = next((each.inputs for each in reversed(starts) if each.inputs is not None), {})
    inputs = {
        name: encode(value)
        for name, value in newest.items()
        if name in recipe.inputs and name not in secret
    }
    right = _RightOutputs(recipe, inputs)
    if not (right.read(rows) or (is_rejected and right.by_name)):
        return "rejected, and what is right is not known" if is_rejected else None
    expected = right.expected()
    if isinstance(expected, _Unknown):
        return "the output is made of more than what a person corrected or approved"
    case: dict[str, JsonValue] = {"name": run.run_id, "inputs": inputs, "expected": expected}
    text = dumps(case)
    return case if masked(text) == text else "holds what looks like a key"


class _Unknown(Enum):
    """What a run should have given is not known."""

    UNKNOWN = "unknown"


@frozen
class _RightOutputs:
    """What steps of a run should have given, as persons said it."""

    recipe: AgentRecipe
    inputs: Mapping[str, JsonValue]
    by_name: dict[str, JsonValue] = field(factory=dict)
    """By id, and by the name under which an output is saved."""

    def read(self, rows: Sequence[JournalEntry]) -> bool:
        """Read the rows of the run; whether a person corrected anything."""
        has_correction = False
        for step in self.recipe.steps:
            if not isinstance(step, ExampleStepSpec) or step.loop is not None:
                continue
            outputs = StepOutputs(self.recipe, step, rows)
            judge = Judgements(self.recipe, step.id, rows, outputs, _REASONS)
            for row in outputs.rows():
                if (judged := judge.judgement(row)) is None:
                    continue
                has_correction |= judged.reason is ExampleReason.CORRECTED
                self.by_name[step.id] = judged.output
                if step.save_as:
                    self.by_name[step.save_as] = judged.output
        return has_correction

    def expected(self) -> JsonValue | _Unknown:
        """The output that the recipe makes of them, as far as it is made of nothing else."""
        return _made_output(self.recipe, self.inputs, self.by_name)


def _made_output(
    recipe: AgentRecipe, inputs: Mapping[str, JsonValue], by_name: Mapping[str, JsonValue]
) -> JsonValue | _Unknown:
    """The output that a recipe makes of these outputs of steps; of an output with several fields
    those that are made of nothing else.
    """
    output, last = recipe.output, recipe.steps[-1]
    if output is None:
        is_in_order = recipe.execution_mode is ExecutionMode.SEQUENTIAL
        is_certain = is_in_order and recipe.graph is None
        return by_name.get(last.id, _Unknown.UNKNOWN) if is_certain else _Unknown.UNKNOWN

    def is_known(reference: Reference) -> bool:
        root, *rest = map(str, reference.path)
        if root == "inputs":
            return bool(rest) and rest[0] in inputs
        if root == "steps":
            return len(rest) > 1 and rest[0] in by_name and rest[1] == "output"
        return root in by_name

    def rendered(part: JsonValue) -> JsonValue | _Unknown:
        template = recipe.templates.compile(part)
        if not all(map(is_known, template.references)):
            return _Unknown.UNKNOWN
        steps: dict[str, JsonValue] = {name: {"output": value} for name, value in by_name.items()}
        try:
            return template.render({**by_name, "inputs": dict(inputs), "steps": steps})
        except EvaluationError:
            return _Unknown.UNKNOWN

    if not isinstance(output, Mapping):
        return rendered(output)
    parts = {name: rendered(part) for name, part in output.items()}
    known = {name: each for name, each in parts.items() if not isinstance(each, _Unknown)}
    return known or _Unknown.UNKNOWN


async def output_before_decision(
    journal: Journal, recipe: AgentRecipe, run_id: str, fields: Collection[str]
) -> JsonValue | None:
    """The output that a run which waits for a person will have, where what it waits for has no part
    in it: the recipe makes it of steps that are done; None: that is not sure.

    Args:
        fields: Of an output with several fields those that matter; empty: all.
    Raises:
        JournalError: The journal cannot be read.
    """
    if recipe.graph is not None:
        return None  # what is done may be done again
    recorded = await load_recorded_run(journal, run_id)
    by_name: dict[str, JsonValue] = {}
    names = {each.id: each.save_as for each in recipe.steps if isinstance(each, StepSpec)}
    for row in current_rows(recorded.entries):
        fact = row.fact
        if isinstance(fact, StepFinished) and fact.index is None and not fact.partial:
            by_name[fact.step_id] = given(fact.output)
            if saved := names.get(fact.step_id):
                by_name[saved] = given(fact.output)
    inputs = {name: encode(value) for name, value in recorded.inputs.items()}
    output = _made_output(recipe, inputs, by_name)
    if isinstance(output, _Unknown):
        return None
    if not isinstance(recipe.output, Mapping):
        return output
    assert isinstance(output, Mapping)  # noqa: S101  # as its template is
    return output if {*(fields or recipe.output)} <= output.keys() else None
