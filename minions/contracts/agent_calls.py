"""Agents that a tool may run by name, as part of the run in which it is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import field, frozen

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema


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


# --- questions that a tool asks a person in the middle of its call -------------------------------


DECLINED: Final = "question-declined"
"""Code of the error where a person declined to answer."""


class ToolQuestions(ABC):
    """Asks a person for one tool call.

    Each answer is recorded with the run. Where there is none yet, the run waits, the call ends, and
    a run that is resumed with the answer repeats it: then the question is asked again, and its
    answer is there.
    """

    @abstractmethod
    async def ask(self, text: str, form: JsonSchema | None = None) -> JsonValue:
        """The answer of a person. Its time is not that of the tool.

        Args:
            text: In words for people.
            form: JSON Schema that the answer has to fit; None: any text.
        Raises:
            ToolError: There is no answer yet (`needs-decision`), a person declined to give one
                (`question-declined`), or the answer is none.
        """
