"""A cut, joined or damaged answer is never taken for a whole one, in any wire form: A-134."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pytest
from returns.pipeline import is_successful
from returns.result import Result

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.messages import Message
from minions.data.json_values import JsonValue
from strict_servers.damage import ERRORS, PLANS, SERVERS, join, pieces_of, reader_of
from strict_servers.openai import StrictChat
from strict_servers.server import Planned, StrictServer

TEXT: Final = PLANS[0]
MOST: Final = 600
"""Places at which one answer is cut: an odd stride meets every kind of byte."""

Outcome = Result[ModelCallResponse, ModelFailure]

every_form = pytest.mark.parametrize("server", SERVERS, ids=lambda each: each.name)
every_plan = pytest.mark.parametrize("planned", PLANS, ids=["text", "all", "call"])


def heard(
    server: StrictServer, chunks: Sequence[bytes], broken: str | None = None, *, stream: bool = True
) -> Outcome:
    reader = reader_of(server, stream=stream)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.result(broken)


def places_in(data: bytes) -> range:
    return range(0, len(data), len(data) // MOST | 1)


def whole_of(server: StrictServer, planned: Planned) -> Message:
    return heard(server, pieces_of(server, planned)).unwrap().message


# --- cut and chunked ----------------------------------------------------------------------------


@every_form
@every_plan
def test_a_stream_cut_at_any_byte_is_whole_or_interrupted(
    server: StrictServer, planned: Planned
) -> None:
    data, whole = b"".join(pieces_of(server, planned)), whole_of(server, planned)
    for end in places_in(data):
        outcome = heard(server, [data[:end]])
        if is_successful(outcome):
            assert outcome.unwrap().message == whole  # usage and the last event may be missing
        else:
            failure = outcome.failure()
            assert failure.is_retryable
            assert failure.code in ("stream-interrupted", "malformed-response")
            assert (
                "ended before" in failure.message
                or "event stream" in failure.message
                or ("not JSON" in failure.message)
            ), failure.message


@every_form
@every_plan
def test_a_connection_that_is_reset_at_any_byte_says_so(
    server: StrictServer, planned: Planned
) -> None:
    data, whole = b"".join(pieces_of(server, planned)), whole_of(server, planned)
    for end in places_in(data):
        outcome = heard(server, [data[:end]], "the connection was reset")
        if is_successful(outcome):
            assert outcome.unwrap().message == whole
        else:
            assert outcome.failure().code in ("stream-interrupted", "model-unreachable")
            assert "the connection was reset" in outcome.failure().message


@every_form
@every_plan
@pytest.mark.parametrize("end_of_line", [b"\n", b"\r\n", b"\r"])
def test_a_stream_may_come_in_two_chunks_of_any_size(
    server: StrictServer, planned: Planned, end_of_line: bytes
) -> None:
    data = b"".join(pieces_of(server, planned)).replace(b"\n", end_of_line)
    whole = heard(server, [data])
    assert is_successful(whole)
    for at in places_in(data):
        assert heard(server, [data[:at], data[at:]]) == whole


@every_form
@every_plan
def test_a_plain_answer_that_was_cut_is_none(server: StrictServer, planned: Planned) -> None:
    data = json.dumps(server.document(planned)).encode()
    assert is_successful(heard(server, [data], stream=False))
    for end in places_in(data):
        failure = heard(server, [data[:end]], stream=False).failure()
        assert (failure.code, failure.is_retryable) == ("malformed-response", True)


# --- errors and garbage in the midst -------------------------------------------------------------


@every_form
@every_plan
def test_an_error_at_any_place_of_a_stream_is_told(server: StrictServer, planned: Planned) -> None:
    pieces, error = pieces_of(server, planned), server.framed(ERRORS[server.name])
    whole = whole_of(server, planned)
    for at in range(len(pieces)):
        outcome = heard(server, [*pieces[:at], error, *pieces[at:]])
        if is_successful(outcome):  # it came behind the end of the answer, and is not read
            assert outcome.unwrap().message == whole
            assert is_successful(heard(server, pieces[:at]))
        else:
            failure = outcome.failure()
            assert (failure.code, failure.is_retryable) == ("model-unavailable", True)
            assert "Overloaded" in failure.message


@every_form
@pytest.mark.parametrize("bad", [b"\xff", b"\x00", b"\xf0\x9f"])
def test_bytes_that_are_no_text_are_named(server: StrictServer, bad: bytes) -> None:
    """A gateway cut a text within a character, or wrote what it had in memory."""
    pieces = [each.replace(b"six", b"s" + bad) for each in pieces_of(server, TEXT)]
    failure = heard(server, pieces).failure()
    assert failure.code == "malformed-response"
    assert "a piece of the stream is not JSON" in failure.message


OWN_TOOLS: Final[dict[str, list[JsonValue]]] = {
    "chat": [{"choices": [{"delta": {"tool_calls": [{"id": "c", "type": "custom"}]}}]}],
    "responses": [
        {"type": "response.created"},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"type": "web_search_call"},
        },
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {"type": "web_search_call"},
        },
        {
            "type": "response.completed",
            "response": {"status": "completed", "output": [{"type": "web_search_call"}]},
        },
    ],
    "messages": [
        {"type": "message_start", "message": {}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "server_tool_use", "name": "web_search"},
        },
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ],
    "gemini": [
        {"candidates": [{"content": {"parts": [{"executableCode": {}}]}, "finishReason": "STOP"}]}
    ],
}


@every_form
def test_a_stream_of_the_providers_own_tools_alone_names_them(server: StrictServer) -> None:
    pieces = [server.framed(each) for each in OWN_TOOLS[server.name]]
    message = heard(server, pieces).failure().message
    assert "provider's own" in message
    names = ("web_search", "web_search_call", "executableCode", "custom")
    assert any(name in message for name in names)


# --- two answers in one stream --------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("first", PLANS, ids=["text", "all", "call"])
@pytest.mark.parametrize("second", PLANS, ids=["text", "all", "call"])
def test_two_answers_joined_at_any_place_are_none(
    server: StrictServer, first: Planned, second: Planned
) -> None:
    ours, theirs = pieces_of(server, first), pieces_of(server, second, "b")
    whole = {whole_of(server, first), whole_of(server, second)}
    refused = 0
    for at in range(1, len(ours)):
        outcome = heard(server, join(ours, at, theirs))
        if is_successful(outcome):  # the first had said nothing yet, or had ended
            assert outcome.unwrap().message in whole, at
        else:
            refused += 1
            assert "second answer" in outcome.failure().message
            assert (outcome.failure().code, outcome.failure().is_retryable) == (
                "malformed-response",
                True,
            )
    assert refused >= len(ours) - 4


@every_form
def test_an_answer_that_begins_within_a_line_of_another_loses_none_of_its_pieces(
    server: StrictServer,
) -> None:
    ours, theirs = (b"".join(pieces_of(server, PLANS[0], name)) for name in "ab")
    whole = whole_of(server, PLANS[0])
    for end in range(1, len(ours) - 1):
        outcome = heard(server, [ours[:end], theirs])
        if is_successful(outcome):
            assert outcome.unwrap().message == whole
        else:
            assert outcome.failure().is_retryable


# --- what known gateways do -----------------------------------------------------------------------

CHAT: Final = StrictChat()


def chat_pieces(
    planned: Planned = TEXT, change: Callable[[int, dict[str, JsonValue]], None] | None = None
) -> list[dict[str, JsonValue]]:
    documents = [dict(each) for each in CHAT.events(planned) if isinstance(each, dict)]
    for number, each in enumerate(documents):
        if change is not None:
            change(number, each)
    return documents


def delta_in(piece: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    choices = piece["choices"]
    assert isinstance(choices, list)
    if not choices or not isinstance(choices[0], dict):
        return {}
    delta = choices[0]["delta"]
    assert isinstance(delta, dict)
    return delta


def told(pieces: Sequence[JsonValue]) -> Outcome:
    return heard(CHAT, [CHAT.framed(each) for each in (*pieces, "[DONE]")])


def an_id_each(number: int, piece: dict[str, JsonValue]) -> None:
    piece["id"] = f"c-{number}"


def an_id_for_two(number: int, piece: dict[str, JsonValue]) -> None:
    piece["id"] = f"c-{number // 2}"


def no_id(number: int, piece: dict[str, JsonValue]) -> None:
    piece["id"] = ""


def role_each(number: int, piece: dict[str, JsonValue]) -> None:
    piece["id"] = "a"
    delta_in(piece)["role"] = "assistant"


def id_and_role_each(number: int, piece: dict[str, JsonValue]) -> None:
    an_id_each(number, piece)
    delta_in(piece)["role"] = "assistant"


def an_empty_role(number: int, piece: dict[str, JsonValue]) -> None:
    if number:
        delta_in(piece)["role"] = ""


def an_opening_of_its_own(number: int, piece: dict[str, JsonValue]) -> None:
    piece["id"] = "gateway" if "role" in delta_in(piece) else "a"


def an_end_of_its_own(number: int, piece: dict[str, JsonValue]) -> None:
    piece["id"] = "a" if delta_in(piece) else "gateway"


def counts_up(number: int, piece: dict[str, JsonValue]) -> None:
    piece |= {"id": "a", "usage": {"prompt_tokens": 11, "completion_tokens": number}}


def finishes_each(number: int, piece: dict[str, JsonValue]) -> None:
    if isinstance(choices := piece["choices"], list) and choices:
        assert isinstance(choices[0], dict)
        choices[0]["finish_reason"] = "stop"


@every_plan
@pytest.mark.parametrize(
    "change",
    [
        *(an_id_each, an_id_for_two, no_id, role_each, id_and_role_each, an_empty_role),
        *(an_opening_of_its_own, an_end_of_its_own, counts_up),
    ],
)
def test_a_gateway_that_is_merely_sloppy_is_taken(
    planned: Planned, change: Callable[[int, dict[str, JsonValue]], None]
) -> None:
    assert told(chat_pieces(planned, change)).unwrap().message == whole_of(CHAT, planned)


def test_a_finish_reason_in_each_piece_is_none_of_a_second_answer() -> None:
    assert told(chat_pieces(TEXT, finishes_each)).unwrap().text == TEXT.text


def test_a_finish_reason_twice_is_none_of_a_second_answer() -> None:
    pieces = chat_pieces(PLANS[1], role_each)
    assert told([*pieces[:-1], pieces[-2], pieces[-1]]).unwrap().message == (
        whole_of(CHAT, PLANS[1])
    )


def test_text_that_was_held_back_until_after_the_end_belongs_to_the_answer() -> None:
    pieces = chat_pieces(TEXT, counts_up)
    pieces.insert(-3, pieces.pop(-2))
    assert told(pieces).unwrap().text == TEXT.text


def test_the_role_may_be_said_again_where_text_follows_a_call() -> None:
    pieces = chat_pieces(PLANS[2])
    text: JsonValue = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "so"}}]}
    assert told([*pieces[:-2], text, *pieces[-2:]]).unwrap().text == "so"


def test_a_filters_report_before_the_answer_has_an_id_of_its_own() -> None:
    report: JsonValue = {"id": "", "choices": [], "prompt_filter_results": []}
    pieces = [report, *chat_pieces(TEXT, counts_up)]
    assert told(pieces).unwrap().text == TEXT.text


def variants() -> Iterator[tuple[str, list[dict[str, JsonValue]], list[dict[str, JsonValue]]]]:
    """Two answers of servers that say less: without ids, roles, or with the gateway's id."""

    def without_role(number: int, piece: dict[str, JsonValue]) -> None:
        delta_in(piece).pop("role", None)
        piece["id"] = "a"

    def without_role_other(number: int, piece: dict[str, JsonValue]) -> None:
        without_role(number, piece)
        piece["id"] = "b"

    yield "ids alone", chat_pieces(TEXT, without_role), chat_pieces(TEXT, without_role_other)
    yield "roles alone", chat_pieces(TEXT), chat_pieces(TEXT)
    yield "empty ids", chat_pieces(TEXT, no_id), chat_pieces(TEXT, no_id)
    yield "the gateway's id", chat_pieces(TEXT, counts_up), chat_pieces(TEXT, counts_up)
    yield "an id each", chat_pieces(TEXT, an_id_each), chat_pieces(TEXT, an_id_each)


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(a, b, id=name) for name, a, b in variants()]
)
def test_one_sign_is_enough_for_two_answers_that_were_joined(
    first: list[dict[str, JsonValue]], second: list[dict[str, JsonValue]]
) -> None:
    assert is_successful(told(first))
    for at in range(3, len(first)):
        failure = told([*first[:at], *second]).failure()
        assert "second answer" in failure.message, at


def test_a_short_answer_behind_steady_pieces_is_a_second_one() -> None:
    first, second = chat_pieces(TEXT, counts_up), chat_pieces(Planned(text="Yes."), counts_up)
    for each in second:
        each["id"] = "b"
        delta_in(each).pop("role", None)
    assert "second answer" in told([*first[:4], *second[:2], second[-2]]).failure().message


@pytest.mark.parametrize("answer_id", [None, ""])
def test_an_answer_behind_the_end_of_another_is_none_even_without_ids_and_roles(
    answer_id: str | None,
) -> None:
    pieces = chat_pieces()
    for each in pieces:
        each["id"] = answer_id
        delta_in(each).pop("role", None)
    assert "second answer" in told([*pieces, *pieces]).failure().message


def test_answers_whose_pieces_alternate_are_none() -> None:
    first, second = chat_pieces(TEXT, counts_up), chat_pieces(TEXT, counts_up)
    mixed = [each for pair in zip(first, second, strict=True) for each in pair]
    for number, each in enumerate(mixed):
        each["id"] = "ab"[number % 2]
        delta_in(each).pop("role", None)
    assert "second answer" in told(mixed).failure().message
