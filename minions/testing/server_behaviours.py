"""Ways in which real servers answer requests for structured output, by name, each as a behaviour.

for name, behaviour in server_behaviours('{"n": 1}').items(): ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from minions.contracts.model_profiles import Support
from minions.testing.chat_documents import call, chunks, completion, error_body, event
from minions.testing.endpoint import answer, status, stream
from minions.testing.exchange import Behaviour, Exchange
from minions.testing.model_servers import ServerHabits, model_server

__all__ = ["server_behaviours"]


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
