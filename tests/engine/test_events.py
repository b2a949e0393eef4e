"""What a watcher sees: each event after its fact, in order; leaving early stops the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import cast

import pytest
from returns.result import Result

from builders import (
    FailingJournal,
    deterministic_services,
    executor_of,
    fake_tool,
    python_step,
    recipe_of,
    signal_step,
    text_step,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import DeltaSink, ModelCallResponse, ModelFailure, Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.run_events import (
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    StepCompleted,
    StepDeltaEvent,
    StepFinished,
    StepStarted,
    ToolFinished,
    event_to_json,
)
from minions.contracts.steps import StepScope
from minions.contracts.tools import Tool
from minions.data.errors import GraphError, JournalError
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, ExecutionMode
from minions.testing.virtual_time import FakeClock
from patience import HANG_S


async def events_of(executor: AgentExecutor, recipe: AgentRecipe) -> list[RunEvent]:
    return [event async for event in executor.stream(recipe)]


def types_of(events: Sequence[RunEvent]) -> list[str]:
    return [event.type for event in events]


def with_tools(services: Services | None = None) -> tuple[AgentExecutor, AgentRecipe]:
    """A step with two tool calls at once, and one without."""
    requests = [tool_request("look", {"n": n}, id=f"c{n}") for n in (1, 2)]
    answers: list[Answer] = [requests, "two words", "status: done"]

    async def work(arguments: Mapping[str, JsonValue]) -> object:
        await asyncio.sleep(0)
        return arguments["n"]

    tools: list[Tool] = [fake_tool(work=work)]
    executor = executor_of(ScriptedModel(answers), tools=tools, services=services)
    return executor, recipe_of([text_step("a", tools=["look"]), signal_step("b")])


# --- order -------------------------------------------------------------------------------------


async def test_the_events_of_a_run_come_in_the_order_of_its_facts() -> None:
    executor, recipe = with_tools()
    events = await events_of(executor, recipe)
    shown = [event for event in events if not isinstance(event, StepDeltaEvent)]
    assert types_of(shown) == [
        "run_started",
        "step_started",
        "step_completed",
        "tool_started",
        "tool_started",
        "tool_finished",
        "tool_finished",
        "step_completed",
        "step_completed",
        "step_completed",
        "step_finished",
        "step_started",
        "step_completed",
        "step_finished",
        "run_completed",
    ]
    snapshots = [event.snapshot for event in shown if isinstance(event, StepCompleted)]
    assert [each.role for each in snapshots] == [
        "assistant",
        "tool",
        "tool",
        "assistant",
        "assistant",
    ]
    assert [each.tool_call_id for each in snapshots[1:3]] == ["c1", "c2"]


async def test_positions_strictly_increase_and_name_stored_facts() -> None:
    services = deterministic_services()
    executor, recipe = with_tools(services)
    events = await events_of(executor, recipe)
    positions = [event.position for event in events if event.position is not None]
    assert positions == sorted(set(positions))
    entries = {entry.position: entry for entry in await services.journal.entries()}
    for event in events:
        if event.position is not None:
            assert event.timestamp == entries[event.position].at
            assert (event.run_id, event.session_id) == ("run_1", "ses_1")
    assert all(event.position is None for event in events if isinstance(event, StepDeltaEvent))


async def test_deltas_come_before_their_message_and_add_up_to_it() -> None:
    executor, recipe = with_tools()
    text = ""
    fragments: dict[int, dict[str, str]] = {}
    seen = 0
    for event in await events_of(executor, recipe):
        if isinstance(event, StepDeltaEvent):
            text += event.delta.content or ""
            for fragment in event.delta.tool_calls:
                index = cast(int, fragment["index"])
                call = fragments.setdefault(index, {"name": "", "arguments": ""})
                function = cast("Mapping[str, str]", fragment["function"])
                call["name"] += function.get("name", "")
                call["arguments"] += function.get("arguments", "")
        elif isinstance(event, StepCompleted) and event.snapshot.is_assistant_step():
            seen += 1
            assert text == (event.snapshot.content or "")
            calls = event.snapshot.tool_calls
            assert list(fragments.values()) == [
                {"name": each.name, "arguments": each.arguments} for each in calls
            ]
            text, fragments = "", {}
    assert (text, fragments, seen) == ("", {}, 3)


async def test_an_event_is_shown_only_after_its_fact_was_stored() -> None:
    journal = MemoryJournal(FakeClock())
    services = deterministic_services(journal)
    executor, recipe = with_tools(services)
    run = executor.prepare(recipe)
    stored: list[bool] = []

    def watch(event: RunEvent) -> None:
        entries = journal._sessions[run.session_id].entries
        stored.append(event.position is None or entries[-1].position == event.position)

    run.listen(watch)
    await run.execute()
    assert stored
    assert all(stored)


async def test_positions_increase_also_where_parallel_facts_are_stored_slowly() -> None:
    """A store may take its time over one fact and be quick with the next."""

    class Uneven(MemoryJournal):
        async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
            entry = await super().append(lease, draft)
            for _ in range(7 * entry.position % 5):
                await asyncio.sleep(0)
            return entry

    steps = [ToolSpecStep(id=f"s{n}", tool="look") for n in range(6)]
    recipe = recipe_of(steps, execution_mode=ExecutionMode.PARALLEL)
    services = deterministic_services(Uneven(FakeClock()))
    executor = executor_of(ScriptedModel([]), tools=[fake_tool()], services=services)
    events = await events_of(executor, recipe)
    positions = [event.position for event in events]
    assert positions == sorted(cast("list[int]", positions))


async def test_nobody_watching_nothing_is_streamed() -> None:
    asked: list[bool] = []

    class Noting(ScriptedModel):
        async def complete(
            self, prompt: Prompt, on_delta: DeltaSink | None = None
        ) -> Result[ModelCallResponse, ModelFailure]:
            asked.append(on_delta is not None)
            return await super().complete(prompt, on_delta)

    await executor_of(Noting(["x"])).execute(recipe_of([text_step()]))
    await events_of(executor_of(Noting(["x"])), recipe_of([text_step()]))
    assert asked == [False, True]


# --- what they hold ----------------------------------------------------------------------------


async def test_the_first_and_the_last_event_say_what_ran_and_what_came_out() -> None:
    executor, recipe = with_tools()
    first, *_, last = await events_of(executor, recipe)
    assert isinstance(first, RunStarted)
    assert (first.recipe, first.model_name, first.data) == (
        "recipe",
        "scripted/answers",
        {"query": {}},
    )
    assert isinstance(last, RunCompleted)
    assert (last.status, last.data["response"]) == ("completed", "status: done")


@pytest.mark.parametrize("output", [None, 0, False, "", []])
async def test_a_falsy_output_is_in_the_last_event(output: JsonValue) -> None:
    async def give(scope: StepScope) -> object:
        return output

    *_, last = await events_of(executor_of(ScriptedModel([])), recipe_of([python_step(give)]))
    assert isinstance(last, RunCompleted)
    assert last.data["response"] == output


async def test_a_failure_is_in_the_events_of_its_step_and_of_the_run() -> None:
    failure = ModelFailure(code="auth-rejected", message="The key was refused.")
    *_, step, run = await events_of(executor_of(ScriptedModel([failure])), recipe_of([text_step()]))
    assert isinstance(step, StepFinished)
    assert isinstance(run, RunFailed)
    assert (step.status, step.error and step.error["code"]) == ("failed", "auth-rejected")
    assert (run.status, run.data["error"]) == (
        "failed",
        {
            "code": "auth-rejected",
            "message": "The key was refused.",
            "where": "work",
            "category": "permission",
        },
    )


async def test_a_tool_that_fails_says_so_in_its_own_event() -> None:
    answers: list[Answer] = [tool_request("gone", id="c1"), "done"]
    events = await events_of(executor_of(ScriptedModel(answers)), recipe_of([text_step()]))
    (finished,) = [event for event in events if isinstance(event, ToolFinished)]
    assert (finished.tool, finished.call_id) == ("gone", "c1")
    assert finished.error is not None
    assert finished.error["code"] == "unknown-tool"


async def test_a_skipped_step_and_one_that_takes_no_time_have_one_event_each() -> None:
    steps = [SetSpec(id="a", set={"x": 1}), SetSpec(id="b", set={}, when="false")]
    events = await events_of(executor_of(ScriptedModel([])), recipe_of(steps))
    assert types_of(events) == ["run_started", "step_finished", "step_finished", "run_completed"]
    assert [event.status for event in events if isinstance(event, StepFinished)] == [
        "completed",
        "skipped",
    ]


async def test_every_event_can_be_written_as_json() -> None:
    executor, recipe = with_tools()
    for event in await events_of(executor, recipe):
        written = json.loads(json.dumps(event_to_json(event)))
        assert written["type"] == event.type
        assert None not in written.values()


async def test_every_event_belongs_to_its_step() -> None:
    executor, recipe = with_tools()
    current = None
    for event in await events_of(executor, recipe):
        if isinstance(event, StepStarted):
            current = event.step_id
        elif not isinstance(event, RunStarted | RunCompleted):
            assert getattr(event, "step_id", None) == current


# --- leaving, and refusals ---------------------------------------------------------------------


async def test_leaving_the_stream_early_cancels_the_run() -> None:
    stopped = asyncio.Event()

    async def slow(_: Mapping[str, JsonValue]) -> object:
        with contextlib.ExitStack() as stack:
            stack.callback(stopped.set)
            return await asyncio.Event().wait()

    services = deterministic_services()
    executor = executor_of(
        ScriptedModel([tool_request("look")]), tools=[fake_tool(work=slow)], services=services
    )
    before = asyncio.all_tasks()
    stream = executor.stream(recipe_of([text_step(tools=["look"])]))
    async for event in stream:
        if event.type == "tool_started":
            break
    await cast("AsyncGenerator[RunEvent, None]", stream).aclose()
    assert stopped.is_set()
    assert asyncio.all_tasks() == before
    last = (await services.journal.entries())[-1]
    assert (last.kind, last.state, last.body["status"]) == ("run", "finished", "cancelled")


async def test_a_cancelled_watcher_cancels_the_run() -> None:
    begun = asyncio.Event()

    async def answer(_: object) -> Answer:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    services = deterministic_services()
    executor = executor_of(ScriptedModel(answer), services=services)
    before = asyncio.all_tasks()
    watcher = asyncio.create_task(events_of(executor, recipe_of([text_step()])))
    await asyncio.wait_for(begun.wait(), HANG_S)
    watcher.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watcher
    assert asyncio.all_tasks() == before
    last = (await services.journal.entries())[-1]
    assert last.body["status"] == "cancelled"


async def test_refusals_come_before_the_first_event() -> None:
    executor = executor_of(ScriptedModel([]))
    with pytest.raises(GraphError):
        await events_of(executor, recipe_of([]))
    services = deterministic_services(FailingJournal(1))
    with pytest.raises(JournalError):
        await events_of(executor_of(ScriptedModel([]), services=services), recipe_of([text_step()]))


async def test_a_journal_that_fails_in_the_middle_ends_the_stream() -> None:
    services = deterministic_services(FailingJournal(4))
    executor, recipe = with_tools(services)
    events = [event async for event in executor.stream(recipe)]
    assert types_of([each for each in events if not isinstance(each, StepDeltaEvent)]) == [
        "run_started",
        "step_started",
        "step_completed",
    ]


async def test_two_listeners_see_the_same() -> None:
    executor, recipe = with_tools()
    run = executor.prepare(recipe)
    first: list[RunEvent] = []
    second: list[RunEvent] = []
    run.listen(first.append)
    run.listen(second.append)
    assert (await run.execute()).status is RunStatus.COMPLETED
    assert first == second
    assert len(first) > 10
