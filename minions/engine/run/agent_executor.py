"""Runs an agent's recipe from its first step to its result. Orchestration only.

`run_factory` prepares the runs: what can be refused is refused there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from minions.contracts.approvals import DecisionMaker
from minions.contracts.executions import AgentResult, OutputT
from minions.contracts.run_events import RunEvent
from minions.contracts.secrets import InputValue
from minions.data.patterns import match_beside_loop
from minions.engine.compile.selection import RunPart
from minions.engine.run.run_factory import RunFactory
from minions.engine.run.run_start import own_recipe
from minions.recipe.model import AgentRecipe

if TYPE_CHECKING:
    from minions.engine.run.pins import Pins
    from minions.engine.run.recorded_run import RecordedRun


class AgentExecutor(RunFactory):
    """Runs recipes. Holds configuration and compiled recipes: two runs share nothing else."""

    async def execute(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[OutputT] | None = None,
        part: RunPart | None = None,
    ) -> AgentResult[OutputT]:
        """Run a recipe to its end. Once begun, every end is a result, never an exception.

        Args:
            output_class: What `result.output` shall be; an output that does not fit fails the run.
            part: Not all steps: what they need of the others, and inputs that are not given, are
                those of the newest ended run that has them all. `pin` takes another one.
        Raises:
            NotFoundError: No such recipe id.
            UsageError: Recipe, inputs or limits are wrong; nothing was started.
            EnvironmentRefusedError: No model, no secret, or the journal refuses; nothing was
                started.
        """
        if part is not None:
            pins = await self.pin(recipe, part)
            part, inputs = pins.part, {**pins.inputs, **(inputs or {})}
        run = await match_beside_loop(
            lambda: self.prepare(recipe, inputs, output_class=output_class, part=part)
        )
        return await run.execute()

    async def pin(
        self,
        recipe: AgentRecipe | str,
        part: RunPart,
        *,
        run: str | None = None,
        asked_as: str | None = None,
    ) -> Pins:
        """The outputs that the steps of `part` read of the other steps, from an earlier run.

        Args:
            run: Of which run; None: the newest ended one of the recipe that has all of it.
            asked_as: How the caller named the recipe, for commands to try.
        Raises:
            NotFoundError: No such recipe, step or run.
            UsageError: No run has all of it, or the recipe is a graph of transitions.
        """
        from minions.engine.run.pins import find_pins

        found = self.find(recipe)
        return await find_pins(
            self.services.journal,
            found,
            part,
            run=run,
            asked_as=asked_as or found.id,
            own_recipe=lambda recorded: own_recipe(recorded, self.catalog),
            project=self.services.project,
        )

    async def stream(
        self, recipe: AgentRecipe | str, inputs: Mapping[str, InputValue] | None = None
    ) -> AsyncIterator[RunEvent]:
        """Run a recipe and yield every event as it happens; leaving the loop early cancels the run.

        It raises what `execute` raises, before the first event.
        """
        run = await match_beside_loop(lambda: self.prepare(recipe, inputs))
        queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        run.listen(queue.put_nowait)
        task = asyncio.ensure_future(run.execute())
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # --- a recorded run -----------------------------------------------------------------------

    async def resume(
        self,
        run_id: str,
        *,
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
        output_class: type[OutputT] | None = None,
        decided_by: DecisionMaker | None = None,
    ) -> AgentResult[OutputT]:
        """Resume a run that was killed, cancelled, stopped by a limit, or waits for a decision.

        What is recorded is not done again. A run that came to its output gives it again.

        Args:
            run_id: Or a unique start of it, or its session's.
            recipe: Needed for a recipe of Step objects, which cannot travel with the run.
            decisions: What is to become of calls in doubt: a call's key to `redo`, `done`,
                `done:JSON` or `fail`.
            decided_by: Who makes the decisions; None: it is not known, so that they count nowhere
                where a recipe says who may decide.
        Raises:
            NotFoundError: No such run.
            UsageError: It failed (`retry` it), the code differs, or a decision means nothing.
            EnvironmentRefusedError: No model, or another worker has the run.
        """
        recorded = await self._load(run_id)
        run = self.prepare_resume(
            recorded,
            recipe=recipe,
            decisions=decisions,
            output_class=output_class,
            decided_by=decided_by,
        )
        return await run.execute()

    async def retry(
        self,
        run_id: str,
        *,
        recipe: AgentRecipe | None = None,
        from_step: str | None = None,
        output_class: type[OutputT] | None = None,
    ) -> AgentResult[OutputT]:
        """Run failed steps of a recorded run again, and those that changed or read what changed.

        Args:
            recipe: An edited one; None: the run's own.
            from_step: This step runs again, too, with all that come after it.
        Raises:
            As `resume`.
        """
        recorded = await self._load(run_id)
        run = self.prepare_retry(
            recorded, recipe=recipe, from_step=from_step, output_class=output_class
        )
        return await run.execute()

    async def _load(self, run_id: str) -> RecordedRun:
        from minions.engine.run.recorded_run import load_recorded_run

        return await load_recorded_run(self.services.journal, run_id)
