"""A server that sends back the key that was sent to it: nobody gets to see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.pipeline import is_successful

from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.peer_model import MASK, MaskedDeltas, SentSecrets
from minions.contracts.calls import ModelDelta, Prompt
from minions.contracts.messages import user
from minions.testing import endpoint as fake
from minions.testing.endpoint import ChatEndpoint

KEY = "sk-a-key-of-the-tests-17"
HELLO = Prompt(messages=(user("Hello."),))


async def asked(
    behaviour: fake.Behaviour, *, is_streamed: bool
) -> tuple[str, Sequence[ModelDelta]]:
    """All that an outcome says, and the fragments that were shown."""
    deltas: list[ModelDelta] = []
    async with ChatEndpoint(behaviour) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key=KEY)
        outcome = await model.complete(HELLO, deltas.append if is_streamed else None)
        await model.aclose()
    said = outcome.unwrap() if is_successful(outcome) else outcome.failure()
    return repr(said), deltas


def fragments(text: str, size: int) -> Sequence[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def shown(deltas: Sequence[ModelDelta]) -> str:
    """The text and the arguments that the fragments add up to."""
    texts = [delta.content or "" for delta in deltas]
    for delta in deltas:
        call = delta.tool_call or {}
        texts.append(str(call.get("id") or ""))
        function = cast("Mapping[str, object]", call.get("function") or {})
        texts += [str(function.get("name") or ""), str(function.get("arguments") or "")]
    return "".join(texts)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    "behaviour",
    [
        fake.answer(f"Your key is {KEY}."),
        fake.answer(tool_calls=[fake.call("look", {"text": f"see {KEY}"})]),
        fake.answer(tool_calls=[fake.call("look", {KEY: [KEY]}, call_id=KEY)]),
        fake.answer(tool_calls=[fake.call(f"look_{KEY}", call_id="c1")]),
        fake.answer("hello", model=f"m-{KEY}"),
        fake.answer(f"cut {KEY} off", finish_reason="length"),
        fake.answer(refusal=f"Not with {KEY}."),
        fake.answer("Hm.", reasoning_content=f"Is it {KEY}?"),
        fake.answer("Hm.", finish_reason=KEY),
        fake.document({"error": {"message": f"bad key {KEY}"}}),
        fake.document({"choices": KEY}),
        fake.document({"choices": "x" * 70 + KEY}),
        fake.document({"choices": [{"message": {"content": {"key": KEY}}}]}),
        fake.body(f"no JSON: {KEY}".encode()),
        fake.body(f"<html>{KEY}</html>".encode(), content_type="text/html"),
        fake.status(500, fake.error_body(f"the key {KEY}")),
    ],
)
async def test_the_key_is_in_nothing_that_a_server_says(
    behaviour: fake.Behaviour, is_streamed: bool
) -> None:
    said, deltas = await asked(behaviour, is_streamed=is_streamed)
    assert KEY[:12] not in said
    assert KEY[:12] not in shown(deltas)


async def test_what_stands_around_the_key_is_kept() -> None:
    said, deltas = await asked(fake.answer(f"It is {KEY}, is it?"), is_streamed=True)
    assert f"It is {MASK}, is it?" in said
    assert shown(deltas) == f"It is {MASK}, is it?"


async def test_an_escaped_key_in_arguments_is_masked_too() -> None:
    escaped = "".join(f"\\u{ord(each):04x}" for each in KEY)
    call = fake.call("look", f'{{"text": "see {escaped} there", "n": 1.0}}')
    said, _ = await asked(fake.answer(tool_calls=[call]), is_streamed=False)
    assert escaped not in said
    assert f"see {MASK} there" in said


async def test_arguments_without_the_key_stay_letter_by_letter() -> None:
    text = '{ "text":  "a \\"quoted\\" line\\n", "n": 1.50 }'
    said, _ = await asked(fake.answer(tool_calls=[fake.call("look", text)]), is_streamed=False)
    assert repr(text) in said


@pytest.mark.parametrize("size", range(1, len(KEY) + 2))
async def test_a_key_that_is_split_over_fragments_is_not_shown(size: int) -> None:
    text = f"a {KEY} b {KEY}{KEY}"
    events = [fake.chunk({"content": each}) for each in fragments(text, size)]
    end = fake.chunk({}, finish_reason="stop")
    said, deltas = await asked(fake.stream([*events, end, "[DONE]"]), is_streamed=True)
    assert shown(deltas) == f"a {MASK} b {MASK}{MASK}"
    assert KEY not in said


@pytest.mark.parametrize("size", [1, 5, len(KEY) - 1])
async def test_a_key_that_is_split_over_fragments_of_arguments_is_not_shown(size: int) -> None:
    text = f'{{"text": "{KEY}"}}'
    events = [
        fake.chunk({"tool_calls": [{"index": 0, "id": "c1", "function": function}]})
        for function in [
            {"name": "look", "arguments": ""},
            *({"arguments": each} for each in fragments(text, size)),
        ]
    ]
    end = fake.chunk({}, finish_reason="tool_calls")
    said, deltas = await asked(fake.stream([*events, end, "[DONE]"]), is_streamed=True)
    assert KEY not in said
    assert f'{{"text": "{MASK}"}}' in shown(deltas).replace("c1", "")


async def test_what_looks_like_the_beginning_of_the_key_is_shown_in_the_end() -> None:
    _, deltas = await asked(fake.answer(f"see {KEY[:-1]}"), is_streamed=True)
    assert shown(deltas) == f"see {KEY[:-1]}"


def test_a_fragment_that_cannot_begin_the_key_is_passed_on_at_once() -> None:
    taken: list[ModelDelta] = []
    deltas = MaskedDeltas(SentSecrets([KEY]), taken.append)
    fragment = ModelDelta(content="see him")
    deltas(fragment)
    assert taken[0] is fragment


@given(
    parts=st.lists(st.sampled_from([KEY, KEY[:5], KEY[5:], "sk-", "s", " word "]), max_size=12),
    size=st.integers(1, 30),
)
def test_no_way_of_cutting_a_stream_shows_the_key_or_loses_a_character(
    parts: Sequence[str], size: int
) -> None:
    text = "".join(parts)
    taken: list[ModelDelta] = []
    deltas = MaskedDeltas(SentSecrets([KEY]), taken.append)
    for each in fragments(text, size):
        deltas(ModelDelta(content=each))
    deltas.flush()
    assert shown(taken) == text.replace(KEY, MASK)


@pytest.mark.parametrize("placeholder", ["EMPTY", "ollama", "x", "none"])
def test_a_placeholder_for_a_key_is_a_word_like_others(placeholder: str) -> None:
    assert not SentSecrets([placeholder, None])


def test_other_headers_that_were_sent_count_as_keys() -> None:
    secrets = SentSecrets([None, f"Bearer {KEY}", KEY, "another-long-value"])
    assert secrets.masked(f"Bearer {KEY}, another-long-value") == f"Bearer {MASK}, {MASK}"
