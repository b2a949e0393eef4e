"""Runs evaluations: each case by each variant, as batches, whose outputs are then scored.

Batches are found again by recipe, model and cases: what is recorded is not asked a second time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from attrs import evolve, field, frozen

from minions.app.evaluating.corrected_cases import output_before_decision
from minions.app.evaluating.evaluation_records import (
    EvaluationRecords,
    cases_of,
    evaluation_id,
    record_of,
)
from minions.app.runs.batch_items import BatchItems, ItemRow, ItemsFile, count_lines, lines_of
from minions.app.settings.settings import Settings, bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime
from minions.app.wiring.databases import state_beside
from minions.contracts.calls import ChatModel
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import given
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import StartNote
from minions.contracts.secrets import InputValue, SecretRef
from minions.contracts.tools import Effect, Tool, ToolScope
from minions.data.codec import encode
from minions.data.errors import (
    FailureInfo,
    JournalError,
    MinionsError,
    UsageError,
    near_hint,
    near_names,
)
from minions.data.json_values import JsonValue, dumps
from minions.data.patterns import match_beside_loop
from minions.engine.batches.batch import Batch, BatchPlan
from minions.engine.batches.lines import BatchLine, RunNames
from minions.engine.batches.result import NOT_STARTED, BatchResult
from minions.engine.history.recorded_calls import recorded_end
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import load_recorded_run
from minions.evaluation.cases import Case, CaseRow
from minions.evaluation.report import (
    CaseOutcome,
    EvaluationReport,
    SampleOutcome,
    Variant,
    VariantOutcome,
)
from minions.evaluation.scorer_checks import check_scorers, grade_of, grader_inputs, grader_recipe
from minions.evaluation.scorers import AnyScorer, Fields, GradedBy, Score, Scorer, ToolScorer
from minions.recipe.expressions.values import type_name
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import bundle_of
from minions.recipe.reading.tested_examples import without_cases

T = TypeVar("T")

OnSample: TypeAlias = Callable[[Variant, BatchResult], None]
"""Called with each answer as soon as it is there."""

_TOOL_TIMEOUT_S: Final = 60.0
_LONGEST_REASON: Final = 300
"""Characters of why there is no grade."""
_MOST_COST: Final = 1e12
"""US dollars; more than any evaluation costs."""


@frozen(kw_only=True)
class EvaluatedRecipe:
    """A recipe, with how the user named it."""

    name: str
    recipe: AgentRecipe


@frozen(kw_only=True)
class EvaluationPlan:
    """What is asked, by whom and how often."""

    name: str
    """Evaluations of one name, recipe, model and cases are one: what is recorded is not asked
    again."""
    title: str
    """For people: `triage.yaml on tickets.jsonl`."""
    cases: tuple[Case, ...]
    scorers: tuple[AnyScorer, ...]
    models: tuple[str | None, ...] = (None,)
    """None: the recipe's own."""
    answering: Mapping[str, ChatModel] = field(factory=dict)
    """Models by name that are objects of an application."""
    samples: int = 1
    concurrency: int = 8
    inputs: Mapping[str, InputValue] = field(factory=dict)
    """Of every case that does not give them itself; checked."""
    max_cost_usd: float | None = None
    """US dollars of the whole evaluation, earlier executions included."""
    at_least: float | None = None
    retry_failed: bool = False
    retry_outages: bool = False
    """As `BatchPlan.retry_outages`."""
    note: Mapping[str, JsonValue] = field(factory=dict)
    """Stored with the start of each run."""
    asked_as: str | None = None
    """What the caller wrote behind `minions eval`, for commands in messages; None: the recipe."""


def checked_scorers(
    scorers: Sequence[AnyScorer],
    cases: Sequence[Case],
    runtime: Runtime,
    recipes: Sequence[AgentRecipe],
    *,
    are_recorded: bool = False,
) -> tuple[AnyScorer, ...]:
    """The scorers, or `fields` where there are none and cases say what is expected.

    Args:
        recipes: Those that are asked.
        are_recorded: Whether what is expected are recorded outputs.
    Raises:
        UsageError: `bad-items`; as `check_scorers`. `unknown-tool`: a tool that scores is not
            registered, or may change something.
    """
    for scorer in scorers:
        if isinstance(scorer, ToolScorer):
            tool_of_scorer(scorer, runtime)
    return check_scorers(scorers, cases, recipes, are_recorded=are_recorded)


def tool_of_scorer(scorer: ToolScorer, runtime: Runtime) -> Tool:
    """The registered tool that scores.

    Raises:
        UsageError: `unknown-tool`: it is not registered, or may change something.
    """
    tools = runtime.extensions.tools
    tool = tools.find(scorer.tool)
    if tool is None:
        near = near_names(scorer.tool, tools.names)
        raise UsageError(
            f"No tool '{scorer.tool}' is registered that could score.{near_hint(near)} Register a "
            "function with `@tool(effect=Effect.PURE)` in an extension (--extensions FILE.py).",
            code="unknown-tool",
            suggestions=near,
        )
    if tool.spec.effect is not Effect.PURE:
        raise UsageError(
            f"The tool '{scorer.tool}' may change something ({tool.spec.effect.value}); only one "
            "that is declared pure scores: `@tool(effect=Effect.PURE)`.",
            code="unknown-tool",
        )
    return tool


def case_inputs(
    recipe: AgentRecipe, cases: Sequence[Case], common: Mapping[str, InputValue]
) -> Mapping[int, Mapping[str, JsonValue]]:
    """The inputs of each case as the recipe takes them, with defaults, by the case's number;
    markers stand in the place of secrets.

    Args:
        common: Inputs of every case that does not give them itself; checked.
    Raises:
        UsageError: `bad-items`; a case does not fit the recipe.
    """
    count_lines(recipe, _CaseItems(cases), common, Path.cwd())
    return {case.index: case.plain_inputs for case in _as_taken(recipe, cases, common)}


def _as_taken(
    recipe: AgentRecipe, cases: Sequence[Case], common: Mapping[str, InputValue]
) -> tuple[Case, ...]:
    """The cases, that were checked, with all inputs as the recipe takes them."""
    lines = lines_of(recipe, _CaseItems(cases), common, Path.cwd())
    defaults = {name: each.default for name, each in recipe.inputs.items() if each.has_default}
    return tuple(
        evolve(case, inputs={**defaults, **line.inputs})
        for case, line in zip(cases, lines, strict=True)
    )


class Evaluation:
    """One execution of an evaluation."""

    def __init__(
        self, runtime: Runtime, recipes: Sequence[EvaluatedRecipe], plan: EvaluationPlan
    ) -> None:
        """Check all cases against all recipes; nothing has begun.

        Args:
            recipes: The first one is what the others are compared with.
        Raises:
            UsageError: `bad-items`; a case does not fit a recipe.
        """
        self._runtime = runtime
        self._services = runtime.services
        self._plan = plan
        self._answering = plan.answering
        cases = [{**_plain(plan.inputs), **case.plain_inputs} for case in plan.cases]
        self._recipes = {
            each.name: without_cases(_limit_recipe(each.recipe, plan), cases) for each in recipes
        }
        self._spent = 0.0
        self._listeners: list[OnSample] = []
        self._batches: set[Batch] = set()
        """Those under way: one after the other, or all where their model calls wait for batches."""
        self._stopped: FailureInfo | None = None
        self.variants = _variants(recipes, plan.models)
        self._items = _CaseItems(plan.cases)
        self._cases: dict[str, tuple[Case, ...]] = {}
        """By recipe, as scorers see them: with all inputs, as it takes them."""
        for name, recipe in self._recipes.items():
            count_lines(recipe, self._items, plan.inputs, Path.cwd())
            self._cases[name] = _as_taken(recipe, plan.cases, plan.inputs)

    @property
    def stopped(self) -> FailureInfo | None:
        """Why not all was asked; None: all was, or nothing has begun."""
        return self._stopped

    @property
    def spent_usd(self) -> float:
        """US dollars of all that was asked so far, grading and earlier executions included."""
        return self._spent

    @property
    def total(self) -> int:
        """How many answers there will be, without those of models that grade."""
        return len(self.variants) * self._plan.samples * len(self._plan.cases)

    def listen(self, on_sample: OnSample) -> None:
        """Call `on_sample` with each answer as soon as it is there."""
        self._listeners.append(on_sample)

    def cancel(self) -> None:
        """Start nothing more and cancel the runs under way; the report then comes soon."""
        self._stop(FailureInfo(code="cancelled", message="The evaluation was cancelled."))
        for batch in self._batches:
            batch.cancel()

    async def report(self) -> EvaluationReport:
        """Ask and score everything.

        Raises:
            EnvironmentRefusedError: There is no model, a secret is missing, or the journal refuses.
        """
        plan = self._plan
        for variant in self.variants if len(self.variants) > 1 else ():
            await self._check(variant)
        outcomes = await self._all([partial(self._outcome, variant) for variant in self.variants])
        report = EvaluationReport(
            name=plan.title,
            cases=len(plan.cases),
            samples=plan.samples,
            variants=tuple(outcomes),
            at_least=plan.at_least,
            stopped=None if self._stopped is None else self._stopped.message,
        )
        await self._record(report)
        return report

    async def _record(self, report: EvaluationReport) -> None:
        """Store what was found, for lists. What was paid for is told also where that fails."""
        services = self._services
        identity = [self._identity(variant, self._plan.samples) for variant in self.variants]
        now, project = services.clock.now(), services.project
        record = record_of(report, evaluation_id(identity), now, project)
        try:
            state = state_beside(services.journal)
            try:
                records = EvaluationRecords(state)
                await records.put(record, cases_of(report), services.beside)
            finally:
                await state.aclose()
        except JournalError as error:
            services.log.warning("evaluation_not_recorded", reason=error.message)

    async def _all(self, parts: Sequence[Callable[[], Awaitable[T]]]) -> Sequence[T]:
        """What the parts give: one after the other, as they share a limit on cost; at the same time
        where their calls wait for batches, each of which may take a day.
        """
        is_patient = self._services.patience is not None
        if not is_patient or self._plan.max_cost_usd is not None:
            return [await part() for part in parts]
        tasks = [asyncio.ensure_future(part()) for part in parts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _stop(self, reason: FailureInfo) -> None:
        self._stopped = self._stopped or reason

    async def _check(self, variant: Variant) -> None:
        """Find what a variant lacks before another one is paid for; nothing is asked.

        Raises:
            EnvironmentRefusedError, UsageError: As `report`.
        """
        recipe, plan = self._recipes[variant.recipe], self._plan
        start = RunNames(dumps(self._identity(variant, 0))).start
        journal = self._services.journal
        if await journal.count_runs(RunFilter(id_start=start)) >= len(plan.cases):
            return  # all of it was asked before: perhaps only the scores are another
        for line in lines_of(recipe, self._items, plan.inputs, Path.cwd()):
            executor = self._executor(self._runtime, recipe, variant.model, variant.recipe)
            executor.prepare(recipe, line.inputs)
            return

    def _identity(self, variant: Variant, sample: int) -> list[JsonValue]:
        digest = _digest(self._recipes[variant.recipe])
        return ["eval", self._plan.name, digest, variant.model, sample]

    # --- one variant ------------------------------------------------------------------------------

    async def _outcome(self, variant: Variant) -> VariantOutcome:
        by_case: list[list[SampleOutcome]] = [[] for _ in self._plan.cases]
        samples = [partial(self._sample, variant, each) for each in range(self._plan.samples)]
        for outcomes in await self._all(samples):
            for index, outcome in enumerate(outcomes):
                by_case[index].append(outcome)
        cases = zip(self._plan.cases, by_case, strict=True)
        return VariantOutcome(
            variant=variant,
            cases=tuple(CaseOutcome(case=case, samples=tuple(all_)) for case, all_ in cases),
        )

    async def _sample(self, variant: Variant, sample: int) -> list[SampleOutcome]:
        recipe = self._recipes[variant.recipe]
        runtime = self._runtime if sample == 0 else self._runtime.evolve(cache=None)
        lines = lines_of(recipe, self._items, self._plan.inputs, Path.cwd())
        identity = self._identity(variant, sample)
        outcomes: list[SampleOutcome] = []
        executor = self._executor(runtime, recipe, variant.model, variant.recipe)
        async for result in self._results(executor, recipe, lines, dumps(identity)):
            for listener in self._listeners:
                listener(variant, result)
            case = self._cases[variant.recipe][result.index]
            outcomes.append(await self._score(recipe, case, result))
        missing = len(self._plan.cases) - len(outcomes)
        outcomes += [SampleOutcome(run_id=None, status=NOT_STARTED)] * missing
        for scorer in self._plan.scorers:
            if isinstance(scorer, GradedBy):
                outcomes = await self._grade(scorer, outcomes, identity)
        return outcomes

    def _executor(
        self, runtime: Runtime, recipe: AgentRecipe, model: str | None, asked_as: str
    ) -> AgentExecutor:
        own = self._answering.get(model) if model is not None else None
        if own is not None:
            return runtime.evolve(models=own).executor(recipe)
        named = self._plan.asked_as or asked_as
        choice = ModelChoice(override=model, asked_as=named, command="eval")
        return runtime.executor(recipe, choice)

    async def _results(
        self,
        executor: AgentExecutor,
        recipe: AgentRecipe,
        lines: Iterator[BatchLine],
        name: str,
    ) -> AsyncIterator[BatchResult]:
        """The results of one batch, within what is left of the evaluation's cost."""
        if self._stopped is not None:
            return
        plan, left = self._plan, None
        if plan.max_cost_usd is not None:
            left = max(0.0, plan.max_cost_usd - self._spent)
        batch = Batch(
            executor,
            recipe,
            lines,
            BatchPlan(
                name=name,
                concurrency=plan.concurrency,
                max_cost_usd=left,
                retry_failed=plan.retry_failed,
                retry_outages=plan.retry_outages,
                note={**plan.note, **StartNote(evaluation=plan.title).to_json()},
            ),
        )
        self._batches.add(batch)
        try:
            async for result in batch:
                self._spent = min(_MOST_COST, self._spent + (result.usage.cost_usd or 0.0))
                yield result
        finally:
            self._batches.discard(batch)
        if batch.stopped_by is not None:
            self._stop(batch.stopped_by)

    # --- scores -----------------------------------------------------------------------------------

    async def _score(self, recipe: AgentRecipe, case: Case, result: BatchResult) -> SampleOutcome:
        output = encode(result.output)
        outcome = SampleOutcome(
            run_id=result.run_id,
            status=str(result.status),
            output=output,
            problem=_words(result.error),
            outage=_words(result.outage),
            usage=result.usage,
            duration_ms=result.duration_ms,
        )
        if result.status == RunState.NEEDS_DECISION and result.run_id is not None:
            only_fields = all(isinstance(each, Fields) for each in self._plan.scorers)
            fields = {each.partition(".")[0] for each in case.expected_fields if only_fields}
            journal = self._services.journal
            output = await output_before_decision(journal, recipe, result.run_id, fields)
            outcome = evolve(outcome, output=output, is_early=output is not None)
        if not outcome.has_output:
            return outcome
        scores: list[Score] = []
        for scorer in self._plan.scorers:
            if isinstance(scorer, GradedBy):
                continue
            try:
                scores.append(await score_output(self._runtime, scorer, case, output))
            except ScorerFailedError as error:
                scores.append(_no_score(scorer, str(error)))
        return evolve(outcome, scores=tuple(scores))

    async def _grade(
        self, grader: GradedBy, outcomes: list[SampleOutcome], identity: list[JsonValue]
    ) -> list[SampleOutcome]:
        """The outcomes with the grades of a model; those without an output have none."""
        recipe = _limit_recipe(grader_recipe(), self._plan)
        places = [index for index, each in enumerate(outcomes) if each.has_output]
        lines = iter(
            [
                BatchLine(
                    index=index,
                    inputs=grader_inputs(grader, self._plan.cases[index], outcomes[index].output),
                    place=self._plan.cases[index].place,
                )
                for index in places
            ]
        )
        executor = self._executor(self._runtime, recipe, grader.model, "grader")
        name = dumps([*identity, "graded", grader.rubric, grader.model])
        results: dict[int, BatchResult] = {}
        async for result in self._results(executor, recipe, lines, name):
            results[result.index] = result
        found = list(outcomes)
        for index in places:
            found[index] = _graded_outcome(grader, found[index], results.get(index))
        return found


class ScorerFailedError(Exception):
    """A scorer gave no score; says why."""


async def score_output(
    runtime: Runtime, scorer: Scorer | ToolScorer, case: Case, output: JsonValue
) -> Score:
    """What a scorer that asks no model says of an output.

    Raises:
        ScorerFailedError: A tool that scores failed, or returned no score.
    """
    if isinstance(scorer, Scorer):
        return await match_beside_loop(partial(scorer.score, case, output))
    services = runtime.services
    scope = ToolScope(
        run_id="eval",
        step_id=scorer.name,
        call_id=case.name,
        idempotency_key=f"eval/{case.index}",
        now=services.clock.now,
        sleep=services.sleep,
        blocking=services.blocking,
    )
    asked = {"output": output, "expected": case.wanted, "inputs": dict(case.plain_inputs)}
    tool = tool_of_scorer(scorer, runtime)
    properties = tool.spec.parameters.get("properties")
    taken = properties if isinstance(properties, Mapping) else {}
    try:
        async with asyncio.timeout(tool.spec.timeout_s or _TOOL_TIMEOUT_S):
            said = encode(
                await tool.invoke({key: asked[key] for key in asked if key in taken}, scope)
            )
    except MinionsError as error:
        raise ScorerFailedError(error.message) from error
    except Exception as error:
        raise ScorerFailedError(f"it raised {type(error).__name__}: {error}") from error
    return _score_said(scorer, said)


def _graded_outcome(
    grader: GradedBy, before: SampleOutcome, result: BatchResult | None
) -> SampleOutcome:
    """The outcome with the grade; or with why there is none, which is no fault of the answer."""
    if result is None:  # the cost, or a person, ended the evaluation before
        return evolve(before, ungraded=before.ungraded or "the model was not asked")
    grading = before.grading + result.usage
    score = grade_of(grader, encode(result.output))
    if score is not None:
        return evolve(before, scores=(*before.scores, score), grading=grading)
    why = _words(result.error) or str(result.status)
    return evolve(before, ungraded=before.ungraded or why[:_LONGEST_REASON], grading=grading)


def _words(error: FailureInfo | None) -> str | None:
    return None if error is None else f"{error.code}: {error.message}"


def _plain(inputs: Mapping[str, InputValue]) -> dict[str, JsonValue]:
    """The inputs, with markers in the place of secrets."""
    return {
        name: value.marker if isinstance(value, SecretRef) else value
        for name, value in inputs.items()
    }


def _limit_recipe(recipe: AgentRecipe, plan: EvaluationPlan) -> AgentRecipe:
    if plan.max_cost_usd is None:
        return recipe
    return bounded(recipe, Settings(max_cost_usd=plan.max_cost_usd))


def _variants(
    recipes: Sequence[EvaluatedRecipe], models: Sequence[str | None]
) -> tuple[Variant, ...]:
    """Each recipe with each model, labelled by what differs."""
    pairs = [(each.name, model) for each in recipes for model in models]
    return tuple(
        Variant(recipe=name, model=model, label=_label(name, model, len(recipes), len(models)))
        for name, model in dict.fromkeys(pairs)
    )


def _label(recipe: str, model: str | None, recipes: int, models: int) -> str:
    parts = ([recipe] if recipes > 1 or model is None else []) + ([model] if model else [])
    return " · ".join(parts) if recipes > 1 or models > 1 else model or recipe


def _digest(recipe: AgentRecipe) -> str:
    """Another one for each version of a recipe, and of those that it runs."""
    text = dumps([dict(recipe.document or {}), bundle_of(recipe)])
    return f"{recipe.id} {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _no_score(scorer: Scorer | ToolScorer, why: str) -> Score:
    return Score(scorer=scorer.name, value=0.0, is_passed=False, reason=why[:300])


def _score_said(scorer: ToolScorer, said: JsonValue) -> Score:
    reason = said.get("reason") if isinstance(said, Mapping) else None
    value = said.get("score") if isinstance(said, Mapping) else said
    if isinstance(value, bool):
        value = float(value)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ScorerFailedError(f"it returned {dumps(said)[:100]}, no score from 0 to 1")
    passed = value >= 1
    words = str(reason) if reason else "it says no"
    return Score(
        scorer=scorer.name,
        value=float(value),
        is_passed=passed,
        reason=None if passed else words[:300],
    )


@frozen
class _CaseItems(BatchItems):
    """The inputs of cases, as rows of a batch."""

    cases: Sequence[Case]

    def rows(self) -> Iterator[ItemRow]:
        for case in self.cases:
            yield ItemRow(place=case.place, inputs=case.inputs, is_text=case.is_text)


# --- where the cases of an evaluation come from --------------------------------------------------


_PAGE: Final = 100


@frozen(kw_only=True)
class RecordedCases:
    """Recorded runs as cases."""

    rows: list[CaseRow] = field(factory=list)
    unreadable: list[str] = field(factory=list)
    """Ids of runs that could not be read, and so are none."""


def file_rows(path: Path, name: str) -> list[CaseRow]:
    """The rows of a file of cases.

    Raises:
        UsageError: `bad-items`; it cannot be read, or a row of it.
    """
    rows = []
    for row in ItemsFile(path, name=name).rows():
        if row.problem is not None:
            raise UsageError(f"{row.place}: {row.problem}", code="bad-items")
        rows.append(CaseRow(place=row.place, values=row.inputs, is_text=row.is_text))
    return rows


def listed_rows(cases: Iterable[object]) -> list[CaseRow]:
    """The cases of an application, as rows.

    Raises:
        UsageError: `bad-items`; one is no mapping.
    """
    rows = []
    for index, case in enumerate(cases):
        if not isinstance(case, Mapping):
            kind = type_name(case)
            raise UsageError(
                f"case {index}: a mapping of inputs with `expected` was expected, not a {kind}.",
                code="bad-items",
            )
        rows.append(CaseRow(place=f"case {index}", values=case))
    return rows


async def recorded_rows(
    journal: Journal, recipe: AgentRecipe, most: int, project: str | None
) -> RecordedCases:
    """The newest completed runs of a recipe in a project (None: in all).

    Not those of evaluations, and none of a stranger's: the inputs of an imported run could name
    files and secrets of whoever asks them again.
    """
    wanted = RunFilter(recipe=recipe.id, statuses=(RunState.COMPLETED,), project=project)
    found, after = RecordedCases(), None
    while len(found.rows) < most:
        page = await journal.runs(wanted, limit=_PAGE, after=after)
        for row in page:
            if len(found.rows) < most:
                await _add(found, journal, row, recipe)
        if len(page) < _PAGE:
            break
        after = page[-1]
    return found


async def _add(found: RecordedCases, journal: Journal, row: RunRow, recipe: AgentRecipe) -> None:
    try:
        recorded = await load_recorded_run(journal, row.run_id)
        if recorded.noted.evaluation is not None or recorded.noted.is_strangers:
            return
        end = await recorded_end(journal, row)
    except MinionsError:  # a damaged run harms only itself
        found.unreadable.append(row.run_id)
        return
    inputs = {name: value for name, value in recorded.inputs.items() if name in recipe.inputs}
    expected = None if end is None else given(end.output)
    values = {"name": row.run_id, "inputs": inputs, "expected": expected}
    found.rows.append(CaseRow(place=row.run_id, values=values))
