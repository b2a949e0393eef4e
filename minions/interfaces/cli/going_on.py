"""What `resume` and `retry` share: the recorded run, its recipe, its model, its journal."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO, cast

from minions.engine.agent_executor import AgentExecutor
from minions.engine.agent_run import AgentRun
from minions.engine.recorded_run import RecordedRun, load_recorded_run
from minions.interfaces.cli.following import Signals, bounded, follow
from minions.interfaces.cli.setup import Surroundings
from minions.interfaces.cli.voice import tell
from minions.interfaces.wiring import Models, catalog_of, make_log, make_services
from minions.recipe.model import AgentRecipe

__all__ = ["RecordedRunOpener"]


class RecordedRunOpener:
    """Opens the journal and finds the run; closes everything at the end."""

    def __init__(self, around: Surroundings, name: str, *, model: str | None) -> None:
        self.around = around
        self.extensions = around.extensions()
        self._name = name
        self._model = model
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Find the run.

        Raises:
            NotFoundError, UsageError: No such run, or several.
        """
        self._signals = self._stack.enter_context(Signals())
        self._journal = self.around.journal()
        self._stack.push_async_callback(self._journal.aclose)
        self.recorded: RecordedRun = await load_recorded_run(self._journal, self._name)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self._stack.aclose()

    def own_recipe(self) -> AgentRecipe:
        """The recipe that travels with the run, under the operator's bounds.

        Raises:
            UsageError: It was made by code.
        """
        recipe = self.recorded.recipe(catalog_of(self.extensions))
        return bounded(recipe, self.around.settings)

    def executor(self, recipe: AgentRecipe) -> AgentExecutor:
        """With the run's own model, unless another was named now."""
        note = self.recorded.note
        recorded = cast("str | None", note.get("model"))
        override = self._model or recorded
        folder = Path(cast(str, note.get("folder", ".")))
        models = Models(
            self.around.settings,
            self.extensions,
            environ=self.around.environ,
            override=override,
            asked_as=recipe.id,
        )
        self._stack.push_async_callback(models.aclose)

        def folder_of(key: str) -> Path:
            if key == "model" and override is recorded and recorded is not None:
                return folder
            return self.around.folder_of(key)

        return AgentExecutor(
            models.source(recipe, folder_of),
            extensions=self.extensions,
            services=make_services(self._journal, make_log(self.around.settings, tell)),
        )

    async def follow(self, run: AgentRun, out: TextIO) -> int:
        """Say what is kept, then go on; the exit code."""
        for line in run.outlook():
            tell(line)
        return await follow(run, self.around, out, self._signals)
