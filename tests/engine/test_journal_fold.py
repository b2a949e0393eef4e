"""The journal is the one truth: folded, it gives the conversations that the run really had."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    ConstrainedModel,
    FailingJournal,
    Ran,
    answer_of,
    deterministic_services,
    executor_of,
    fake_tool,
    flaky_tool,
    live_conversations,
    python_step,
    recipe_of,
    run_of,
    run_recipe,
    shown_conversations,
    signal_step,
    text_step,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.calls import ModelFailure
from minions.contracts.executions import RunStatus
from minions.contracts.instructions import OutputInstructions, OutputMode
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.messages import Message
from minions.contracts.steps import Step, StepScope
from minions.data.errors import FencedError, JournalError, LeaseHeldError, ToolError
from minions.data.json_values import JsonValue
from minions.engine.history.memory import memory_from
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, ExecutionMode
from minions.testing.virtual_time import FakeClock
from patience import HANG_S

NUMBER = OutputInstructions[object](schema={"type": "object", "required": ["n"]})
BUSY = ModelFailure(code="rate-limited", message="slow down", is_retryable=True)


def folded(entries: Sequence[JournalEntry]) -> Mapping[str, tuple[Message, ...]]:
    """Without what only stood beside a conversation."""
    found = shown_conversations(memory_from(entries))
    return {key: messages for key, messages in found.items() if not key.endswith("#aside")}


def assert_folds(ran: Ran) -> None:
    live = live_conversations(ran.context)
    assert live
    assert folded(ran.entries) == live


# --- every way in which a conversation grows ---------------------------------------------------


async def plain(services: Services) -> Ran:
    return await run_recipe([text_step("a"), text_step("b")], ["one", "two"], services=services)


async def tools(services: Services) -> Ran:
    requests = [
        tool_request("look", {"n": 1}, id="same"),
        tool_request("none", id="same"),
        tool_request("flaky"),
        tool_request("look", "{broken"),
    ]
    result = {"text": "naïve 🦉", "float": 0.1, "none": None, "nested": [{"a": ()}]}
    return await run_recipe(
        text_step(tools=["look", "none", "flaky"]),
        [answer_of("words beside", tool_calls=requests), BUSY, "done"],
        tools=[
            fake_tool(work=lambda _: result),
            fake_tool("none", lambda _: None),
            flaky_tool("flaky", failures=1, result=""),
        ],
        services=services,
    )


async def reported(services: Services) -> Ran:
    look = flaky_tool(failures=99, error=ToolError("not today"))
    broken = flaky_tool("broken", failures=99)
    requests = [tool_request("look"), tool_request("broken")]
    step = text_step(tools=["look", "broken"], tool_failure="report")
    return await run_recipe(step, [requests, "done"], tools=[look, broken], services=services)


async def tool_fails(services: Services) -> Ran:
    requests = [tool_request("look"), tool_request("broken")]
    tools = [fake_tool(), flaky_tool("broken", failures=99)]
    step = text_step(tools=["look", "broken"])
    return await run_recipe(step, [requests], tools=tools, services=services)


async def goes_on(services: Services) -> Ran:
    return await run_recipe(signal_step(), ["hm", "hm", "status: done"], services=services)


async def repaired(services: Services) -> Ran:
    return await run_recipe(text_step(output=NUMBER), ["no", '{"n": 1}'], services=services)


async def refused(services: Services) -> Ran:
    return await run_recipe(text_step(output=NUMBER), ["no", "no"], services=services)


async def rolled_back(services: Services) -> Ran:
    model = ConstrainedModel([tool_request("look"), "free", '{"m": 1}', '{"n": 1}'])
    step = text_step(output=NUMBER, tools=["look"])
    return await run_recipe(step, model, tools=[fake_tool()], services=services)


async def schema_as_tool(services: Services) -> Ran:
    answers = [tool_request("output", '{"m": 1}'), tool_request("output", '{"n": 1}')]
    model = ConstrainedModel(answers, output_mode=OutputMode.TOOLS)
    return await run_recipe(text_step(output=NUMBER), model, services=services)


async def schema_as_tool_after_tools(services: Services) -> Ran:
    model = ConstrainedModel(
        [tool_request("look"), "free", tool_request("output", '{"n": 1}')],
        output_mode=OutputMode.TOOLS,
    )
    step = text_step(output=NUMBER, tools=["look"])
    return await run_recipe(step, model, tools=[fake_tool()], services=services)


async def model_fails(services: Services) -> Ran:
    answers: list[Answer] = [tool_request("look"), ModelFailure(code="refused", message="no")]
    step = text_step(tools=["look"])
    return await run_recipe(step, answers, tools=[fake_tool()], services=services)


async def out_of_calls(services: Services) -> Ran:
    return await run_recipe(
        signal_step(), ["hm", "hm"], services=services, max_model_calls_per_step=2
    )


async def code(services: Services) -> Ran:
    async def work(scope: StepScope) -> object:
        await scope.call_tool("look", {"n": 1})
        texts = await asyncio.gather(*[scope.call_model(f"q{n}") for n in range(3)])
        number = await scope.ask_model("how many?", NUMBER)
        return [*texts, number]

    answers = ["a", "b", "c", "no", '{"n": 3}']
    return await run_recipe(python_step(work), answers, tools=[fake_tool()], services=services)


async def repeated(services: Services) -> Ran:
    recipe = recipe_of(
        [text_step("a"), text_step("b")],
        graph={"a": ["b"], "b": ["a"]},
        limits={"allow_repeated_steps": True, "max_steps": 4},
    )
    return await run_of(recipe, ["1", "2", "3", "4"], services=services)


WAYS: list[Callable[[Services], Awaitable[Ran]]] = [
    plain,
    tools,
    reported,
    tool_fails,
    goes_on,
    repaired,
    refused,
    rolled_back,
    schema_as_tool,
    schema_as_tool_after_tools,
    model_fails,
    out_of_calls,
    code,
    repeated,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_folding_the_journal_gives_the_live_conversations(
    way: Callable[[Services], Awaitable[Ran]],
) -> None:
    assert_folds(await way(deterministic_services()))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_so_does_the_journal_of_a_database(
    way: Callable[[Services], Awaitable[Ran]], tmp_path: Path
) -> None:
    clock = FakeClock()
    journal = SqliteJournal(tmp_path / "journal.db", clock)
    try:
        ran = await way(deterministic_services(journal, clock))
        assert_folds(ran)
        in_memory = await way(deterministic_services())
        assert ran.result == in_memory.result
        assert ran.facts == in_memory.facts
    finally:
        await journal.aclose()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_no_message_is_answered_twice_and_none_that_ended_well_is_left_unanswered(
    way: Callable[[Services], Awaitable[Ran]],
) -> None:
    ran = await way(deterministic_services())
    for messages in folded(ran.entries).values():
        waiting: list[str] = []
        for message in messages:
            if message.tool_call_id is not None:
                waiting.remove(message.tool_call_id)
            else:
                assert waiting == []
            waiting += [call.id for call in message.tool_calls]
        assert waiting == []


# --- any conversation --------------------------------------------------------------------------


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
requests = st.builds(
    tool_request,
    st.sampled_from(["echo", "broken", "missing"]),
    st.one_of(st.fixed_dictionaries({"value": values}), texts),
    id=st.sampled_from(["", "same", "other"]),
)
finite = st.lists(st.lists(requests, min_size=1, max_size=4) | texts, max_size=6)


def echo(arguments: Mapping[str, JsonValue]) -> object:
    return arguments.get("value")


def broken(arguments: Mapping[str, JsonValue]) -> object:
    raise LookupError("never")


@given(answers=finite, policy=st.sampled_from(["fail", "report"]), sequential=st.booleans())
async def test_any_conversation_folds_to_itself(
    answers: list[Answer], policy: str, sequential: bool
) -> None:
    step = signal_step(
        tools=["echo", "broken"],
        tool_failure=policy,
        limits={"sequential_tool_calls": sequential, "max_tool_call_retries": 1},
    )
    tools = [fake_tool("echo", echo), fake_tool("broken", broken)]
    ran = await run_recipe(step, [*answers, "status: done"], tools=tools)
    assert_folds(ran)


# --- a journal that fails ----------------------------------------------------------------------


def busy_steps() -> list[Step[object]]:
    async def work(scope: StepScope) -> object:
        seen = await scope.call_tool("look", {})
        return [seen, *await asyncio.gather(scope.call_model("q1"), scope.call_model("q2"))]

    return [
        text_step("a", tools=["look"]),
        python_step(work, "b"),
        text_step("c", output=NUMBER),
    ]


BUSY_ANSWERS: list[Answer] = [
    [tool_request("look"), tool_request("look"), tool_request("look")],
    "done",
    "one",
    "two",
    "no",
    '{"n": 1}',
]


async def test_wherever_the_journal_fails_the_run_ends_failed_with_all_before_it_kept() -> None:
    """A result, never a hang, and no task left behind."""
    whole = await run_recipe(busy_steps(), BUSY_ANSWERS, tools=[fake_tool()])
    assert whole.result.status is RunStatus.COMPLETED
    before = asyncio.all_tasks()
    for fails_from in range(2, len(whole.entries) + 1):
        services = deterministic_services(FailingJournal(fails_from))
        run = run_recipe(busy_steps(), BUSY_ANSWERS, tools=[fake_tool()], services=services)
        ran = await asyncio.wait_for(run, HANG_S)
        assert ran.result.status is RunStatus.FAILED
        assert ran.result.error is not None
        assert (ran.result.error.code, ran.result.error.message[:18]) == (
            "journal",
            "no room for fact " + str(fails_from)[0],
        )
        finished = [
            entry.body["step_id"]
            for entry in ran.entries
            if entry.state == "finished" and entry.kind == "step"
        ]
        assert ran.ids == finished
        assert len(ran.entries) == fails_from - 1
        assert ran.facts == whole.facts[: fails_from - 1]
    assert asyncio.all_tasks() == before


async def test_a_journal_that_refuses_the_first_fact_refuses_the_run() -> None:
    services = deterministic_services(FailingJournal(1))
    model = ScriptedModel(["never"])
    with pytest.raises(JournalError, match="no room for fact 1"):
        await executor_of(model, services=services).execute(recipe_of([text_step()]))
    assert model.prompts == []


def parallel_recipe(count: int) -> AgentRecipe:
    steps = [ToolSpecStep(id=f"s{n}", tool="look") for n in range(count)]
    return recipe_of(steps, execution_mode=ExecutionMode.PARALLEL)


async def test_a_journal_that_fails_under_parallel_steps_fails_the_run_once() -> None:
    before = asyncio.all_tasks()
    for fails_from in range(2, 15):

        async def work(_: Mapping[str, JsonValue]) -> object:
            await asyncio.sleep(0)
            return "seen"

        services = deterministic_services(FailingJournal(fails_from))
        executor = executor_of(ScriptedModel([]), tools=[fake_tool(work=work)], services=services)
        result = await asyncio.wait_for(executor.execute(parallel_recipe(4)), HANG_S)
        assert (result.status, result.error and result.error.code) == (
            RunStatus.FAILED,
            "journal",
        )
    assert asyncio.all_tasks() == before


async def test_a_journal_that_cannot_give_the_lease_back_hides_no_result() -> None:
    class Sticky(MemoryJournal):
        async def release(self, lease: Lease) -> None:
            raise JournalError("gone")

    ran = await run_recipe(text_step(), ["x"], services=deterministic_services(Sticky(FakeClock())))
    assert ran.result.status is RunStatus.COMPLETED


async def test_a_worker_that_lost_its_lease_stops() -> None:
    """Its facts are refused; what the other worker does is not touched."""

    class Stolen(MemoryJournal):
        async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
            if draft.kind == "model_call":
                clock.advance(3600)
                await self.acquire(lease.session_id, lease.run_id, "another", 60)
            return await super().append(lease, draft)

    clock = FakeClock()
    journal = Stolen(clock)
    services = deterministic_services(journal, clock)
    ran = await run_recipe([text_step("a"), text_step("b")], ["x", "y"], services=services)
    assert ran.result.status is RunStatus.FAILED
    assert ran.result.error is not None
    assert ran.result.error.code == FencedError.code
    assert ran.facts == [("run", "run", "started"), ("step", "a/1/0", "started")]


async def test_one_session_runs_one_run_at_a_time() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def answer(_: object) -> Answer:
        begun.set()
        await may_end.wait()
        return "done"

    services = deterministic_services()
    executor = executor_of(ScriptedModel(answer), services=services)
    first = executor.prepare(recipe_of([text_step()]), session_id="ses_shared")
    task = asyncio.create_task(first.execute())
    await asyncio.wait_for(begun.wait(), HANG_S)
    second = executor.prepare(recipe_of([text_step()]), session_id="ses_shared")
    with pytest.raises(LeaseHeldError, match="is busy"):
        await second.execute()
    may_end.set()
    assert (await task).status is RunStatus.COMPLETED
    third = executor.prepare(recipe_of([text_step()]), session_id="ses_shared")
    assert (await third.execute()).status is RunStatus.COMPLETED
    entries = await services.journal.entries("ses_shared")
    assert [entry.position for entry in entries] == list(range(1, len(entries) + 1))


# --- what the facts hold -----------------------------------------------------------------------


async def test_the_facts_of_a_step_with_tools_and_a_retry() -> None:
    """One row per model call, two per tool call, one per message, in their order."""
    look = flaky_tool(failures=1)
    answers: list[Answer] = [[tool_request("look"), tool_request("gone")], "done"]
    ran = await run_recipe(
        text_step(tools=["look"]), answers, tools=[look], sequential_tool_calls=True
    )
    assert ran.facts == [
        ("run", "run", "started"),
        ("step", "work/1/0", "started"),
        ("model_call", "work/1/0/model/1", "finished"),
        ("tool_call", "work/1/0/tool/1/0", "started"),
        ("tool_call", "work/1/0/tool/1/0", "finished"),
        ("tool_call", "work/1/0/tool/1/1", "started"),
        ("tool_call", "work/1/0/tool/1/1", "finished"),
        ("message", "work/1/0/tool/1/0/answer", "recorded"),
        ("message", "work/1/0/tool/1/1/answer", "recorded"),
        ("model_call", "work/1/0/model/2", "finished"),
        ("step", "work/1/0", "finished"),
        ("run", "run", "finished"),
    ]


async def test_a_row_never_repeats_the_conversation() -> None:
    """The bytes of a model call's row do not grow with what was said before."""
    long = "x" * 10_000
    answers = [long, long, "status: done"]
    ran = await run_recipe(signal_step(), answers)
    last = [entry for entry in ran.entries if entry.kind == "model_call"][-1]
    assert long not in str(last.body)
