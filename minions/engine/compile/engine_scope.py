"""What the engine's own steps may do beside what every Python step may: run recipes, ask people."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from attrs import frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema
from minions.contracts.steps import StepScope
from minions.recipe.model import AgentRecipe

__all__ = ["Default", "EngineScope"]


@frozen
class Default:
    """A value for when nobody says one."""

    value: JsonValue = None
    is_given: bool = False


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
