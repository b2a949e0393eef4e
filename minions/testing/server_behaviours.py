"""Ways in which real servers answer requests for structured output, by name, each as a behaviour.

for name, behaviour in server_behaviours('{"n": 1}').items(): ...
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from minions.contracts.model_profiles import Support
from minions.data.json_values import JsonValue, as_object, as_objects, dumps
from minions.testing.endpoint import answer, status, stream
from minions.testing.exchange import (
    USAGE,
    Behaviour,
    Exchange,
    call,
    chunks,
    completion,
    error_body,
    event,
)
from minions.testing.plausible_answers import plausible_value

__all__ = ["ServerHabits", "model_server", "server_behaviours"]


def server_behaviours(said: str, *, tool: str = "output") -> Mapping[str, Behaviour]:
    """The behaviours by name.

    Args:
        said: What the model answers where nothing goes wrong: JSON.
        tool: The name under which an output is asked for as a tool call.
    """
    refuses = Support.REFUSES
    no_form = ServerHabits(schema=refuses, json_object=refuses, said=said)
    begun = call(tool, said[: len(said) // 2])
    return {
        "binds answers to the schema": model_server(ServerHabits(said="prose")),
        "ignores the schema with 200": model_server(ServerHabits(schema=Support.IGNORES)),
        "ignores it, and its model obeys": model_server(
            ServerHabits(schema=Support.IGNORES, said=f"Here it is:\n```json\n{said}\n```")
        ),
        "refuses response_format": model_server(no_form),
        "refuses response_format and tools": model_server(
            ServerHabits(
                schema=refuses, json_object=refuses, tools=refuses, named_tool=refuses, said=said
            )
        ),
        "refuses without saying what": _refuses_forms(said),
        "refuses strict": model_server(ServerHabits(strict=refuses)),
        "refuses system messages": model_server(ServerHabits(system_role=refuses)),
        "takes a named call as auto": model_server(
            ServerHabits(schema=refuses, json_object=refuses, named_tool=Support.IGNORES)
        ),
        "ends a forced call at its length": model_server(
            ServerHabits(schema=refuses, json_object=refuses, forced_tool=Support.FAILS, said=said)
        ),
        "judges the answer with HTTP 500": model_server(
            ServerHabits(schema=Support.FAILS, json_object=Support.IGNORES)
        ),
        "cuts arguments at the length": _by_tools(
            answer(tool_calls=[begun], finish_reason="length")
        ),
        "cuts arguments and calls it done": _by_tools(answer(tool_calls=[begun])),
        "cuts the answer and calls it done": answer(said[: len(said) // 2]),
        "is asked too often and says no pause": status(429, error_body("slow down")),
        "calls a tool and says stop": _by_tools(
            answer(tool_calls=[call(tool, said)], finish_reason="stop")
        ),
        "calls a tool and says nothing": _by_tools(_without_reason(said, tool)),
        "knows no such model, with 400": status(400, error_body("model 'm' does not exist")),
        "gives up with 408": status(408, error_body("timeout")),
        "counts no tokens": answer(said, usage=None),
        "repeats the ids of calls": _by_tools(
            answer(tool_calls=[call(tool, said, call_id="c"), call(tool, said, call_id="c")])
        ),
        "streams with comments, CRLF and split letters": _split(said),
    }


def _by_tools(behaviour: Behaviour) -> Behaviour:
    """The behaviour where tools are offered; any other form is refused."""

    async def behave(exchange: Exchange) -> None:
        refusal = status(400, error_body("response_format is not supported"))
        await (behaviour if "tools" in exchange.request.body else refusal)(exchange)

    return behave


def _refuses_forms(said: str) -> Behaviour:
    """Refuses every form, with a message that does not say what is wrong."""

    async def behave(exchange: Exchange) -> None:
        body = exchange.request.body
        is_plain = not {"response_format", "tools", "tool_choice"} & set(body)
        refusal = status(400, error_body("Bad Request"))
        await (answer(said) if is_plain else refusal)(exchange)

    return behave


def _without_reason(said: str, tool: str) -> Behaviour:
    """A tool call whose stream names no reason for its end."""
    document = completion(tool_calls=[call(tool, said)])

    async def behave(exchange: Exchange) -> None:
        if not exchange.request.wants_stream:
            await exchange.send(json.dumps(document).encode())
            return
        pieces = [piece for piece in chunks(document) if '"tool_calls"}' not in json.dumps(piece)]
        await stream([*pieces, "[DONE]"])(exchange)

    return behave


def _split(said: str) -> Behaviour:
    """An event stream as the standard allows it: comments, CRLF, letters cut between packets."""
    document = completion(said)

    async def behave(exchange: Exchange) -> None:
        if not exchange.request.wants_stream:
            await exchange.send(json.dumps(document).encode())
            return
        text = b": still here\r\n\r\n"
        for piece in chunks(document):
            data = json.dumps(piece, ensure_ascii=False)
            text += event(data).replace(b"\n", b"\r\n")
        text += b": almost\r\n\r\ndata: [DONE]\r\n\r\n"
        await exchange.begin_stream()
        for at in range(0, len(text), 7):
            await exchange.send_piece(text[at : at + 7])
        await exchange.end_stream()

    return behave


# --- a server with habits ------------------------------------------------------------------------


_Object = Mapping[str, JsonValue]


@frozen(kw_only=True)
class ServerHabits:
    """What a server does with each part of a request."""

    schema: Support = Support.BINDS
    """FAILS: it checks the answer, and answers HTTP 500 where it does not fit."""
    strict: Support = Support.BINDS
    json_object: Support = Support.BINDS
    tools: Support = Support.BINDS
    """IGNORES: the model never calls one. REFUSES: its template takes none."""
    forced_tool: Support = Support.BINDS
    """FAILS: the answer ends at its length without a call."""
    named_tool: Support = Support.BINDS
    """IGNORES: a named tool counts as `auto`."""
    type_lists: Support = Support.BINDS
    together: Support = Support.BINDS
    """A schema beside tools. IGNORES: the calls are dropped."""
    several_calls: bool = True
    system_role: Support = Support.BINDS
    has_usage: bool = True
    most_levels: int = 20
    """Levels of a schema that are taken."""
    said: str = "I would rather tell you about it in prose."
    """What the model says where nothing binds it and its prompt asks for nothing exactly."""


def model_server(habits: ServerHabits | None = None) -> Behaviour:
    """How that server answers any request."""

    async def behave(exchange: Exchange) -> None:
        await _answer_of(exchange, habits or ServerHabits())(exchange)

    return behave


def _answer_of(exchange: Exchange, habits: ServerHabits) -> Behaviour:
    if exchange.request.method != "POST":
        return status(404, error_body("no such path"))
    body = exchange.request.body
    if (refusal := _refusal(body, habits)) is not None:
        return status(400, error_body(refusal))
    usage = USAGE if habits.has_usage else None
    is_together = bool(body.get("tools")) and _schema_of(body) is not None
    calls = [] if is_together and habits.together is Support.IGNORES else _calls(body, habits)
    if calls:
        return answer(tool_calls=calls if habits.several_calls else calls[:1], usage=usage)
    if body.get("tool_choice") == "required" and habits.forced_tool is Support.FAILS:
        return answer("Well, let me think", finish_reason="length", usage=usage)
    return _text(body, habits, holds_schema=not is_together or habits.together is Support.BINDS)


def _calls(body: _Object, habits: ServerHabits) -> list[dict[str, JsonValue]]:
    """The calls of the answer: those that are named, asked for in words, or forced."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and habits.named_tool is Support.BINDS:
        return [_called(body, str(as_object(choice["function"])["name"]), 0)]
    wished = [] if habits.tools is Support.IGNORES else _find_wished(body, _last_words(body))
    if not wished and choice == "required" and habits.forced_tool is Support.BINDS:
        return [_called(body, _names(body)[0], 0)]
    return wished


def _text(body: _Object, habits: ServerHabits, *, holds_schema: bool) -> Behaviour:
    free, form = _find_ordered_text(_last_words(body)) or habits.said, _schema_of(body)
    if form is not None and holds_schema:
        return _form(form, free, habits)
    if _wants_object(body) and habits.json_object is Support.BINDS and not _is_object(free):
        free = dumps({"value": free})
    return answer(free, usage=USAGE if habits.has_usage else None)


def _form(form: _Object, free: str, habits: ServerHabits) -> Behaviour:
    """The answer to a request with a schema."""
    usage = USAGE if habits.has_usage else None
    if habits.schema is Support.BINDS:
        return answer(dumps(plausible_value(form, random.Random(1))), usage=usage)  # noqa: S311
    if habits.schema is Support.FAILS and not _fits(free, form):
        return status(500, error_body("The output does not match the expected schema"))
    return answer(free, usage=usage)


def _refusal(body: _Object, habits: ServerHabits) -> str | None:
    """Why the server refuses the request; None: it takes it."""
    refuses = Support.REFUSES
    form, tools = _schema_of(body), body.get("tools")
    choice = body.get("tool_choice")
    reasons = {
        "System role not supported": habits.system_role is refuses and "system" in _roles(body),
        "Unknown response_format: json_schema": form is not None and habits.schema is refuses,
        "The schema in response_format is too deep": _levels(form) > habits.most_levels,
        "response_format.type has to be text": _wants_object(body)
        and habits.json_object is refuses,
        "Unrecognized request argument supplied: strict": habits.strict is refuses
        and '"strict"' in json.dumps(body),
        "this model does not support tools": bool(tools) and habits.tools is refuses,
        "tool_choice has to be auto": (choice == "required" and habits.forced_tool is refuses)
        or (isinstance(choice, dict) and habits.named_tool is refuses),
        "response_format cannot be combined with tools": bool(tools)
        and form is not None
        and habits.together is refuses,
        "the chat template takes no lists of types in tools": habits.type_lists is refuses
        and '"type": [' in json.dumps(tools),
    }
    return next((words for words, is_so in reasons.items() if is_so), None)


def _roles(body: _Object) -> list[JsonValue]:
    return [each["role"] for each in as_objects(body["messages"])]


# --- what the model makes of its prompt ----------------------------------------------------------

_EXACTLY: Final = re.compile(r"Answer exactly(?: this JSON and nothing else)?: (.{1,200})")
_CALL: Final = re.compile(r"Call the function ([a-z]{1,40})( twice)?")


def _last_words(body: _Object) -> str:
    messages = as_objects(body["messages"])
    return str(messages[-1].get("content") or "")


def _find_ordered_text(words: str) -> str | None:
    found = _EXACTLY.search(words)
    return found[1] if found else None


def _find_wished(body: _Object, words: str) -> list[dict[str, JsonValue]]:
    """The calls that the prompt asks for in words."""
    found = _CALL.search(words)
    if found is None or found[1] not in _names(body):
        return []
    return [_called(body, found[1], index) for index in range(2 if found[2] else 1)]


def _names(body: _Object) -> list[str]:
    return [str(each["name"]) for each in _functions(body)]


def _functions(body: _Object) -> list[_Object]:
    tools = as_objects(body.get("tools") or ())
    return [as_object(each["function"]) for each in tools]


def _called(body: _Object, name: str, index: int) -> dict[str, JsonValue]:
    function = next(each for each in _functions(body) if each["name"] == name)
    parameters = as_object(function.get("parameters") or {"type": "object"})
    value = plausible_value(parameters, random.Random(1))  # noqa: S311  # no secret
    return call(name, dumps(value), call_id=f"c{index}")


# --- forms ---------------------------------------------------------------------------------------


def _schema_of(body: _Object) -> _Object | None:
    form = body.get("response_format")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return None
    return as_object(as_object(form["json_schema"])["schema"])


def _wants_object(body: _Object) -> bool:
    form = body.get("response_format")
    return isinstance(form, dict) and form.get("type") == "json_object"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _fits(text: str, schema: _Object) -> bool:
    from minions.data.schema import SchemaValidator

    try:
        return not SchemaValidator(schema).errors(json.loads(text))
    except ValueError:
        return False


def _levels(schema: JsonValue) -> int:
    if not isinstance(schema, dict):
        return 0
    properties = schema.get("properties")
    below = properties.values() if isinstance(properties, dict) else ()
    return 1 + max(map(_levels, below), default=0) if properties else 0
