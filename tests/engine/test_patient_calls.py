"""Model calls that wait for batches: limits of time and money, deadlines, and what is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import pytest
from attrs import evolve

from batch_worlds import HOUR_S, ITEMS, BatchWorld, model_at, recipe_text
from builders import deterministic_services, executor_of, recipe_of, text_step
from minions.adapters.models.anthropic import AnthropicModel
from minions.adapters.models.provider_batches import GeminiBatches
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.tools.function_tool import tool
from minions.app.wiring.built_in_extensions import built_in_redactors
from minions.contracts.batch_apis import BatchLimits
from minions.contracts.calls import ModelCapabilities
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.model_endpoints import PromptCacheRules
from minions.contracts.patience import Patience
from minions.contracts.prompt_caches import PromptCache
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue, as_objects
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.prompt_prefixes import EnteredPrompt, PromptPrefixes, PromptSegment
from minions.engine.services.waves.wave_calls import WaveCalls
from minions.engine.services.waves.wave_record import RECORDS, StoredWave, WaveState
from minions.testing.batch_endpoint import BatchEndpoint, BatchFate, BatchFaults, BatchForm
from minions.testing.exchange import completion

COUNT: Final = len(ITEMS)


def run_at(
    server: BatchEndpoint,
    world: BatchWorld,
    text: str | None = None,
    *,
    by_s: float = 48 * HOUR_S,
    count: int = COUNT,
    name: str = "a",
    extensions: Extensions | None = None,
) -> Sequence[AgentResult[object]]:
    """What a process makes of so many runs of the recipe."""

    async def run() -> Sequence[AgentResult[object]]:
        async with server:
            found = extensions or Extensions()
            recipe = world.recipe(text or recipe_text, found.catalog())
            services = world.services(name, by_s)
            return await world.run_all(model_at(server), services, count, recipe, extensions=found)

    return world.time.run(run())


LIMITED: Final = """
id: letters
inputs: {name: string}
limits: {timeout_s: 60}
steps:
  - {id: greet, goal: "Greet {{ inputs.name }}", limits: {timeout_s: 30}}
output: {text: "{{ greet }}"}
"""


def test_waiting_for_a_batch_is_no_time_of_a_step_or_a_run() -> None:
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=5 * HOUR_S)
    results = run_at(server, world, LIMITED)
    assert {each.error for each in results} == {None}
    assert world.time.monotonic() > 5 * HOUR_S


def test_waiting_is_no_time_of_a_recipe_within_the_run() -> None:
    outer = """
id: outer
inputs: {name: string}
steps:
  - {id: inner, recipe: letters, with: {name: "{{ inputs.name }}"}, limits: {timeout_s: 40}}
output: {text: "{{ inner.text }}"}
"""
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=5 * HOUR_S)
    inner = Extensions(recipes={"letters": world.recipe(LIMITED)})
    assert {each.error for each in run_at(server, world, outer, extensions=inner)} == {None}


def test_a_limit_on_cost_reserves_the_live_price_and_gives_back_half() -> None:
    """A-177: with 30 cents a run has room for two calls of 14 cents, and spends 14 in all."""
    limited = """
id: letters
inputs: {name: string}
limits: {max_cost_usd: 0.15}
steps:
  - {id: greet, goal: "Greet {{ inputs.name }}"}
  - {id: end, goal: "Answer to: {{ greet }}"}
output: {text: "{{ end }}"}
"""
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S)
    results = run_at(server, world, limited)
    assert {each.status for each in results} == {RunStatus.COMPLETED}
    assert [each.usage.cost_usd for each in results] == pytest.approx([0.14] * COUNT)


def test_a_time_that_is_too_near_makes_all_calls_at_once_and_says_so() -> None:
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S)
    results = run_at(server, world, by_s=300)
    assert {each.status for each in results} == {RunStatus.COMPLETED}
    assert not server.batches
    assert len(server.live) == 2 * COUNT
    assert [each.usage.cost_usd for each in results] == pytest.approx([0.28] * COUNT)
    assert sum("made at once" in line for line in world.told) == 1


def test_calls_that_wait_for_a_batch_do_not_wait_for_a_cache_of_prompts_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first call's answer, which would be in the cache, comes with those of the others."""
    waits: list[float] = []
    enter = PromptPrefixes.enter

    async def watched(
        prefixes: PromptPrefixes,
        segments: Sequence[PromptSegment],
        cache: PromptCache,
        address: str,
        *,
        longest_wait_s: float,
    ) -> EnteredPrompt:
        waits.append(longest_wait_s)
        return await enter(prefixes, segments, cache, address, longest_wait_s=longest_wait_s)

    monkeypatch.setattr(PromptPrefixes, "enter", watched)
    world = BatchWorld()
    server = BatchEndpoint(BatchForm.ANTHROPIC, now=world.time.now, takes_s=HOUR_S)
    rules = ModelCapabilities(prompt_cache=PromptCacheRules.ANTHROPIC)

    async def run() -> Sequence[AgentResult[object]]:
        async with server:
            model = AnthropicModel("m", base_url=server.base_url, capabilities=rules)
            return await world.run_all(model, world.services("a"), COUNT)

    assert {each.status for each in world.time.run(run())} == {RunStatus.COMPLETED}
    assert waits == [0.0] * (2 * COUNT)


def test_calls_of_agents_with_tools_wait_at_each_answer() -> None:
    def say(body: object) -> str:
        text = str(body)
        return "second" if "first" in text else "first"

    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S, say=say)
    results = run_at(server, world)
    assert [each.output for each in results] == [{"text": "second"}] * COUNT


def test_personal_data_leave_in_no_batch() -> None:
    redacting = """
id: letters
inputs: {name: string}
redact: [mail]
steps:
  - {id: greet, goal: "Greet ada@example.org, {{ inputs.name }}"}
output: {text: "{{ greet }}"}
"""
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S)
    results = run_at(
        server, world, redacting, extensions=Extensions(redactors=built_in_redactors())
    )
    assert {each.status for each in results} == {RunStatus.COMPLETED}
    sent = [body for batch in server.batches.values() for _, body in batch.requests]
    assert len(sent) == COUNT
    assert "ada@example.org" not in str(sent)


async def test_a_recipe_whose_models_have_no_batches_is_refused_before_it_starts() -> None:
    services = deterministic_services()
    by = services.clock.now() + timedelta(hours=9)
    world = BatchWorld()
    patience = Patience(calls=WaveCalls(services, world.store), by=by)
    executor = executor_of(ScriptedModel(["hello"]), services=evolve(services, patience=patience))
    with pytest.raises(EnvironmentRefusedError) as refused:
        executor.prepare(recipe_of([text_step("a")]))
    assert refused.value.error_code == "no-batch-api"


def test_a_process_that_comes_after_the_time_still_reads_what_was_answered() -> None:
    """A-177: only what no batch has answered is made at once."""
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=3 * HOUR_S)
    executor_services = world.services("a", 48 * HOUR_S)

    async def killed() -> None:
        async with server:
            model = model_at(server)
            executor = AgentExecutor(model, services=executor_services)
            run = executor.prepare(world.recipe(), {"name": "Ada"}, session_id="ses_1")
            task = asyncio.ensure_future(run.execute())
            await world.time.sleep(HOUR_S)
            run.hand_over()
            await asyncio.wait([task])
            assert executor_services.patience is not None
            await executor_services.patience.calls.aclose()
            await model.aclose()

    async def resumed() -> AgentResult[object]:
        async with server:
            services, model = world.services("b", 60), model_at(server)
            rows = await world.journal.runs()
            recorded = await load_recorded_run(world.journal, rows[0].run_id)
            executor = AgentExecutor(model, services=services)
            result = await executor.prepare_resume(recorded, recipe=world.recipe()).execute()
            assert services.patience is not None
            await services.patience.calls.aclose()
            await model.aclose()
            return result

    world.time.run(killed())
    world.time.advance(50 * HOUR_S)
    result = world.time.run(resumed())
    assert result.status is RunStatus.COMPLETED
    assert server.paid.total() == 1
    assert len(server.live) == 1
    assert result.usage.cost_usd == pytest.approx(0.07 + 0.14)


def test_records_of_waves_go_when_no_provider_has_their_answers_any_more() -> None:
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S)
    run_at(server, world)
    before = world.time.run(world.store.keys(RECORDS))
    assert len(before) == 2
    world.time.advance(31 * 24 * HOUR_S)
    run_at(server, world, name="b")
    assert not set(before) & set(world.time.run(world.store.keys(RECORDS)))


def test_a_wave_says_how_far_it_came() -> None:
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S)
    run_at(server, world, count=1)

    async def stored() -> Sequence[StoredWave | None]:
        keys = await world.store.keys(RECORDS)
        return [await StoredWave.find(world.store, key.removeprefix(RECORDS)) for key in keys]

    waves = [each.record for each in world.time.run(stored()) if each is not None]
    assert [each.state for each in waves] == [WaveState.CREATED] * 2
    assert [each.batch_id for each in waves] == [*server.batches]


@pytest.mark.parametrize("form", BatchForm)
def test_a_call_that_fails_in_three_batches_has_used_up_its_attempts(form: BatchForm) -> None:
    world = BatchWorld()
    faults = BatchFaults(fate=lambda _batch, _index: BatchFate.BUSY)
    server = BatchEndpoint(form, now=world.time.now, takes_s=HOUR_S, faults=faults)
    results = run_at(server, world)
    assert {each.error.code for each in results if each.error is not None} == {"model-unavailable"}
    assert len(server.batches) == 3


@pytest.mark.parametrize(
    "limits",
    [
        BatchLimits(max_requests=4, max_bytes=1_000_000, cancel_s=60),
        BatchLimits(max_requests=100, max_bytes=1_150, cancel_s=60),
    ],
)
def test_two_batches_hold_what_one_may_not(
    limits: BatchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GeminiBatches, "limits", limits)
    world = BatchWorld()
    server = BatchEndpoint(BatchForm.GEMINI, now=world.time.now, takes_s=HOUR_S)
    results = run_at(server, world, LIMITED)
    assert {each.status for each in results} == {RunStatus.COMPLETED}
    assert [len(each.requests) for each in server.batches.values()] == [4, 1]


def test_calls_are_sent_although_others_come_all_the_time() -> None:
    """A-177: a worker whose runs never all wait sends a wave each ten minutes."""
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=600)

    async def run() -> None:
        async with server:
            model, services = model_at(server), world.services("a")
            executor = AgentExecutor(model, services=services)
            one = world.recipe(LIMITED)

            async def late(index: int) -> AgentResult[object]:
                await world.time.sleep(40.0 * index)
                return await executor.execute(one, {"name": f"n{index}"})

            busy = asyncio.ensure_future(world.time.sleep(40 * 61.0))
            services.executing.add("run_that_does_other_work")
            results = await asyncio.gather(*(late(index) for index in range(60)))
            assert {each.status for each in results} == {RunStatus.COMPLETED}
            await busy
            assert services.patience is not None
            await services.patience.calls.aclose()
            await model.aclose()

    world.time.run(run())
    assert not server.live
    assert 3 <= len(server.batches) <= 5


TOOLS: Final = """
id: letters
inputs: {name: string}
steps:
  - id: weigh
    goal: "How heavy is {{ inputs.name }}?"
    tools: [scales]
    output: {grams: integer}
output: {text: "{{ weigh.grams }}"}
"""


@tool
def scales(name: str) -> int:
    """Weigh something."""
    return 100 + len(name)


def test_tools_outputs_and_repairs_take_a_wave_each() -> None:
    """A-177: a call of a tool, an answer that does not fit, its repair: of all runs together."""

    def say(body: Mapping[str, JsonValue]) -> str | Mapping[str, JsonValue]:
        messages = as_objects(body["messages"])
        if not any(each.get("role") == "tool" for each in messages):
            function: JsonValue = {"name": "scales", "arguments": '{"name": "Ada"}'}
            call: dict[str, JsonValue] = {"id": "c1", "type": "function", "function": function}
            usage: dict[str, JsonValue] = {"prompt_tokens": 100, "completion_tokens": 20}
            return completion(tool_calls=[call], usage=usage)
        return '{"grams": 103}' if messages[-1].get("role") == "user" else "heavy"

    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S, say=say)
    results = run_at(server, world, TOOLS, extensions=Extensions(tools=[scales]))
    assert {each.error for each in results} == {None}
    assert [each.output for each in results] == [{"text": 103}] * COUNT
    assert {len(each.requests) for each in server.batches.values()} == {COUNT}
    cost_usd = 0.07 * len(server.batches)
    assert [each.usage.cost_usd for each in results] == pytest.approx([cost_usd] * COUNT)


def test_a_clock_that_jumps_ahead_loses_nothing() -> None:
    """A-177: a machine that slept looks at the batch and goes on."""
    world = BatchWorld()
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S)

    async def run() -> Sequence[AgentResult[object]]:
        async with server:
            model, services = model_at(server), world.services("a")
            running = asyncio.ensure_future(world.run_all(model, services, COUNT))
            await world.time.sleep(600)
            world.time.advance(8 * HOUR_S)
            return await running

    results = world.time.run(run())
    assert {each.status for each in results} == {RunStatus.COMPLETED}
    assert not server.live
    server.settle()
    assert server.paid.total() == 2 * COUNT


def test_a_provider_that_refuses_all_is_asked_eight_times() -> None:
    """Calls that wait for their turn fail with the others: none is tried alone."""
    world = BatchWorld()
    faults = BatchFaults(fails=lambda _batch: True)
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S, faults=faults)
    results = run_at(server, world, count=40)
    assert {each.error.code for each in results if each.error is not None} == {"batch-failed"}
    assert len(server.batches) <= 10


def test_a_wave_whose_creation_is_refused_is_dropped() -> None:
    """A-177: who resumes its runs asks nobody for it."""
    world = BatchWorld()
    faults = BatchFaults(refusals={"create": (401,)})
    server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S, faults=faults)
    run_at(server, world, count=2)

    async def states() -> list[WaveState]:
        keys = await world.store.keys(RECORDS)
        found = [await StoredWave.find(world.store, key.removeprefix(RECORDS)) for key in keys]
        return [each.record.state for each in found if each is not None]

    assert world.time.run(states()) == [WaveState.DROPPED]
