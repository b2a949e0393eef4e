"""Agents that a tool may run by name, as part of the run in which it is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class AgentInfo:
    """An agent as a list shows it."""

    name: str
    description: str = ""
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """JSON Schema of each input, by name; one that may be left out has a `default`."""


class AgentCalls(ABC):
    """Lists and runs agents: recipes, and other agents of the application.

    An agent has no more rights than the recipe whose step calls the tool. What it spends counts in
    the run, and what it did is recorded there: a call that was cut off and is made again does not
    repeat it.
    """

    @abstractmethod
    def agents(self) -> Sequence[AgentInfo]:
        """The agents that may be run here, sorted by name; a recipe that cannot be read is none."""

    @abstractmethod
    async def run_agent(self, name: str, requirements: str) -> JsonValue:
        """Give an agent a text, and return its output. Its time is not that of the tool.

        Raises:
            ToolError: There is no such agent (`agent-not-found`), it takes no text
                (`no-request-input`), it runs already around this call (`recipe-cycle`), or it
                failed.
        """
