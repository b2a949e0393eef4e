"""How sure a model was of its answer, from the log-probabilities of its tokens. A-180."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.pipeline import is_successful

from minions.adapters.models.answer_confidence import MOST_TOKENS, confidence_of, tokens_of
from minions.adapters.models.openai import OpenAIModel
from minions.contracts.calls import Confidence, ModelCallResponse, ModelOptions, Prompt
from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import user
from minions.data.json_values import JsonValue
from minions.testing import endpoint as fake
from minions.testing.endpoint import ChatEndpoint

TEXT = '{"name": "Ada Lovelace", "born": 1815}'
TOKENS = ['{"', "name", '":', ' "', "Ada", " Love", "lace", '",', ' "born', '":', " 18", "15", "}"]
FORM = OutputInstructions[object](schema={"type": "object"})
JUDGED = Prompt((user("Who?"),), ModelOptions(min_confidence=0.5), FORM)


def told(probabilities: dict[str, float], tokens: Sequence[str] = TOKENS) -> list[Any]:
    """Tokens as servers tell them; those that are not named are certain."""
    return [
        {"token": each, "logprob": math.log(probabilities.get(each, 1)), "bytes": [*each.encode()]}
        for each in tokens
    ]


def pairs(tokens: Sequence[Any]) -> list[tuple[bytes, float]]:
    return [(bytes(each["bytes"]), each["logprob"]) for each in tokens]


async def asked(behaviour: fake.Behaviour, prompt: Prompt = JUDGED) -> list[ModelCallResponse]:
    """The answer, plain and streamed; the requests ask for probabilities or do not."""
    async with ChatEndpoint(default=behaviour) as server:
        model = OpenAIModel("m", base_url=server.base_url, provider="fake")
        outcomes = [await model.complete(prompt), await model.complete(prompt, lambda _: None)]
        await model.aclose()
        wants = [each.body.get("logprobs") for each in server.requests]
    assert wants == [True if prompt.is_judged else None] * 2
    assert all(map(is_successful, outcomes)), outcomes
    return [each.unwrap() for each in outcomes]


def answers(content: object, text: str = TEXT) -> fake.Behaviour:
    """The text with these log-probabilities, whole or in pieces."""

    async def behave(exchange: fake.Exchange) -> None:
        if not exchange.request.wants_stream:
            document = fake.completion(text)
            document["choices"][0]["logprobs"] = {"content": content}  # type: ignore[index]
            await exchange.send(json.dumps(document).encode())
            return
        half = len(content) // 2 if isinstance(content, list) else 0
        events: list[JsonValue] = []
        for part, said in ((text[:9], slice(half)), (text[9:], slice(half, None))):
            piece: Any = fake.chunk({"content": part})
            piece["choices"][0]["logprobs"] = {
                "content": content[said] if isinstance(content, list) else content
            }
            events.append(piece)
        end = fake.chunk({}, finish_reason="stop")
        await fake.stream([*events, end, "[DONE]"])(exchange)

    return behave


async def test_the_least_probable_value_says_how_sure_the_model_was() -> None:
    """A-180: a value has the product of its tokens' probabilities; names and marks have none."""
    behaviour = answers(told({"name": 0.001, '":': 0.01, "Ada": 0.8, " Love": 0.5, "15": 0.9}))
    for response in await asked(behaviour):
        assert response.confidence is not None
        assert response.confidence.at == "$.name"
        assert response.confidence.probability == pytest.approx(0.4)


async def test_probabilities_are_asked_for_only_where_an_output_is_judged() -> None:
    """A-180: text has no values, and what nobody asks for costs nothing."""
    for prompt in (Prompt((user("Who?"),), ModelOptions(min_confidence=0.5)), Prompt((user("."),))):
        for response in await asked(answers(told({})), prompt):
            assert response.confidence is None


@pytest.mark.parametrize(
    "content",
    [
        None,
        "no list",
        [],
        [7],
        [{"token": "x"}],
        [{"token": TEXT, "logprob": "high"}],
        [{"token": TEXT, "logprob": float("nan")}],
        [{"token": TEXT, "logprob": True}],
        [{"token": TEXT, "logprob": -0.1, "bytes": [999]}],
        told({}, ["another answer"]),
        told({}, TOKENS[:-2]),
    ],
    ids=str,
)
async def test_what_a_server_tells_wrongly_leaves_the_confidence_unknown(content: object) -> None:
    """A-180: the answer itself is taken as ever."""
    for response in await asked(answers(content)):
        assert (response.text, response.confidence) == (TEXT, None)


def test_what_stands_around_the_answer_does_not_count() -> None:
    tokens = told({"```json": 0.001}, ["```json", "\n", *TOKENS, "\n", "```"])
    assert confidence_of(f" {TEXT} ", pairs(tokens)) == Confidence(1.0, "$.name")


async def test_a_probability_above_one_is_one() -> None:
    content = [{"token": each, "logprob": 1e9} for each in TOKENS]
    for response in await asked(answers(content)):
        assert response.confidence == Confidence(1.0, "$.name")


@pytest.mark.parametrize("more", [0, 1])
def test_a_long_text_is_not_judged_and_a_long_number_is(more: int) -> None:
    digits = [(b"1", math.log(0.5)) for _ in range(MOST_TOKENS + more)]
    text = "1" * len(digits)
    number = confidence_of(f'{{"a": {text}}}', [(b'{"a": ', 0.0), *digits, (b"}", 0.0)])
    assert number == Confidence(math.exp(sum(log for _, log in digits)), "$.a")
    said = confidence_of(f'{{"a": "{text}"}}', [(b'{"a": "', 0.0), *digits, (b'"}', 0.0)])
    assert (said is None) is bool(more)


def test_what_is_nested_too_deep_is_not_judged() -> None:
    for depth, is_judged in ((100, True), (101, False)):
        text = "[" * depth + "1" + "]" * depth
        assert (confidence_of(text, [(text.encode(), -1.0)]) is not None) is is_judged


def test_a_path_is_cut_to_what_a_message_can_show() -> None:
    text = json.dumps({"a" * 500: 1})
    found = confidence_of(text, [(text.encode(), 0.0)])
    assert found is not None
    assert found.at == "$." + "a" * 198


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no JSON",
        b"[" * 100_000,
        b"{}",
        b"[]",
        b'{"choices": {"0": 1}}',
        b'{"choices": "no list"}',
        b'{"choices": []}',
        b'{"choices": [1]}',
        b'{"choices": [{"logprobs": {"content": [{"logprob": -1, "bytes": ["a"]}]}}]}',
        b'{"choices": [{"logprobs": {"content": [{"logprob": -1, "bytes": [1, "a"]}]}}]}',
        b'{"choices": [{"logprobs": {"content": [{"logprob": -1, "bytes": [true]}]}}]}',
        b'{"choices": [{"logprobs": {"content": [{"logprob": -1}]}}]}',
    ],
    ids=lambda each: each[:60].decode(),
)
def test_a_document_without_probabilities_has_no_tokens(document: bytes) -> None:
    assert tokens_of(document) == []


def test_a_token_has_its_bytes_or_else_its_text() -> None:
    content = [
        {"token": "\ufffd", "bytes": [195], "logprob": 2},
        {"token": "\ufffd", "bytes": [164], "logprob": -3},
        {"token": "b", "bytes": None, "logprob": 1},
        {"token": "c", "logprob": -0.5},
    ]
    document = json.dumps({"choices": [{"logprobs": {"content": content}}]}).encode()
    assert tokens_of(document) == [(b"\xc3", 0.0), (b"\xa4", -3.0), (b"b", 0.0), (b"c", -0.5)]


def test_a_long_text_is_left_out_and_others_are_not() -> None:
    """It can be said in many ways, of which each is improbable."""
    words = [" word"] * (MOST_TOKENS + 1)
    tokens = [
        ('{"a": "', 1.0),
        *((each, 0.5) for each in words),
        ('", "b": ', 1.0),
        ("7", 0.9),
        ("}", 1.0),
    ]
    sent = [(each.encode(), math.log(one)) for each, one in tokens]
    found = confidence_of("".join(each for each, _ in tokens), sent)
    assert found is not None
    assert (found.at, round(found.probability, 6)) == ("$.b", 0.9)


def test_an_answer_that_is_no_json_is_not_judged() -> None:
    for text in ("Ada", '{"a": ', "[" * 5_000 + "]" * 5_000, "", None):
        assert confidence_of(text, pairs(told({}, [text or "x"]))) is None


SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=2)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
BLANKS = st.sampled_from(["", " ", "\n  ", "\t"])
Span = tuple[str, int, int]


def spelled(value: Any, blank: Callable[[], str], spans: list[Span], path: str, at: int) -> str:
    """The value as JSON with any blanks; where each value without values in it stands in bytes."""
    text = blank()
    begin = at + len(text)
    if isinstance(value, dict) and value:
        text += "{"
        for number, (name, one) in enumerate(value.items()):
            step = f".{name}" if name.isidentifier() else f"[{name!r}]"
            text += ("," if number else "") + blank() + json.dumps(name) + blank() + ":"
            text += spelled(one, blank, spans, path + step, at + len(text))
        text += "}"
    elif isinstance(value, list) and value:
        text += "["
        for number, one in enumerate(value):
            text += "," if number else ""
            text += spelled(one, blank, spans, f"{path}[{number}]", at + len(text))
        text += "]"
    elif value in ([], {}) and not isinstance(value, bool | int):
        text += "[" + blank() + "]" if value == [] else "{" + blank() + "}"
        spans.append((path[:200], begin, at + len(text)))
    else:
        written = json.dumps(value)
        marks = int(isinstance(value, str) and value != "")
        spans.append((path[:200], begin + marks, begin + len(written) - marks))
        text += written
    return text + blank()


@given(VALUES, st.data())
def test_an_improbable_byte_makes_the_value_improbable_in_which_it_stands_and_no_other(
    value: Any, data: st.DataObject
) -> None:
    """A-180: with one token for each byte, and however the answer is laid out."""
    spans: list[Span] = []
    text = spelled(value, lambda: data.draw(BLANKS), spans, "$", 0)
    assert json.loads(text) == value
    sent = text.encode()
    at = data.draw(st.integers(0, len(sent) - 1))
    tokens = [(sent[n : n + 1], math.log(0.25) if n == at else 0.0) for n in range(len(sent))]
    hit = [path for path, begin, end in spans if begin <= at < end]
    expected = Confidence(0.25, hit[0]) if hit else Confidence(1.0, spans[0][0])
    assert confidence_of(text, tokens) == expected


@given(VALUES, st.lists(st.integers(1, 9), max_size=40), st.data())
def test_a_token_counts_for_each_value_that_it_has_a_part_of(
    value: Any, sizes: list[int], data: st.DataObject
) -> None:
    """A-180: however the tokens are cut."""
    spans: list[Span] = []
    text = spelled(value, lambda: "", spans, "$", 0)
    sent, tokens, begins = text.encode(), list[tuple[bytes, float]](), list[int]()
    while (at := sum(len(each) for each, _ in tokens)) < len(sent):
        size = sizes[len(tokens)] if len(tokens) < len(sizes) else 3
        begins.append(at)
        log = math.log(data.draw(st.sampled_from([1.0, 0.5, 0.25])))
        tokens.append((sent[at : at + size], log))
    expected = []
    for path, begin, end in spans:
        logs = [
            log
            for (said, log), start in zip(tokens, begins, strict=True)
            if start < end and start + len(said) > begin
        ]
        expected.append((math.exp(sum(logs)), path))
    found = confidence_of(text, tokens)
    assert found is not None
    assert found.probability == pytest.approx(min(expected)[0])
    assert found.at in {path for each, path in expected if each == pytest.approx(min(expected)[0])}


@given(st.text(max_size=40), st.lists(st.tuples(st.binary(max_size=3), st.floats(-99, 0))))
def test_no_answer_and_no_tokens_make_an_error(
    text: str, tokens: list[tuple[bytes, float]]
) -> None:
    found = confidence_of(text, tokens)
    assert found is None or 0 <= found.probability <= 1
