"""The contract of planners, which `plan:` steps use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from minions.contracts.tools import Effect, ToolSpec
from minions.recipe.model import AgentRecipe


class RecipePlanner(ABC):
    """Turns tasks into recipes, for `plan:` steps."""

    @property
    @abstractmethod
    def effects(self) -> Mapping[str, Effect]:
        """The effects of the tools of the toolsets that its recipes open, by full name: whether a
        call that a crash interrupted may simply be repeated.
        """

    @property
    @abstractmethod
    def drafting(self) -> AgentRecipe:
        """The recipe that writes a plan; the same at every access.

        Its inputs are those of the `plan:` step, and `earlier`, `done`, `completed`, `wish`,
        `given`; its output has `ok`, `plan`, `text`, `recipe`, `faults` and `notes`.
        """

    @abstractmethod
    def reads(self, text: str) -> bool:
        """Whether a text is a plan, in any form that an answer may have, rather than a wish."""

    @abstractmethod
    def recipe(self, text: str, tools: Mapping[str, ToolSpec]) -> AgentRecipe:
        """The recipe of a plan, of the text that `drafting` gave.

        Args:
            tools: Registered tools that its steps may be offered, by name.
        Raises:
            RecipeError: It has faults.
        """
