"""The engine's own tool by which a model reads a long tool result in pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from minions.contracts.calls import ToolCall
from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.engine.history.shown_results import READ_RESULT, piece_of

_SPEC: Final = ToolSpec(
    name=READ_RESULT,
    description="Read a further piece of a tool result that was cut.",
    parameters={
        "type": "object",
        "properties": {
            "call": {"type": "string", "description": "The id of the call, as the cut says it."},
            "start": {"type": "integer", "minimum": 0},
        },
        "required": ["call", "start"],
        "additionalProperties": False,
    },
    effect=Effect.PURE,
)


def _content(call: ToolCall) -> str:
    return call.response.content if call.response is not None else ""


@frozen
class ResultReader(Tool):
    """Reads the results of a step's own calls."""

    calls: Callable[[], Sequence[ToolCall]]
    """The calls of the step so far."""
    characters: int
    """The most characters of one piece."""
    spec: ToolSpec = field(default=_SPEC, init=False)

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """The piece that begins at `start`.

        Raises:
            ToolError: There is no such call, or its result ends before `start`.
        """
        wanted, start = arguments["call"], arguments["start"]
        assert isinstance(start, int)  # noqa: S101  # the schema says so
        readable = [call for call in self.calls() if call.name != READ_RESULT]
        found = next((call for call in reversed(readable) if call.request.id == wanted), None)
        if found is None:
            names = ", ".join(call.request.id for call in readable)
            raise ToolError(f"This step has no call '{wanted}'. Its calls are: {names}.")
        content = _content(found)
        if start >= len(content):
            raise ToolError(f"The result has {len(content)} characters; {start} is behind its end.")
        return piece_of(content, start, self.characters)
