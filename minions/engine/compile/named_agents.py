"""The agents of a process that can be run by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from attrs import frozen

from minions.contracts.agent_errors import AgentNotFoundError
from minions.data.errors import near_hint, near_names
from minions.recipe.model import AgentRecipe


class NamedAgents(ABC):
    """Agents by name, each as a recipe: whatever runs recipes can run it."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of all agents; reads no recipe."""

    @abstractmethod
    def find(self, name: str) -> AgentRecipe:
        """The recipe of the agent of that name.

        Raises:
            AgentNotFoundError: There is none; `suggestions` has similar names.
            RecipeError, UsageError: Its recipe has faults, or cannot be read.
        """


@frozen
class RecipeAgents(NamedAgents):
    """Recipes by name, such as those that an operator registers."""

    recipes: Mapping[str, AgentRecipe]

    def names(self) -> Sequence[str]:
        """The names of the mapping; its values are not looked at."""
        return tuple(self.recipes)

    def find(self, name: str) -> AgentRecipe:
        """The recipe of that name."""
        found = self.recipes.get(name)
        if found is None:
            raise unknown_agent(name, self.names())
        return found


@frozen
class JoinedAgents(NamedAgents):
    """The agents of several sources; of equal names that of the first source counts."""

    sources: tuple[NamedAgents, ...]

    def names(self) -> Sequence[str]:
        """All names, each once."""
        return tuple(dict.fromkeys(name for each in self.sources for name in each.names()))

    def find(self, name: str) -> AgentRecipe:
        """The agent of the first source that has the name."""
        for source in self.sources:
            if name in source.names():
                return source.find(name)
        raise unknown_agent(name, self.names())


def unknown_agent(name: str, known: Sequence[str]) -> AgentNotFoundError:
    """The error for a name that no agent has."""
    near = near_names(name, known)
    return AgentNotFoundError(
        f"There is no agent '{name:.100}'.{near_hint(near)} Agents are: "
        f"{', '.join(sorted(known)) or 'none'}.",
        suggestions=near,
    )
