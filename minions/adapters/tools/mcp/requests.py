"""Requests of the protocol, as one call of a tool makes them. Importing this loads the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ErrorData,
    InputRequest,
    InputRequiredResult,
    InputResponses,
    RequestParamsMeta,
)

from minions.adapters.tools.mcp.elicitation import CallInFlight, elicited
from minions.adapters.tools.mcp.mcp_failures import BAD_RESULT, REFUSED, failed
from minions.data.json_values import JsonValue

_MOST_ROUNDS: Final = 10
"""How often one call may come back with questions."""
_PAUSE_S: Final = 0.1
"""Seconds before a call is sent again that came back without a question."""


async def call_tool(
    session: ClientSession,
    server: str,
    tool: str,
    arguments: Mapping[str, JsonValue],
    call: CallInFlight,
    progress: ProgressFnT | None = None,
    trace: Mapping[str, str] | None = None,
) -> CallToolResult:
    """Call the tool, and answer the questions with which a stateless server comes back.

    Args:
        trace: The W3C headers that join what the server does to the run's trace.
    Raises:
        ToolServerError: The server asks for what is not offered, or again and again.
        Exception: Whatever the SDK raises.
    """
    # It knows no bounds, and lists all tools first: `ResultReader` checks.
    session.validate_tool_result = _take_any_result  # type: ignore[assignment, method-assign]  # of this one
    answers: InputResponses | None = None
    state: str | None = None
    for _ in range(_MOST_ROUNDS):
        found = await session.call_tool(
            tool,
            dict(arguments),
            progress_callback=progress,
            input_responses=answers,
            request_state=state,
            meta=cast("RequestParamsMeta", dict(trace)) if trace else None,
            allow_input_required=True,
        )
        if not isinstance(found, InputRequiredResult):
            assert isinstance(found, CallToolResult)  # noqa: S101  # there is nothing else
            return found
        state, answers = found.request_state, None
        if found.input_requests:
            answers = await _answers(server, found.input_requests, call)
        else:
            await asyncio.sleep(_PAUSE_S)
    raise failed(server, f"asked for more input {_MOST_ROUNDS} times", code=BAD_RESULT)


async def _answers(
    server: str, asked: Mapping[str, InputRequest], call: CallInFlight
) -> InputResponses:
    """The answers of a person, one question after the other."""
    answers: InputResponses = {}
    for key, request in asked.items():
        if not isinstance(request, ElicitRequest):
            raise failed(server, f"asks for '{request.method}', which is not offered", code=REFUSED)
        answer = await elicited(call, request.params)
        if isinstance(answer, ErrorData):
            what = f"has no answer to its question: {answer.message}"
            raise failed(server, what, code=REFUSED)
        answers[key] = answer
    return answers


async def _take_any_result(_name: str, _result: CallToolResult) -> None:
    """Takes any result."""
