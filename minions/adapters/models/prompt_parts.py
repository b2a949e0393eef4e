"""The parts of a prompt as the wire forms beside chat completions need them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import define, evolve, frozen

from minions.contracts.calls import Prompt
from minions.contracts.messages import Message, MessageRole, ToolCallRequest
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

# --- messages ----------------------------------------------------------------------------------


def conversation_of(prompt: Prompt) -> tuple[Message, ...]:
    """All messages that are sent, those of the output request last."""
    extra = prompt.output_request.messages if prompt.output_request is not None else ()
    return (*prompt.messages, *extra)


def system_text(messages: Iterable[Message]) -> str:
    """The system messages as one text; empty: there is none."""
    texts = (each.content for each in messages if each.role is MessageRole.SYSTEM)
    return "\n\n".join(filter(None, texts))


def with_valid_ids(
    messages: Iterable[Message], is_valid: Callable[[str], bool]
) -> Iterator[Message]:
    """The messages without those of the system; each tool call with an id that is valid and its
    own, and each result with the id of its call.
    """
    used: set[str] = set()
    names: dict[str | None, list[str]] = {}
    for message in messages:
        if message.role is MessageRole.SYSTEM:
            continue
        if message.tool_calls:
            names = {}
            calls = []
            for call in message.tool_calls:
                own = _own_id(call.id, used, is_valid)
                used.add(own)
                names.setdefault(call.id, []).append(own)
                calls.append(call if own == call.id else evolve(call, id=own))
            yield evolve(message, tool_calls=tuple(calls))
        elif message.role is MessageRole.TOOL:
            known = names.get(message.tool_call_id)
            if not known:  # it answers nothing: no server takes it as a result
                yield evolve(message, role=MessageRole.USER, tool_call_id=None)
                continue
            own = known.pop(0) if len(known) > 1 else known[0]
            yield evolve(message, tool_call_id=own)
        else:
            yield message


def _own_id(call_id: str, used: set[str], is_valid: Callable[[str], bool]) -> str:
    if call_id not in used and is_valid(call_id):
        return call_id
    number = len(used)
    while f"call_{number}" in used:
        number += 1
    return f"call_{number}"


def arguments_of(call: ToolCallRequest) -> dict[str, JsonValue]:
    """The arguments as an object; empty where the model wrote none."""
    return _object_of(call.arguments) or {}


def sendable_arguments(call: ToolCallRequest) -> str:
    """The arguments as JSON text of an object: servers refuse anything else that is sent back."""
    return call.arguments if _object_of(call.arguments) is not None else "{}"


def _object_of(arguments: str) -> dict[str, JsonValue] | None:
    try:
        value: JsonValue = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def merged(turns: Iterable[tuple[str, list[JsonValue]]]) -> list[tuple[str, list[JsonValue]]]:
    """Roles with their parts, neighbours of the same role as one."""
    result: list[tuple[str, list[JsonValue]]] = []
    for role, parts in turns:
        if result and result[-1][0] == role:
            result[-1][1].extend(parts)
        else:
            result.append((role, list(parts)))
    return result


# --- tools and the declared output ---------------------------------------------------------------


@define
class FunctionTools:
    """The tools of prompts in OpenAI's form; the same few objects come with every call."""

    _tools: tuple[ToolSpec, ...] = ()
    _functions: tuple[Mapping[str, JsonValue], ...] = ()

    def of(self, tools: tuple[ToolSpec, ...]) -> tuple[Mapping[str, JsonValue], ...]:
        """`name`, `description` and `parameters` of each."""
        is_known = len(tools) == len(self._tools) and all(
            one is other for one, other in zip(tools, self._tools, strict=True)
        )
        if not is_known:
            self._functions = tuple(_function(tool.to_message_dict()) for tool in tools)
            self._tools = tools
        return self._functions


@frozen(kw_only=True)
class OutputConstraint:
    """What a request says of its answer, whatever the wire form."""

    tools: Sequence[Mapping[str, JsonValue]]
    """`name`, `description`, `parameters` and maybe `strict` of each tool."""
    choice: str = "auto"
    """`auto`, `none`, `required`, or `name:` with the name of a tool."""
    is_parallel: bool = True
    """Whether several tools may be called at once."""
    schema: JsonSchema | None = None
    """The schema that binds the answer; None: none does."""
    name: str = "output"
    """The schema's name."""
    is_strict: bool = False
    is_json: bool = False
    """Whether the answer shall be some JSON object."""


def constraint_of(prompt: Prompt, functions: FunctionTools) -> OutputConstraint:
    """What the prompt and its output request, which is in OpenAI's form, ask for."""
    body = prompt.output_request.body if prompt.output_request is not None else _NOTHING
    tools: Sequence[Mapping[str, JsonValue]] = functions.of(prompt.tools)
    if isinstance(own := body.get("tools"), list | tuple):
        tools = [_function(each) for each in own if isinstance(each, Mapping)]
    form = _mapping(body.get("response_format"))
    named = _mapping(form.get("json_schema"))
    schema = named.get("schema")
    return OutputConstraint(
        tools=tools,
        choice=_choice(body.get("tool_choice")),
        is_parallel=body.get("parallel_tool_calls") is not False,
        schema=schema if isinstance(schema, Mapping) else None,
        name=str(named.get("name") or "output"),
        is_strict=named.get("strict") is True,
        is_json=form.get("type") == "json_object",
    )


_NOTHING: Final[Mapping[str, JsonValue]] = {}


def _function(tool: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    return _mapping(tool.get("function"))


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, Mapping) else _NOTHING


def _choice(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    name = _mapping(_mapping(value).get("function")).get("name")
    return f"name:{name}" if isinstance(name, str) else "auto"
