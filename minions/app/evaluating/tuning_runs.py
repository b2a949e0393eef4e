"""Tunes a recipe: each configuration is evaluated as a batch, and what is recorded is not asked a
second time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from attrs import evolve, field, frozen

from minions.analysis.bounds import KnowModel, UpperBound
from minions.analysis.explanation import explain
from minions.app.evaluating.evaluation_runs import (
    EvaluatedRecipe,
    Evaluation,
    EvaluationPlan,
    case_inputs,
)
from minions.app.evaluating.reflection import Reflection, words_of_step
from minions.app.evaluating.tuning_space import (
    HeldOutCases,
    SpaceOptions,
    TuningSpace,
    model_settings,
    takes_cases,
    tuning_space,
)
from minions.app.settings.settings import Settings, bounded
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.calls import ChatModel
from minions.contracts.context import Limits
from minions.contracts.messages import TokenUsage
from minions.contracts.secrets import InputValue
from minions.data.errors import (
    CIRCUIT_OPEN,
    LIMIT_REACHED,
    UNREACHABLE,
    FailureInfo,
    RecipeError,
    UsageError,
)
from minions.data.json_values import JsonValue
from minions.engine.services.pricing import refuse_unknown_price, with_cost
from minions.evaluation.cases import Case, CaseParts, Part, parts_of
from minions.evaluation.report import CaseOutcome, EvaluationReport
from minions.evaluation.scorers import AnyScorer
from minions.evaluation.tuning import Configuration, Dimension, Measurement, Setting
from minions.evaluation.tuning_search import (
    Measures,
    Search,
    TuningReport,
    most_configurations,
    most_confirmed,
    most_reflections,
)
from minions.planning.step_edit import step_keys
from minions.recipe.kinds.analyze_kind import AnalyzeSpec
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.permissions import tool_specs
from minions.recipe.reading.load import load_recipe_text
from minions.recipe.reading.tested_examples import without_cases

OnTrial: TypeAlias = Callable[[Configuration, Part, int], None]
"""Called with a configuration before it is asked so many cases of a part."""
OnReflection: TypeAlias = Callable[[str, int], None]
"""Called with a step before other words are written for it, and with how many answers are read."""
_VARIANT_ONLY: Final = (UNREACHABLE, CIRCUIT_OPEN)
"""Codes that stop the evaluation of one configuration: its server does not answer."""
_WORDS: Final = "other words"


@frozen(kw_only=True)
class TuningPlan:
    """What is tuned, on which cases and within which bounds."""

    name: str
    """Tunings of one name, recipe and cases are one: what is recorded is not asked again."""
    title: str
    """For people: `triage.yaml on tickets.jsonl`."""
    file: str
    """Where the recipe stands; relative paths start from its folder."""
    text: str
    """The recipe as it is."""
    cases: tuple[Case, ...]
    scorers: tuple[AnyScorer, ...]
    """They were checked; all must pass an output."""
    options: SpaceOptions = field(factory=SpaceOptions)
    answering: Mapping[str, ChatModel] = field(factory=dict)
    """Models by name that are objects of an application; a scorer may name one."""
    limits: Settings = field(factory=Settings)
    """The operator's limits of each run."""
    seed: int = 0
    samples: int = 1
    concurrency: int = 8
    inputs: Mapping[str, InputValue] = field(factory=dict)
    """Of every case that does not give them itself; checked."""
    max_cost_usd: float | None = None
    """US dollars of the whole, earlier executions included; None: unlimited."""
    at_least: float | None = None
    """The pass rate that is wanted; None: that of the recipe as it is."""
    retry_failed: bool = False
    """Whether runs that failed are retried."""
    note: Mapping[str, JsonValue] = field(factory=dict)
    """Stored with the start of each run."""
    asked_as: str | None = None
    """As `EvaluationPlan.asked_as`."""


class Tuning(Measures):
    """One execution of a tuning."""

    def __init__(self, runtime: Runtime, plan: TuningPlan) -> None:
        """Check the recipe, all cases and all models; nothing has begun.

        Raises:
            RecipeError: The recipe has faults, also with a model or prompt that is to be tried.
            NotFoundError: `unknown-step`.
            UsageError: `bad-items`; the cases are too few, one does not fit the recipe, or nothing
                says which answers are right.
            EnvironmentRefusedError: A model has no key, or no price where the cost is limited.
        """
        if not plan.scorers:
            raise UsageError(
                "No case says what is expected, and there is no scorer: every configuration would "
                "pass. Give the cases `expected`, or say how answers are scored.",
                code="bad-items",
            )
        self._runtime = runtime.evolve(cache=None)  # what is taken from a cache costs nothing
        self._plan = plan
        recipe = self._recipe_of(plan.text)
        has_shown = takes_cases(recipe, plan.text, plan.file, plan.options)
        inputs = case_inputs(recipe, plan.cases, plan.inputs)
        self.parts: CaseParts = parts_of(plan.cases, seed=plan.seed, has_shown=has_shown)
        self._asked = [inputs[each.index] for each in self.parts.asked]
        held_out = HeldOutCases(
            cases=[(each, inputs[each.index]) for each in self.parts.shown], asked=self._asked
        )
        self.space: TuningSpace = tuning_space(recipe, plan.text, plan.file, plan.options, held_out)
        self._spent: dict[tuple[Configuration, Part | int], float] = {}
        """US dollars, by what was measured; for words by what they were written for, and when."""
        self._outcomes: dict[Configuration, tuple[CaseOutcome, ...]] = {}
        """Of the search, where words are written from them."""
        self._reflections: Counter[tuple[str, Configuration]] = Counter()
        """By step and by what words were written for."""
        self._refused: list[str] = []
        self._each: dict[Configuration, float] = {}
        self._usage: TokenUsage | None = None
        """Of one run of what was measured first, the recipe as it is; None: nothing was."""
        self._expected: dict[Configuration, float | None] = {}
        self._listeners: list[OnTrial] = []
        self._on_reflection: list[OnReflection] = []
        self._evaluation: Evaluation | None = None
        self._stopped: FailureInfo | None = None
        self._check_models()

    def listen(self, on_trial: OnTrial, on_reflection: OnReflection | None = None) -> None:
        """Call `on_trial` before each evaluation of a configuration, and `on_reflection` before
        other words are written.
        """
        self._listeners.append(on_trial)
        if on_reflection is not None:
            self._on_reflection.append(on_reflection)

    def cancel(self) -> None:
        """Start nothing more and cancel the runs under way; the report then comes soon."""
        self._stopped = FailureInfo(code="cancelled", message="The tuning was cancelled.")
        if self._evaluation is not None:
            self._evaluation.cancel()

    async def report(self) -> TuningReport:
        """Search, and confirm what was found.

        Raises:
            EnvironmentRefusedError: A secret is missing, or the journal refuses.
        """
        plan, parts = self._plan, self.parts
        search = Search(
            self.space.steps,
            self,
            cases=len(parts.search),
            confirming=len(parts.confirmation),
            at_least=plan.at_least,
        )
        result = await search.result()
        chosen = result.chosen if result.is_passed else Configuration()
        return TuningReport(
            name=plan.title,
            steps=self.space.steps,
            cases=len(plan.cases),
            shown=len(parts.shown),
            searched=len(parts.search),
            confirming=len(parts.confirmation),
            seed=plan.seed,
            samples=plan.samples,
            at_least=plan.at_least,
            result=result,
            text=self.space.text_of(chosen),
            diff=self.space.diff(chosen),
            refused=tuple(self._refused),
            spent_usd=sum(self._spent.values()),
        )

    def recipe_of(self, configuration: Configuration) -> AgentRecipe:
        """The recipe with that configuration.

        Raises:
            RecipeError: It has faults.
        """
        return self._recipe_of(self.space.text_of(configuration))

    # --- measuring --------------------------------------------------------------------------------

    async def measure(
        self,
        configuration: Configuration,
        part: Part,
        count: int,
        *,
        runs_kept: Mapping[Configuration, int],
    ) -> Measurement:
        """See `Measures.measure`."""
        if self._stopped is not None:
            return Measurement(problem=self._stopped.message, is_stopped=True)
        left = self._left((configuration, part), runs_kept)
        if left is not None and left <= 0:
            return Measurement(problem=self._spent_words(runs_kept), is_stopped=True)
        try:
            recipe = self.recipe_of(configuration)
        except RecipeError as error:  # two settings that do not go together
            return Measurement(problem=error.message)
        stopped, report = await self._evaluate(configuration, recipe, part, count, left)
        is_of_all = stopped is not None and stopped.code not in _VARIANT_ONLY
        problem = (
            stopped.message if stopped is not None and is_of_all else _describe_unmeasured(report)
        )
        if stopped is not None and stopped.code == LIMIT_REACHED and left is not None:
            problem = self._spent_words(runs_kept)
        return Measurement.of_outcome(
            report.variants[0], problem=problem, is_stopped=is_of_all or self._stopped is not None
        )

    async def other_words(
        self, step: str, parent: Configuration, *, runs_kept: Mapping[Configuration, int]
    ) -> Setting | None:
        """See `Measures.other_words`."""
        number = self._reflections[step, parent]
        self._reflections[step, parent] += 1
        reflection = self._reflection(step, parent, number)
        key = (parent, number)
        left = self._left(key, runs_kept)
        if reflection is None or self._stopped is not None or (left is not None and left <= 0):
            return None
        for listener in self._on_reflection:
            listener(step, len(reflection.wrong))
        found = await self._ask_words(reflection, key, left)
        if isinstance(found, str):
            self._refused.append(f"{step}: {found}")
            return None
        setting = self.space.with_words(step, found)
        if setting is None:
            self._refused.append(f"{step}: it was written before")
            return None
        try:
            self.recipe_of(parent.plus(setting))
        except (RecipeError, UsageError) as error:
            self._refused.append(f"{step}: {error.message}")
            del self.space.edits[setting]
            return None
        return setting

    def _reflection(self, step: str, parent: Configuration, number: int) -> Reflection | None:
        plan, text = self._plan, self.space.text_of(parent)
        recipe = self._recipe_of(text)
        keys = step_keys(text, plan.file, step)
        spec = next(each for each in recipe.steps if each.id == step)
        assert isinstance(spec, StepSpec)  # noqa: S101  # as its space was made of
        writer = plan.options.reflector
        own = model_settings((recipe.document or {}).get("model"), keys.get("model"))
        return Reflection.next_of(
            words_of_step(keys, spec),
            self._outcomes.get(parent, ()),
            number=number,
            model=own if writer is None else {"name": writer},
            asked=self.parts.asked,
        )

    async def _ask_words(
        self, reflection: Reflection, key: tuple[Configuration, int], left: float | None
    ) -> Mapping[str, str] | str:
        """The texts that a model wrote; or why there are none to be tried."""
        evaluated = EvaluatedRecipe(
            name=_WORDS, recipe=bounded(self._recipe_of(reflection.recipe), self._plan.limits)
        )
        asked = Case(index=0, name=_WORDS, inputs=reflection.inputs)
        plan = evolve(
            self._evaluation_plan(Part.SEARCH, 0, left),
            name=f"tune {self._plan.name} {_WORDS} {self._plan.seed}",
            cases=(asked,),
            scorers=(),
            samples=1,
            inputs={},
        )
        self._evaluation = Evaluation(self._runtime, (evaluated,), plan)
        report = await self._evaluation.report()
        self._spent[key] = self._evaluation.spent_usd
        (outcome,) = report.variants[0].cases
        sample = outcome.samples[0]
        if not sample.has_output:
            return f"they were not written: {sample.problem or sample.status}"
        return reflection.read(sample.output)

    def expected_cost_usd(self, configuration: Configuration) -> float | None:
        """See `Measures.expected_cost_usd`. Of several steps each is taken for an equal part."""
        if self._usage is None:
            return None
        if configuration not in self._expected:
            try:
                models = list(self._models_of(self.recipe_of(configuration)))
            except RecipeError:  # two settings that do not go together
                return None
            priced = (with_cost(self._usage, each, self._runtime.services) for each in models)
            costs = [each.cost_usd for each in priced]
            known = [each for each in costs if each is not None]
            is_known = bool(known) and len(known) == len(costs)
            self._expected[configuration] = sum(known) / len(known) if is_known else None
        return self._expected[configuration]

    def _models_of(self, recipe: AgentRecipe) -> Iterator[ChatModel]:
        """The models that answer its steps, the first one of each."""
        for step in recipe.steps:
            if isinstance(step, GoalSpec | AnalyzeSpec):
                own = step.own_model
                config = recipe.model if own is None else recipe.model.overlaid(own)
                yield self._runtime.named_model(recipe, config)

    async def _evaluate(
        self,
        configuration: Configuration,
        recipe: AgentRecipe,
        part: Part,
        count: int,
        left: float | None,
    ) -> tuple[FailureInfo | None, EvaluationReport]:
        """The report of the first cases of a part, and why not all were asked."""
        evaluated = EvaluatedRecipe(name=configuration.label, recipe=recipe)
        plan = self._evaluation_plan(part, count, left)
        # It checks every case: of many cases that takes a while.
        self._evaluation = await asyncio.to_thread(self._make_evaluation, evaluated, plan)
        evaluation = self._evaluation
        if self._stopped is not None:  # meanwhile
            evaluation.cancel()
        for listener in self._listeners:
            listener(configuration, part, count)
        report = await evaluation.report()
        self._spent[configuration, part] = evaluation.spent_usd
        if part is Part.SEARCH and any(each.rounds for each in self.space.steps):
            self._outcomes[configuration] = report.variants[0].cases
        if self._usage is None:
            self._usage = _usage_of_run(report)
        if measured := sum(each.is_measured for each in report.variants[0].samples):
            self._each[configuration] = evaluation.spent_usd / measured
        return evaluation.stopped, report

    def _make_evaluation(self, evaluated: EvaluatedRecipe, plan: EvaluationPlan) -> Evaluation:
        limited = evolve(evaluated, recipe=self._limit(evaluated.recipe))
        return Evaluation(self._runtime, (limited,), plan)

    def _evaluation_plan(self, part: Part, count: int, left: float | None) -> EvaluationPlan:
        plan = self._plan
        cases = [evolve(each, index=at) for at, each in enumerate(self.parts.of(part)[:count])]
        return EvaluationPlan(
            name=f"tune {plan.name} {part} {plan.seed}",
            title=plan.title,
            cases=tuple(cases),
            scorers=plan.scorers,
            answering=plan.answering,
            samples=plan.samples,
            concurrency=plan.concurrency,
            inputs=plan.inputs,
            max_cost_usd=left,
            retry_failed=plan.retry_failed,
            retry_outages=True,
            note=plan.note,
            asked_as=plan.asked_as,
        )

    def _left(
        self, own: tuple[Configuration, Part | int], runs_kept: Mapping[Configuration, int]
    ) -> float | None:
        """US dollars that this evaluation may cost, with what it cost already; None: unlimited."""
        if self._plan.max_cost_usd is None:
            return None
        others = sum(cost for key, cost in self._spent.items() if key != own)
        return self._plan.max_cost_usd - others - self._estimate_cost(runs_kept)

    def _estimate_cost(self, runs_kept: Mapping[Configuration, int]) -> float:
        each = self._each
        return sum(
            runs * self._plan.samples * each.get(configuration, 0.0)
            for configuration, runs in runs_kept.items()
        )

    def _spent_words(self, runs_kept: Mapping[Configuration, int]) -> str:
        spent, most = sum(self._spent.values()), self._plan.max_cost_usd or 0.0
        kept = self._estimate_cost(runs_kept)
        words = f", and ${kept:.2g} are kept to confirm what was found" if kept else ""
        return f"${spent:.6g} of ${most:g} are spent{words}."

    # --- recipes ----------------------------------------------------------------------------------

    def _recipe_of(self, text: str) -> AgentRecipe:
        return load_recipe_text(text, self._plan.file, self._runtime.catalog)

    def _limit(self, recipe: AgentRecipe) -> AgentRecipe:
        """The recipe as it is measured: within the operator's limits, and shown no case."""
        return without_cases(bounded(recipe, self._plan.limits), self._asked)

    def _check_models(self) -> None:
        """Refuse a model that cannot be asked before anything was paid for.

        Raises:
            RecipeError: There is no such model.
            EnvironmentRefusedError: It has no key, or no price where the cost is limited.
        """
        alone = [
            Configuration(frozenset((each,)))
            for space in self.space.steps
            for dimension in (Dimension.MODEL, Dimension.FORM)
            for each in space.of(dimension)
        ]
        for configuration in (Configuration(), *alone):
            self._check(self.recipe_of(configuration))

        options = self._plan.options
        if (writer := options.reflector) is not None:
            self._check(
                self._recipe_of(Reflection(words={}, wrong=(), model={"name": writer}).recipe)
            )

    def _check(self, recipe: AgentRecipe) -> None:
        limits = bounded(recipe, self._plan.limits).limits
        most = self._plan.max_cost_usd or Limits.from_metadata(limits).max_cost_usd
        for model in self._models_of(recipe):
            if most is not None:
                refuse_unknown_price(model, (most, "max_cost_usd"), self._runtime.services)


def _usage_of_run(report: EvaluationReport) -> TokenUsage | None:
    """The mean tokens of one run, without a cost; None: none tells them."""
    found = [each.usage for each in report.variants[0].samples if each.is_measured]
    total = sum(found, TokenUsage())
    if not total.total_tokens:
        return None
    return TokenUsage(
        input_tokens=-(-total.input_tokens // len(found)),
        output_tokens=-(-total.output_tokens // len(found)),
        cached_tokens=total.cached_tokens // len(found),
    )


def _describe_unmeasured(report: EvaluationReport) -> str | None:
    """Which runs tell nothing although they were to, and what to do; None: all tell something."""
    all_ = [(each.case.name, own) for each in report.variants[0].cases for own in each.samples]
    missing = [(name, own) for name, own in all_ if not own.is_measured]
    if not missing:
        return None
    of_all = f"{len(missing)} of {len(all_)} runs"
    outages = [(name, own.outage) for name, own in missing if own.outage is not None]
    if outages:
        # What opened a circuit says more than that it is open.
        name, why = min(outages, key=lambda each: each[1].startswith(CIRCUIT_OPEN))
        return (
            f"{of_all} have no answer of the model; started again, it repeats them. {name}: {why}"
        )
    ungraded = next(((name, own.ungraded) for name, own in missing if own.ungraded), None)
    if ungraded is not None:
        return (
            f"{of_all} do not count, such as {ungraded[0]}: not graded, {ungraded[1]} "
            "(--retry-failed has them graded again)"
        )
    name, first = missing[0]
    return f"{of_all} did not end, such as {name} ({first.status})"


# --- what a tuning asks and costs at most, said before anything is asked -------------------------


@frozen(kw_only=True)
class TuningBound:
    """Upper bounds of a tuning; as a rule most configurations are dropped early."""

    configurations: int
    runs: int
    """Without those of models that grade."""
    cost_usd: float | None
    """US dollars of these runs; None: there is no bound."""
    unbounded: tuple[str, ...]
    """Why not."""

    def to_json(self) -> dict[str, JsonValue]:
        """The bounds as JSON."""
        return {
            "configurations": self.configurations,
            "runs": self.runs,
            "cost_usd": self.cost_usd,
            "unbounded_because": list(self.unbounded),
        }


def tuning_bound(
    tuning: Tuning, runtime: Runtime, know: KnowModel, *, samples: int, max_cost_usd: float | None
) -> TuningBound:
    """The bounds of a tuning that was checked.

    Args:
        know: Prices and context lengths of models.
        max_cost_usd: The limit of the whole; None: there is none.
    """
    parts: CaseParts = tuning.parts
    configurations = most_configurations(tuning.space.steps)
    confirmed = min(configurations, most_confirmed())
    runs = samples * (configurations * len(parts.search) + confirmed * len(parts.confirmation))
    found = _of_run(tuning, runtime, know)
    if most_reflections(tuning.space.steps):
        why = (*found.unbounded, "what is read to write other words has no bound")
        found = UpperBound(at_most=None, unbounded=why)
    cost = None if found.at_most is None else found.at_most * runs
    if max_cost_usd is not None:
        cost = max_cost_usd if cost is None else min(cost, max_cost_usd)
    return TuningBound(
        configurations=configurations,
        runs=runs,
        cost_usd=cost,
        unbounded=found.unbounded if cost is None else (),
    )


def _of_run(tuning: Tuning, runtime: Runtime, know: KnowModel) -> UpperBound:
    """What one run costs at most with the dearest choice for each step."""
    base = _cost(tuning.recipe_of(Configuration()), runtime, know)
    total = base.at_most
    unbounded = dict.fromkeys(base.unbounded)
    for space in tuning.space.steps:
        dearest = 0.0
        for setting in (each for own in space.options.values() for each in own):
            own = _cost(tuning.recipe_of(Configuration(frozenset((setting,)))), runtime, know)
            unbounded.update(dict.fromkeys(own.unbounded))
            if own.at_most is None or total is None or base.at_most is None:
                total = None
            else:
                dearest = max(dearest, own.at_most - base.at_most)
        total = None if total is None else total + dearest
    return UpperBound(at_most=total, unbounded=tuple(unbounded))


def _cost(recipe: AgentRecipe, runtime: Runtime, know: KnowModel) -> UpperBound:
    found = explain(
        recipe,
        tool_specs(recipe, runtime.catalog),
        know,
        tools_within=lambda inner: tool_specs(inner, runtime.catalog),
        kinds=runtime.extensions.steps,
    )
    return found.spending.cost_usd
