"""What recorded runs teach a recipe: examples for its steps, and what its own tests say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from minions.app.evaluating.recipe_tests import TestOutcome, ask_test
from minions.app.settings.settings import Settings, bounded, masked
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.messages import TokenUsage
from minions.data.errors import NotFoundError, UsageError, near_names
from minions.data.json_values import JsonValue, dumps
from minions.engine.views.judgements import ExampleReason
from minions.engine.views.recorded_examples import MOST_RUNS, examples_of_runs, judged_runs
from minions.planning.step_edit import examples_in, recipe_diff, with_examples
from minions.recipe.catalog import Catalog
from minions.recipe.examples import ExampleCandidate, ExampleStepSpec, choose_examples, turn_tokens
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text


@frozen(kw_only=True)
class LearntStep:
    """What recorded runs give for one step."""

    step_id: str
    examples: tuple[ExampleCandidate, ...] = ()
    """Those that are added."""
    kept: int = 0
    """How many the step has already, which stay."""
    left_out: Mapping[str, int] = field(factory=dict)
    """How many good outputs cannot be examples, by the reason."""
    not_chosen: int = 0
    """How many could be examples and are more than was asked for, or say nothing new."""
    problem: str | None = None
    """Why the step takes none; None: it does."""

    @property
    def tokens(self) -> int:
        """The tokens that are added to each prompt of the step, estimated."""
        return turn_tokens(self.examples)

    def to_json(self) -> dict[str, JsonValue]:
        """The step as `--json` prints it."""
        return {
            "step": self.step_id,
            "added": [
                {
                    "input": each.input,
                    "output": each.example.answer,
                    "from": each.origin,
                    "because": each.because,
                }
                for each in self.examples
            ],
            "kept": self.kept,
            "tokens": self.tokens,
            "not_chosen": self.not_chosen,
            "left_out": dict(self.left_out),
            "problem": self.problem,
        }


@frozen(kw_only=True)
class LearntRecipe:
    """A recipe's text with the examples that were found."""

    file: str
    before: str
    text: str
    recipe: AgentRecipe
    """The recipe as it was."""
    learnt: AgentRecipe
    """The recipe with the examples."""
    steps: tuple[LearntStep, ...]

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty: nothing was learnt."""
        return recipe_diff(self.before, self.text, self.file)


async def learn_recipe(
    journal: Journal,
    text: str,
    file: str,
    catalog: Catalog,
    *,
    step_id: str | None = None,
    most: int,
    max_tokens: int,
    project: str | None = None,
) -> LearntRecipe:
    """Add examples to the steps of a recipe: good outputs of recorded runs, few, short, and of
    every kind of answer. Examples that a step has stay, and count against the bounds.

    Args:
        file: The name of the file, for messages; relative paths start from its folder.
        step_id: Only this step; None: each that answers from a goal.
        most: Examples of a step at most.
        max_tokens: Their tokens at most, estimated.
        project: The folder of the project whose runs are looked through; None: all.
    Raises:
        RecipeError: The recipe has faults.
        NotFoundError: There is no such step.
        UsageError: The step takes no examples, or `not-editable`.
        JournalError: The journal cannot be read.
    """
    recipe = load_recipe_text(text, file, catalog)
    runs = await _runs_of(journal, recipe.id, project)
    steps: list[LearntStep] = []
    changed = text
    for step in _steps_of(recipe, step_id):
        learnt = await _learnt(journal, runs, recipe, step, text, file, most, max_tokens)
        if learnt.problem is not None and step_id is not None:
            raise UsageError(f"Step '{step_id}': {learnt.problem}.", code="no-examples")
        if learnt.examples:
            known = examples_in(text, file, step.id) or []
            assert isinstance(known, list | tuple)  # noqa: S101  # else it has a problem
            added: list[Mapping[str, JsonValue]] = [
                {"input": each.input, "output": each.example.answer} for each in learnt.examples
            ]
            own = [each for each in known if isinstance(each, Mapping)]
            changed = with_examples(changed, file, step.id, [*own, *added])
        steps.append(learnt)
    return LearntRecipe(
        file=file,
        before=text,
        text=changed,
        recipe=recipe,
        learnt=load_recipe_text(changed, file, catalog),
        steps=tuple(steps),
    )


async def _runs_of(journal: Journal, recipe_id: str, project: str | None) -> Sequence[RunRow]:
    """Those that a person judged, and the newest others, whose checks may speak for them."""
    judged = await judged_runs(journal, recipe_id, limit=MOST_RUNS, project=project)
    newest = await journal.runs(RunFilter(recipe=recipe_id, project=project), limit=MOST_RUNS)
    return list({run.run_id: run for run in (*judged.runs, *newest)}.values())


def _steps_of(recipe: AgentRecipe, step_id: str | None) -> Iterator[ExampleStepSpec]:
    steps = {step.id: step for step in recipe.steps if isinstance(step, ExampleStepSpec)}
    if step_id is None:
        yield from steps.values()
    elif step_id in steps:
        yield steps[step_id]
    else:
        raise NotFoundError(
            f"The recipe has no step '{step_id}' that takes examples. Such steps are: "
            f"{', '.join(steps) or 'none'}.",
            code="unknown-step",
            suggestions=near_names(step_id, list(steps)),
        )


_REASONS: Final = frozenset({ExampleReason.APPROVED, ExampleReason.CORRECTED, ExampleReason.TESTED})


async def _learnt(
    journal: Journal,
    runs: Sequence[RunRow],
    recipe: AgentRecipe,
    step: ExampleStepSpec,
    text: str,
    file: str,
    most: int,
    max_tokens: int,
) -> LearntStep:
    problem = examples_problem(step, examples_in(text, file, step.id))
    if problem is not None:
        return LearntStep(step_id=step.id, problem=problem)
    found = await examples_of_runs(journal, runs, recipe, step, reasons=_REASONS)
    left_out = Counter(found.left_out)
    candidates = [each for each in found.candidates if not shows_key(each)]
    if hidden := len(found.candidates) - len(candidates):
        left_out["holds what looks like a key"] += hidden
    chosen = choose_examples(
        candidates, step.output, most=most, max_tokens=max_tokens, shown=step.examples
    )
    return LearntStep(
        step_id=step.id,
        examples=chosen,
        kept=len(step.examples),
        left_out=dict(left_out),
        not_chosen=len(candidates) - len(chosen),
    )


def examples_problem(step: ExampleStepSpec, written: JsonValue) -> str | None:
    """Why no examples can be written into a step; None: they can.

    Args:
        written: What stands under its `examples`; None: nothing.
    """
    if step.shares_conversation:
        return "it shares a conversation, and takes no examples"
    if isinstance(written, Mapping) and "from" not in written:
        return "its examples are chosen for each question"
    if isinstance(written, Mapping):
        return f"it takes its examples from {written.get('from')!s:.60}"
    if written is None and step.examples:
        return "its examples stand in a template that it extends"
    return None


def shows_key(candidate: ExampleCandidate) -> bool:
    """Whether a key would be written into a file: what looks like one is shown nowhere else."""
    text = dumps([candidate.input, candidate.example.answer])
    return masked(text) != text


# --- what the tests say ---------------------------------------------------------------------------


@frozen(kw_only=True)
class TestComparison:
    """The outcomes of a recipe's tests with a model, before a change of it and after."""

    __test__ = False  # no class of tests

    before: tuple[TestOutcome, ...]
    after: tuple[TestOutcome, ...]
    is_cut: bool = False
    """Whether the limit on cost ended it before all tests were run."""

    def to_json(self) -> dict[str, JsonValue]:
        """Both as `--json` prints them."""
        return {
            "before": _side(self.before),
            "after": _side(self.after),
            "is_cut": self.is_cut,
        }


def _side(outcomes: Sequence[TestOutcome]) -> dict[str, JsonValue]:
    return {
        "passed": sum(not each.faults for each in outcomes),
        "total": len(outcomes),
        "usage": used_by(outcomes).to_json(),
        "failed": [each.test.name for each in outcomes if each.faults],
    }


def used_by(outcomes: Sequence[TestOutcome]) -> TokenUsage:
    """What all of them used."""
    return sum((each.usage for each in outcomes), TokenUsage())


async def compare_tests(
    original: AgentRecipe,
    changed: AgentRecipe,
    runtime: Runtime,
    choice: ModelChoice,
    *,
    max_cost_usd: float | None,
) -> TestComparison:
    """Run each test of the recipe with a model, as it was and as it was changed.

    No test is shown its own answer, wherever that stands.

    Args:
        max_cost_usd: What all of them may cost together; None: no limit.
    Raises:
        EnvironmentRefusedError, UsageError: There is no such model.
    """
    before: list[TestOutcome] = []
    after: list[TestOutcome] = []
    for test in original.tests:
        for recipe, outcomes in ((original, before), (changed, after)):
            left = _left(max_cost_usd, [*before, *after])
            if left is not None and left <= 0:
                return TestComparison(before=tuple(before), after=tuple(after), is_cut=True)
            limited = bounded(recipe, Settings(max_cost_usd=left))
            outcomes.append(await ask_test(limited, test, runtime, choice))
    return TestComparison(before=tuple(before), after=tuple(after))


def _left(most: float | None, outcomes: Sequence[TestOutcome]) -> float | None:
    return None if most is None else most - (used_by(outcomes).cost_usd or 0.0)
