"""Recipes and people within a step: what the engine's own steps may do beside all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from minions.contracts.errors import FailureInfo
from minions.contracts.executions import StepExecution
from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema
from minions.contracts.secrets import InputValue
from minions.contracts.steps import StepScope
from minions.recipe.model import AgentRecipe

if TYPE_CHECKING:
    pass


if TYPE_CHECKING:
    from minions.engine.context.step_view import StepView

__all__ = ["Default", "EngineScope", "NestedResult", "RecipeRunner", "Scope", "TellSteps"]


TellSteps: TypeAlias = Callable[[Iterable[StepExecution[object]]], None]
"""Takes the steps of a recipe that ended."""


@frozen(kw_only=True)
class Scope:
    """Where a recipe stands in its run."""

    keys: str = ""
    """Before each of its steps' keys: `outer~1~0~`."""
    path: str = ""
    """Before each of its steps' names: `outer/`."""


class RecipeRunner(ABC):
    """Runs recipes as steps of a run."""

    @abstractmethod
    async def run(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, InputValue],
        view: StepView,
        key: str,
        tell: TellSteps,
    ) -> NestedResult:
        """One recipe, to its end.

        Args:
            inputs: Not checked yet.
            key: Of the execution that it is the work of.
            tell: Is called once with its steps, also when it is cut off.
        Raises:
            UsageError: It was given what it does not take, or names what is not there.
        """

    @abstractmethod
    def find(self, name: str) -> AgentRecipe:
        """The recipe of that name, for steps made by code.

        Raises:
            NotFoundError: There is none.
        """


class EngineScope(StepScope):
    """What the engine's own steps may do beside what everybody's may."""

    @abstractmethod
    async def run_recipe(self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue]) -> object:
        """The recipe that the step is; its output.

        Raises:
            UsageError: Inputs that it does not take.
            StepFailedError: It failed.
        """

    @abstractmethod
    async def ask_person(
        self, text: str, *, form: JsonSchema | None, default: Default, timeout_s: float | None
    ) -> JsonValue:
        """What somebody answers.

        Raises:
            StepFailedError: Nobody did: yet (`needs-decision`), or in time (`ask-timeout`).
        """


@frozen
class Default:
    """A value for when nobody says one."""

    value: JsonValue = None
    is_given: bool = False


@frozen(kw_only=True)
class NestedResult:
    """What a recipe gave that was a step of a run."""

    output: object
    error: FailureInfo | None
