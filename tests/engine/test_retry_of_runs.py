"""Retrying a run, also with another recipe; and what is refused before anything is done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve, frozen

from builders import fake_tool, flaky_tool, python_step, recipe_of, text_step
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.instructions import OutputInstructions
from minions.contracts.steps import DefaultStep, StepScope
from minions.contracts.tools import Effect, Tool
from minions.data.codec import encode
from minions.data.errors import JournalError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.run.recorded_run import load_recorded_run
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, Permissions
from minions.recipe.reading.load import recipe_from_document
from mortal import KilledError, World


def loaded(
    steps: Sequence[Mapping[str, JsonValue]], tools: Sequence[Tool] = (), **settings: JsonValue
) -> AgentRecipe:
    """A recipe as a file would give it."""
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "permissions": {"allow_write": True},
        **settings,
        "steps": [dict(step) for step in steps],
    }
    return recipe_from_document(document, Catalog(tools={t.spec.name: t.spec for t in tools}))


def echo(prompt: Prompt) -> Answer:
    return f"re({prompt.messages[-1].content})"


async def ran(world: World, recipe: AgentRecipe, **inputs: JsonValue) -> AgentResult[JsonValue]:
    return await world.executor(world.model(echo)).execute(recipe, inputs)


async def retried(world: World, edited: AgentRecipe) -> tuple[AgentResult[JsonValue], list[str]]:
    """The result, and what was asked for it."""
    before = Counter(world.asked)
    result = await world.executor(world.model(echo)).retry("run_1", recipe=edited)
    return result, list((world.asked - before).elements())


CHAIN: Sequence[Mapping[str, JsonValue]] = (
    {"id": "a", "goal": "A {{ inputs.n }}"},
    {"id": "k", "set": {"x": 1}},
    {"id": "b", "goal": "B {{ a }} {{ k.x }}"},
)
INPUTS: JsonValue = {"n": {"type": "integer", "default": 1}}


# --- what runs again ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "asked"),
    [
        ({"k": {"set": {"x": True}}}, ["B re(A 1) true"]),
        ({"k": {"set": {"x": 1.0}}}, ["B re(A 1) 1.0"]),
        ({"a": {"when": "inputs.n > 0", "optional": True, "description": "new words"}}, []),
        ({"b": {"timeout_s": 60, "depends_on": ["a", "k"], "save_as": "end"}}, []),
        ({"a": {"limits": {"max_model_calls_per_step": 3}}}, ["A 1"]),
        ({"a": {"goal": "Anew {{ inputs.n }}"}}, ["Anew 1", "B re(Anew 1) 1"]),
    ],
    ids=["to true", "to a float", "around a", "around b", "limits", "goal"],
)
async def test_only_what_a_step_does_counts_as_a_change(
    edit: Mapping[str, Mapping[str, JsonValue]], asked: list[str]
) -> None:
    """1 is not true; when and whether a step runs changes no answer that is there already."""
    world = World()
    await ran(world, loaded(CHAIN, inputs=INPUTS))
    steps = [{**step, **edit.get(str(step["id"]), {})} for step in CHAIN]
    result, now = await retried(world, loaded(steps, inputs=INPUTS))
    assert (result.status, now) == (RunStatus.COMPLETED, asked)


async def test_a_step_in_the_middle_of_another_conversation_begins_anew() -> None:
    """It would go on from words that were made of what was edited meanwhile."""
    world = World()
    executor = world.executor(world.model(echo))
    assert await world.killed(executor, loaded(CHAIN, inputs=INPUTS), 6)  # b has begun
    edited = [{"id": "a", "goal": "Other {{ inputs.n }}"}, *CHAIN[1:]]
    result, asked = await retried(world, loaded(edited, inputs=INPUTS))
    assert asked == ["Other 1", "B re(Other 1) 1"]
    assert result.output == "re(B re(Other 1) 1)"


async def test_code_runs_again_after_what_a_killed_leg_did_again() -> None:
    world = World()

    async def read(scope: StepScope) -> object:
        return f"read {scope.context.values['a']}"

    first = text_step("a")
    assert isinstance(first, DefaultStep)
    recipe = recipe_of([first, python_step(read, "code")])
    await world.executor(ScriptedModel(["old"])).execute(recipe)
    edited = recipe_of([evolve(first, version="2"), python_step(read, "code")])
    world.journal.dies_at = world.journal.count + 4  # `a` is done again, and that is all
    with pytest.raises(KilledError):
        await world.executor(ScriptedModel(["new"])).retry("run_1", recipe=edited)
    world.journal.revive()
    result = await world.executor(ScriptedModel([])).resume("run_1", recipe=edited)
    assert result.output == "read new"


async def test_a_run_whose_optional_step_failed_can_be_tried_again() -> None:
    world = World()
    recipe = recipe_of([text_step("a"), text_step("b", tools=["look"], optional=True)])

    def answer(prompt: Prompt) -> Answer:
        is_first = prompt.messages[-1].content == "Goal of b."
        return tool_request("look") if is_first else "done"

    broken = flaky_tool("look", failures=1, error=TypeError("no"))
    executor = world.executor(world.model(answer), [broken])
    assert (await executor.execute(recipe)).status is RunStatus.PARTIAL
    result = await executor.retry("run_1", recipe=recipe)
    assert result.status is RunStatus.COMPLETED
    assert world.asked["Goal of a."] == 1


async def test_a_recipe_whose_tool_is_gone_can_be_edited_and_tried_again() -> None:
    world = World()
    old = world.tool("old_look", Effect.PURE)
    steps = [CHAIN[0], {"id": "l", "tool": "old_look"}, {"id": "z", "goal": "Z {{ a }}"}]
    recipe = loaded(steps, [old], inputs=INPUTS)
    executor = world.executor(world.model(echo), [old])
    assert await world.killed(executor, recipe, 5)
    new = world.tool("look", Effect.PURE)
    edited = loaded([steps[0], {"id": "l", "tool": "look"}, steps[2]], [new], inputs=INPUTS)
    result = await world.executor(world.model(echo), [new]).retry("run_1", recipe=edited)
    assert result.status is RunStatus.COMPLETED
    assert world.asked == {"A 1": 1, "Z re(A 1)": 1}


async def test_with_a_recipe_that_cannot_be_loaded_any_more_shared_settings_count_for_all() -> None:
    world = World()
    old = world.tool("old_look", Effect.PURE)
    steps = [CHAIN[0], {"id": "l", "tool": "old_look"}]
    executor = world.executor(world.model(echo), [old])
    assert await world.killed(executor, loaded(steps, [old], inputs=INPUTS), 5)
    edited = loaded([CHAIN[0]], inputs=INPUTS, model={"temperature": 0.5})
    result = await world.executor(world.model(echo)).retry("run_1", recipe=edited)
    assert result.status is RunStatus.COMPLETED
    assert world.asked == {"A 1": 2}


# --- inputs of an edited recipe -------------------------------------------------------------------


async def test_an_edited_recipe_gets_its_own_defaults_and_keeps_what_was_given() -> None:
    world = World()
    declared: JsonValue = {"n": {"type": "integer", "default": 1}, "m": {"type": "integer"}}
    steps = [{"id": "a", "goal": "{{ inputs }}"}]
    await ran(world, loaded(steps, inputs=declared), m=5)
    edited: JsonValue = {
        "n": {"type": "integer", "default": 2},
        "m": {"type": "integer", "default": 6},
        "o": {"type": "string", "default": "new"},
    }
    _, asked = await retried(world, loaded(steps, inputs=edited))
    assert asked == ['{"n":2,"m":5,"o":"new"}']


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"n": {"type": "integer"}, "m": {"type": "string"}}, "The input 'm' is missing"),
        ({"n": {"type": "string"}}, "The input 'n' does not fit"),
    ],
)
async def test_an_edited_recipe_that_the_inputs_do_not_fit_is_refused(
    declared: JsonValue, message: str
) -> None:
    world = World()
    await ran(world, loaded(CHAIN, inputs=INPUTS), n=5)
    facts = len(await world.journal.entries())
    with pytest.raises(UsageError) as caught:
        await retried(world, loaded(CHAIN, inputs=declared))
    assert message in caught.value.message
    assert "give a new one a default" in caught.value.message
    assert len(await world.journal.entries()) == facts


# --- what is refused ------------------------------------------------------------------------------


async def test_the_recipe_of_another_run_is_refused() -> None:
    world = World()
    await ran(world, loaded(CHAIN, inputs=INPUTS))
    with pytest.raises(UsageError, match="belongs to the recipe 'recipe', not to 'other'"):
        await retried(world, loaded(CHAIN, inputs=INPUTS, id="other"))


async def test_an_edited_recipe_is_no_way_to_resume() -> None:
    """It would be answered with what was recorded of another one. Other limits do not matter."""
    world = World()
    recipe = loaded(CHAIN, inputs=INPUTS)
    assert await world.killed(world.executor(world.model(echo)), recipe, 4)
    again = world.executor(world.model(echo))
    edited = loaded([{"id": "a", "goal": "Other"}, *CHAIN[1:]], inputs=INPUTS)
    with pytest.raises(UsageError) as caught:
        await again.resume("run_1", recipe=edited)
    assert caught.value.error_code == "other-recipe"
    limited = loaded(CHAIN, inputs=INPUTS, limits={"max_steps": 9})
    assert (await again.resume("run_1", recipe=limited)).status is RunStatus.COMPLETED


@frozen
class Verdict:
    """What a step declares."""

    good: bool


@frozen
class Count:
    """What it declares later."""

    n: int


def judge(output_class: type[object]) -> DefaultStep[object]:
    """A step whose schema is not in its prompt."""
    output = OutputInstructions(output_class=output_class, instructions=["Judge."])
    step = text_step("judge", output=output)
    assert isinstance(step, DefaultStep)
    return step


async def test_what_was_recorded_must_fit_what_the_code_declares_now() -> None:
    world = World()
    recipe = recipe_of([judge(Verdict), text_step("b")])
    executor = world.executor(ScriptedModel(['{"good": true}', "done"]))
    assert await world.killed(executor, recipe, 5)
    changed = recipe_of([judge(Count), text_step("b")])
    again = world.executor(ScriptedModel(['{"n": 3}', "done"]))
    facts = len(await world.journal.entries())
    with pytest.raises(UsageError) as caught:
        await again.resume("run_1", recipe=changed)
    assert caught.value.error_code == "other-version"
    assert "What step 'judge' gave in run 'run_1' does not fit" in caught.value.message
    assert len(await world.journal.entries()) == facts
    result = await again.retry("run_1", recipe=changed)
    assert (result.status, result.step("judge").output) == (RunStatus.COMPLETED, Count(3))


async def test_a_typed_output_comes_back_typed() -> None:
    world = World()
    recipe = recipe_of([judge(Verdict)])
    await world.executor(ScriptedModel(['{"good": true}'])).execute(recipe)
    again = world.executor(ScriptedModel([]))
    result = await again.resume("run_1", recipe=recipe, output_class=Verdict)
    assert result.unwrap() == Verdict(good=True)
    assert result.executions[0].output == Verdict(good=True)


async def test_work_that_another_did_since_the_run_was_looked_at_is_not_done_twice() -> None:
    world = World()
    recipe = recipe_of([text_step("a"), text_step("b")])
    assert await world.killed(world.executor(world.model(echo)), recipe, 4)
    seen = await load_recorded_run(world.journal, "run_1")
    first = world.executor(world.model(echo)).prepare_resume(seen, recipe=recipe)
    second = world.executor(world.model(echo)).prepare_resume(seen, recipe=recipe)
    assert (await first.execute()).status is RunStatus.COMPLETED
    with pytest.raises(JournalError) as caught:
        await second.execute()
    assert caught.value.error_code == "run-went-on"
    assert world.asked == {"Goal of a.": 1, "Goal of b.": 1}
    third = await world.executor(world.model(echo)).resume("run_1", recipe=recipe)
    assert third.status is RunStatus.COMPLETED


# --- what is told ---------------------------------------------------------------------------------


async def test_a_call_that_was_cut_off_and_made_again_counts_once() -> None:
    world = World()

    async def hang(prompt: Prompt) -> Answer:
        run.cancel()
        await asyncio.sleep(60)
        return "never"

    recipe = recipe_of([text_step("a")])
    run = world.executor(ScriptedModel(hang)).prepare(recipe)
    assert (await run.execute()).status is RunStatus.CANCELLED
    again = world.executor(world.model(echo))
    for _ in range(2):
        result = await again.resume("run_1", recipe=recipe)
        assert [len(each.model_calls) for each in result.executions] == [1]


async def test_a_retry_names_effects_that_may_come_a_second_time() -> None:
    world = World()

    def answer(prompt: Prompt) -> Answer:
        if prompt.messages[-1].content == "Goal of work.":
            return [tool_request("send"), tool_request("look"), tool_request("broken")]
        return "done"

    def no(arguments: Mapping[str, JsonValue]) -> object:
        raise TypeError("no")

    tools = [
        world.tool("send", Effect.ONCE),
        world.tool("look", Effect.PURE),
        fake_tool("broken", no, effect=Effect.PURE),
    ]
    step = text_step(tools=["send", "look", "broken"])
    recipe = recipe_of([step, text_step("b")], permissions=Permissions(allow_write=True))
    executor = world.executor(world.model(answer), tools)
    assert (await executor.execute(recipe)).status is RunStatus.FAILED
    recorded = await load_recorded_run(world.journal, "run_1")
    assert list(executor.prepare_retry(recorded, recipe=recipe).preview()) == [
        "run run_1 resumes",
        "  to run: work, b",
        "  may have their effect a second time: send in work",
    ]


async def test_a_retry_names_no_effect_of_a_call_that_was_not_made() -> None:
    world = World()

    def answer(prompt: Prompt) -> Answer:
        if prompt.messages[-1].content == "Goal of work.":
            return [tool_request("send"), tool_request("broken", "[1]")]
        return "done"

    tools = [world.tool("send", Effect.ONCE), world.tool("broken", Effect.ONCE)]
    recipe = recipe_of([text_step(tools=["send", "broken"]), text_step("b")])
    executor = world.executor(world.model(answer), tools)
    await executor.execute(recipe)  # without the right to write
    assert not world.done
    recorded = await load_recorded_run(world.journal, "run_1")
    run = executor.prepare_retry(recorded, recipe=recipe, from_step="work")
    assert not any("second time" in line for line in run.preview())


async def test_a_run_that_is_over_says_so() -> None:
    world = World()
    recipe = recipe_of([text_step("a")])
    await world.executor(world.model(echo)).execute(recipe)
    recorded = await load_recorded_run(world.journal, "run_1")
    run = world.executor(world.model(echo)).prepare_resume(recorded, recipe=recipe)
    assert list(run.preview()) == ["run run_1 has its output; no step runs again"]
    assert run.has_recorded_end


# --- decisions ------------------------------------------------------------------------------------


async def test_a_tools_name_means_the_call_of_it_that_still_waits() -> None:
    world = World()

    def answer(prompt: Prompt) -> Answer:
        if prompt.messages[-1].content == "Goal of work.":
            return [tool_request("send", {"to": "a"}), tool_request("send", {"to": "b"})]
        return "done"

    async def send(arguments: Mapping[str, JsonValue]) -> object:
        await asyncio.sleep(0)
        return "sent"

    recipe = recipe_of([text_step(tools=["send"])], permissions=Permissions(allow_write=True))
    tools = [fake_tool("send", send, effect=Effect.ONCE)]
    executor = world.executor(world.model(answer), tools)
    assert await world.killed(executor, recipe, 5)
    again = world.executor(world.model(answer), tools)
    with pytest.raises(UsageError, match="'send' means 2 decisions"):
        await again.resume("run_1", recipe=recipe, decisions={"send": "done"})
    first = "work/1/0/tool/1/0"
    result = await again.resume("run_1", recipe=recipe, decisions={first: "done"})
    assert result.status is RunStatus.NEEDS_DECISION
    with pytest.raises(UsageError, match="Two decisions about work/1/0/tool/1/1"):
        await again.resume("run_1", recipe=recipe, decisions={"send": "redo", "work": "done"})
    result = await again.resume("run_1", recipe=recipe, decisions={"send": "redo"})
    assert result.status is RunStatus.COMPLETED
    assert encode(result.output) == "done"
