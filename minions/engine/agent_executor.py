"""Runs an agent's recipe from its first step to its result. Orchestration only."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from attrs import evolve, frozen

from minions.contracts.calls import ChatModel, ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.context import Limits
from minions.contracts.errors import NotFoundError, RecipeError, SchemaError, UsageError
from minions.contracts.events import RunEvent
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.schema import SchemaValidator, check_schema, schema_of
from minions.contracts.secrets import InputValue, Secrets
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Tool, Toolbox
from minions.engine.agent_run import AgentRun, GoingOn
from minions.engine.build import BuiltRecipe, build_recipe
from minions.engine.context import Agent, AgentContext, Extensions, ModelSource
from minions.engine.decisions import calls_in_doubt, checked_decisions
from minions.engine.dry_run import PlannedStep, planned_steps
from minions.engine.memory import ConversationMemory
from minions.engine.recorded_run import (
    RecordedRun,
    check_outputs,
    edited_inputs,
    load_recorded_run,
    steps_from,
)
from minions.engine.replay import Replay
from minions.engine.secrets import declared_secrets, hidden_errors, refuse_shown_secrets
from minions.engine.services import Services
from minions.engine.step_manager import StepManager
from minions.engine.tool_calls import tool_call_executors
from minions.recipe.expressions import Template, compile_template
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe, ModelConfig

__all__ = ["AgentExecutor", "RecipeSource"]

T = TypeVar("T")

RecipeSource = Callable[[str], AgentRecipe]
"""An id to its recipe; raises NotFoundError."""


_MOST_COMPILED = 64
"""Recipes that are kept ready; an application that makes new ones for each run fills no memory."""


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
    ) -> None:
        """Configure.

        Args:
            models: Gives the model of each step that needs one; or the one model for all.
            recipes: Finds recipes that are named by id.
            model_call_executor_factory: Your own way to carry out model calls; None: `models`.
            tool_call_executor_factory: Likewise for tools; None: the run's toolbox.
        """
        self._models = _as_source(models)
        self._extensions = extensions or Extensions()
        self._services = services or Services()
        self._recipes = recipes
        self._output_checks: dict[type[object], SchemaValidator] = {}
        self._loaded: dict[tuple[int, bool], ChatModel] = {}
        """Models that were warmed up, by identity and whether answers are constrained."""
        self._compiled: dict[
            tuple[int, tuple[str, ...]], tuple[weakref.ref[AgentRecipe], BuiltRecipe]
        ] = {}
        self._model_factory = model_call_executor_factory
        self._tool_factory = tool_call_executor_factory or tool_call_executors()

    @overload
    async def execute(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[T],
    ) -> AgentResult[T]: ...

    @overload
    async def execute(
        self, recipe: AgentRecipe | str, inputs: Mapping[str, InputValue] | None = None
    ) -> AgentResult[JsonValue]: ...

    async def execute(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
    ) -> AgentResult[Any]:
        """Run to the end; every end is a result, never an exception.

        Args:
            output_class: What `result.output` shall be; an output that does not fit fails the run.
        Raises:
            NotFoundError: No such recipe id.
            UsageError: Recipe, inputs or limits are wrong; nothing was started.
            EnvironmentRefusedError: No model, no secret, or the journal refuses; nothing was
                started.
        """
        run = self.prepare(recipe, inputs, output_class=output_class)
        return cast("AgentResult[Any]", await run.execute())

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

    def prepare(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        session_id: str | None = None,
        output_class: type[object] | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun:
        """Everything that can be refused is refused here; the run itself has not begun.

        Args:
            note: Stored with the run's start, for the caller to find when it goes on.
        Raises:
            As `execute`.
        """
        agent = Agent(self._find(recipe))
        checked: Mapping[str, JsonValue] = {}
        if inputs or agent.recipe.inputs:
            checked = resolve_inputs(agent.recipe, inputs or {}, from_text=False, base=Path.cwd())
        ids = self._services.ids
        start = _Start(run_id=ids("run"), session_id=session_id or ids("ses"), note=note or {})
        return self._prepare(agent, checked, start, output_class)

    def _prepare(
        self,
        agent: Agent,
        checked: Mapping[str, JsonValue],
        start: _Start,
        output_class: type[object] | None,
    ) -> AgentRun:
        known: dict[str, JsonValue] = {
            "inputs": dict(checked),
            "run": {"id": start.run_id, "session_id": start.session_id},
        }
        secrets = declared_secrets(agent.recipe, checked, self._services.secrets)
        tools = self._open_tools(agent.recipe, known, secrets)
        built = self._built(agent.recipe, tools)
        context = AgentContext(
            agent,
            StepManager(built.graph),
            ConversationMemory(),
            services=self._services,
            tools=tools,
            inputs=checked,
            run_id=start.run_id,
            session_id=start.session_id,
            replay=start.replay,
            system_prompt=_rendered(built.system_prompt, known),
            goal=_rendered(built.goal, known),
            secrets=secrets,
        )
        run = AgentRun(
            context,
            built,
            models=self._models,
            loaded=self._loaded,
            model_call_executor_factory=self._model_factory,
            tool_call_executor_factory=self._tool_factory,
            output_class=output_class,
            output_check=self._output_check(output_class),
            note=start.note,
            going_on=_with_doubt(start, tools),
            is_over=start.is_over,
        )
        for _, config in built.asking:
            run.require_model(config)
        return run

    def plan(
        self, recipe: AgentRecipe | str, inputs: Mapping[str, InputValue] | None = None
    ) -> tuple[PlannedStep, ...]:
        """What a run would do, in order. No tool and no model is called, nothing is written.

        Raises:
            As `execute`.
        """
        found = self._find(recipe)
        checked = resolve_inputs(found, inputs or {}, from_text=False, base=Path.cwd())
        known: dict[str, JsonValue] = {"inputs": checked, "run": {"id": "", "session_id": ""}}
        tools = self._open_tools(found, known, Secrets())
        return planned_steps(found, checked, tools, self._extensions, self._models)

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
        return cast("AgentResult[Any]", await run.execute())

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
        return cast("AgentResult[Any]", await run.execute())

    def prepare_resume(
        self,
        recorded: RecordedRun,
        *,
        recipe: AgentRecipe | None = None,
        decisions: Mapping[str, str] | None = None,
        output_class: type[object] | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun:
        """As `resume`; the run itself has not begun.

        Args:
            recipe: The run's own, perhaps with other limits.
            note: What stands there from now on; None: what stood there before.
        """
        if recorded.summary.status == RunStatus.FAILED:
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
        start = _going_on(recorded, replay, GoingOn(decisions=given), note)
        return self._prepare(Agent(recipe), recorded.inputs, start, output_class)

    def prepare_retry(
        self,
        recorded: RecordedRun,
        *,
        recipe: AgentRecipe | None = None,
        is_edited: bool = True,
        from_step: str | None = None,
        output_class: type[object] | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun:
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
            anew |= steps_from(after, from_step)
        replay = Replay(recorded.entries, recorded.generation + 1)
        replay.retry(anew)
        inputs = recorded.inputs if given is None else edited_inputs(recorded, own, after)
        start = _going_on(recorded, replay, GoingOn(retries=True, anew=anew), note)
        return self._prepare(Agent(after), inputs, start, output_class)

    def _own_recipe(self, recorded: RecordedRun) -> AgentRecipe | None:
        """The recipe that travels with the run; None where none does, or not any more."""
        if recorded.document is None:
            return None
        try:
            return recorded.recipe(self._extensions.catalog())
        except RecipeError:  # what it names is gone: perhaps why it was edited
            return None

    def _output_check(self, output_class: type[object] | None) -> SchemaValidator | None:
        """Made once per class."""
        if output_class is None:
            return None
        check = self._output_checks.get(output_class)
        if check is None:
            check = self._output_checks[output_class] = SchemaValidator(schema_of(output_class))
        return check

    def _built(self, recipe: AgentRecipe, tools: Toolbox) -> BuiltRecipe:
        """Compiled once as long as the recipe lives and the tools are called the same."""
        key = (id(recipe), tools.names)
        known = self._compiled.get(key)
        if known is not None and known[0]() is recipe:
            return known[1]
        built = build_recipe(recipe, tools, self._extensions.links)
        _check_steps(built, Limits.from_metadata(recipe.limits))
        if len(self._compiled) >= _MOST_COMPILED:
            self._compiled.clear()
        self._compiled[key] = (weakref.ref(recipe), built)
        return built

    def _find(self, recipe: AgentRecipe | str) -> AgentRecipe:
        if isinstance(recipe, AgentRecipe):
            return recipe
        if self._recipes is None:
            raise NotFoundError(
                f"No recipe '{recipe}': this executor was given no recipes to look among.",
                code="recipe-not-found",
            )
        return self._recipes(recipe)

    def _open_tools(
        self, recipe: AgentRecipe, known: Mapping[str, JsonValue], secrets: Secrets
    ) -> Toolbox:
        """The recipe's toolsets and every tool the operator registered."""
        opened: list[Tool] = []
        for use in recipe.tools:
            toolset = self._extensions.toolsets.get(use.name)
            if toolset is None:
                self._extensions.tools.get(use.name)  # registered, or a clear error
                continue
            options = secrets.reveal(compile_template(use.options).render(known))
            checked = cast("Mapping[str, JsonValue]", options)
            with hidden_errors(secrets, f"Opening the toolset '{use.name}'"):
                opened += toolset.open(checked, use.prefix or use.name)
        for tool in opened if secrets else ():
            refuse_shown_secrets(tool, secrets)
        own = self._extensions.tools
        return Toolbox(tuple(opened)).plus(own) if opened else own


@frozen(kw_only=True)
class _Start:
    """Where a run begins, or goes on."""

    run_id: str
    session_id: str
    note: Mapping[str, JsonValue]
    replay: Replay | None = None
    going_on: GoingOn | None = None
    is_over: bool = False


def _going_on(
    recorded: RecordedRun,
    replay: Replay,
    going_on: GoingOn,
    note: Mapping[str, JsonValue] | None,
) -> _Start:
    replay.is_over = recorded.is_over and not going_on.retries
    return _Start(
        run_id=recorded.run_id,
        session_id=recorded.summary.session_id,
        note=recorded.note if note is None else note,
        replay=replay,
        going_on=going_on,
        is_over=replay.is_over,
    )


def _with_doubt(start: _Start, tools: Toolbox) -> GoingOn | None:
    if start.going_on is None or start.replay is None:
        return start.going_on
    return evolve(start.going_on, doubt=calls_in_doubt(start.replay, tools))


def _as_source(models: ModelSource | ChatModel) -> ModelSource:
    if not isinstance(models, ChatModel):
        return models
    model = models

    def only(_config: ModelConfig) -> ChatModel:
        return model

    return only


def _rendered(template: Template | None, known: Mapping[str, JsonValue]) -> str | None:
    """None: as it stands in the recipe."""
    if template is None:
        return None
    value = template.render(known)
    return value if isinstance(value, str) else dumps(value)


def _check_output(step: Step[object]) -> None:
    """The declared output of a step made by code.

    Raises:
        SchemaError: It has no schema, or none that is safe.
    """
    try:
        output = step.output
        schema = output.json_schema() if output is not None else None
    except SchemaError:
        raise
    except Exception:  # noqa: BLE001  # an application's property: the run tells what it raises
        return
    if schema is not None:
        check_schema(schema)


def _check_steps(built: BuiltRecipe, base: Limits) -> None:
    """Limits and declared outputs of every step, before the first one starts."""
    for step in built.graph.steps:
        Limits.of_step(step.metadata, base=base)
        if not isinstance(step, PythonStep) and not built.controls:
            _check_output(step)  # a loaded recipe's schemas are checked already
