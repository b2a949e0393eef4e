"""Slots of llama.cpp: which one reads which prompt, and what is counted as not read again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import takewhile

import pytest
from attrs import evolve
from returns.pipeline import is_successful

from minions.adapters.models.answer_assembly import read_usage
from minions.adapters.models.chat_shapes import read_completion
from minions.adapters.models.openai import OpenAIModel
from minions.contracts.calls import ModelCapabilities, ModelDelta, ModelOptions, Prompt
from minions.contracts.messages import TokenUsage, assistant, system, user
from minions.contracts.model_endpoints import PromptCacheRules
from minions.data.json_values import JsonValue
from minions.testing.endpoint import ChatEndpoint, Exchange, chunk, completion, error_body, event

LLAMA = ModelCapabilities(prompt_cache=PromptCacheRules.LLAMA_CPP)
NOTES, ORDERS = "A note about parcels. " * 40, "An order of tea. " * 40


class LlamaServer:
    """A server with slots, each of which holds the prompt that it read last."""

    def __init__(self, slots: int, *, tells: bool = True) -> None:
        self.held = [""] * slots
        self.busy: set[int] = set()
        self.asked: list[tuple[int, str]] = []
        """Slot and last message of each request, in their order."""
        self.props = 0
        self.go = asyncio.Event()
        self.go.set()
        self.all_busy = asyncio.Event()
        """Set once all slots were in use at the same time."""
        self._tells = tells

    async def answer(self, exchange: Exchange) -> None:
        if exchange.request.path == "/props":
            self.props += 1
            found: JsonValue = {"total_slots": len(self.held)} if self._tells else {}
            await exchange.send(json.dumps(found).encode())
            return
        body = exchange.request.body
        slot = body.get("id_slot", -1)
        if body.get("cache_prompt") is not True or not isinstance(slot, int):
            await exchange.send(error_body("cache_prompt and id_slot are expected"), status=400)
            return
        texts = [str(each["content"]) for each in exchange.request.messages]
        self.asked.append((slot, texts[-1]))
        place = 0 if slot == -1 else slot
        if place >= len(self.held) or place in self.busy:
            await exchange.send(error_body(f"slot {slot} is not free"), status=400)
            return
        self.busy.add(place)
        if len(self.busy) == len(self.held):
            self.all_busy.set()
        await self.go.wait()
        whole = "\n".join(texts)
        pairs = zip(whole, self.held[place], strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // 4
        self.held[place] = whole
        self.busy.remove(place)
        usage: JsonValue = {"prompt_tokens": len(whole) // 4, "completion_tokens": 1}
        timings: JsonValue = {"cache_n": kept, "prompt_n": len(whole) // 4 - kept}
        if exchange.request.wants_stream:
            await exchange.begin_stream()
            await exchange.send_piece(event(chunk({"content": "yes"})))
            await exchange.send_piece(event(chunk({}, finish_reason="stop")))
            last: JsonValue = {"choices": [], "usage": usage, "timings": timings}
            await exchange.send_piece(event(last))
            await exchange.send_piece(b"data: [DONE]\n\n")
            await exchange.end_stream()
            return
        said = {**completion("yes"), "usage": usage, "timings": timings}
        await exchange.send(json.dumps(said).encode())


def model_at(endpoint: ChatEndpoint, capabilities: ModelCapabilities = LLAMA) -> OpenAIModel:
    return OpenAIModel("m", base_url=endpoint.base_url, capabilities=capabilities)


async def used_by(model: OpenAIModel, prompt: Prompt, *, streams: bool = False) -> TokenUsage:
    def ignore(delta: ModelDelta) -> None:
        pass

    outcome = await model.complete(prompt, ignore if streams else None)
    assert is_successful(outcome), outcome
    return outcome.unwrap().usage


def ask(context: str, question: str) -> Prompt:
    return Prompt((system(context), user(question)))


@pytest.mark.parametrize("streams", [False, True])
async def test_requests_that_begin_alike_go_to_the_same_slot(*, streams: bool) -> None:
    """A-176: what the slot had is counted as read from a cache."""
    server = LlamaServer(2)
    async with ChatEndpoint(default=server.answer) as endpoint:
        model = model_at(endpoint)
        for question in ("a", "b", "c"):
            for context in (NOTES, ORDERS):
                usage = await used_by(model, ask(context, question), streams=streams)
                assert (usage.cached_tokens >= len(context) // 4) is (question != "a")
        await model.aclose()
    assert [slot for slot, _ in server.asked] == [0, 1] * 3
    assert server.props == 1


async def test_a_conversation_stays_in_its_slot() -> None:
    """A-176"""
    server = LlamaServer(3)
    async with ChatEndpoint(default=server.answer) as endpoint:
        model = model_at(endpoint)
        first = ask(NOTES, "a")
        later = evolve(first, messages=(*first.messages, assistant("yes"), user("and?")))
        for prompt in (first, ask(ORDERS, "x"), later):
            await used_by(model, prompt)
        await model.aclose()
    assert [slot for slot, _ in server.asked] == [0, 1, 0]


async def test_calls_at_the_same_time_have_slots_of_their_own_and_others_wait() -> None:
    """A-176: the server would make a request wait that names a slot in use."""
    server = LlamaServer(3)
    server.go.clear()
    async with ChatEndpoint(default=server.answer) as endpoint:
        model = model_at(endpoint)
        calls = [asyncio.ensure_future(used_by(model, ask(NOTES, str(n)))) for n in range(7)]
        await server.all_busy.wait()
        calls[5].cancel()  # one that waits: its place is the next one's
        assert sorted(server.busy) == [0, 1, 2]
        server.go.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        await model.aclose()
    assert [isinstance(each, TokenUsage) for each in done] == [n != 5 for n in range(7)]
    assert [question for _, question in server.asked[3:]] == ["3", "4", "6"]


async def test_a_slot_that_came_for_a_cancelled_call_is_taken_by_the_next_one() -> None:
    server = LlamaServer(1)
    server.go.clear()
    async with ChatEndpoint(default=server.answer) as endpoint:
        model = model_at(endpoint)
        first, second, third = (asyncio.ensure_future(used_by(model, ask(NOTES, n))) for n in "abc")
        await server.all_busy.wait()
        first.add_done_callback(lambda _: second.cancel())  # the slot is on its way to it
        server.go.set()
        await third
        await model.aclose()
    assert [question for _, question in server.asked] == ["a", "c"]


async def test_a_prompt_that_begins_otherwise_takes_the_slot_that_was_unused_for_longest() -> None:
    """A-176"""
    server = LlamaServer(2)
    async with ChatEndpoint(default=server.answer) as endpoint:
        model = model_at(endpoint)
        for context in (NOTES, ORDERS, NOTES, "Another one. " * 40, NOTES):
            await used_by(model, ask(context, "a"))
        await model.aclose()
    assert [slot for slot, _ in server.asked] == [0, 1, 0, 1, 0]


async def test_a_server_that_does_not_say_how_many_slots_it_has_chooses_itself() -> None:
    """A-176: it is asked three times at most, and that is said once."""
    server, told = LlamaServer(2, tells=False), list[str]()
    async with ChatEndpoint(default=server.answer) as endpoint:
        model = OpenAIModel("m", base_url=endpoint.base_url, capabilities=LLAMA, warn=told.append)
        for question in "abcde":
            await used_by(model, ask(NOTES, question))
        await model.aclose()
    assert [slot for slot, _ in server.asked] == [-1] * 5
    assert server.props == 3
    assert len(told) == 1
    assert "/props" in told[0]


async def test_a_slot_that_the_recipe_names_is_that_slot() -> None:
    server = LlamaServer(4)
    async with ChatEndpoint(default=server.answer) as endpoint:
        model = model_at(endpoint)
        own = ModelOptions(extra={"id_slot": 3, "cache_prompt": True})
        await used_by(model, evolve(ask(NOTES, "a"), options=own))
        await model.aclose()
    assert server.asked == [(3, "a")]
    assert server.props == 0


async def test_other_servers_are_asked_for_no_slot() -> None:
    async with ChatEndpoint(default=LlamaServer(2).answer) as endpoint:
        model = model_at(endpoint, ModelCapabilities())
        assert not is_successful(await model.complete(ask(NOTES, "a")))
        assert [each.path for each in endpoint.requests] == ["/v1/chat/completions"]
        assert set(endpoint.requests[0].body) == {"model", "messages"}
        await model.aclose()


@pytest.mark.parametrize(
    ("timings", "cached"),
    [
        ({"cache_n": 60, "prompt_n": 40}, 60),
        ({"prompt_n": 40}, 60),  # before August 2025
        ({"cache_n": 0, "prompt_n": 40}, 0),
        ({"cache_n": 500}, 100),
        ({"prompt_n": 0}, 0),
        ({"prompt_n": 400}, 0),
        ({}, 0),
    ],
)
def test_tokens_that_a_slot_had_are_counted_also_beside_the_usage(
    timings: Mapping[str, JsonValue], cached: int
) -> None:
    """A-176"""
    usage: dict[str, object] = {"prompt_tokens": 100, "completion_tokens": 1}
    expected = TokenUsage(input_tokens=100, output_tokens=1, cached_tokens=cached)
    assert read_usage(usage, timings) == expected
    answer = {"choices": [{"message": {"content": "x"}}], "usage": usage, "timings": timings}
    usual = read_completion(json.dumps(answer).encode())
    assert usual is not None
    assert usual.usage is not None
    assert usual.usage.as_usage(usual.timings) == expected
    usage["prompt_tokens_details"] = {"cached_tokens": 7}  # the usage's own word comes first
    assert read_usage(usage, timings).cached_tokens == 7
