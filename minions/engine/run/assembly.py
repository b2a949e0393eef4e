"""How the parts of one run are put together: the whole of a run, and a recipe within it, alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from attrs import frozen

from minions.contracts.call_executors import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.calls import ChatModel
from minions.contracts.json_values import JsonValue
from minions.contracts.secrets import Secrets
from minions.contracts.tools import Toolbox
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.extensions import ModelSource
from minions.engine.compile.preparation import Preparation, rendered
from minions.engine.compile.selection import ChosenSteps
from minions.engine.context.agent_context import AgentContext
from minions.engine.run.routes import Routes
from minions.engine.run.run_models import RunModels
from minions.engine.run.run_steps import RunSteps
from minions.engine.run.walk import RecipeWalk
from minions.engine.step.step_manager import StepManager
from minions.recipe.model import AgentRecipe

__all__ = ["AssembledWalk", "OpenedRecipe", "RunWiring"]


@frozen(kw_only=True)
class OpenedRecipe:
    """A recipe with its inputs, compiled, with its toolsets open."""

    built: BuiltRecipe
    tools: Toolbox
    system_prompt: str | None
    """Rendered; None: as it stands in the recipe."""
    goal: str | None
    """Likewise."""


class AssembledWalk(NamedTuple):
    """What walks through one recipe."""

    models: RunModels
    walk: RecipeWalk


@frozen(kw_only=True, eq=False)
class RunWiring:
    """What an executor hands to each of its runs, and to each recipe within them."""

    preparation: Preparation
    models: ModelSource
    loaded: dict[tuple[int, bool], ChatModel]
    """Models that were warmed up, by identity and whether answers are constrained."""
    model_call_executor_factory: ModelCallExecutorFactory | None
    """An application's own way to carry out model calls; None: `models`."""
    tool_call_executor_factory: ToolCallExecutorFactory

    def opened(
        self,
        recipe: AgentRecipe,
        known: Mapping[str, JsonValue],
        secrets: Secrets,
        runs: Collection[str] | None = None,
    ) -> OpenedRecipe:
        """The recipe, ready to run.

        Args:
            known: What its prompts and the options of its toolsets may name: `inputs` and `run`.
            runs: Ids of the steps that run; None: all of them.
        Raises:
            UsageError, EnvironmentRefusedError: As of `Preparation.open_tools` and `built`.
        """
        tools = self.preparation.open_tools(recipe, known, secrets)
        built = self.preparation.built(recipe, tools, runs)
        return OpenedRecipe(
            built=built,
            tools=tools,
            system_prompt=rendered(built.system_prompt, known),
            goal=rendered(built.goal, known),
        )

    def walk(
        self,
        context: AgentContext,
        manager: StepManager,
        built: BuiltRecipe,
        chosen: ChosenSteps | None = None,
    ) -> AssembledWalk:
        """What runs the recipe of that context.

        Args:
            chosen: The steps that run; None: all.
        """
        models = RunModels(
            context, built, self.models, self.model_call_executor_factory, self.loaded
        )
        tools = self.tool_call_executor_factory
        steps = RunSteps(context, built, models, tools, chosen=chosen)
        routes = Routes(context, built, models, tools)
        return AssembledWalk(models, RecipeWalk(context, manager, built, steps, routes, tools))
