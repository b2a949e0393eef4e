"""Evaluations of an application: cases with known answers, asked of recipes and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from minions.app.evaluating.evaluation_cases import file_rows, listed_rows
from minions.app.evaluating.evaluation_runs import (
    EvaluatedRecipe,
    Evaluation,
    EvaluationPlan,
    checked_scorers,
)
from minions.app.runs.application_runs import ApplicationRuns, RecipeLike
from minions.contracts.calls import ChatModel
from minions.evaluation.cases import CaseRow, cases_of
from minions.evaluation.report import EvaluationReport
from minions.evaluation.suites import AnyScorer
from minions.recipe.library import is_recipe_text

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
        recipes = tuple(self._named(each) for each in (recipe, *against))
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

    def _named(self, recipe: RecipeLike) -> EvaluatedRecipe:
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
