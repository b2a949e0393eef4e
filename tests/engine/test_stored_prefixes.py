"""Beginnings of prompts that Gemini keeps under a name: made where that pays, and deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from attrs import evolve

from builders import Ran, deterministic_services, executor_of, run_of
from minions import RunStatus
from minions.adapters.models.gemini import GeminiModel
from minions.adapters.models.price_books import GenaiPriceBook, OwnPrice
from minions.app.wiring.built_in_extensions import built_in_redactors
from minions.contracts.calls import ModelCapabilities, Prompt
from minions.contracts.journal.facts import ModelCallFinished, StoredPrefixFact
from minions.contracts.messages import system, user
from minions.contracts.model_endpoints import CacheRetention, PromptCacheRules
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.run_services import Services
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.prefix_endpoint import PrefixEndpoint, PrefixFaults
from minions.testing.virtual_time import FakeClock

NOTES = "A note about parcels and orders. " * 400
CONTEXT: JsonValue = [{"text": NOTES}]
NAME = "gemini/gemini-2.5-flash"
EXPLICIT = ModelCapabilities(prompt_cache=PromptCacheRules.GEMINI_EXPLICIT)
PRICE = OwnPrice(input_per_mtok=0.3, output_per_mtok=2.5, cached_input_per_mtok=0.03)


async def sleep_for_ever(seconds: float) -> None:
    await asyncio.Event().wait()


class World:
    """A server, and runs of recipes that ask it."""

    def __init__(self, server: PrefixEndpoint, clock: FakeClock) -> None:
        self.server, self.clock = server, clock
        book = GenaiPriceBook({NAME: PRICE})
        services = evolve(deterministic_services(clock=clock), prices=book, sleep=sleep_for_ever)
        self.services: Services = services
        self.capabilities = EXPLICIT

    def model(self) -> GeminiModel:
        return GeminiModel(
            "gemini-2.5-flash", base_url=self.server.base_url, capabilities=self.capabilities
        )

    async def run(self, recipe: AgentRecipe) -> Ran:
        model = self.model()
        try:
            return await run_of(recipe, model, services=self.services)
        finally:
            await model.aclose()


@asynccontextmanager
async def world(faults: PrefixFaults | None = None, answer_s: float = 0.0) -> AsyncIterator[World]:
    """Args: answer_s: What an answer takes, by the clock."""
    clock = FakeClock()

    def say(body: Mapping[str, JsonValue]) -> str:
        clock.advance(answer_s)
        return "done"

    async with PrefixEndpoint(say=say, faults=faults, now=clock.now) as server:
        yield World(server, clock)


def recipe(*steps: JsonValue, **more: JsonValue) -> AgentRecipe:
    document = {"id": "r", "system_prompt": "Be careful.", "steps": list(steps), **more}
    return recipe_from_document(document, Extensions().catalog())


def loop(count: int, **more: JsonValue) -> JsonValue:
    return {"id": "each", "loop": list(range(count)), "goal": "Item {{ loop.item }}", **more}


def looped(count: int, **more: JsonValue) -> AgentRecipe:
    return recipe(loop(count, **more), context=CONTEXT)


def facts_of(ran: Ran) -> list[StoredPrefixFact]:
    return [each.fact for each in ran.entries if isinstance(each.fact, StoredPrefixFact)]


def states_of(ran: Ran) -> list[str]:
    assert ran.result.status is RunStatus.COMPLETED, ran.result.error
    return [each.state for each in facts_of(ran)]


async def test_what_calls_begin_with_is_stored_once_used_and_deleted() -> None:
    """A-176: each is a recorded effect, with its price in the cost of the run."""
    async with world() as played:
        ran = await played.run(looped(6, max_parallel=3))
        server = played.server
    assert states_of(ran) == ["made", "deleted"]
    assert server.counts == {"make": 1, "use": 6, "delete": 1}
    assert not server.held
    (made,) = server.made
    assert made.uses == 6
    body = ran.entries[[each.kind for each in ran.entries].index("prompt_cache")].body
    storage = made.tokens / 1e6 * 300 / 3_600
    read = made.tokens / 1e6 * 0.3
    assert body["name"] == made.name
    assert (body["tokens"], body["ttl_s"], body["usd_per_mtok_hour"]) == (made.tokens, 300.0, 1.0)
    assert body["cost_usd"] == pytest.approx(storage + read)
    calls = [each.fact for each in ran.entries if isinstance(each.fact, ModelCallFinished)]
    assert all((each.metrics or {})["cached_tokens"] == made.tokens for each in calls)
    cost = sum(float(str((each.metrics or {})["cost_usd"])) for each in calls)
    assert ran.result.usage.cost_usd == pytest.approx(cost + storage + read)
    assert ran.result.usage.cost_usd is not None
    plain = server.read_whole + server.read_cached - made.tokens  # what it would have been
    assert ran.result.usage.cost_usd < plain / 1e6 * 0.3 + 60 / 1e6 * 2.5


async def test_nothing_is_stored_where_it_does_not_pay() -> None:
    """A-176: too short, used once, without a price, or nobody asked for it."""
    async with world() as played:
        assert states_of(await played.run(looped(1))) == []
        assert states_of(await played.run(recipe(loop(6), context=[{"text": "Short."}]))) == []
        played.capabilities = ModelCapabilities(prompt_cache=PromptCacheRules.GEMINI)
        assert states_of(await played.run(looped(6))) == []
        played.capabilities = EXPLICIT
        played.services = evolve(played.services, prices=GenaiPriceBook())
        assert states_of(await played.run(looped(6))) == []
        assert set(played.server.counts) == {"plain"}


async def test_prompts_in_which_personal_data_is_replaced_are_sent_whole() -> None:
    """A-176: what is stored would hold the data."""
    async with world() as played:
        played.services = evolve(played.services, redact=("mail",))
        notes: JsonValue = [{"text": f"ann@lab.example said: {NOTES}"}]
        redactors = Extensions(redactors=built_in_redactors())
        model = played.model()
        executor = AgentExecutor(model, services=played.services, extensions=redactors)
        result = await executor.prepare(recipe(loop(6), context=notes)).execute()
        await model.aclose()
        assert result.status is RunStatus.COMPLETED, result.error
        assert played.server.counts == {"plain": 6}
        assert all(b"ann@" not in each.raw for each in played.server.requests)


async def test_steps_that_have_the_same_context_count_as_calls_to_come() -> None:
    """A-176: those with a condition do not, and neither do those with other tools or models."""
    first: JsonValue = {"id": "a", "goal": "One"}
    async with world() as played:
        same = recipe(first, {"id": "b", "goal": "Two"}, {"id": "c", "goal": "3"}, context=CONTEXT)
        assert states_of(await played.run(same)) == ["made", "deleted"]
        assert played.server.counts["use"] == 3
        maybe: JsonValue = {"id": "b", "goal": "Two", "when": "{{ 'x' in a }}"}
        assert states_of(await played.run(recipe(first, maybe, context=CONTEXT))) == []


async def test_it_is_renewed_while_calls_follow_and_ends_by_its_time_otherwise() -> None:
    """A-176"""
    async with world(answer_s=60.0) as played:
        ran = await played.run(looped(13, max_parallel=1))
        assert states_of(ran) == ["made", "renewed", "renewed", "deleted"]
        assert played.server.made[0].renewals == 2
        assert played.server.counts["plain"] == 0
        cost = [each.body.get("cost_usd") for each in ran.entries if each.state == "renewed"]
        assert cost == [pytest.approx(played.server.made[0].tokens / 1e6 / 12)] * 2
        ran = await played.run(looped(5, max_parallel=1))  # after the fifth nobody needs it
        assert states_of(ran) == ["made", "deleted"]
    async with world(PrefixFaults(refusals={"renew": [500]}), answer_s=60.0) as played:
        ran = await played.run(looped(6, max_parallel=1))
        assert states_of(ran) == ["made", "lost"]  # its time was over before the last call
        assert played.server.counts == {"make": 1, "use": 5, "renew": 1, "plain": 1}


async def test_what_ends_before_a_second_call_is_not_made_again() -> None:
    """A-176: calls are slower than it lasts, and each would pay for it anew."""
    async with world(answer_s=400.0) as played:
        ran = await played.run(looped(6, max_parallel=1))
        assert states_of(ran) == ["made", "lost"]
        assert (
            next(each.body for each in ran.entries if each.state == "lost")["reason"] == "expired"
        )
        assert played.server.counts == {"make": 1, "use": 1, "plain": 5}


async def test_a_longer_time_is_asked_for_where_that_is_said() -> None:
    """A-176"""
    async with world() as played:
        long = CacheRetention.LONG
        played.capabilities = evolve(EXPLICIT, prompt_cache_retention=long)
        ran = await played.run(looped(12))
        assert states_of(ran) == ["made", "deleted"]
        assert played.server.made[0].until == played.clock.now() + timedelta(hours=1)
        assert states_of(await played.run(looped(4))) == []  # an hour costs more than three reads


async def test_a_call_whose_stored_beginning_is_gone_is_made_without_it_once() -> None:
    """A-176: and it is a fact; what is gone is not made again in this run."""
    async with world(PrefixFaults(vanishes=lambda use: use == 2)) as played:
        ran = await played.run(looped(6, max_parallel=1))
        assert states_of(ran) == ["made", "lost"]
        assert facts_of(ran)[1].name == "cachedContents/made0"
        body = next(each.body for each in ran.entries if each.state == "lost")
        assert body["reason"] == "missing"
        assert "not found" in str(body["message"])
        assert played.server.counts == {"make": 1, "use": 3, "plain": 4}
        calls = [each.fact for each in ran.entries if isinstance(each.fact, ModelCallFinished)]
        assert len(calls) == 6


async def test_calls_are_made_without_a_beginning_that_the_provider_refuses_to_store() -> None:
    """A-176: its own count of tokens, say, is below the minimum. It is asked once."""
    async with world(PrefixFaults(refusals={"make": [400]})) as played:
        ran = await played.run(looped(6, max_parallel=3))
        assert states_of(ran) == ["lost"]
        assert played.server.counts == {"make": 1, "plain": 6}
    async with world(PrefixFaults(refusals={"make": [0]})) as played:  # it was made, nobody heard
        ran = await played.run(looped(6))
        assert states_of(ran) == ["lost"]
        assert played.server.counts == {"make": 1, "plain": 6}
        assert len(played.server.held) == 1  # it ends by its time


async def test_what_cannot_be_deleted_ends_by_its_time() -> None:
    """A-176"""
    async with world(PrefixFaults(refusals={"delete": [500]})) as played:
        ran = await played.run(looped(6))
        assert states_of(ran) == ["made", "lost"]
        body = next(each.body for each in ran.entries if each.state == "lost")
        assert body["reason"] == "not-deleted"
        assert ran.result.status is RunStatus.COMPLETED


async def test_nothing_is_stored_for_which_the_budget_has_no_room() -> None:
    """A-176: what is stored counts in the limits of the run."""
    async with world() as played:
        tight = recipe(loop(6), context=CONTEXT, limits={"max_cost_usd": 0.0005})
        ran = await played.run(tight)
        assert [each.state for each in facts_of(ran)] == []
        assert ran.result.status is RunStatus.LIMIT_REACHED
        room = recipe(loop(6), context=CONTEXT, limits={"max_cost_usd": 0.01})
        ran = await played.run(room)
        assert states_of(ran) == ["made", "deleted"]


async def test_a_run_that_fails_or_is_cancelled_deletes_what_it_stored() -> None:
    """A-176"""
    stop: list[AgentRun[object]] = []

    def say(body: Mapping[str, JsonValue]) -> str:
        if stop:
            stop[0].cancel()
        return "done"

    clock = FakeClock()
    async with PrefixEndpoint(say=say, now=clock.now) as server:
        played = World(server, clock)
        model = played.model()
        executor = executor_of(model, services=played.services)
        run = executor.prepare(looped(6, max_parallel=1))
        stop.append(run)
        result = await run.execute()
        assert result.status is RunStatus.CANCELLED
        assert server.counts["delete"] == 1
        stop.clear()
        failing: JsonValue = {"id": "no", "assert": "{{ each | length == 0 }}"}
        ran = await played.run(recipe(loop(6), failing, context=CONTEXT))
        assert ran.result.status is RunStatus.FAILED
        assert server.counts["delete"] == 2
        await model.aclose()


def test_a_prompt_is_sent_without_what_is_stored_of_it() -> None:
    """A-176: neither tools nor system texts nor context stand beside the name."""
    model = GeminiModel("gemini-2.5-flash", base_url="http://x/v1", capabilities=EXPLICIT)
    assert model.prefix_storage is not None
    context = evolve(user("notes"), name="context")
    prompt = Prompt((system("Be careful."), context, user("Go")))
    beginning = json.loads(model.prefix_storage.beginning_of(prompt) or b"")
    assert beginning == {
        "model": "models/gemini-2.5-flash",
        "systemInstruction": {"parts": [{"text": "Be careful."}]},
        "contents": [{"role": "user", "parts": [{"text": "notes"}]}],
    }
    sent = model.wire.write(evolve(prompt, stored_prefix="cachedContents/x"), stream=False)
    assert json.loads(sent) == {
        "cachedContent": "cachedContents/x",
        "contents": [{"role": "user", "parts": [{"text": "Go"}]}],
    }
    assert model.prefix_storage.beginning_of(Prompt((system("Only this."),))) is None
