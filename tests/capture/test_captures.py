"""Recorded agent work becomes a recipe that does the same, and is proved to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import evolve

from minions import AgentResult, Minions, Prompt, RunStatus, ScriptedModel, UsageError
from minions.app.capturing.captures import Capture
from minions.capture.captured_program import JudgedNode
from minions.data.json_values import JsonValue, dumps
from minions.testing import Answer, tool_request
from recorded_works import WARM, WORKS, Work, World, agent_model, judge_model


async def run_agent(work: Work, task: str) -> tuple[AgentResult[object], World]:
    world = World()
    async with Minions(model=agent_model(work), tools=world.tools(), approve="all") as app:
        result = await app.arun(work.recipe, {"task": task})
    assert result.status is RunStatus.COMPLETED, result.error
    return result, world


async def captured(work: Work, *, on_surprise: str = "fail") -> Capture:
    world = World()
    async with Minions(model=agent_model(work), tools=world.tools(), approve="all") as app:
        runs = [
            (await app.arun(work.recipe, {"task": task})).run_id
            for task in work.tasks[: work.recorded]
        ]
        return await app.capture(*runs, on_surprise=on_surprise)


async def run_recipe(
    text: str, inputs: Mapping[str, JsonValue], work: Work
) -> tuple[AgentResult[object], World]:
    world = World()
    async with Minions(model=judge_model(work), tools=world.tools(), approve="all") as app:
        result = await app.arun(text, inputs)
    return result, world


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
async def test_a_recorded_work_becomes_a_proved_recipe_that_does_the_next_task_as_the_agent(
    work: Work,
) -> None:
    """A-173, A-174."""
    capture = await captured(work)
    assert capture.is_proved, "\n".join((*capture.problems, capture.text))
    for task, inputs in zip(work.tasks[work.recorded :], work.new, strict=True):
        wanted, by_agent = await run_agent(work, task)
        found, by_recipe = await run_recipe(capture.text, inputs, work)
        assert found.status is RunStatus.COMPLETED, f"{found.error}\n{capture.text}"
        assert sorted(map(str, by_recipe.effects)) == sorted(map(str, by_agent.effects))
        assert found.output == wanted.output
        assert found.usage.total_tokens <= wanted.usage.total_tokens


async def test_what_the_agent_read_beside_its_task_stands_in_prompts_of_the_recipe() -> None:
    work = work_named("refund")
    told = "context: [{text: 'Letters begin with the word Dear.'}]\n"
    world = World()
    async with Minions(model=agent_model(work), tools=world.tools(), approve="all") as app:
        result = await app.arun(told + work.recipe, {"task": work.tasks[0]})
        capture = await app.capture(result.run_id)
    assert capture.is_proved, capture.problems
    model = judge_model(work)
    async with Minions(model=model, tools=World().tools(), approve="all") as app:
        (await app.arun(capture.text, work.new[0])).unwrap()
    (prompt,) = model.prompts
    assert "Letters begin with the word Dear." in str(prompt.messages)


# --- what was never seen -------------------------------------------------------------------------


def work_named(name: str) -> Work:
    return next(each for each in WORKS if each.name == name)


UNSEEN = {"order_id": "D-8"}
"""An order that is shipped; the captured one was paid."""


async def test_what_was_never_seen_fails_by_default_before_any_effect() -> None:
    """A-174."""
    work = work_named("refund")
    capture = await captured(work)
    result, world = await run_recipe(capture.text, UNSEEN, work)
    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.code == "bad-result"
    assert "'shipped' is not one of ['paid']" in result.error.message
    assert world.effects == []


async def test_what_was_never_seen_goes_to_the_agent_with_what_is_done() -> None:
    """A-174."""
    work = work_named("refund")
    capture = await captured(work, on_surprise="agent")
    assert capture.is_proved, capture.problems
    asked: list[Prompt] = []

    def agent(prompt: Prompt) -> Answer:
        asked.append(prompt)
        return "I leave it as it is." if len(asked) > 1 else tool_request("get_order", UNSEEN)

    world = World()
    async with Minions(model=ScriptedModel(agent), tools=world.tools(), approve="all") as app:
        result = await app.arun(capture.text, UNSEEN)
    assert (result.status, result.output) == (RunStatus.COMPLETED, "I leave it as it is.")
    assert world.effects == []
    goal = "\n".join(each.content or "" for each in asked[0].messages)
    assert "Refund order D-8 and tell the customer." in goal
    assert "'shipped' is not one of ['paid']" in goal
    assert {each.name for each in asked[0].tools} == set(work.tools)


async def test_what_was_never_seen_waits_for_a_person_who_says_the_result() -> None:
    """A-174."""
    work = work_named("refund")
    capture = await captured(work, on_surprise="ask")
    world = World()
    async with Minions(model=judge_model(work), tools=world.tools(), approve="wait") as app:
        result = await app.arun(capture.text, UNSEEN)
        assert result.status is RunStatus.NEEDS_DECISION
        (waiting,) = await app.waiting(result.run_id)
        result = await app.answer(result.run_id, waiting.key, "Nothing to pay back.")
    assert (result.status, result.output) == (RunStatus.COMPLETED, "Nothing to pay back.")


async def test_a_way_that_the_agent_found_after_a_surprise_is_added_and_proved_on_both() -> None:
    """A-175."""
    work = evolve(work_named("two_ways"), recorded=1)
    world = World()
    async with Minions(model=agent_model(work), tools=world.tools(), approve="all") as app:
        first = await app.arun(work.recipe, {"task": work.tasks[0]})
        capture = await app.capture(first.run_id, on_surprise="agent")
        assert capture.is_proved, capture.problems
    other = ScriptedModel([tool_request("cancel", {"order_id": "B-20"}), "Done."])
    async with Minions(
        model=other, tools=world.tools(), approve="all", journal=app.services.journal
    ) as app:
        surprised = await app.arun(capture.text, {"order_id": "B-20"})
        assert surprised.status is RunStatus.COMPLETED, surprised.error
        assert capture.recipe is not None
        extended = await app.extend(capture.recipe, surprised.run_id)
    assert extended.is_proved, "\n".join((*extended.problems, extended.text))
    assert len(extended.proof.tests) == 2
    for order, effect in (("C-33", "refund"), ("D-8", "cancel")):
        result, world = await run_recipe(extended.text, {"order_id": order}, work)
        assert result.status is RunStatus.COMPLETED, result.error
        assert [name for name, _ in world.effects] == [effect]
        assert result.usage.total_tokens == 0


async def test_a_run_of_the_agent_with_another_task_extends_no_recipe() -> None:
    work = work_named("two_ways")
    capture = await captured(evolve(work, recorded=1))
    world = World()
    async with Minions(model=agent_model(work), tools=world.tools(), approve="all") as app:
        other = await app.arun(work.recipe, {"task": "Please cancel B-20"})
        assert capture.recipe is not None
        with pytest.raises(UsageError, match="is no task of 'two-ways-captured'"):
            await app.extend(capture.recipe, other.run_id)


async def test_a_model_that_is_asked_for_each_item_is_bounded_by_what_was_seen() -> None:
    """A-173: `explain` has a bound, also where a list may be of any length."""
    capture = await captured(work_named("labels"))
    assert capture.recipe is not None
    seen = len(
        next(each.answers[0] for each in capture.program.steps if isinstance(each, JudgedNode))
    )
    assert capture.recipe.limits["max_model_calls"] == max(50, 10 * seen)


async def test_a_model_decides_between_ways_that_no_state_tells_apart() -> None:
    """A city's name divides two runs, too, and says nothing of the next one."""
    capture = await captured(WARM)
    assert capture.is_proved, "\n".join((*capture.problems, capture.text))
    for task, inputs in zip(WARM.tasks[2:], WARM.new, strict=True):
        _, by_agent = await run_agent(WARM, task)
        result, by_recipe = await run_recipe(capture.text, inputs, WARM)
        assert result.status is RunStatus.COMPLETED, result.error
        assert by_recipe.effects == by_agent.effects


async def test_tasks_of_other_forms_are_no_proof_where_a_model_judges_by_them() -> None:
    """The words of one task would be what a model reads in all later runs."""
    work = WARM
    other = "Please look whether it is warm in Bern"
    capture = await captured(evolve(work, tasks=(work.tasks[0], other), recorded=2))
    assert any("the tasks differ in more than their inputs" in each for each in capture.problems)


async def test_how_an_agent_found_its_tools_is_no_part_of_what_it_did() -> None:
    """The captured recipe calls the tools that were found, and offers a search to nobody."""

    def answer(prompt: Prompt) -> Answer:
        said = [each for each in prompt.messages if each.role.value == "tool"]
        order = next(each.content or "" for each in prompt.messages if each.content)
        steps: list[Answer] = [
            tool_request("find_tools", {"query": "an order by its id"}),
            tool_request("get_order", {"order_id": order}),
        ]
        return steps[len(said)] if len(said) < len(steps) else {"customer": "c1234"}

    text = (
        "id: look\ninputs: {task: string}\nsteps:\n  - id: work\n    goal: '{{ inputs.task }}'\n"
        "    tools: {names: [get_order, get_customer], search: true}\n"
        "    output: {customer: string}\n"
    )
    async with Minions(model=ScriptedModel(answer), tools=World().tools(), approve="all") as app:
        result = await app.arun(text, {"task": "A-1231"})
        assert result.status is RunStatus.COMPLETED, result.error
        capture = await app.capture(result.run_id)
    assert capture.is_proved, "\n".join((*capture.problems, capture.text))
    assert "tool: get_order" in capture.text
    assert "find_tools" not in capture.text


async def test_a_run_whose_program_called_tools_is_refused_with_the_way_to_do_without() -> None:
    work = work_named("refund")
    recipe: JsonValue = {
        "id": "program",
        "steps": [
            {
                "id": "look",
                "code": "import tools\ntools.get_order(order_id='D-7')",
                "tools": ["get_order"],
            }
        ],
    }
    world = World()
    async with Minions(model=agent_model(work), tools=world.tools(), approve="all") as app:
        run = await app.arun(dumps(recipe))
        with pytest.raises(UsageError, match="put it into a `code` step") as caught:
            await app.capture(run.run_id)
    assert caught.value.error_code == "program-run"
