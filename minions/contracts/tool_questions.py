"""Questions that a tool asks a person in the middle of its call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

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
