"""The scope of the engine's own steps, which may also run recipes and ask people."""

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
    """The answer that counts when nobody answers in time."""

    value: JsonValue = None
    is_given: bool = False


class EngineScope(StepScope):
    """A step scope that also runs recipes and asks people."""

    @abstractmethod
    async def run_recipe(self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue]) -> object:
        """Run the recipe of the step, and return its output.

        Raises:
            UsageError: An input that the recipe does not take.
            StepFailedError: The recipe failed.
        """

    @abstractmethod
    async def ask_person(
        self, text: str, *, form: JsonSchema | None, default: Default, timeout_s: float | None
    ) -> JsonValue:
        """Ask a person, and return the answer.

        Args:
            form: JSON Schema of the answer; None: text.
            default: Counts if nobody answers in time.
            timeout_s: How long to wait, in seconds; None: without a limit.
        Raises:
            StepFailedError: There is no answer yet (`needs-decision`), or none came in time
                (`ask-timeout`).
        """
