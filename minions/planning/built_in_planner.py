"""`BuiltInPlanner`: from a task to a plan, and from a plan to its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files
from typing import Final

from attrs import evolve

from minions.contracts.tools import Effect, Toolset, ToolSpec
from minions.planning.plan_json import read_plan
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.planner import RecipePlanner
from minions.recipe.reading.load import load_recipe_text

_OPENED: Final = ("files", "shell", "plans")
"""The toolsets that the recipes of plans, and the recipe that writes them, open."""


class BuiltInPlanner(RecipePlanner):
    """Plans with the recipe `planning/plan.yaml`; its recipes use the tools `files` and `shell`."""

    def __init__(self, toolsets: Mapping[str, Toolset]) -> None:
        """Take the toolsets that recipes of plans may name."""
        self._catalog = Catalog(toolsets=toolsets)

    @cached_property
    def effects(self) -> Mapping[str, Effect]:
        """Those of the toolsets `files`, `shell` and `plans`.

        A command may be repeated: it tests, in a sandbox without network, and what it can change is
        the workspace alone.
        """
        toolsets = self._catalog.toolsets
        specs = [each for name in _OPENED for each in toolsets[name].specs_under(None)]
        effects = {each.name: each.effect for each in specs}
        return {**effects, "shell__run": Effect.IDEMPOTENT, "shell__exec": Effect.IDEMPOTENT}

    @cached_property
    def drafting(self) -> AgentRecipe:
        """The recipe that writes a plan."""
        text = files("minions.planning").joinpath("plan.yaml").read_text("utf-8")
        return load_recipe_text(text, "planner.yaml", self._catalog)

    def reads(self, text: str) -> bool:
        """Whether `read_plan` finds one."""
        return read_plan(text) is not None

    def recipe(self, text: str, tools: Mapping[str, ToolSpec]) -> AgentRecipe:
        """The recipe of a plan."""
        return load_recipe_text(text, "plan.yaml", evolve(self._catalog, tools=tools))
