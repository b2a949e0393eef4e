"""What model servers answer: streams, plain answers, HTTP responses, errors, texts with JSON."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from attrs import frozen
from returns.pipeline import is_successful

from fuzz.target import Target, text_of
from minions.adapters.http.http_response import (
    BadResponseError,
    BrokenBodyError,
    ResponseReader,
)
from minions.adapters.models.answer_reader import AnswerReader, WireForm
from minions.adapters.models.anthropic import AnthropicWire
from minions.adapters.models.cassette_models import Cassette
from minions.adapters.models.chat_failures import ChatPeer, status_failure
from minions.adapters.models.gemini import GeminiWire
from minions.adapters.models.openai import PlainAnswer, StreamedAnswer
from minions.adapters.models.responses import ResponsesWire
from minions.adapters.models.script_file import read_script
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.calls import ModelCallResponse, Prompt
from minions.contracts.instructions import OutputInstructions, OutputMode
from minions.contracts.messages import Message, assistant, user
from minions.data.errors import UsageError
from minions.data.json_values import dumps, find_json_value, parse_json
from minions.data.schema import JsonSchema
from strict_servers.anthropic import StrictAnthropic
from strict_servers.damage import ERRORS, PLANS, SERVERS, join, pieces_of, reader_of
from strict_servers.gemini import StrictGemini
from strict_servers.openai import StrictResponses
from strict_servers.server import Planned, StrictServer

__all__ = ["model_targets"]

_KEY: Final = "sk-a-secret-of-the-fuzzer"
_PEER: Final = ChatPeer(provider="p", model="m", base_url="http://localhost/v1", secret=_KEY)
_NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def model_targets(folder: Path) -> Sequence[Target]:
    """The targets.

    Args:
        folder: An empty one, for files that are read.
    """
    return (
        Target(
            name="stream",
            check=check_stream,
            seeds=lambda: [*_STREAMS, *_ANSWERS],
            words=_STREAM_WORDS,
            few=600,
        ),
        *(
            Target(
                name=f"stream-{name}",
                check=partial(check_blocks, wire),
                seeds=partial(_block_seeds, server),
                words=(*_STREAM_WORDS, *_BLOCK_WORDS),
                few=300,
            )
            for name, wire, server in _WIRES
        ),
        Target(
            name="damage",
            check=check_damage,
            seeds=lambda: [bytes([form, 1, *kind, 9]) for form in range(4) for kind in _KINDS],
            most_bytes=64,
            few=400,
        ),
        Target(
            name="response",
            check=check_response,
            seeds=lambda: _RESPONSES,
            words=_HTTP_WORDS,
            few=600,
        ),
        Target(
            name="failure",
            is_json=True,
            check=check_failure,
            seeds=lambda: _FAILURES,
            words=_FAILURE_WORDS,
            few=600,
        ),
        Target(
            name="output",
            check=_OutputTarget().check,
            seeds=lambda: [each.encode() for each in _TEXTS],
            words=("```json\n", "```", "{", "}", "[", '"', '{"value": ', "<think>", "</think>"),
            few=150,
        ),
        Target(
            name="script",
            check=_ScriptTarget(folder / "script.yaml").check,
            seeds=lambda: _SCRIPTS,
            words=("answers:", "text: ", "json: ", "tool_calls: ", "fail: ", "match: ", "usage: "),
            few=180,
        ),
        Target(
            name="cassette",
            check=_CassetteTarget(folder / "cassette.jsonl").check,
            seeds=lambda: _CASSETTES,
            words=('"call":', '"model":', '"request":', '"response":', '"failure":', '"pieces":'),
            few=300,
        ),
    )


# --- streams and plain answers ------------------------------------------------------------------


def _piece(**delta: object) -> bytes:
    finish = delta.pop("finish", None)
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    document = {"id": "c1", "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


_CALL: Final = {"index": 0, "id": "t1", "function": {"name": "look", "arguments": '{"a"'}}
_REST: Final = {"index": 0, "function": {"arguments": ": 1}"}}
_USAGE: Final = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\n'
_DONE: Final = b"data: [DONE]\n\n"
_STREAMS: Final = (
    _piece(role="assistant", content="Hel") + _piece(content="lo") + _piece(finish="stop") + _DONE,
    _piece(tool_calls=[_CALL]) + _piece(tool_calls=[_REST]) + _piece(finish="tool_calls") + _USAGE,
    (b": comment\r\n\r\n" + _piece(content="\u00e9\U0001f642")).replace(b"\n", b"\r\n") + _DONE,
    b'event: x\ndata: {"choices":\ndata: []}\n\n' + _piece(reasoning_content="so", refusal=None),
    b'data: {"error": {"message": "too long", "code": "context_length_exceeded"}}\n\n',
    _piece(content="x", finish="length") + _USAGE,
)
_ANSWERS: Final = tuple(
    json.dumps(each).encode()
    for each in (
        {
            "choices": [
                {"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        },
        {"choices": [{"message": {"content": None, "tool_calls": [_CALL]}}], "model": "m"},
        {"error": {"message": "no", "type": "server_error", "code": 503}},
        {"choices": [{"message": {"content": [{"type": "text", "text": "a"}], "refusal": "no"}}]},
    )
)
_STREAM_WORDS: Final = (
    *("data: ", "data:", "\n\n", "\r\n\r\n", "\r", "event: x\n", ": c\n", "[DONE]", "id: 1\n"),
    *('"choices"', '"delta"', '"message"', '"tool_calls"', '"function"', '"arguments"', '"usage"'),
    *('"finish_reason"', '"stop"', '"length"', '"content_filter"', '"error"', '"index"', '"code"'),
)


@frozen
class _Heard:
    """What a reader says of one answer."""

    result: object
    is_complete: bool
    usage: object


def check_stream(data: bytes) -> None:
    """A response or a failure, which is the same wherever the bytes are cut."""
    chance = random.Random(zlib.crc32(data))
    for make in (lambda: StreamedAnswer(_PEER, lambda: 0.0, 0.0), lambda: PlainAnswer(_PEER)):
        whole = _heard(make(), [data])
        cuts = _cut(data, chance, 6)
        assert _heard(make(), cuts) == whole, [len(each) for each in cuts]
        if len(data) < 1_000:
            assert _heard(make(), [data[at : at + 1] for at in range(len(data))]) == whole
        assert _KEY not in str(whole.result)
    _heard(StreamedAnswer(_PEER, lambda: 0.0, 0.0), [data], broken="it was lost")


def _heard(reader: AnswerReader, chunks: Sequence[bytes], broken: str | None = None) -> _Heard:
    for chunk in chunks:
        reader.feed(chunk)
        reader.longest_silence(1.0)
    result = reader.result(broken)
    return _Heard(result, reader.is_complete, reader.usage)


def _cut(data: bytes, chance: random.Random, most: int) -> list[bytes]:
    places = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(1, most)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


# --- streams and plain answers that are lists of blocks ------------------------------------------

_WIRES: Final[tuple[tuple[str, WireForm, StrictServer], ...]] = (
    ("messages", AnthropicWire(provider="p", model="claude-sonnet-4-5"), StrictAnthropic()),
    ("responses", ResponsesWire(provider="p", model="m"), StrictResponses()),
    ("gemini", GeminiWire(provider="p", model="gemini-3"), StrictGemini()),
)
_PLANS: Final = (
    Planned(text="Hello", thought="So."),
    Planned(text="I look.", calls=(("look", {"q": 1}), ("look", {})), thought="Two \U0001f642."),
    Planned(text="no", finish="refusal"),
    Planned(text="cut", finish="length"),
    Planned(finish="filtered"),
)
_BLOCK_WORDS: Final = (
    *('"type"', '"index"', '"output_index"', '"content_block"', '"signature_delta"', '"item"'),
    *('"encrypted_content"', '"thoughtSignature"', '"functionCall"', '"finishReason"', '"parts"'),
    *('"stop_reason"', '"pause_turn"', '"incomplete_details"', '"promptFeedback"', '"candidates"'),
)
_ASKED: Final = Prompt()


def _block_seeds(server: StrictServer) -> list[bytes]:
    plain = [json.dumps(server.document(each)).encode() for each in _PLANS]
    return [*(server.stream_bytes(each) for each in _PLANS), *plain]


def check_blocks(wire: WireForm, data: bytes) -> None:
    """A response or a failure, the same wherever the bytes are cut; what was taken can be sent."""
    chance = random.Random(zlib.crc32(data))
    readers: tuple[Callable[[], AnswerReader], ...] = (
        lambda: wire.stream_reader(_PEER, _ASKED, lambda: 0.0, 0.0),
        lambda: wire.plain_reader(_PEER, _ASKED),
    )
    for make in readers:
        whole = _heard(make(), [data])
        assert _heard(make(), _cut(data, chance, 6)) == whole
        if len(data) < 1_000:
            assert _heard(make(), [data[at : at + 1] for at in range(len(data))]) == whole
        result = make()
        result.feed(data)
        outcome = result.result()
        if is_successful(outcome):
            said = (user("x"), outcome.unwrap().message, user("y"))
            json.loads(wire.write(Prompt(said), stream=True))
    _heard(readers[0](), [data], broken="it was lost")


# --- answers that were damaged on the way ---------------------------------------------------------

_KINDS: Final = (b"\0\5", b"\1\5\0", b"\2\4", b"\3\1\1", b"\0\2\1\4\2", b"\4\7\1\3\0\5")


def check_damage(data: bytes) -> None:
    """A failure or the whole answer, whatever happened to it.

    The bytes choose: a form, an answer, and after that what happens where, one after the other.
    """
    chosen = iter(data)
    server = SERVERS[next(chosen, 0) % len(SERVERS)]
    plan = next(chosen, 0)
    whole = {_said(server, pieces_of(server, each)) for each in PLANS}
    pieces = pieces_of(server, PLANS[plan % len(PLANS)], "id-0")
    chance = random.Random(zlib.crc32(data))
    for number, kind in enumerate(chosen, 1):
        place = next(chosen, 0) % (len(pieces) + 1)
        match kind % 5:
            case 0:  # the server dies between two pieces
                pieces = pieces[:place]
            case 1:  # the gateway asks again
                other = PLANS[next(chosen, 0) % len(PLANS)]
                pieces = join(pieces, max(place, 1), pieces_of(server, other, f"id-{number}"))
            case 2:  # the server tells an error
                pieces.insert(place, server.framed(ERRORS[server.name]))
            case 3:  # it dies within a piece, and the gateway adds its own words
                cut = pieces[:place][-1:]
                pieces[max(0, place - 1) :] = [each[: chance.randint(0, len(each))] for each in cut]
                pieces.append(b"\n\n<html>upstream is gone</html>\n\n")
            case _:  # it says that it is alive
                pieces.insert(place, b": alive\n\n")
        pieces = pieces[:400]
    heard = _said(server, _cut(b"".join(pieces), chance, 4))
    assert heard is None or heard in whole


def _said(server: StrictServer, chunks: Sequence[bytes]) -> Message | None:
    """The message of a streamed answer; None: a failure that says what happened."""
    reader = reader_of(server)
    for chunk in chunks:
        reader.feed(chunk)
    outcome = reader.result()
    if is_successful(outcome):
        return outcome.unwrap().message
    assert outcome.failure().code in (
        *("stream-interrupted", "malformed-response", "model-unavailable"),
    )
    return None


# --- HTTP responses -----------------------------------------------------------------------------

_RESPONSES: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: 1\r\n\r\n"
    ),
    (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 503 No\r\nRetry-After: 3\r\nConnection: close\r\n\r\nbusy"
    ),
    b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + zlib.compress(b"x" * 500, wbits=31),
    b"HTTP/1.1 200 OK\nContent-Encoding: deflate\nContent-Length: 11\n\n" + zlib.compress(b"abc"),
    b"HTTP/1.1 204 No Content\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n",
)
_HTTP_WORDS: Final = (
    *("HTTP/1.1 200 OK\r\n", "\r\n\r\n", "\r\n", "Content-Length: ", "Transfer-Encoding: chunked"),
    *("Content-Encoding: gzip", "0\r\n\r\n", "5\r\n", "ffffffffffffffff\r\n", "Connection: close"),
    *(
        "101 ",
        "304 ",
        "Transfer-Encoding: gzip, chunked",
        "Upgrade: x",
        "HTTP/2 200\r\n",
        "ICY 200",
    ),
)


def check_response(data: bytes) -> None:
    """A head and a body, or one of two errors; the same wherever the bytes are cut."""
    chance = random.Random(zlib.crc32(data))
    whole = _received([data])
    assert _received(_cut(data, chance, 6)) == whole
    if len(data) < 1_000:
        assert _received([data[at : at + 1] for at in range(len(data))]) == whole


def _received(chunks: Sequence[bytes]) -> tuple[object, ...]:
    """The head, the body and how it ended; of an error its class alone: a body may precede it."""
    reader = ResponseReader()
    body = b""
    try:
        for chunk in chunks:
            reader.feed(chunk)
        is_whole = reader.feed_end()
        while piece := reader.take():
            body += piece
    except (BadResponseError, BrokenBodyError) as error:
        return (type(error).__name__,)
    return reader.head, body, is_whole


# --- errors -------------------------------------------------------------------------------------

_FAILURES: Final = tuple(
    json.dumps(each).encode()
    for each in (
        {"status": 429, "headers": {"retry-after": "3"}, "body": {"error": {"message": "slow"}}},
        {
            "status": 429,
            "headers": {
                "retry-after": "Fri, 02 Jan 2026 03:04:15 GMT",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1m3.5s",
                "x-ratelimit-limit-tokens": "1000",
                "anthropic-ratelimit-tokens-reset": "2026-01-02T03:05:00Z",
            },
            "body": "no",
        },
        {"status": 400, "headers": {"retry-after-ms": "12.5"}, "body": {"error": {"code": 7}}},
        {
            "status": 400,
            "headers": {},
            "body": {"error": {"message": "maximum context length is 8192 tokens, got 9000"}},
        },
        {"status": 302, "headers": {"location": "https://example.org/login"}, "body": ""},
        {"status": 500, "headers": {}, "body": {"detail": [{"msg": "x", "loc": ["a"]}]}},
    )
)
_FAILURE_WORDS: Final = (
    *("retry-after", "retry-after-ms", "x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens"),
    *(
        "1m3.5s",
        "6m0s",
        "20ms",
        "2026-01-02T03:05:00Z",
        "Fri, 02 Jan 2026 03:04:15 GMT",
        "location",
    ),
    *("1e400", "inf", "-5", "error", "message", "code", "type", "param", "context_length_exceeded"),
)


def check_failure(data: bytes) -> None:
    """A failure, whatever a server sends instead of an answer."""
    try:
        document = json.loads(text_of(data))
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    status, headers, body = (document.get(key) for key in ("status", "headers", "body"))
    if not isinstance(status, int) or not 300 <= status <= 999 or not isinstance(headers, dict):
        return
    told = {str(name).lower(): str(value) for name, value in headers.items()}
    sent = (
        body.encode("utf-8", "surrogatepass")
        if isinstance(body, str)
        else json.dumps(body).encode()
    )
    failure = status_failure(_PEER, status, told, sent, _NOW)
    assert _KEY not in failure.message
    wait = failure.retry_after_s
    assert wait is None or 0 <= wait < float("inf")


# --- declared outputs ---------------------------------------------------------------------------

_TEXTS: Final = (
    '{"name": "x", "size": 1}',
    'Here it is:\n```json\n{"name": "x", "size": 1.5}\n```\nDone {}.',
    '[1, {"a": [2]}] and {"name": "y"}',
    '{"value": {"name": "x"}}',
    "<think>{}</think> just a text",
    '"quoted"',
    "{'name': 'x', size: 1,}",
)
_SCHEMA: Final[JsonSchema] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "number"}},
    "required": ["name"],
}


class _OutputTarget:
    """Texts of models become the declared output or a failure."""

    def __init__(self) -> None:
        self._parser = InstructorParser()
        self._declared: tuple[OutputInstructions[object], ...] = (
            OutputInstructions(schema=_SCHEMA),
            OutputInstructions(schema={"type": "string", "minLength": 1}),
        )

    def check(self, data: bytes) -> None:
        """One text, in every mode."""
        text = text_of(data)
        for unique in (True, False):
            try:
                dumps(parse_json(text, unique_keys=unique))
            except ValueError:
                continue
        try:
            dumps(find_json_value(text))
        except ValueError:
            pass
        response = ModelCallResponse(message=assistant(text))
        for declared in self._declared:
            for mode in (None, *OutputMode):
                self._parser.parse(declared, response, mode)


# --- scripts of the scripted model --------------------------------------------------------------

_SCRIPTS: Final = (
    b"answers:\n  - hello\n  - text: hi\n    usage: {input_tokens: 3, output_tokens: 4}\n",
    b"answers:\n  - tool_calls: [{name: look, arguments: {a: 1}}]\n    match: x\n",
    b"answers:\n  - {fail: rate-limited, message: slow, retryable: true, retry_after_s: 1.5}\n",
    b"answers:\n  - json: &a {x: [1, 2.5, null]}\n  - json: *a\n",
)


class _ScriptTarget:
    """Script files are read, or refused with all their mistakes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, data: bytes) -> None:
        """One file."""
        self._path.write_bytes(data)
        try:
            read_script(self._path)
        except UsageError as error:
            assert error.error_code == "bad-script"


# --- cassettes --------------------------------------------------------------------------------

_HEAD_LINE: Final = b'{"cassette": 1, "recording": 1}\n'
_MODEL_LINE: Final = b'{"model": "m", "base_url": null, "capabilities": {"takes_strict": true}}\n'
_REQUEST: Final = b'"model": "m", "request": {"messages": [{"role": "user", "content": "Hi"}]}'
_CASSETTES: Final = (
    _HEAD_LINE + _MODEL_LINE,
    _HEAD_LINE
    + _MODEL_LINE
    + b'{"call": 1, '
    + _REQUEST
    + b', "pieces": ["a", {"reasoning": "b"}, {"tool_call": {"index": 0}}], "response": {'
    b'"message": {"role": "assistant", "content": "ab", "tool_calls": [{"id": "1", "name": "t", '
    b'"arguments": "{}"}]}, "usage": {"input_tokens": 3, "cost_usd": 0.1}, '
    b'"finish_reason": "stop"}}\n',
    _HEAD_LINE
    + b'{"call": 2, '
    + _REQUEST
    + b', "failure": {"code": "rate-limited", "message": "Wait.", "is_retryable": true, '
    b'"usage": {}, "suggestions": ["later"], "status": 429}}\n{"call": 3, "mod',
)


class _CassetteTarget:
    """Cassettes are read, or refused by a line; what was read answers its own requests."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, data: bytes) -> None:
        """One file."""
        self._path.write_bytes(data)
        try:
            cassette = Cassette.read(self._path)
        except UsageError as error:
            assert error.error_code == "bad-cassette"
            return
        left = cassette.calls_left
        for name in cassette.models:
            assert cassette.model(name).name == f"replay/{name}"
        assert cassette.restarted().calls_left == left
