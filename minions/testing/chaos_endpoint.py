"""`ChaosEndpoint`: a chat-completions server on 127.0.0.1 that fails as a `FaultPlan` says.

time = VirtualTime()
server = ChaosEndpoint(FaultPlan.from_seed(7), now=time.now)
async with server:
model = OpenAIModel("m", base_url=server.base_url)
...
assert server.served.usage == result.usage
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import blake2b
from typing import Final, TypeAlias, cast

from attrs import evolve, field, frozen, mutable

from minions.contracts.messages import TokenUsage
from minions.data.json_values import JsonValue, as_count, as_object, as_objects, as_text
from minions.testing import endpoint as served
from minions.testing.endpoint import ChatEndpoint
from minions.testing.exchange import (
    Behaviour,
    Exchange,
    RecordedRequest,
    chunk,
    chunks,
    error_body,
    event,
)
from minions.testing.fault_plans import FaultPlan, ServerFault
from minions.testing.plausible_answers import MakeAnswer, plausible_answer

__all__ = ["ChaosEndpoint", "Delivery", "Served", "delivery_of"]

MOST_TOKENS: Final = 10**9
"""A count above this is no count: a server that reports it counts nothing."""


@mutable
class Served:
    """What a `ChaosEndpoint` has done so far, for a test to compare with what its client says."""

    requests: int = 0
    faults: Counter[ServerFault] = field(factory=Counter)
    """Requests that failed, by how."""
    answers: int = 0
    """Answers that were sent to their end and that a client can take."""
    usage: TokenUsage = field(factory=TokenUsage)
    """The sum of what was reported: in answers, and in documents that are refused for another
    reason. Each was sent in whole; counts that are none (text, negative, absurd) are 0."""
    largest: int = 0
    """The most tokens that one document reported."""
    without_usage: int = 0
    """Answers of `answers` with no usable usage: clients have to estimate it."""


class ChaosEndpoint(ChatEndpoint):
    """A server for `async with`, again and again: the plan and the counts continue."""

    def __init__(
        self,
        plan: FaultPlan | str,
        *,
        answers: MakeAnswer = plausible_answer,
        seed: int = 0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        port: int = 0,
    ) -> None:
        """Prepare; it listens within `async with`.

        Args:
            plan: What fails; a text is read by `FaultPlan.parse`.
            answers: Makes the correct answers.
            seed: Of the random numbers for `answers`; they also depend on the request.
            now: The time of dates in headers, as the client knows it.
        """
        super().__init__(default=self._play, port=port)
        self.plan = FaultPlan.parse(plan) if isinstance(plan, str) else plan
        self.served = Served()
        self._answers = answers
        self._seed = seed
        self._now = now

    async def _play(self, exchange: Exchange) -> None:
        index, request = self.served.requests, exchange.request
        self.served.requests += 1
        fault = self.plan.fault(index)
        if fault is not None:
            self.served.faults[fault] += 1
        delivery = delivery_of(
            fault,
            self._answers(request, self._random(request)),
            is_stream=request.wants_stream,
            tools=_tools_of(request),
            now=self._now(),
        )
        if delivery.first is not None:
            await delivery.first(exchange)
            if exchange.client_has_left:
                raise ConnectionResetError("the client left")
        # Counted before the last byte is sent: the client may have it before this task goes on.
        self._count(delivery)
        await delivery.behave(exchange)

    def _random(self, request: RecordedRequest) -> random.Random:
        """The same for each attempt at a request."""
        digest = blake2b(request.raw, digest_size=8).hexdigest()
        return random.Random(f"{self._seed} {digest}")  # noqa: S311  # a test

    def _count(self, delivery: Delivery) -> None:
        if delivery.document is None:
            return
        usage = usage_of(delivery.document)
        self.served.usage += usage
        self.served.largest = max(self.served.largest, usage.total_tokens)
        self.served.answers += delivery.is_answer
        self.served.without_usage += delivery.is_answer and not usage.total_tokens


def usage_of(document: Mapping[str, JsonValue]) -> TokenUsage:
    """The usage that a document reports; 0 for what is no count of tokens."""
    usage = document.get("usage")
    if not isinstance(usage, dict):
        return TokenUsage()
    return TokenUsage(
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _count(value: JsonValue) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return as_count(value) if is_count and 0 <= as_count(value) <= MOST_TOKENS else 0


def _tools_of(request: RecordedRequest) -> list[str]:
    tools = as_objects(request.body.get("tools") or [])
    return [as_text(as_object(tool["function"])["name"]) for tool in tools]


# --- how a server does each fault of a plan ------------------------------------------------------


_Document: TypeAlias = dict[str, JsonValue]


@frozen(kw_only=True)
class Delivery:
    """What is sent for one request, and what the client learns from it."""

    behave: Behaviour
    first: Behaviour | None = None
    """What is done before it, which takes time: the client may leave meanwhile."""
    document: _Document | None = None
    """The document that a client receives in whole; None: it receives none."""
    is_answer: bool = False
    """Whether the document is one that a client can take as the model's answer."""


@frozen(kw_only=True)
class _Request:
    """What a fault is made from."""

    document: _Document
    """The correct answer."""
    is_stream: bool
    tool: str
    """A tool that the request offers, or a name if it offers none."""
    now: datetime


_Make: TypeAlias = Callable[[_Request], Delivery]


def delivery_of(
    fault: ServerFault | None,
    document: _Document,
    *,
    is_stream: bool,
    tools: Sequence[str],
    now: datetime,
) -> Delivery:
    """How to answer a request.

    Args:
        fault: None: as it should be.
        document: The correct answer.
        is_stream: Whether the request asks for a stream.
        tools: Names of the tools that the request offers.
        now: The time of dates in headers.
    """
    tool = tools[0] if tools else "lookup"
    request = _Request(document=document, is_stream=is_stream, tool=tool, now=now)
    if fault is None:
        return _send(request)
    if fault in _EDITS:
        return _edit(request, fault)
    return _OTHERS[fault](request)


# --- whole answers -------------------------------------------------------------------------------


def _send(request: _Request, document: _Document | None = None) -> Delivery:
    """An answer that arrives in whole."""
    said = request.document if document is None else document
    return Delivery(behave=_whole(request, said), document=said, is_answer=True)


def _whole(request: _Request, document: _Document) -> Behaviour:
    if request.is_stream:
        return served.stream(_events(document))
    return served.document(document)


def _events(document: _Document) -> list[JsonValue | str | bytes]:
    return [*chunks(document), "[DONE]"]


def _plain(request: _Request) -> bytes:
    return json.dumps(request.document).encode()


# --- statuses ------------------------------------------------------------------------------------


def _status(
    status: int,
    message: str = "not now",
    /,
    headers: Mapping[str, str] | None = None,
    **more: JsonValue,
) -> _Make:
    body = error_body(message, **more)
    return lambda _: Delivery(behave=served.status(status, body, headers=headers))


def _wait_until(code: int, seconds: float) -> _Make:
    def make(request: _Request) -> Delivery:
        date = format_datetime(request.now + timedelta(seconds=seconds), usegmt=True)
        return _status(code, headers={"Retry-After": date})(request)

    return make


def _retry_after(code: int, said: str) -> _Make:
    return _status(code, headers={"Retry-After": said})


def _fix(behave: Behaviour) -> _Make:
    return lambda _: Delivery(behave=behave)


# --- the connection ------------------------------------------------------------------------------

_PAUSE_S: Final = 20.0


def _slow_start(request: _Request) -> Delivery:
    return evolve(_send(request), first=_wait_for_a_while)


async def _wait_for_a_while(_: Exchange) -> None:
    await asyncio.sleep(_PAUSE_S)


def _slow_body(request: _Request) -> Delivery:
    if not request.is_stream:
        return _slow_start(request)
    events = _events(request.document)
    begin = served.stream(events[:3], ends="open", pause_s=_PAUSE_S)
    return evolve(_send(request), first=begin, behave=_rest_of_stream(events[3:]))


def _rest_of_stream(events: Sequence[JsonValue | str | bytes]) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        for item in events:
            await exchange.send_piece(item if isinstance(item, bytes) else event(item))
        await exchange.end_stream()

    return behave


async def _reset(exchange: Exchange) -> None:
    exchange.reset()


async def _reset_after_head(exchange: Exchange) -> None:
    await exchange.send_head(200, {"Content-Type": "application/json", "Content-Length": "99"})
    exchange.reset()


async def _half_head(exchange: Exchange) -> None:
    await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
    exchange.drop()


async def _garbage(exchange: Exchange) -> None:
    await exchange.write(bytes(range(256)) * 4)
    exchange.drop()


async def _broken_error(exchange: Exchange) -> None:
    kind = {"Content-Type": "application/json", "Content-Length": "999"}
    await exchange.send_head(500, kind)
    await exchange.write(b'{"error": {"mess')
    exchange.drop()


def _half(request: _Request, *, ends: str) -> Delivery:
    """The first half of an answer, without its usage."""
    if request.is_stream:
        pieces = chunks({**request.document, "usage": None})[:-2]
        behave = served.stream(pieces[: len(pieces) // 2 + 1], ends=ends)
    else:
        raw = _plain(request)[: len(_plain(request)) // 2]
        behave = served.cut(raw) if ends == "cut" else served.silent_after(raw)
    return Delivery(behave=behave)


def _whole_without_end(request: _Request, *, ends: str) -> Delivery:
    """All of an answer, but not the end of its body. A stream that says `[DONE]` needs none."""
    if request.is_stream:
        behave = served.stream(_events(request.document), ends=ends)
        return Delivery(behave=behave, document=request.document, is_answer=True)
    raw = _plain(request)
    return Delivery(behave=served.cut(raw) if ends == "cut" else served.silent_after(raw))


async def _broken_chunks(exchange: Exchange) -> None:
    await exchange.begin_stream()
    await exchange.send_piece(event(chunk({"content": "half"})))
    await exchange.write(b"ZZ\r\nnot a size\r\n")
    exchange.drop()


def _one_byte_chunks(request: _Request) -> Delivery:
    if not request.is_stream:
        return _send(request)
    data = b"".join(
        event(item) if not isinstance(item, bytes) else item for item in _events(request.document)
    )

    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for begin in range(0, len(data), 64):
            await exchange.write(
                b"".join(b"1\r\n%c\r\n" % byte for byte in data[begin : begin + 64])
            )
        await exchange.end_stream()

    return Delivery(behave=behave, document=request.document, is_answer=True)


def _bytes_after_end(request: _Request) -> Delivery:
    whole = _send(request)

    async def behave(exchange: Exchange) -> None:
        await whole.behave(exchange)
        await exchange.write(b"HTTP/1.1 200 OK\r\n\r\n")
        exchange.drop()

    return Delivery(behave=behave, document=whole.document, is_answer=True)


# --- the document --------------------------------------------------------------------------------


def _wrong(value: JsonValue) -> _Make:
    """Another JSON document than an answer, as the body or as the one event of a stream."""

    def make(request: _Request) -> Delivery:
        behave = served.stream([value, "[DONE]"]) if request.is_stream else served.document(value)
        return Delivery(behave=behave, document=value if isinstance(value, dict) else None)

    return make


def _no_choices(request: _Request) -> Delivery:
    said: _Document = {**request.document, "choices": []}
    return _wrong(said)(request)


def _null_message(request: _Request) -> Delivery:
    said: _Document = {**request.document, "choices": [{"index": 0, "message": None}]}
    if not request.is_stream:
        return _wrong(said)(request)
    return _wrong({**request.document, "choices": [None]})(request)


def _error_in_200(**error: JsonValue) -> _Make:
    return _wrong({"error": error})


def _error_after_usage(request: _Request) -> Delivery:
    error: _Document = {"error": {"message": "lost a worker"}}
    if not request.is_stream:
        return _wrong({**error, "usage": request.document["usage"]})(request)
    first, *_ = chunks(request.document)
    last = chunks(request.document)[-1]
    behave = served.stream([first, last, error])
    return Delivery(behave=behave, document=request.document)


def _bytes(raw: bytes, content_type: str = "application/json") -> _Make:
    return _fix(served.body(raw, content_type=content_type))


def _cut_json(request: _Request) -> Delivery:
    if not request.is_stream:
        return Delivery(behave=served.body(_plain(request)[:-20]))
    piece = event(chunk({"content": "half"}))[:-20] + b"\n\n"
    return Delivery(behave=served.stream([piece, "[DONE]"]))


def _not_utf8(request: _Request) -> Delivery:
    raw = b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'
    if request.is_stream:
        return Delivery(behave=served.stream([b"data: " + raw + b"\n\n", "[DONE]"]))
    return Delivery(behave=served.body(raw))


def _wrong_type(request: _Request) -> Delivery:
    async def plain(exchange: Exchange) -> None:
        await exchange.send(_plain(request), headers={"Content-Type": "text/plain"})

    if request.is_stream:
        return _send(request)
    return Delivery(behave=plain, document=request.document, is_answer=True)


# --- the answer ----------------------------------------------------------------------------------

_Edit: TypeAlias = Callable[[_Request], Mapping[str, JsonValue]]
"""Gives the keys of `endpoint.completion` that are different."""


def _edit(request: _Request, fault: ServerFault) -> Delivery:
    """The answer with other content, or with another usage."""
    changes = _EDITS[fault](request)
    if set(changes) <= {"usage"}:
        kept = {key: value for key, value in request.document.items() if key != "usage"}
        return _send(request, {**kept, **changes})
    said = served.completion(
        cast("str | None", changes.get("content")),
        tool_calls=cast("Sequence[_Document]", changes.get("tool_calls", ())),
        finish_reason=cast("str | None", changes.get("finish_reason")),
        usage=cast("_Document", request.document["usage"]),
        refusal=changes.get("refusal"),
    )
    sent = _send(request, said)
    # A client stops reading a stream at the call that is too many, before the usage.
    is_cut = fault is ServerFault.MANY_CALLS and request.is_stream
    document = None if is_cut else said
    return evolve(sent, document=document, is_answer=fault not in _REFUSED)


_REFUSED: Final = frozenset(
    (
        ServerFault.CONTENT_NULL,
        ServerFault.CUT_AT_LIMIT,
        ServerFault.FILTERED,
        ServerFault.REFUSED,
        ServerFault.NAMELESS_CALL,
        ServerFault.MANY_CALLS,
    )
)
"""Answers that no client takes as one."""


def _calling(*calls: tuple[str, str, str]) -> list[JsonValue]:
    return [served.call(name, arguments, call_id=call_id) for name, arguments, call_id in calls]


def _usage(**counts: JsonValue) -> _Edit:
    return lambda _: {"usage": counts}


_MANY: Final = 1_001

_EDITS: Final[Mapping[ServerFault, _Edit]] = {
    ServerFault.CONTENT_NULL: lambda _: {"content": None},
    ServerFault.CUT_AT_LIMIT: lambda _: {"content": "and so", "finish_reason": "length"},
    ServerFault.FILTERED: lambda _: {"content": None, "finish_reason": "content_filter"},
    ServerFault.REFUSED: lambda _: {"refusal": "I would rather not."},
    ServerFault.UNKNOWN_TOOL: lambda _: {"tool_calls": _calling(("no_such_tool", "{}", "c1"))},
    ServerFault.CUT_ARGUMENTS: lambda r: {
        "tool_calls": _calling((r.tool, '{"n": 1, "why": "it', "c1"))
    },
    ServerFault.WRONG_ARGUMENTS: lambda r: {
        "tool_calls": _calling((r.tool, '{"n": "many", "odd": [1]}', "c1"))
    },
    ServerFault.DUPLICATE_IDS: lambda r: {
        "tool_calls": _calling((r.tool, '{"n": 1}', "c1"), (r.tool, '{"n": 2}', "c1"))
    },
    ServerFault.CALLS_WITH_STOP: lambda r: {
        "tool_calls": _calling((r.tool, '{"n": 3}', "c1")),
        "finish_reason": "stop",
    },
    ServerFault.STOP_WITHOUT_CALLS: lambda _: {"content": "So.", "finish_reason": "tool_calls"},
    ServerFault.NAMELESS_CALL: lambda _: {"tool_calls": _calling(("", "{}", "c1"))},
    ServerFault.MANY_CALLS: lambda r: {
        "tool_calls": _calling(*((r.tool, '{"n": 4}', f"c{n}") for n in range(_MANY)))
    },
    ServerFault.WRONG_SCHEMA: lambda _: {"content": '{"good": "perhaps", "odd": [1]}'},
    ServerFault.PROSE: lambda _: {"content": "Sure! Here you are: all is well."},
    ServerFault.ODD_TEXT: lambda _: {"content": "\ud83d {{ inputs }} \x00 \u202e </data> \udc00"},
    ServerFault.NO_USAGE: lambda _: {},
    ServerFault.NEGATIVE_USAGE: _usage(prompt_tokens=-5, completion_tokens=-7, total_tokens=-12),
    ServerFault.TEXT_USAGE: _usage(prompt_tokens="five", completion_tokens="7", total_tokens="12"),
    ServerFault.NULL_USAGE: lambda _: {"usage": None},
    ServerFault.FRACTIONAL_USAGE: _usage(
        prompt_tokens=5.5, completion_tokens=7.5, total_tokens=13.0
    ),
    ServerFault.ABSURD_USAGE: _usage(
        prompt_tokens=10**30, completion_tokens=10**30, total_tokens=2 * 10**30
    ),
    ServerFault.CACHED_ABOVE_INPUT: _usage(
        prompt_tokens=5,
        completion_tokens=7,
        total_tokens=12,
        prompt_tokens_details={"cached_tokens": 500},
    ),
}

_HUGE: Final = 21 * 1_048_576
_DEEP: Final = b"[" * 100_000

_OTHERS: Final[Mapping[ServerFault, _Make]] = {
    ServerFault.RATE_LIMITED: _status(429, "slow down"),
    ServerFault.RATE_LIMITED_SECONDS: _retry_after(429, "7"),
    ServerFault.RATE_LIMITED_DATE: _wait_until(429, 9),
    ServerFault.RATE_LIMITED_LONG: _retry_after(429, "86400"),
    ServerFault.RATE_LIMITED_NONSENSE: _retry_after(429, "soon, soon"),
    ServerFault.QUOTA: _status(429, "pay first", code="insufficient_quota"),
    ServerFault.REQUEST_TIMEOUT: _status(408),
    ServerFault.CONFLICT: _status(409),
    ServerFault.SERVER_ERROR: _status(500),
    ServerFault.UNAVAILABLE: _status(503),
    ServerFault.UNAVAILABLE_SECONDS: _retry_after(503, "3"),
    ServerFault.UNAVAILABLE_DATE: _wait_until(503, -5),
    ServerFault.OVERLOADED: _status(529, "overloaded", type="overloaded_error"),
    ServerFault.BAD_REQUEST: _status(400, "I do not like it"),
    ServerFault.UNAUTHORIZED: _status(401, "no such key"),
    ServerFault.NOT_FOUND: _status(404, "no such model"),
    ServerFault.REDIRECT: _status(307, headers={"Location": "http://127.0.0.1:9/elsewhere"}),
    ServerFault.TOO_LONG: _status(400, "too much", code="context_length_exceeded"),
    ServerFault.HUGE_ERROR: _fix(served.huge(1_048_576, code=500)),
    ServerFault.BROKEN_ERROR: _fix(_broken_error),
    ServerFault.NO_ANSWER: _fix(served.hang()),
    ServerFault.SLOW_START: _slow_start,
    ServerFault.SLOW_BODY: _slow_body,
    ServerFault.CLOSED: _fix(served.drop()),
    ServerFault.RESET: _fix(_reset),
    ServerFault.RESET_AFTER_HEAD: _fix(_reset_after_head),
    ServerFault.HALF_HEAD: _fix(_half_head),
    ServerFault.CUT: lambda request: _half(request, ends="cut"),
    ServerFault.STALLED: lambda request: _half(request, ends="silent"),
    ServerFault.CUT_AT_END: lambda request: _whole_without_end(request, ends="cut"),
    ServerFault.STALLED_AT_END: lambda request: _whole_without_end(request, ends="silent"),
    ServerFault.BROKEN_CHUNKS: _fix(_broken_chunks),
    ServerFault.ONE_BYTE_CHUNKS: _one_byte_chunks,
    ServerFault.GARBAGE: _fix(_garbage),
    ServerFault.NOT_REUSABLE: _bytes_after_end,
    ServerFault.EMPTY_BODY: _bytes(b""),
    ServerFault.EMPTY_DOCUMENT: _wrong({}),
    ServerFault.NO_CHOICES: _no_choices,
    ServerFault.NULL_MESSAGE: _null_message,
    ServerFault.OTHER_DOCUMENT: _wrong({"hello": "world"}),
    ServerFault.LIST: _wrong([1, 2]),
    ServerFault.HTML: _bytes(b"<html>Welcome</html>", "text/html"),
    ServerFault.NOT_JSON: _bytes(b"ready."),
    ServerFault.CUT_JSON: _cut_json,
    ServerFault.NOT_UTF8: _not_utf8,
    ServerFault.DEEP_JSON: _bytes(_DEEP),
    ServerFault.HUGE: _fix(served.huge(_HUGE)),
    ServerFault.WRONG_TYPE: _wrong_type,
    ServerFault.ERROR_IN_200: _error_in_200(message="something broke"),
    ServerFault.RATE_LIMIT_IN_200: _error_in_200(message="slow down", code="rate_limit_exceeded"),
    ServerFault.ERROR_AFTER_USAGE: _error_after_usage,
}
