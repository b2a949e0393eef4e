"""Evaluations and tuning of an application's recipes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from attrs import evolve, frozen

from minions.app.evaluating.evaluation_runs import (
    EvaluatedRecipe,
    Evaluation,
    EvaluationPlan,
    checked_scorers,
    file_rows,
    listed_rows,
)
from minions.app.evaluating.tuning_runs import Tuning, TuningPlan
from minions.app.evaluating.tuning_space import MOST_ROUNDS, RecipeVersion, SpaceOptions
from minions.app.runs.application_runs import ApplicationRuns, RecipeLike
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import ModelsOfRecipe, Runtime
from minions.contracts.calls import ChatModel, ModelOptions
from minions.contracts.flow import Priority
from minions.data.errors import UsageError, near_hint, near_names
from minions.engine.compile.extensions import ModelChooser, ModelSource
from minions.evaluation.cases import CaseRow, cases_of
from minions.evaluation.report import EvaluationReport
from minions.evaluation.scorers import AnyScorer
from minions.evaluation.tuning import USUAL_DIMENSIONS, Dimension
from minions.evaluation.tuning_search import TuningReport
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import load_recipe_text
from minions.recipe.recipe_files import is_recipe_text
from minions.recipe.text.yaml_reader import read_source


class ApplicationTuning(ApplicationRuns):
    """The part of `Minions` that tunes recipes."""

    async def tune(
        self,
        recipe: str | PathLike[str],
        cases: CasesLike,
        *,
        models: Sequence[ChatModel | str] = (),
        against: Sequence[RecipeLike] = (),
        over: Sequence[Dimension | str] = USUAL_DIMENSIONS,
        reflector: ChatModel | str | None = None,
        rounds: int = 3,
        steps: Sequence[str] = (),
        scorers: Sequence[AnyScorer] = (),
        at_least: float | None = None,
        samples: int = 1,
        seed: int = 0,
        name: str | None = None,
        concurrency: int = 8,
        max_cost_usd: float | None = None,
    ) -> TuningReport:
        """Find the cheapest model, prompt, output mode and examples of each step that pass.

        The report has the changed text of the recipe; nothing is written.

        Args:
            recipe: The path of a recipe, or its YAML text.
            models: Tried for each step, beside those that the recipe names; cheapest first, so that
                the others are dropped early. An object is named as in a recipe, `provider/name`.
            against: Other versions of the recipe, whose prompts of steps are tried.
            over: What is chosen: `model`, `form`, `output`, `examples`; `words`, which a model
                writes from what went wrong.
            reflector: Writes other words; None: the model that answers the step.
            rounds: How often it writes for each model of a step, from 1 to 20.
            steps: Ids of the steps; empty: each that a model answers.
            scorers: All must pass an output; empty: the expected fields must be right.
            at_least: The pass rate that is wanted, from 0 to 1; None: that of the recipe as it is.
            samples: How often each case is asked.
            seed: Divides the cases into those of the search and those that confirm it.
            name: Tunings of one name, recipe and cases are one: what is recorded is not asked
                again. None: a new one.
            concurrency: Runs at a time.
            max_cost_usd: US dollars of the whole, earlier executions included.
        Raises:
            RecipeError, NotFoundError: As `load`; there is no such step or model.
            UsageError: `bad-items`; there are too few cases, or one does not fit the recipe or a
                scorer. `usage`: an argument is of no use, or out of its range.
            EnvironmentRefusedError: A model has no key, or no price where the cost is limited.
        """
        dimensions = frozenset(map(_dimension, over))
        _check_words(dimensions, reflector, rounds)
        file, text = _text_of(recipe)
        candidates = {_name(each): each if isinstance(each, ChatModel) else None for each in models}
        writers = [] if reflector is None else [reflector]
        writing = {_name(each): each if isinstance(each, ChatModel) else None for each in writers}
        tuned = with_tuned_models(self._runtime, {**writing, **candidates}, self._model)
        runtime = tuned.evolve(priority=Priority.BACKGROUND)
        loaded = load_recipe_text(text, file, runtime.catalog)
        asked = tuple(cases_of(case_rows(cases), loaded.inputs, [loaded.known_output]))
        options = SpaceOptions(
            models=tuple(candidates),
            configured=None if self._model is None else _name(self._model),
            versions=tuple(self._version(each, at) for at, each in enumerate(against)),
            dimensions=dimensions,
            steps=tuple(steps),
            reflector=next(iter(writing), None),
            rounds=rounds,
            has_bar=at_least is not None,
        )
        plan = TuningPlan(
            name=name or self.services.ids("tune"),
            title=file,
            file=file,
            text=text,
            cases=asked,
            scorers=checked_scorers(scorers, asked, runtime, [loaded]),
            options=options,
            answering={key: each for key, each in candidates.items() if each is not None},
            seed=seed,
            samples=samples,
            concurrency=concurrency,
            max_cost_usd=max_cost_usd,
            at_least=at_least,
        )
        return await Tuning(runtime, plan).report()

    def _version(self, recipe: RecipeLike, at: int) -> RecipeVersion:
        found = self.load(recipe)
        is_named = isinstance(recipe, str | Path) and not is_recipe_text(str(recipe))
        return RecipeVersion(name=str(recipe) if is_named else f"version {at + 1}", recipe=found)


def _name(model: ChatModel | str) -> str:
    return model.name if isinstance(model, ChatModel) else model


def _dimension(word: Dimension | str) -> Dimension:
    known = [each.value for each in Dimension]
    if word not in known:
        near = near_names(str(word), known)
        raise UsageError(
            f"tune(over=…) takes some of {', '.join(known)}, not '{word:.40}'.{near_hint(near)}",
            code="usage",
        )
    return Dimension(word)


def _check_words(
    dimensions: Collection[Dimension], reflector: ChatModel | str | None, rounds: int
) -> None:
    """Refuse arguments about words that are of no use."""
    if reflector is not None and Dimension.WORDS not in dimensions:
        raise UsageError(
            "tune(reflector=…) is of no use: `over` leaves out 'words'. Leave it out, or add "
            "'words' to `over`.",
            code="usage",
        )
    if not 1 <= rounds <= MOST_ROUNDS:
        raise UsageError(
            f"tune(rounds={rounds}): expected a number from 1 to {MOST_ROUNDS}.", code="usage"
        )


def _text_of(recipe: str | PathLike[str]) -> tuple[str, str]:
    """The file of a recipe, and its text."""
    if isinstance(recipe, str) and is_recipe_text(recipe):
        return "<recipe>", recipe
    path = Path(recipe)
    try:
        return str(path), read_source(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: {error}.", code="unreadable") from error


# --- the models of a recipe that an application tunes --------------------------------------------


def with_tuned_models(
    runtime: Runtime, candidates: Mapping[str, ChatModel | None], own: ChatModel | str | None
) -> Runtime:
    """The runtime in which a step that names a candidate is answered by it, and others as before.

    Args:
        candidates: By name; None: the model of that name.
        own: The application's model, which answers instead of those that recipes name otherwise;
            None: it has none.
    """
    return evolve(runtime, models=_models_of(runtime.models, candidates, own))


def _models_of(
    models: ModelsOfRecipe, candidates: Mapping[str, ChatModel | None], own: ChatModel | str | None
) -> ModelsOfRecipe:
    def found(recipe: AgentRecipe, choice: ModelChoice) -> ModelSource | ChatModel:
        named = models(recipe, choice)
        if choice.override is not None or isinstance(named, ChatModel):
            return named
        other: ModelSource | ChatModel = named
        if own is not None:
            other = models(recipe, ModelChoice(override=own)) if isinstance(own, str) else own
        return _TunedModels(candidates, named, other)

    return found


@frozen
class _TunedModels(ModelChooser):
    """The candidates by name, and who answers for other names."""

    candidates: Mapping[str, ChatModel | None]
    named: ModelSource
    other: ModelSource | ChatModel

    def __call__(self, config: ModelConfig) -> ChatModel:
        if config.name is not None and config.name in self.candidates:
            own = self.candidates[config.name]
            return self.named(config) if own is None else own
        return self.other if isinstance(self.other, ChatModel) else self.other(config)

    def options(self, config: ModelConfig) -> ModelOptions:
        source = self.named if config.name in self.candidates else self.other
        return source.options(config) if isinstance(source, ModelChooser) else config.options()


# --- evaluations of an application ---------------------------------------------------------------


CasesLike: TypeAlias = Sequence[Mapping[str, object]] | str | PathLike[str]
"""Cases, `{inputs, expected, name}` each or inputs beside `expected` and `name`; or the path of a
JSON Lines or CSV file that has them."""


class ApplicationEvaluations(ApplicationRuns):
    """The part of `Minions` that executes evaluations."""

    async def evaluate(
        self,
        recipe: RecipeLike,
        cases: CasesLike,
        *,
        models: Sequence[ChatModel | str] = (),
        against: Sequence[RecipeLike] = (),
        scorers: Sequence[AnyScorer] = (),
        samples: int = 1,
        name: str | None = None,
        concurrency: int = 8,
        max_cost_usd: float | None = None,
    ) -> EvaluationReport:
        """Ask every case, and say how many answers are as they should be.

        Args:
            models: Compared with one another; empty: the application's, or the recipe's own.
            against: Further recipes that are asked the same.
            scorers: All must pass an output; empty: the expected fields must be right.
            samples: How often each case is asked.
            name: Evaluations of one name, recipe, model and cases are one: what is recorded is not
                asked again. None: a new one.
            concurrency: Runs at a time.
            max_cost_usd: US dollars of the whole, earlier executions included.
        Raises:
            RecipeError, NotFoundError: As `load`.
            UsageError: `bad-items`; a case does not fit the recipe or a scorer.
            EnvironmentRefusedError: There is no model.
        """
        recipes = tuple(self._load_named(each) for each in (recipe, *against))
        outputs = [each.recipe.known_output for each in recipes]
        asked = tuple(cases_of(case_rows(cases), recipes[0].recipe.inputs, outputs))
        answering = {each.name: each for each in models if isinstance(each, ChatModel)}
        names: tuple[str | None, ...] = tuple(
            each.name if isinstance(each, ChatModel) else each for each in models
        )
        if not names and self._model is not None:
            names = (self._model if isinstance(self._model, str) else self._model.name,)
            answering |= {} if isinstance(self._model, str) else {self._model.name: self._model}
        plan = EvaluationPlan(
            name=name or self.services.ids("eval"),
            title=recipes[0].name,
            cases=asked,
            scorers=checked_scorers(
                scorers, asked, self._runtime, [each.recipe for each in recipes]
            ),
            models=names or (None,),
            answering=answering,
            samples=samples,
            concurrency=concurrency,
            max_cost_usd=max_cost_usd,
        )
        return await Evaluation(self._runtime, recipes, plan).report()

    def _load_named(self, recipe: RecipeLike) -> EvaluatedRecipe:
        found = self.load(recipe)
        name = str(recipe) if isinstance(recipe, Path) else None
        if isinstance(recipe, str) and not is_recipe_text(recipe):
            name = recipe
        return EvaluatedRecipe(name=name or found.id, recipe=found)


def case_rows(cases: CasesLike) -> Sequence[CaseRow]:
    """The rows of cases that an application gives.

    Raises:
        UsageError: `bad-items`; one cannot be read.
    """
    if isinstance(cases, str | PathLike):
        return file_rows(Path(cases), str(cases))
    return listed_rows(cases)
