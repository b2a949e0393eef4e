"""Batches of an application: one run for each of many inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from minions.app.runs.application_runs import ApplicationRuns, RecipeLike
from minions.app.runs.batch_items import ItemsFile, ListedItems, count_lines, lines_of
from minions.app.settings.settings import Settings, bounded
from minions.contracts.budgets import checked_user
from minions.contracts.calls import ChatModel
from minions.contracts.secrets import InputValue
from minions.engine.batches.batch import Batch, BatchPlan

ItemsLike: TypeAlias = Sequence[Mapping[str, InputValue]] | str | PathLike[str]
"""The inputs of each run, or the path of a JSON Lines or CSV file that has them."""


class BatchRuns(ApplicationRuns):
    """The part of `Minions` that executes batches."""

    def batch(
        self,
        recipe: RecipeLike,
        items: ItemsLike,
        *,
        name: str | None = None,
        concurrency: int = 8,
        max_cost_usd: float | None = None,
        retry_failed: bool = False,
        model: ChatModel | str | None = None,
        user: str | None = None,
    ) -> Batch:
        """Run a recipe once for each item; `async for` gives the results in the order of the items.

        Every item is checked here. Nothing begins before the first result is asked for.

        Args:
            items: Inputs by name for each run, or the path of a file with them.
            name: Batches of one name, recipe and journal are one batch: an item that an earlier
                execution ran, in this process or another, is not run again. None: a new batch.
            concurrency: Runs at a time.
            max_cost_usd: US dollars of the whole batch, earlier executions included: a run starts
                only if as much is left as the dearest one so far cost; the others have the status
                `not_started`. None: unlimited.
            retry_failed: Retry the items that failed, wholly or in part; only they are run.
            model: The model of all runs; None: the application's.
            user: The label of the user for whom they run; None: none.
        Raises:
            RecipeError, NotFoundError: As `load`.
            UsageError: `bad-items`; with the place of each item that does not fit the recipe.
            EnvironmentRefusedError: There is no model.
        """
        found = self.load(recipe)
        if max_cost_usd is not None:
            found = bounded(found, Settings(max_cost_usd=max_cost_usd))
        rows = ItemsFile(Path(items)) if isinstance(items, str | PathLike) else ListedItems(items)
        count_lines(found, rows, {}, Path.cwd())
        answers = self._model if model is None else model
        return Batch(
            self._background_executor(found, answers),
            found,
            lines_of(found, rows, {}, Path.cwd()),
            BatchPlan(
                name=f"{found.id} {name or self.services.ids('batch')}",
                concurrency=concurrency,
                max_cost_usd=max_cost_usd,
                retry_failed=retry_failed,
                note={"model": answers} if isinstance(answers, str) else {},
                user=checked_user(user) if user is not None else None,
            ),
            execute=self.execute,
        )
