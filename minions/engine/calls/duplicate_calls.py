"""Identical tool calls: carried out once within an answer, and not for ever within a step."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from typing import Final

from attrs import evolve

from minions.contracts.calls import ToolCall, ToolFailure
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import Effect, Toolbox
from minions.data.json_values import parse_json

_MOST_REPEATS: Final = 3
"""Identical calls in a row with an identical result, after which the call is not made again."""
_CARRIED_OUT_ONCE: Final = "(The same call was made twice in one answer; it was carried out once.)"
_ONCE_AN_ANSWER: Final = (Effect.PURE, Effect.IDEMPOTENT, Effect.ONCE)


def first_of_each(
    requests: Sequence[ToolCallRequest], tools: Toolbox, *, without: Container[int] = ()
) -> dict[int, int]:
    """Index of a request to that of the first identical one in the same answer.

    Requests of tools whose effect is not declared are each their own: the tool may give something
    else each time.

    Args:
        without: Indices of requests that are left out.
    """
    if len(requests) == 1:
        return {} if 0 in without else {0: 0}
    seen: dict[tuple[str, str], int] = {}
    first: dict[int, int] = {}
    for index, request in enumerate(requests):
        if index in without:
            continue
        tool = tools.find(request.name)
        is_sure = tool is not None and tool.spec.effect in _ONCE_AN_ANSWER
        first[index] = seen.setdefault(_identity(request), index) if is_sure else index
    return first


def duplicated_result(call: ToolCall, first: ToolCall) -> ToolCall:
    """The call with the end of an identical one, and words that say so to the model."""
    response = first.response
    if response is not None:
        response = evolve(response, content=f"{_CARRIED_OUT_ONCE}\n{response.content}")
    return evolve(first, key=call.key, request=call.request, response=response)


def repeated_in_vain(request: ToolCallRequest, calls: Sequence[ToolCall]) -> ToolFailure | None:
    """Why a call is not made again; None: it is.

    Args:
        calls: The calls of the step so far, oldest first.
    """
    last = calls[-_MOST_REPEATS:]
    if len(last) < _MOST_REPEATS:
        return None
    results = {call.response.content if call.response is not None else None for call in last}
    if len(results) > 1 and not _was_refused(last[-1]):
        return None
    if any(call.request.name != request.name for call in last):
        return None
    wanted = _identity(request)
    if any(_identity(call.request) != wanted for call in last):
        return None
    return ToolFailure(
        code="duplicate-call",
        message=f"'{request.name}' was called with these arguments {_MOST_REPEATS} times in a row, "
        "and gave the same result each time. It was not called again: use that result, or do "
        "something else.",
        is_mendable=True,
    )


def _was_refused(call: ToolCall) -> bool:
    return call.failure is not None and call.failure.code == "duplicate-call"


def _identity(request: ToolCallRequest) -> tuple[str, str]:
    """Name and arguments, however the arguments are written."""
    try:
        arguments = parse_json(request.arguments or "{}", unique_keys=True)
    except ValueError:
        return request.name, request.arguments
    return request.name, json.dumps(arguments, sort_keys=True)
