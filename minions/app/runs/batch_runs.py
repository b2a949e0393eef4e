"""Batches of an application: one run for each of many inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias

from minions.app.runs.application_runs import ApplicationRuns, RecipeLike
from minions.app.runs.batch_items import (
    ChosenItems,
    FieldChoice,
    ItemsFile,
    ListedItems,
    count_lines,
    lines_of,
)
from minions.app.runs.batch_records import BatchRecord, batch_id, record_batch
from minions.app.settings.settings import Settings, bounded
from minions.contracts.budgets import checked_user
from minions.contracts.calls import ChatModel
from minions.contracts.secrets import InputValue
from minions.data.errors import UsageError
from minions.engine.batches.batch import Batch, BatchPlan

ItemsLike: TypeAlias = Sequence[Mapping[str, InputValue]] | str | PathLike[str]
"""The inputs of each run, or the path of a JSON Lines or CSV file that has them."""


_JOBS: Final = 8
_PATIENT_JOBS: Final = 1_000
"""Runs at a time, where their model calls wait for batches."""


class BatchRuns(ApplicationRuns):
    """The part of `Minions` that executes batches."""

    def batch(
        self,
        recipe: RecipeLike,
        items: ItemsLike,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        max_cost_usd: float | None = None,
        retry_failed: bool = False,
        model: ChatModel | str | None = None,
        user: str | None = None,
        by: datetime | None = None,
        map: Mapping[str, str] | None = None,  # noqa: A002  # as the command's option
        keep: Sequence[str] = (),
        ignore_extra: bool = False,
    ) -> Batch:
        """Run a recipe once for each item; `async for` gives the results in the order of the items.

        Every item is checked here. Nothing begins before the first result is asked for.

        Args:
            items: Inputs by name for each run, or the path of a file with them.
            name: Batches of one name, recipe and journal are one batch: an item that an earlier
                execution ran, in this process or another, is not run again. None: a new batch.
            concurrency: Runs at a time; None: 8, and 1,000 where calls may wait.
            max_cost_usd: US dollars of the whole batch, earlier executions included: a run starts
                only if as much is left as the dearest one so far cost; the others have the status
                `not_started`. None: unlimited.
            retry_failed: Retry the items that failed, wholly or in part; only they are run.
            model: The model of all runs; None: the application's.
            user: The label of the user for whom they run; None: none.
            by: When all is to be done, with its zone: until then model calls go through the batches
                of their providers, at a lower price. None: they are made at once.
            map: By input: where its value stands in an item, as `.title` or `.user.names[0]`.
            keep: Fields of an item that stand beside its result, as `kept`; no inputs, unless
                they are some.
            ignore_extra: Whether other fields, which are no inputs, are left out; else they are
                faults.
        Raises:
            RecipeError, NotFoundError: As `load`.
            UsageError: `bad-items`; with the place of each item that does not fit the recipe. Or
                `bad-deadline`; `by` has no zone. Or `map` or `keep` is malformed, or `map` names
                no input.
            EnvironmentRefusedError: There is no model.
        """
        if by is not None and by.tzinfo is None:
            raise UsageError(f"by={by!r}: a time with its zone is expected.", code="bad-deadline")
        found = self.load(recipe)
        if max_cost_usd is not None:
            found = bounded(found, Settings(max_cost_usd=max_cost_usd))
        rows = ItemsFile(Path(items)) if isinstance(items, str | PathLike) else ListedItems(items)
        choice = FieldChoice(paths=map or {}, kept=tuple(keep), ignores_others=ignore_extra)
        choice.check(found.inputs)
        chosen = ChosenItems(rows, choice, tuple(found.inputs))
        lines = count_lines(found, chosen, {}, Path.cwd())
        identity = f"{found.id} {name or self.services.ids('batch')}"
        record = BatchRecord(
            id=batch_id(identity),
            title=name
            or (str(rows.path.name) if isinstance(rows, ItemsFile) else "a list of items"),
            recipe=found.id,
            lines=lines,
            began_at=self._clock.now(),
            project=self.services.project,
        )
        answers = self._model if model is None else model
        return Batch(
            self._background_executor(found, answers, by),
            found,
            lines_of(found, chosen, {}, Path.cwd()),
            BatchPlan(
                name=identity,
                concurrency=concurrency or (_JOBS if by is None else _PATIENT_JOBS),
                max_cost_usd=max_cost_usd,
                retry_failed=retry_failed,
                note={"model": answers} if isinstance(answers, str) else {},
                user=checked_user(user) if user is not None else None,
            ),
            execute=self.execute,
            on_begin=partial(record_batch, self.services.journal, record),
        )
