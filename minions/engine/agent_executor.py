"""Runs an agent's recipe from its first step to its result. Orchestration only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from minions.contracts.calls import ChatModel, ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.context import Limits
from minions.contracts.errors import NotFoundError, SchemaError
from minions.contracts.events import RunEvent
from minions.contracts.executions import AgentResult
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.schema import check_schema
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Tool, Toolbox
from minions.engine.agent_run import AgentRun
from minions.engine.build import BuiltRecipe, build_recipe
from minions.engine.context import Agent, AgentContext, Extensions, ModelSource
from minions.engine.memory import ConversationMemory
from minions.engine.services import Services
from minions.engine.step_manager import StepManager
from minions.engine.tool_calls import tool_call_executors
from minions.recipe.expressions import compile_template
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe, ModelConfig

__all__ = ["AgentExecutor", "RecipeSource"]

T = TypeVar("T")

RecipeSource = Callable[[str], AgentRecipe]
"""An id to its recipe; raises NotFoundError."""


class AgentExecutor:
    """Runs recipes. Holds configuration only: two runs on one executor share nothing."""

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
        self._model_factory = model_call_executor_factory
        self._tool_factory = tool_call_executor_factory or tool_call_executors()

    @overload
    async def execute(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        output_class: type[T],
    ) -> AgentResult[T]: ...

    @overload
    async def execute(
        self, recipe: AgentRecipe | str, inputs: Mapping[str, JsonValue] | None = None
    ) -> AgentResult[JsonValue]: ...

    async def execute(
        self,
        recipe: AgentRecipe | str,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
    ) -> AgentResult[Any]:
        """Run to the end; every end is a result, never an exception.

        Args:
            output_class: What `result.output` shall be; an output that does not fit fails the run.
        Raises:
            NotFoundError: No such recipe id.
            UsageError: Recipe, inputs or limits are wrong; nothing was started.
            EnvironmentRefusedError: No model, or the journal refuses; nothing was started.
        """
        run = self.prepare(recipe, inputs, output_class=output_class)
        return cast("AgentResult[Any]", await run.execute())

    async def stream(
        self, recipe: AgentRecipe | str, inputs: Mapping[str, JsonValue] | None = None
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
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        session_id: str | None = None,
        output_class: type[object] | None = None,
    ) -> AgentRun:
        """Everything that can be refused is refused here; the run itself has not begun.

        Raises:
            As `execute`.
        """
        agent = Agent(self._find(recipe))
        checked = resolve_inputs(agent.recipe, inputs or {}, from_text=False, base=Path.cwd())
        ids = self._services.ids
        run_id, session_id = ids("run"), session_id or ids("ses")
        known: dict[str, JsonValue] = {
            "inputs": checked,
            "run": {"id": run_id, "session_id": session_id},
        }
        tools = self._open_tools(agent.recipe, known)
        built = build_recipe(agent.recipe, tools, self._extensions.links)
        context = AgentContext(
            agent,
            StepManager(built.graph),
            ConversationMemory(),
            services=self._services,
            tools=tools,
            inputs=checked,
            run_id=run_id,
            session_id=session_id,
            system_prompt=_rendered(agent.recipe, agent.recipe.system_prompt, known),
            goal=_rendered(agent.recipe, agent.recipe.goal, known),
        )
        run = AgentRun(
            context,
            built,
            models=self._models,
            model_call_executor_factory=self._model_factory,
            tool_call_executor_factory=self._tool_factory,
            output_class=output_class,
        )
        _check_steps(built, run, context.limits)
        return run

    def _find(self, recipe: AgentRecipe | str) -> AgentRecipe:
        if isinstance(recipe, AgentRecipe):
            return recipe
        if self._recipes is None:
            raise NotFoundError(
                f"No recipe '{recipe}': this executor was given no recipes to look among.",
                code="recipe-not-found",
            )
        return self._recipes(recipe)

    def _open_tools(self, recipe: AgentRecipe, known: Mapping[str, JsonValue]) -> Toolbox:
        """The recipe's toolsets and every tool the operator registered."""
        opened: list[Tool] = []
        for use in recipe.tools:
            toolset = self._extensions.toolsets.get(use.name)
            if toolset is None:
                self._extensions.tools.get(use.name)  # registered, or a clear error
                continue
            options = compile_template(use.options).render(known)
            checked = cast("Mapping[str, JsonValue]", options)
            opened += toolset.open(checked, use.prefix or use.name)
        return Toolbox(tuple(opened)).plus(self._extensions.tools)


def _as_source(models: ModelSource | ChatModel) -> ModelSource:
    if not isinstance(models, ChatModel):
        return models
    model = models

    def only(_config: ModelConfig) -> ChatModel:
        return model

    return only


def _rendered(recipe: AgentRecipe, text: str | None, known: Mapping[str, JsonValue]) -> str | None:
    """A template in a recipe that was read; text as it stands in one made by code."""
    if text is None or recipe.document is None:
        return text
    value = compile_template(text).render(known)
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


def _check_steps(built: BuiltRecipe, run: AgentRun, base: Limits) -> None:
    """Limits and models of every step, before the first one starts."""
    for step in built.graph.steps:
        Limits.of_step(step.metadata, base=base)
        if not isinstance(step, PythonStep):
            run.model_factory_for(step)
            if not built.controls:  # a loaded recipe's schemas are checked already
                _check_output(step)
