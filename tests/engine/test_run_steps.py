"""Steps of a run: what is told again, what is bound at once, and what is done anew."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar

import pytest
from attrs import frozen

from builders import (
    answer_of,
    deterministic_services,
    fake_tool,
    flaky_tool,
    python_step,
    recipe_of,
    run_of,
    text_step,
)
from going_back import PAYS, executor_for, payer
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ChatModel, Prompt
from minions.contracts.decision_types import Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.journal import Journal
from minions.contracts.messages import MessageBundle
from minions.contracts.steps import PythonStep, StepScope
from minions.contracts.tools import Effect, Tool, Toolbox
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.selection import NOT_ASKED_FOR, RunPart
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import World

Document = dict[str, JsonValue]


@frozen(kw_only=True)
class Count(PythonStep[int]):
    """Code that an operator registered; it counts how often it is done."""

    done: ClassVar[list[str]] = []

    id: str

    async def run(self, scope: StepScope) -> int:
        self.done.append(self.id)
        return len(self.done)


def loaded(document: Document, tools: list[Tool] | None = None) -> AgentRecipe:
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools or []})
    names: list[JsonValue] = [tool.spec.name for tool in tools or []]
    return recipe_from_document({"id": "recipe", "tools": names, **document}, catalog)


def outputs(result: AgentResult[object]) -> Mapping[str, object]:
    return {each.step_id: each.output for each in result.executions}


# --- what waited when the run went back ----------------------------------------------------------


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_a_call_that_waited_when_the_run_went_back_is_never_made(mode: str) -> None:
    """Also where somebody who consents to everything is there at the resume."""
    journal, tool = MemoryJournal(FakeClock()), payer()
    recipe = loaded({**PAYS, "execution_mode": mode}, [tool])
    first = await executor_for(journal, [tool]).execute(recipe)
    assert first.status is RunStatus.NEEDS_DECISION
    again = await executor_for(journal, [tool], verdict=Verdict.APPROVED).resume(first.run_id)
    assert again.status is RunStatus.COMPLETED
    assert tool.asked == [{"amount": 11}]


async def test_a_run_that_waits_withdraws_what_waited_once() -> None:
    journal, tool = MemoryJournal(FakeClock()), payer()
    executor = executor_for(journal, [tool])
    first = await executor.execute(loaded(PAYS, [tool]))
    for _ in range(2):
        assert (await executor.resume(first.run_id)).status is RunStatus.NEEDS_DECISION
    rows = await journal.entries()
    withdrawn = [(row.key, row.body["status"]) for row in rows if row.state == "withdrawn"]
    assert withdrawn == [("p/1/0", "skipped")]
    assert [row.key for row in rows if row.kind == "goto"] == ["c/1/0/goto"]


async def test_a_resume_passes_over_nothing_that_rests_on_a_call_that_was_withdrawn() -> None:
    """It has not begun yet: its first visit is the one after the way back."""
    journal, tool = MemoryJournal(FakeClock()), payer()
    executor = executor_for(journal, [tool])
    steps = PAYS["steps"]
    assert isinstance(steps, list)
    receipt: Document = {"id": "receipt", "set": {"paid": "{{ p.amount }}"}}
    ordered = [*steps[:2], receipt, *steps[2:]]
    first = await executor.execute(loaded({**PAYS, "steps": ordered}, [tool]))
    done = await executor.resume(first.run_id, decisions={"p": "approve"})
    assert done.step("receipt").output == {"paid": 11}
    rows = [row for row in await journal.entries() if row.body.get("step_id") == "receipt"]
    assert [(row.key, row.state) for row in rows][-1] == ("receipt/1/0", "finished")
    told = [each.reason for each in done.executions if each.step_id == "p"]
    assert told == ["the run went back before somebody decided", None]


async def test_what_waits_beside_the_way_back_is_not_withdrawn() -> None:
    journal, tool = MemoryJournal(FakeClock()), payer()
    steps = PAYS["steps"]
    assert isinstance(steps, list)
    document: Document = {**PAYS, "steps": [{"id": "q", "ask": "How?"}, *steps]}
    executor = executor_for(journal, [tool])
    first = await executor.execute(loaded(document, [tool]))
    rows = await journal.entries()
    assert [row.key for row in rows if row.state == "withdrawn"] == ["p/1/0"]
    assert first.error is not None
    assert first.error.message.count("Step 'q' waits") == 1
    assert first.error.message.count("Step 'p' waits") == 1
    done = await executor.resume(first.run_id, decisions={"p": "approve", "q": "answer:so"})
    assert (done.status, done.step("q").output) == (RunStatus.COMPLETED, "so")


# --- bound at once -------------------------------------------------------------------------------


async def test_values_of_a_loop_are_bound_once_for_each_item() -> None:
    step: Document = {"id": "a", "set": {"x": 1}, "loop": [1, 2], "aggregate": True}
    done = await run_of(loaded({"steps": [step]}))
    assert done.result.output == [{"x": 1}, {"x": 1}]


async def test_a_step_that_binds_values_counts_as_one_step() -> None:
    steps: list[JsonValue] = [{"id": each, "set": {"x": 1}} for each in "abc"]
    done = await run_of(loaded({"steps": steps, "limits": {"max_steps": 2}}))
    assert done.statuses == {"a": "completed", "b": "completed", "c": "skipped"}
    assert done.result.step("c").reason == "the run's limit max_steps is reached"
    assert done.context.progress.budget.steps == 2


async def test_values_that_cannot_be_bound_fail_their_step() -> None:
    steps: list[JsonValue] = [{"id": "a", "set": {"x": "{{ inputs.gone.away }}"}}]
    done = await run_of(loaded({"inputs": {"gone": {}}, "steps": steps}), inputs={"gone": {}})
    assert done.statuses == {"a": "failed"}
    assert [state for kind, _, state in done.facts if kind == "step"] == ["failed"]


async def test_what_is_bound_can_be_read_under_the_name_it_was_saved_as() -> None:
    steps: list[JsonValue] = [
        {"id": "a", "set": {"x": 1}, "save_as": "first"},
        {"id": "b", "set": {"y": "{{ first.x }}"}},
    ]
    done = await run_of(loaded({"steps": steps}))
    assert done.result.output == {"y": 1}
    assert done.facts[1:3] == [("step", "a/1/0", "finished"), ("step", "b/1/0", "finished")]


async def test_what_cannot_be_recorded_fails_the_step_that_binds_it() -> None:
    """Such as an input that an application gave, and that is no JSON."""
    steps: list[JsonValue] = [{"id": "a", "set": {"x": "{{ inputs.size }}"}}]
    recipe = loaded({"inputs": {"size": {}}, "steps": steps})
    done = await run_of(recipe, inputs={"size": float("inf")})
    assert done.statuses == {"a": "failed"}
    assert "inf is not a JSON number" in (done.result.step("a").reason or "")


# --- conditions ----------------------------------------------------------------------------------


async def test_a_step_whose_condition_is_false_is_passed_over_once() -> None:
    done = await run_of(loaded({"steps": [{"id": "a", "set": {"x": 1}, "when": "false"}]}))
    assert done.statuses == {"a": "skipped"}
    assert [state for kind, _, state in done.facts if kind == "step"] == ["skipped"]
    assert done.result.step("a").reason == "its condition `when` is false"


async def test_a_failed_condition_of_an_optional_step_fails_no_run() -> None:
    step: Document = {"id": "a", "set": {"x": 1}, "when": "inputs.gone.away", "optional": True}
    steps: list[JsonValue] = [step, {"id": "b", "set": {"x": 1}}]
    done = await run_of(loaded({"inputs": {"gone": {}}, "steps": steps}), inputs={"gone": {}})
    assert done.statuses == {"a": "failed", "b": "completed"}
    assert done.result.status is RunStatus.PARTIAL
    (row,) = [entry for entry in done.entries if entry.state == "failed"]
    assert isinstance(row.body["error"], Mapping)
    assert row.body["reason"] == done.result.step("a").reason


async def test_how_a_step_was_passed_over_can_be_read() -> None:
    gone: Document = {"id": "b", "set": {"x": 1}, "when": "inputs.gone.away", "optional": True}
    steps: list[JsonValue] = [
        {"id": "a", "set": {"x": 1}, "when": "false"},
        gone,
        {"id": "c", "set": {"a": "{{ steps.a.status }}", "b": "{{ steps.b.error.code }}"}},
    ]
    done = await run_of(loaded({"inputs": {"gone": {}}, "steps": steps}), inputs={"gone": {}})
    assert done.result.output == {"a": "skipped", "b": "missing-value"}


# --- ends ----------------------------------------------------------------------------------------


async def test_the_first_of_several_failures_is_the_runs() -> None:
    steps: list[JsonValue] = [{"id": "a", "assert": "1 == 2"}, {"id": "b", "assert": "1 == 3"}]
    done = await run_of(loaded({"on_failure": "continue", "steps": steps}))
    assert done.statuses == {"a": "failed", "b": "failed"}
    assert done.result.error is not None
    assert done.result.error.where == "a"


async def test_while_a_call_is_in_doubt_steps_that_do_not_need_it_are_passed_over_too() -> None:
    world = World()
    tool = world.tool("pay", Effect.ONCE)
    steps: list[JsonValue] = [{"id": "p", "tool": "pay"}, {"id": "b", "set": {"x": 1}}]
    recipe = loaded({"permissions": {"allow_write": True}, "steps": steps}, [tool])
    executor = world.executor(ScriptedModel(()), [tool])
    assert await world.killed(executor, recipe, 4, loses_last=True)
    result = await executor.resume("run_1")
    assert result.status is RunStatus.NEEDS_DECISION
    assert result.step("p").reason == "one of its calls is in doubt"
    assert result.step("b").reason == "the run waits for a decision"


# --- models --------------------------------------------------------------------------------------


class Loading(ScriptedModel):
    """Counts how often it is loaded."""

    loads = 0

    async def warm_up(self) -> None:
        self.loads += 1


async def test_a_model_is_loaded_for_steps_that_ask_it_and_not_for_code() -> None:
    async def code(_: StepScope) -> object:
        return "no model"

    model = Loading([])
    await run_of(recipe_of([python_step(code)]), model)
    assert model.loads == 0
    model = Loading(["said"])
    await run_of(recipe_of([text_step()]), model)
    assert model.loads == 1


# --- parts ---------------------------------------------------------------------------------------


async def test_what_is_pinned_is_recorded_under_its_own_key_with_where_it_is_from() -> None:
    journal, clock = MemoryJournal(FakeClock()), FakeClock()
    steps: list[JsonValue] = [
        {"id": "a", "set": {"x": 1}},
        {"id": "b", "set": {"y": "{{ a.x }}"}},
        {"id": "c", "set": {"z": 3}},
    ]
    recipe = loaded({"steps": steps})
    executor = executor_for(journal)
    first = await executor.execute(recipe)
    clock.advance(1)
    second = await executor.execute(recipe, part=RunPart(first="b", until="b"))
    rows = await journal.entries(run_id=second.run_id)
    steps_of = [(row.key, row.state, row.body.get("pinned_from")) for row in rows]
    assert [row for row in steps_of if row[0] != "run"] == [
        ("a/1/0", "finished", first.run_id),
        ("b/1/0", "finished", None),
        ("c/1/0", "skipped", None),
    ]
    assert second.step("b").output == {"y": 1}


async def test_why_a_step_was_passed_over_is_told_of_steps_that_were_asked_for() -> None:
    """Also of one that is pinned; of the others, that nobody asked for them."""
    steps: list[JsonValue] = [
        {"id": "bad", "assert": "1 == 2"},
        {"id": "after", "set": {"x": 1}, "depends_on": ["bad"]},
        {"id": "pinned", "set": {"x": 2}},
        {"id": "reads", "set": {"x": "{{ pinned.x }}"}, "depends_on": ["after"]},
        {"id": "other", "set": {"x": 3}},
    ]
    part = RunPart(first="bad", pinned={"pinned": {"x": 2}})
    executor = executor_for(MemoryJournal(FakeClock()))
    done = await executor.execute(loaded({"steps": steps}), part=part)
    assert {each.step_id: each.reason for each in done.executions} == {
        "bad": "The condition '1 == 2' does not hold.",
        "after": "its dependency 'bad' failed",
        "pinned": "the run stopped: step 'bad' failed",
        "reads": "its dependency 'after' was skipped",
        "other": NOT_ASKED_FOR,
    }


# --- going back ----------------------------------------------------------------------------------


async def test_each_way_back_is_recorded_with_its_number_and_up_to_its_most() -> None:
    document: Document = {
        "steps": [
            {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
            {"id": "c", "assert": "a.n > 9", "on_error": {"goto": "a", "max": 2}},
        ],
    }
    done = await run_of(loaded(document))
    assert done.result.status is RunStatus.FAILED
    ways = [entry for entry in done.entries if entry.kind == "goto"]
    assert [(each.key, each.body["attempt"], each.body["to"]) for each in ways] == [
        ("c/1/0/goto", 1, "a"),
        ("c/2/0/goto", 2, "a"),
    ]
    assert done.context.run_values.feedback is None
    assert done.result.step("a").output == {"n": 2}


async def test_feedback_ends_with_the_step_that_gave_it() -> None:
    document: Document = {
        "steps": [
            {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
            {"id": "c", "assert": "a.n == 1", "on_error": {"goto": "a"}},
            {"id": "d", "set": {"is_over": "{{ not feedback }}"}, "depends_on": ["c"]},
        ],
    }
    done = await run_of(loaded(document))
    assert done.result.output == {"is_over": True}


async def test_a_part_of_a_recipe_goes_back_within_itself() -> None:
    steps: list[JsonValue] = [
        {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
        {"id": "c", "assert": "a.n == 1", "on_error": {"goto": "a"}},
        {"id": "d", "set": {"x": "{{ a.n }}"}, "depends_on": ["c"]},
    ]
    executor = executor_for(MemoryJournal(FakeClock()))
    done = await executor.execute(loaded({"steps": steps}), part=RunPart(until="c"))
    assert (done.status, done.step("a").output) == (RunStatus.COMPLETED, {"n": 1})


async def test_what_a_step_left_before_the_run_went_back_is_gone_where_it_is_passed_over_then() -> (
    None
):
    document: Document = {
        "steps": [
            {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
            {"id": "b", "set": {"x": "old"}, "when": "a.n == 0", "save_as": "saved"},
            {"id": "c", "assert": "a.n == 1", "on_error": {"goto": "a"}, "depends_on": ["b"]},
            {
                "id": "d",
                "set": {"b": "{{ b.x | default('none') }}", "s": "{{ saved.x | default('none') }}"},
                "depends_on": ["c"],
            },
        ],
    }
    done = await run_of(loaded(document))
    assert done.statuses["b"] == "skipped"
    assert done.result.output == {"b": "none", "s": "none"}


async def test_a_resume_counts_the_ways_back_of_the_executions_before_it() -> None:
    steps: list[JsonValue] = [
        {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
        {"id": "c", "assert": "a.n > 9", "on_error": {"goto": "a", "max": 2}},
    ]
    recipe, quiet = loaded({"steps": steps}), World()
    await quiet.executor(ScriptedModel(())).execute(recipe)
    for at in range(2, quiet.journal.count):
        world = World()
        executor = world.executor(ScriptedModel(()))
        assert await world.killed(executor, recipe, at)
        assert (await executor.resume("run_1")).status is RunStatus.FAILED
        ways = [row.key for row in await world.journal.entries() if row.kind == "goto"]
        assert ways == ["c/1/0/goto", "c/2/0/goto"], at


async def test_a_step_that_the_runs_limit_cut_off_leads_nowhere() -> None:
    """It has not failed: with more room it would go on."""
    look = fake_tool()
    steps: list[JsonValue] = [
        {"id": "a", "goal": "Write."},
        {"id": "b", "goal": "Say {{ a }}", "tools": ["look"], "on_error": {"goto": "a"}},
    ]
    recipe = loaded({"steps": steps, "limits": {"max_tokens": 25}}, [look])
    asks = answer_of(tool_calls=[tool_request("look")])
    done = await run_of(recipe, [answer_of("one"), asks], tools=[look])
    assert done.result.status is RunStatus.LIMIT_REACHED
    assert done.statuses == {"a": "completed", "b": "failed"}
    assert [entry for entry in done.entries if entry.kind == "goto"] == []


# --- retries -------------------------------------------------------------------------------------


async def test_code_that_cannot_tell_its_inputs_is_done_anew_only_after_something_else_was() -> (
    None
):
    counts = {"a": 0, "c": 0}
    is_broken = True

    async def a(_: StepScope) -> object:
        counts["a"] += 1
        return counts["a"]

    async def b(_: StepScope) -> object:
        if is_broken:
            raise RuntimeError("not now")
        return "b"

    async def c(_: StepScope) -> object:
        counts["c"] += 1
        if counts["c"] == 1:
            raise RuntimeError("not yet")
        return "c"

    recipe = AgentRecipe(
        id="recipe", steps=(python_step(a, "a"), python_step(b, "b"), python_step(c, "c"))
    )
    executor = executor_for(MemoryJournal(FakeClock()))
    first = await executor.execute(recipe)
    assert first.status is RunStatus.FAILED
    is_broken = False
    second = await executor.retry(first.run_id, recipe=recipe)
    assert (second.status, counts) == (RunStatus.FAILED, {"a": 1, "c": 1})
    third = await executor.retry(first.run_id, recipe=recipe)
    assert (third.status, counts) == (RunStatus.COMPLETED, {"a": 1, "c": 2})
    assert outputs(third) == {"a": 1, "b": "b", "c": "c"}


CODE: Document = {"id": "c", "uses": "Count"}
BREAKS: Document = {"id": "bad", "tool": "work"}


def counting(journal: Journal, *tools: Tool) -> AgentExecutor:
    """Of recipes that use `Count`, which has not been done yet."""
    Count.done.clear()
    extensions = Extensions(steps={"Count": Count}, tools=Toolbox(tools))
    return AgentExecutor(
        ScriptedModel(()), extensions=extensions, services=deterministic_services(journal)
    )


def recipe_of_code(*steps: Document) -> AgentRecipe:
    tools = Toolbox((flaky_tool("work", failures=0),))
    catalog = Extensions(steps={"Count": Count}, tools=tools).catalog()
    document: Document = {"id": "recipe", "on_failure": "continue", "steps": [*steps]}
    return recipe_from_document({**document, "tools": ["work"]}, catalog)


@pytest.mark.parametrize(
    ("steps", "times"),
    [
        ((BREAKS, CODE), 2),
        ((CODE, BREAKS), 1),
        (({"id": "all", "set": {"x": 1}, "loop": [1, 2]}, CODE, BREAKS), 1),
    ],
    ids=["after what is run now", "before it", "after a loop of which nothing is run now"],
)
async def test_a_retry_does_code_anew_only_after_what_it_runs_itself(
    steps: tuple[Document, ...], times: int
) -> None:
    """Nobody can tell what the code read."""
    executor = counting(MemoryJournal(FakeClock()), flaky_tool("work", failures=3))
    first = await executor.execute(recipe_of_code(*steps))
    assert (first.status, len(Count.done)) == (RunStatus.FAILED, 1)
    assert (await executor.retry(first.run_id)).status is RunStatus.COMPLETED
    assert len(Count.done) == times


async def test_a_retry_does_code_anew_after_values_that_are_bound_anew() -> None:
    def recipe(value: int) -> AgentRecipe:
        return recipe_of_code({"id": "a", "set": {"x": value}}, CODE, BREAKS)

    executor = counting(MemoryJournal(FakeClock()), flaky_tool("work", failures=99))
    first = await executor.execute(recipe(1))
    for value, times in ((1, 1), (2, 2)):
        await executor.retry(first.run_id, recipe=recipe(value))
        assert len(Count.done) == times


async def test_a_retry_does_code_anew_that_follows_a_value_by_now() -> None:
    value: Document = {"id": "a", "set": {"x": 1}}
    executor = counting(MemoryJournal(FakeClock()), flaky_tool("work", failures=99))
    first = await executor.execute(recipe_of_code(CODE, value, BREAKS))
    await executor.retry(first.run_id)
    assert len(Count.done) == 1
    await executor.retry(first.run_id, recipe=recipe_of_code(value, CODE, BREAKS))
    assert len(Count.done) == 2


async def test_items_that_a_retry_would_do_otherwise_are_done_anew_under_keys_of_their_own() -> (
    None
):
    def recipe(second: int) -> AgentRecipe:
        listed: Document = {"id": "l", "set": {"all": [1, second]}}
        each: Document = {"id": "a", "goal": "Say {{ loop.item }}", "loop": "{{ l.all }}"}
        return loaded({"steps": [listed, each, {"id": "b", "assert": "1 == 2"}]})

    world = World()
    executor = world.executor(world.model(lambda prompt: f"re {prompt.messages[-1].content}"))
    first = await executor.execute(recipe(2))
    again = await executor.retry(first.run_id, recipe=recipe(3))
    assert [each.output for each in again.step("a").iterations] == ["re Say 1", "re Say 3"]
    assert world.asked == {"Say 1": 1, "Say 2": 1, "Say 3": 1}
    ended = [
        row.key
        for row in await world.journal.entries()
        if row.body.get("step_id") == "a" and row.kind == "step" and row.state == "finished"
    ]
    assert ended == ["a/1/1", "a/1/2", "a/1/0", "a/1/2@2", "a/1/0"]


async def test_a_resume_does_no_item_of_code_again_that_has_ended() -> None:
    world = World()
    executor = counting(world.journal, flaky_tool("work", failures=0))
    recipe = recipe_of_code({"id": "a", "uses": "Count", "loop": [1, 2, 3]})
    assert await world.killed(executor, recipe, 6)
    before = len(Count.done)
    assert before >= 1
    result = await executor.resume("run_1")
    assert (result.status, len(Count.done)) == (RunStatus.COMPLETED, 3)


async def test_a_resume_keeps_a_conversation_that_would_begin_otherwise_now() -> None:
    """Only a retry looks at what steps would ask."""
    world, openings = World(), itertools.count(1)
    asks = tool_request("look")

    def answer(prompt: Prompt) -> Answer:
        return [asks] if len(prompt.messages) == 1 else str(prompt.messages[0].content)

    def recipe() -> AgentRecipe:
        goal = MessageBundle.of(goal=f"Goal {next(openings)}.")
        return recipe_of([text_step(tools=["look"], messages=goal)])

    look = fake_tool(effect=Effect.PURE)
    executor = world.executor(world.model(answer), [look])
    assert await world.killed(executor, recipe(), 4)
    done = await executor.resume("run_1", recipe=recipe())
    assert (done.output, len(look.asked)) == ("Goal 1.", 1)
    assert {row.key for row in await world.journal.entries() if row.kind == "step"} == {"work/1/0"}


async def test_code_whose_end_is_recorded_needs_no_model() -> None:
    def no_model(_: ModelConfig) -> ChatModel:
        raise EnvironmentRefusedError("there is none")

    async def code(_: StepScope) -> object:
        return "done"

    world, recipe = World(), recipe_of([python_step(code, "a"), python_step(code, "b")])
    services = deterministic_services(world.journal)
    executor = AgentExecutor(no_model, services=services)
    assert await world.killed(executor, recipe, 4)
    assert (await executor.resume("run_1", recipe=recipe)).output == "done"
