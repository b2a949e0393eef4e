"""Examples of a step that recorded runs give: which outputs count as good, and what they answer.

Only what a person said here counts: marks and approvals of an imported file do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from attrs import field, frozen

from minions.contracts.executions import address_of
from minions.contracts.journal.facts import UnreadableFact
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.run_rows import JUDGED, RunFilter, RunRow
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import SchemaValidator
from minions.engine.services.event_loop import breathe
from minions.engine.views.judgements import ExampleReason, Judgement, Judgements
from minions.engine.views.step_outputs import StepOutputs
from minions.recipe.examples import Example, ExampleCandidate, ExampleStepSpec, question_of
from minions.recipe.expressions.template import Template
from minions.recipe.expressions.values import EvaluationError
from minions.recipe.model import AgentRecipe

MOST_RUNS: Final = 200
"""Runs that are looked at, the newest that a person has judged."""
_MOST_JUDGEMENTS: Final = 5_000
"""Entries that are looked at to find these runs."""
JUDGED_KINDS: Final = frozenset({"run", "step", *JUDGED})
"""The kinds of rows that say what became of outputs."""


@frozen(kw_only=True)
class RecordedExamples:
    """What recorded runs give for one step."""

    candidates: tuple[ExampleCandidate, ...] = ()
    """The oldest judgement first; `origin` is `run_… ADDRESS`, `because` an `ExampleReason`."""
    left_out: Mapping[str, int] = field(factory=dict)
    """How many outputs that count as good cannot be examples, by the reason."""


class JudgedRuns(NamedTuple):
    """Runs of a recipe of which a person has said something."""

    runs: Sequence[RunRow]
    """The newest first."""
    entries: tuple[tuple[str, int], ...]
    """Session and position of each entry of a mark or decision, of all recipes."""


async def judged_runs(
    journal: Journal, recipe_id: str, *, limit: int, project: str | None
) -> JudgedRuns:
    """Runs of the recipe of which a person has said something.

    Args:
        project: The folder of the project in which they ran; None: any.
        limit: At most so many.
    Raises:
        JournalError: The journal cannot be read.
    """
    rows = await journal.entries(
        kinds=JUDGED, limit=_MOST_JUDGEMENTS, newest_first=True, with_damaged=True
    )
    entries = tuple((row.session_id, row.position) for row in rows)
    run_ids = list(dict.fromkeys(row.run_id for row in rows))
    if not run_ids:
        return JudgedRuns((), entries)
    wanted = RunFilter(recipe=recipe_id, run_ids=run_ids, project=project)
    return JudgedRuns(await journal.runs(wanted, limit=limit), entries)


async def examples_of_runs(
    journal: Journal,
    runs: Sequence[RunRow],
    recipe: AgentRecipe,
    step: ExampleStepSpec,
    *,
    reasons: Collection[ExampleReason],
    held_out: Collection[str] = (),
) -> RecordedExamples:
    """What these runs of the recipe give as examples of one of its steps.

    A run that cannot be read, or is being executed, gives nothing.

    Args:
        runs: In any order: the order of the candidates is that of the judgements.
        reasons: What makes an output count as good, besides a mark; one marked bad never does.
        held_out: Inputs of runs, as JSON, that give no example: they are under evaluation.
    Raises:
        JournalError: The journal cannot be read.
    """
    reader = _Reader(
        recipe,
        step,
        frozenset(reasons),
        recipe.templates.compile(step.example_question),
        SchemaValidator(step.output) if step.output is not None else None,
    )
    found: list[tuple[object, ExampleCandidate]] = []
    for run in runs:
        if run.problem is not None or run.ended_at is None:
            continue
        rows = await journal.entries(
            run.session_id, run_id=run.run_id, kinds=JUDGED_KINDS, with_damaged=True
        )
        await breathe()  # a journal may answer without waiting for anything
        if any(isinstance(row.fact, UnreadableFact) for row in rows):
            continue
        found += [
            ((at, run.run_id, each.origin), each)
            for at, each in reader.candidates(rows)
            if dumps(each.inputs) not in held_out
        ]
    found.sort(key=lambda pair: str(pair[0]))
    return RecordedExamples(
        candidates=tuple(each for _, each in found), left_out=dict(sorted(reader.left_out.items()))
    )


@frozen
class _Reader:
    recipe: AgentRecipe
    step: ExampleStepSpec
    reasons: frozenset[ExampleReason]
    goal: Template
    validator: SchemaValidator | None
    """Of the declared output; None: the step answers with a text."""
    left_out: Counter[str] = field(factory=Counter, init=False)

    def candidates(self, rows: Sequence[JournalEntry]) -> Iterator[tuple[str, ExampleCandidate]]:
        """Each good output of one run with the time of its judgement."""
        outputs = StepOutputs(self.recipe, self.step, rows)
        judge = Judgements(self.recipe, self.step.id, rows, outputs, self.reasons)
        for row in outputs.rows():
            judged = judge.judgement(row)
            if judged is None:
                continue
            candidate = self._candidate(row, outputs, judged)
            if isinstance(candidate, str):
                self.left_out[candidate] += 1
            else:
                yield judged.at, candidate

    def _candidate(
        self, row: JournalEntry, outputs: StepOutputs, judged: Judgement
    ) -> ExampleCandidate | str:
        """The example, or why the output cannot be one."""
        answer = judged.output
        if not self._fits(answer):
            return "does not fit the output that the step declares now"
        values = outputs.values_of(row, self.goal)
        if isinstance(values, str):
            return values
        try:
            question = question_of(self.goal, values)
        except EvaluationError:
            return "the run has not all that the goal reads now"
        return ExampleCandidate(
            example=Example(question, answer),
            input=values,
            origin=f"{row.run_id} {address_of(row.key)}",
            because=judged.reason.value,
            inputs=outputs.inputs,
        )

    def _fits(self, answer: JsonValue) -> bool:
        if self.validator is None:
            return isinstance(answer, str)
        return not list(self.validator.errors(answer))
