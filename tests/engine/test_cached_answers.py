"""`model: {cache: true}`: the answer to the same request is taken from the cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import pytest
from attrs import evolve

from builders import answer_of, deterministic_services, executor_of, fake_tool
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryStepCache
from minions.contracts.calls import Confidence, ModelCallResponse, ModelFailure
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.messages import assistant
from minions.contracts.steps import CachedStep, StepCache
from minions.contracts.tools import Tool
from minions.data.json_values import JsonValue
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from mortal import World

Document = dict[str, JsonValue]
RECIPE: Document = {
    "id": "recipe",
    "model": {"cache": True},
    "inputs": {"text": {"type": "string", "default": "one"}},
    "steps": [{"id": "asks", "goal": "Sum up:\n{{ inputs.text }}"}],
}


class House:
    """A cache that outlives runs, and what models were asked in all."""

    def __init__(self) -> None:
        self.cache: StepCache = MemoryStepCache()
        self.asked = 0

    async def run(
        self,
        document: Mapping[str, JsonValue] = RECIPE,
        answers: list[Answer] | None = None,
        *,
        name: str = "scripted/answers",
        tools: list[Tool] | None = None,
        services: Services | None = None,
        **inputs: JsonValue,
    ) -> AgentResult[object]:
        specs = {tool.spec.name: tool.spec for tool in tools or []}
        model = ScriptedModel(answers or [answer_of(f"answer {self.asked}")], name=name)
        services = evolve(services or deterministic_services(), cache=self.cache)
        executor = executor_of(model, tools=tools or [], services=services)
        recipe = recipe_from_document(document, Catalog(tools=specs))
        result = await executor.execute(recipe, inputs)
        self.asked += len(model.prompts)
        return result


def changed(**changes: JsonValue) -> Document:
    return {**RECIPE, **changes}


async def test_the_same_request_is_answered_from_the_cache_and_costs_nothing() -> None:
    house = House()
    first, second = await house.run(), await house.run()
    assert (first.output, second.output, house.asked) == ("answer 0", "answer 0", 1)
    assert (first.usage.total_tokens, second.usage.total_tokens) == (15, 0)
    (call,) = second.executions[0].model_calls
    assert call.response is not None
    assert call.response.cached_from == first.run_id
    assert second.warnings == ()


async def test_a_cached_answer_is_as_sure_as_it_was() -> None:
    """A-180: `min_confidence` takes it without asking."""
    schema: JsonValue = {"type": "object", "properties": {"n": {"type": "integer"}}}
    steps: JsonValue = [{"id": "asks", "goal": "Count.", "output": schema}]
    house = House()
    said = ModelCallResponse(message=assistant('{"n": 1}'), confidence=Confidence(0.9, "$.n"))
    document = changed(model={"cache": True, "min_confidence": 0.5}, steps=steps)
    for _ in range(2):
        result = await house.run(document, [said])
        assert result.output == {"n": 1}
    assert house.asked == 1
    (call,) = result.executions[0].model_calls
    assert call.response is not None
    assert call.response.confidence == Confidence(0.9, "$.n")


async def test_without_the_option_every_call_is_made() -> None:
    house = House()
    for _ in range(2):
        await house.run(changed(model={}))
    assert house.asked == 2


@pytest.mark.parametrize(
    "document",
    [
        changed(model={"cache": True, "temperature": 0.5}),
        changed(model={"cache": True, "max_output_tokens": 9}),
        changed(system_prompt="Be brief."),
        changed(steps=[{"id": "asks", "goal": "Sum up: {{ inputs.text }}"}]),
        changed(
            steps=[{"id": "asks", "goal": "Sum up:\n{{ inputs.text }}", "output": {"n": "integer"}}]
        ),
    ],
)
async def test_whatever_changes_the_request_is_asked_anew(document: Document) -> None:
    house = House()
    await house.run()
    await house.run(document, [answer_of('{"n": 1}'), answer_of('{"n": 1}')])
    assert house.asked >= 2


async def test_another_model_or_input_is_asked_anew() -> None:
    house = House()
    await house.run()
    await house.run(name="scripted/other")
    await house.run(text="two")
    assert house.asked == 3


async def test_names_of_borders_differ_from_run_to_run_and_do_not_matter() -> None:
    house = House()
    for number in range(2):
        services = evolve(deterministic_services(), ids=partial("{1}_{0}".format, number))
        result = await house.run(text="a\nb", services=services)
        assert result.run_id == f"run_{number}"
    assert house.asked == 1


async def test_a_further_attempt_of_the_same_run_is_asked_again() -> None:
    house = House()
    loop: JsonValue = {"id": "each", "goal": "Say a number.", "loop": [1, 2, 3]}
    answers: list[Answer] = [answer_of("one"), answer_of("two"), answer_of("three")]
    first = await house.run(changed(steps=[loop]), answers)
    second = await house.run(changed(steps=[loop]), answers)
    said = [cast("Mapping[str, object]", each.output)["results"] for each in (first, second)]
    assert house.asked == 5
    assert said[0] == ["one", "two", "three"]
    assert said[1] == ["three", "one", "two"]  # the newest answer, and two further ones


async def test_limits_of_time_do_not_matter() -> None:
    house = House()
    await house.run()
    await house.run(changed(model={"cache": True, "timeout_s": 3}))
    assert house.asked == 1


async def test_a_failure_and_an_answer_that_does_not_fit_are_not_stored() -> None:
    house = House()
    await house.run(answers=[ModelFailure(code="refused", message="No.")])
    output = changed(
        steps=[{"id": "asks", "goal": "Go.", "output": {"type": "object", "required": ["n"]}}]
    )
    for _ in range(2):
        failed = await house.run(output, [answer_of("no"), answer_of("still no")])
        assert failed.status is RunStatus.FAILED
    assert house.asked == 5
    good = await house.run(output, [answer_of('{"n": 1}')])
    again = await house.run(output)
    assert (good.output, again.output, house.asked) == ({"n": 1}, {"n": 1}, 6)


async def test_answers_with_tool_calls_are_cached_and_the_tools_are_called() -> None:
    house, called = House(), list[str]()

    def look(_: Mapping[str, JsonValue]) -> JsonValue:
        called.append("look")
        return "seen"

    document = changed(tools=["look"], steps=[{"id": "asks", "goal": "Look.", "tools": ["look"]}])
    for _ in range(2):
        answers: list[Answer] = [[tool_request("look", id="c")], answer_of("done")]
        result = await house.run(document, answers, tools=[fake_tool("look", look)])
        assert result.output == "done"
    assert (house.asked, called) == (2, ["look", "look"])


async def test_a_prompt_with_a_secret_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "very secret")
    house = House()
    document = changed(
        inputs={"key": {"type": "string", "secret": True, "default": "env:KEY"}},
        steps=[{"id": "asks", "goal": "Use {{ inputs.key }}."}],
    )
    for _ in range(2):
        await house.run(document)
    assert house.asked == 2


class _Broken(StepCache):
    async def get(self, key: str) -> CachedStep | None:
        raise OSError("no disk")

    async def put(self, key: str, entry: CachedStep) -> None:
        raise OSError("no disk")


async def test_a_cache_that_fails_or_holds_something_else_loses_no_answer() -> None:
    house = House()
    house.cache = _Broken()
    assert (await house.run()).output == "answer 0"
    odd = _Odd()
    house.cache = odd
    assert (await house.run()).output == "answer 1"


class _Odd(MemoryStepCache):
    async def get(self, key: str) -> CachedStep | None:
        now = deterministic_services().clock.now()
        return CachedStep(output={"message": 5}, run_id="run_0", created_at=now)


async def test_a_run_that_dies_with_a_cached_answer_is_resumed_with_it() -> None:
    house = House()
    await house.run()
    recipe = recipe_from_document(RECIPE, Catalog())

    for at in range(2, 20):
        world = World()
        services = evolve(deterministic_services(world.journal), cache=house.cache)
        never = ScriptedModel(lambda _: answer_of("asked"))
        if not await world.killed(executor_of(never, services=services), recipe, at):
            break
        empty = evolve(services, cache=MemoryStepCache())
        result = await executor_of(never, services=empty).resume("run_1")
        assert result.output in ("answer 0", "asked")


async def test_the_cache_in_memory_forgets_what_was_not_used_for_longest() -> None:
    cache = MemoryStepCache(max_entries=2)
    now = deterministic_services().clock.now()
    for key in ("a", "b"):
        await cache.put(key, CachedStep(output=key, run_id="r", created_at=now))
    assert await cache.get("a") is not None
    await cache.put("c", CachedStep(output="c", run_id="r", created_at=now))
    assert [await cache.get(key) is not None for key in "abc"] == [True, False, True]
