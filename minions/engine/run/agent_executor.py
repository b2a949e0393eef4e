"""Runs an agent's recipe from its first step to its result. Orchestration only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from attrs import evolve, frozen

from minions.contracts.call_executors import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.calls import ChatModel
from minions.contracts.errors import NotFoundError, RecipeError, UsageError
from minions.contracts.events import RunEvent
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.secrets import InputValue, Secrets
from minions.contracts.tools import Toolbox
from minions.engine.calls.decisions import calls_in_doubt, checked_decisions
from minions.engine.calls.tool_calls import tool_call_executors
from minions.engine.compile.build import part_of
from minions.engine.compile.dry_run import planned_steps
from minions.engine.compile.extensions import Extensions, ModelSource
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.preparation import Preparation
from minions.engine.compile.selection import (
    ChosenSteps,
    RunPart,
    choose_steps,
    specs_of_parts,
    with_pins,
)
from minions.engine.context.agent_context import Agent, AgentContext
from minions.engine.history.conversation import ConversationStart
from minions.engine.history.memory import ConversationMemory
from minions.engine.history.replay import Replay
from minions.engine.run.agent_run import AgentRun, ResumePlan
from minions.engine.run.assembly import RunWiring
from minions.engine.run.nested_runs import NestedRuns
from minions.engine.run.pins import Pins, find_pins
from minions.engine.run.recorded_run import (
    RecordedRun,
    check_outputs,
    edited_inputs,
    load_recorded_run,
    steps_from,
)
from minions.engine.services.secrets import declared_secrets
from minions.engine.services.services import Services
from minions.engine.step.step_manager import StepManager
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe, ModelConfig

__all__ = ["AgentExecutor", "RecipeSource"]

T = TypeVar("T")

RecipeSource = Callable[[str], AgentRecipe]
"""An id to its recipe; raises NotFoundError."""


class AgentExecutor:
    """Runs recipes. Holds configuration and compiled recipes: two runs share nothing else."""

    def __init__(
        self,
        models: ModelSource | ChatModel,
        *,
        extensions: Extensions | None = None,
        services: Services | None = None,
        recipes: RecipeSource | None = None,
        model_call_executor_factory: ModelCallExecutorFactory | None = None,
        tool_call_executor_factory: ToolCallExecutorFactory | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        """Configure.

        Args:
            models: Gives the model of each step that needs one; or the one model for all.
            recipes: Finds recipes that are named by id.
            model_call_executor_factory: Your own way to carry out model calls; None: `models`.
            tool_call_executor_factory: Likewise for tools; None: the run's toolbox.
            preparation: Compiled recipes of the same extensions, shared with other executors.
        """
        self._models = _as_source(models)
        self._extensions = extensions or Extensions()
        self._services = services or Services()
        self._recipes = recipes
        self._preparation = preparation or Preparation(self._extensions)
        self._wiring = RunWiring(
            preparation=self._preparation,
            models=self._models,
            loaded={},
            model_call_executor_factory=model_call_executor_factory,
            tool_call_executor_factory=tool_call_executor_factory or tool_call_executors(),
        )
        self._nested_runs = NestedRuns(self._wiring, self._find)

    @overload
    async def execute(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[T],
        part: RunPart | None = None,
    ) -> AgentResult[T]: ...

    @overload
    async def execute(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        part: RunPart | None = None,
    ) -> AgentResult[JsonValue]: ...

    async def execute(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        part: RunPart | None = None,
    ) -> AgentResult[Any]:
        """Run to the end; every end is a result, never an exception.

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
        run = self.prepare(recipe, inputs, output_class=output_class, part=part)
        return await run.execute()

    async def pin(
        self,
        recipe: AgentRecipe | str,
        part: RunPart,
        *,
        run: str | None = None,
        asked_as: str | None = None,
    ) -> Pins:
        """What the steps of `part` need of the others, from the journal.

        Args:
            run: Of which run; None: the newest ended one of the recipe that has all of it.
            asked_as: How the caller named the recipe, for commands to try.
        Raises:
            NotFoundError: No such recipe, step or run.
            UsageError: No run has all of it, or the recipe is a graph of transitions.
        """
        found = self._find(recipe)
        return await find_pins(
            self._services.journal,
            found,
            part,
            run=run,
            asked_as=asked_as or found.id,
            own_recipe=self._own_recipe,
        )

    async def stream(
        self, recipe: AgentRecipe | str, inputs: Mapping[str, InputValue] | None = None
    ) -> AsyncIterator[RunEvent]:
        """Run and give every event as it happens; leaving the loop early cancels the run.

        Raises:
            As `execute`, before the first event.
        """
        run = self.prepare(recipe, inputs)
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

    @overload
    def prepare(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[T],
        session_id: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
        part: RunPart | None = None,
        live_conversation: ConversationStart | None = None,
    ) -> AgentRun[T]: ...

    @overload
    def prepare(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: None = None,
        session_id: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
        part: RunPart | None = None,
        live_conversation: ConversationStart | None = None,
    ) -> AgentRun[JsonValue]: ...

    def prepare(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        session_id: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
        part: RunPart | None = None,
        live_conversation: ConversationStart | None = None,
    ) -> AgentRun[Any]:
        """Everything that can be refused is refused here; the run itself has not begun.

        Args:
            note: Stored with the run's start, for the caller to find when it goes on.
            part: With the outputs that it needs: nothing is looked up here.
            live_conversation: Where it continues the session's conversation; None: at its end.
        Raises:
            As `execute`.
        """
        agent = Agent(self._find(recipe))
        checked: Mapping[str, JsonValue] = {}
        if inputs or agent.recipe.inputs:
            checked = resolve_inputs(agent.recipe, inputs or {}, from_text=False, base=Path.cwd())
        ids = self._services.ids
        start = _Start(
            run_id=ids("run"),
            session_id=session_id or ids("ses"),
            note=note or {},
            chosen=_chosen(agent.recipe, part),
            live_conversation=live_conversation or ConversationStart(),
        )
        return self._prepare(agent, checked, start, output_class)

    def _prepare(
        self,
        agent: Agent,
        checked: Mapping[str, JsonValue],
        start: _Start,
        output_class: type[object] | None,
    ) -> AgentRun[Any]:  # Any: the overloads of whoever calls this carry the type
        known: dict[str, JsonValue] = {
            "inputs": dict(checked),
            "run": {"id": start.run_id, "session_id": start.session_id},
        }
        secrets = declared_secrets(agent.recipe, checked, self._services.secrets)
        runs = start.chosen.runs if start.chosen is not None else None
        opened = self._wiring.opened(agent.recipe, known, secrets, runs)
        built = opened.built
        if start.chosen is not None:
            specs_of_parts(agent.recipe)
            built = part_of(built, agent.recipe, start.chosen.runs)
        manager = StepManager(built.graph)
        context = AgentContext(
            agent,
            manager,
            ConversationMemory(),
            services=self._services,
            tools=opened.tools,
            inputs=checked,
            run_id=start.run_id,
            session_id=start.session_id,
            replay=start.replay,
            system_prompt=opened.system_prompt,
            goal=opened.goal,
            secrets=secrets,
        )
        context.recipe_runner = self._nested_runs
        run: AgentRun[Any] = AgentRun(
            context,
            manager,
            built,
            wiring=self._wiring,
            output_class=output_class,
            output_check=self._preparation.output_check(output_class),
            note=start.note,
            resume_plan=_with_doubt(start, opened.tools),
            is_over=start.is_over,
            chosen=start.chosen,
            live_conversation=start.live_conversation,
        )
        for _, config in built.asking:
            run.require_model(config)
        return run

    def plan(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        part: RunPart | None = None,
    ) -> tuple[PlannedStep, ...]:
        """What a run would do, in order. No tool and no model is called, nothing is written.

        Args:
            part: As in `prepare`.
        Raises:
            As `execute`.
        """
        found = self._find(recipe)
        checked = resolve_inputs(found, inputs or {}, from_text=False, base=Path.cwd())
        known: dict[str, JsonValue] = {"inputs": checked, "run": {"id": "", "session_id": ""}}
        tools = self._preparation.open_tools(found, known, Secrets())
        chosen = _chosen(found, part)
        return planned_steps(found, checked, tools, self._extensions, self._models, chosen)

    # --- a recorded run -----------------------------------------------------------------------

    @overload
    async def resume(
        self,
        run_id: str,
        *,
        output_class: type[T],
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
    ) -> AgentResult[T]: ...

    @overload
    async def resume(
        self,
        run_id: str,
        *,
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
    ) -> AgentResult[JsonValue]: ...

    async def resume(
        self,
        run_id: str,
        *,
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
    ) -> AgentResult[Any]:
        """Go on with a run that was killed, cancelled, stopped by a limit, or waits.

        What is recorded is not done again. A run that came to its output gives it again.

        Args:
            run_id: Or a unique start of it, or its session's.
            recipe: Needed for a recipe of Step objects, which cannot travel with the run.
            decisions: What is to become of calls in doubt: a call's key to `redo`, `done`,
                `done:JSON` or `fail`.
        Raises:
            NotFoundError: No such run.
            UsageError: It failed (`retry` it), the code differs, or a decision means nothing.
            EnvironmentRefusedError: No model, or another worker has the run.
        """
        recorded = await load_recorded_run(self._services.journal, run_id)
        run = self.prepare_resume(
            recorded, recipe=recipe, decisions=decisions, output_class=output_class
        )
        return await run.execute()

    @overload
    async def retry(
        self,
        run_id: str,
        *,
        output_class: type[T],
        recipe: AgentRecipe | None = None,
        from_step: str | None = None,
    ) -> AgentResult[T]: ...

    @overload
    async def retry(
        self, run_id: str, *, recipe: AgentRecipe | None = None, from_step: str | None = None
    ) -> AgentResult[JsonValue]: ...

    async def retry(
        self,
        run_id: str,
        *,
        recipe: AgentRecipe | None = None,
        from_step: str | None = None,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
    ) -> AgentResult[Any]:
        """Run failed steps of a recorded run again, and those that changed or read what changed.

        Args:
            recipe: An edited one; None: the run's own.
            from_step: This step runs again, too, with all that come after it.
        Raises:
            As `resume`.
        """
        recorded = await load_recorded_run(self._services.journal, run_id)
        run = self.prepare_retry(
            recorded, recipe=recipe, from_step=from_step, output_class=output_class
        )
        return await run.execute()

    @overload
    def prepare_resume(
        self,
        recorded: RecordedRun,
        *,
        output_class: type[T],
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[T]: ...

    @overload
    def prepare_resume(
        self,
        recorded: RecordedRun,
        *,
        output_class: None = None,
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[JsonValue]: ...

    def prepare_resume(
        self,
        recorded: RecordedRun,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[Any]:
        """As `resume`; the run itself has not begun.

        Args:
            recipe: The run's own, perhaps with other limits.
            note: What stands there from now on; None: what stood there before.
        """
        if recorded.summary.status == RunStatus.FAILED and not decisions:
            raise UsageError(
                f"Run '{recorded.run_id}' failed; there is nothing to resume. "
                f"`minions retry {recorded.run_id}` runs what failed again.",
                code="run-failed",
            )
        recipe = recipe or recorded.recipe(self._extensions.catalog())
        recorded.check_code(recipe)
        replay = Replay(recorded.entries, recorded.generation + 1)
        given = checked_decisions(decisions or {}, replay)
        replay.decisions.update(given)
        check_outputs(recipe, replay, recorded.run_id)
        start = _resume_plan(recorded, replay, ResumePlan(decisions=given), note)
        return self._prepare(Agent(recipe), recorded.inputs, start, output_class)

    @overload
    def prepare_retry(
        self,
        recorded: RecordedRun,
        *,
        output_class: type[T],
        recipe: AgentRecipe | None = None,
        is_edited: bool = True,
        from_step: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[T]: ...

    @overload
    def prepare_retry(
        self,
        recorded: RecordedRun,
        *,
        output_class: None = None,
        recipe: AgentRecipe | None = None,
        is_edited: bool = True,
        from_step: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[JsonValue]: ...

    def prepare_retry(
        self,
        recorded: RecordedRun,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        recipe: AgentRecipe | None = None,
        is_edited: bool = True,
        from_step: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[Any]:
        """As `retry`; the run itself has not begun.

        Args:
            is_edited: Whether `recipe`, where one is given, is another than the run's own.
            note: As in `prepare_resume`.
        """
        given = recipe if is_edited else None
        if recorded.summary.status == RunStatus.COMPLETED and (given, from_step) == (None, None):
            raise UsageError(
                f"Run '{recorded.run_id}' completed: nothing failed. Name a step to go on from, or "
                "an edited recipe.",
                code="nothing-to-retry",
            )
        after = recipe or recorded.recipe(self._extensions.catalog())
        recorded.check_id(after)
        own = self._own_recipe(recorded) if given is not None else after
        anew = recorded.changed(own, after)
        if from_step is not None:
            found = steps_from(after, from_step)
            anew |= {*found, *(f"{step_id}/" for step_id in found)}  # with all within them
            recorded.check_asked_for(from_step)
        replay = Replay(recorded.entries, recorded.generation + 1)
        replay.retry(anew)
        inputs = recorded.inputs if given is None else edited_inputs(recorded, own, after)
        start = _resume_plan(recorded, replay, ResumePlan(retries=True, anew=anew), note)
        return self._prepare(Agent(after), inputs, start, output_class)

    def _own_recipe(self, recorded: RecordedRun) -> AgentRecipe | None:
        """The recipe that travels with the run; None where none does, or not any more."""
        if recorded.document is None:
            return None
        try:
            return recorded.recipe(self._extensions.catalog())
        except RecipeError:  # what it names is gone: perhaps why it was edited
            return None

    @property
    def services(self) -> Services:
        """What its runs rest on."""
        return self._services

    def find(self, recipe: AgentRecipe | str) -> AgentRecipe:
        """The recipe of that id; a recipe is itself.

        Raises:
            NotFoundError: There is none.
        """
        return self._find(recipe)

    def _find(self, recipe: AgentRecipe | str) -> AgentRecipe:
        if isinstance(recipe, AgentRecipe):
            return recipe
        if (registered := self._extensions.recipes.get(recipe)) is not None:
            return registered
        if self._recipes is None:
            raise NotFoundError(
                f"No recipe '{recipe}': this executor was given no recipes to look among.",
                code="recipe-not-found",
            )
        return self._recipes(recipe)


@frozen(kw_only=True)
class _Start:
    """Where a run begins, or goes on."""

    run_id: str
    session_id: str
    note: Mapping[str, JsonValue]
    replay: Replay | None = None
    resume_plan: ResumePlan | None = None
    is_over: bool = False
    chosen: ChosenSteps | None = None
    live_conversation: ConversationStart | None = None


def _chosen(recipe: AgentRecipe, part: RunPart | None) -> ChosenSteps | None:
    return None if part is None else with_pins(recipe, choose_steps(recipe, part), part)


def _resume_plan(
    recorded: RecordedRun,
    replay: Replay,
    resume_plan: ResumePlan,
    note: Mapping[str, JsonValue] | None,
) -> _Start:
    replay.is_over = recorded.is_over and not resume_plan.retries
    return _Start(
        run_id=recorded.run_id,
        session_id=recorded.summary.session_id,
        note=recorded.note if note is None else note,
        replay=replay,
        resume_plan=resume_plan,
        is_over=replay.is_over,
        chosen=recorded.chosen,
        live_conversation=ConversationStart.of_run(recorded.start, recorded.entries[0].position),
    )


def _with_doubt(start: _Start, tools: Toolbox) -> ResumePlan | None:
    if start.resume_plan is None or start.replay is None:
        return start.resume_plan
    return evolve(start.resume_plan, doubt=calls_in_doubt(start.replay, tools))


def _as_source(models: ModelSource | ChatModel) -> ModelSource:
    if not isinstance(models, ChatModel):
        return models
    model = models

    def only(_config: ModelConfig) -> ChatModel:
        return model

    return only
