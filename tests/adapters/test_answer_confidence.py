"""How sure a model was of its answer, from the log-probabilities of its tokens. A-180."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.pipeline import is_successful

from minions.adapters.models.answer_confidence import MOST_TOKENS, confidence_of
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


def test_a_long_text_is_not_judged() -> None:
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


def leaves(value: Any, path: str = "$") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        named = ((f".{k}" if k.isidentifier() else f"[{k!r}]", v) for k, v in value.items())
        return [each for name, one in named for each in leaves(one, path + name)]
    if isinstance(value, list) and value:
        return [each for at, one in enumerate(value) for each in leaves(one, f"{path}[{at}]")]
    return [(path, value)]


@given(VALUES, st.booleans(), st.sampled_from([None, 2]), st.data())
def test_any_value_is_found_in_any_answer(
    value: Any, is_ascii: bool, indent: int | None, data: st.DataObject
) -> None:
    """A-180: with one token for each byte, one improbable byte makes the value improbable in which
    it stands, and no other."""
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    sent = text.encode("utf-8", "surrogatepass")
    sure = [(sent[at : at + 1], 0.0) for at in range(len(sent))]
    known = confidence_of(text, sure)
    assert known is not None
    assert known.probability == 1.0
    places = {path[:200] for path, _ in leaves(value)}
    assert known.at in places
    at = data.draw(st.integers(0, len(sent) - 1))
    doubted = [*sure[:at], (sent[at : at + 1], math.log(0.25)), *sure[at + 1 :]]
    found = confidence_of(text, doubted)
    assert found is not None
    assert found.at in places
    assert found.probability in (1.0, 0.25)


@given(st.text(max_size=40), st.lists(st.tuples(st.binary(max_size=3), st.floats(-99, 0))))
def test_no_answer_and_no_tokens_make_an_error(
    text: str, tokens: list[tuple[bytes, float]]
) -> None:
    found = confidence_of(text, tokens)
    assert found is None or 0 <= found.probability <= 1
