"""One step: its budget, its links, its tools, its record: A-13 to A-25."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve
from returns.result import Result

import minions
from builders import (
    answer_of,
    deterministic_services,
    executor_of,
    fake_tool,
    python_step,
    recipe_of,
    run_of,
    run_recipe,
    signal_step,
    text_step,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.tools.function_tool import tool
from minions.contracts.calls import (
    CallStatus,
    DeltaSink,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    Prompt,
    StepCompletionInstruction,
    ToolCall,
)
from minions.contracts.completion import CompletionLink, StepCompletionChain
from minions.contracts.context import RunContext
from minions.contracts.executions import Completion, StepExecution, StepStatus
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.messages import Message, MessageBundle, assistant, tool_result
from minions.contracts.steps import DefaultStep, Step, StepScope
from minions.contracts.tools import Tool, Toolbox
from minions.data.errors import MetadataError
from minions.data.json_values import JsonValue
from minions.engine.calls.model_executors import ModelCallExecutors
from minions.engine.compile.completion_links import (
    CallBudgetLink,
    DefaultStepCompletionChain,
    InstructionLink,
    PatternLink,
    TextLink,
)
from minions.engine.compile.selection import DefaultStepGraph
from minions.engine.context.agent_context import Agent, AgentContext
from minions.engine.context.scope import RunScope
from minions.engine.history.memory import ConversationMemory
from minions.engine.run.run_factory import tool_call_executors
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.step.executor import StepExecutor
from minions.engine.step.next_step import StepManager
from minions.testing.virtual_time import FakeClock
from patience import HANG_S


def context_of(
    *steps: Step[object], tools: tuple[Tool, ...] = (), **limits: JsonValue
) -> AgentContext:
    recipe = recipe_of(steps, limits=limits)
    return AgentContext(
        Agent(recipe),
        StepManager(DefaultStepGraph(steps)),
        ConversationMemory(),
        scope=RunScope.of_run(recipe, deterministic_services()),
        tools=Toolbox(tools),
    )


def step_executor(
    step: Step[object], context: AgentContext, *answers: Answer
) -> StepExecutor[object]:
    models = ModelCallExecutors(ScriptedModel(answers))
    return StepExecutor(step, context, models, tool_call_executors())


# --- an executor on its own --------------------------------------------------------------------


async def test_an_executor_runs_its_step_and_leaves_the_manager_where_it_was() -> None:
    """A-13."""
    steps = (text_step("a"), text_step("b"))
    context = context_of(*steps)
    execution = await step_executor(steps[0], context, "one").execute()
    assert (execution.step_id, execution.status, execution.output) == (
        "a",
        StepStatus.COMPLETED,
        "one",
    )
    assert context.step_manager.current_step is steps[0]
    assert not context.step_manager.is_workflow_complete
    assert context.step_manager.step_executions == (execution,)


async def test_the_same_step_runs_again_as_a_visit_of_its_own() -> None:
    """A-13."""
    step = text_step("a")
    context = context_of(step)
    first = await step_executor(step, context, "one").execute()
    second = await step_executor(step, context, "two").execute()
    assert [call.key for call in (*first.model_calls, *second.model_calls)] == [
        "a/1/0/model/1",
        "a/2/0/model/1",
    ]
    assert context.memory.prompt_messages("run_1/a/2/0")[-1] == assistant("two")


# --- limits ------------------------------------------------------------------------------------


async def test_the_defaults_are_ten_calls_two_retries_and_parallel_tools() -> None:
    """A-14."""
    context = context_of(text_step())
    limits = context.limits
    assert limits.max_model_calls_per_step == 10
    assert limits.max_tool_call_retries == 2
    assert limits.sequential_tool_calls is False
    ran = await run_recipe(signal_step(), lambda prompt: "thinking")
    assert len(ran.only.model_calls) == ran.only.model_call_limit == 10


@pytest.mark.parametrize("spelling", ["maxModelCallsPerStep", "max_model_calls_per_step"])
async def test_the_recipe_overrides_the_default_and_the_step_the_recipe(spelling: str) -> None:
    """A-14: most specific wins, in both spellings."""
    steps = [signal_step("a", optional=True), signal_step("b", limits={spelling: 2})]
    ran = await run_of(recipe_of(steps, limits={spelling: 3}), lambda prompt: "thinking")
    assert [len(each.model_calls) for each in ran.result.executions] == [3, 2]


async def test_what_the_application_puts_into_the_context_holds_for_later_executors() -> None:
    """A-14: `context.metadata`, as in the guide; read when an executor is made."""
    step = signal_step()
    context = context_of(step)
    before = step_executor(step, context, *["no"] * 20)
    context.metadata["maxModelCallsPerStep"] = 2
    assert len((await before.execute()).model_calls) == 10
    after = step_executor(step, context, *["no"] * 20)
    assert len((await after.execute()).model_calls) == 2


@pytest.mark.parametrize("value", ["5", 5.0, True, None, [5], 0, -1])
async def test_a_limit_that_is_no_whole_number_is_an_error_before_anything_runs(
    value: JsonValue,
) -> None:
    """A-14: of the recipe and of the step."""
    with pytest.raises(MetadataError, match="max_model_calls_per_step"):
        await run_recipe(text_step(), ["x"], max_model_calls_per_step=value)
    with pytest.raises(MetadataError, match="max_model_calls_per_step"):
        await run_recipe(text_step(limits={"max_model_calls_per_step": value}), ["x"])


async def test_a_limit_that_is_nearly_named_right_is_an_error_with_the_name() -> None:
    """A-14."""
    with pytest.raises(MetadataError, match="Did you mean 'max_model_calls_per_step'"):
        await run_recipe(text_step(limits={"maxModelCallPerStep": 3}), ["x"])


# --- the call budget ---------------------------------------------------------------------------


async def test_without_a_signal_the_budget_fails_the_step() -> None:
    """A-15."""
    ran = await run_recipe(signal_step(), lambda prompt: "thinking", max_model_calls_per_step=3)
    assert (len(ran.prompts), ran.statuses) == (3, {"work": "failed"})
    assert ran.only.error is not None
    assert ran.only.error.code == "max-model-calls"
    assert "made 3 model calls, its limit max_model_calls_per_step" in (ran.only.reason or "")


async def test_a_chain_without_a_budget_link_is_bounded_all_the_same() -> None:
    """A-15."""
    step = signal_step(chain=StepCompletionChain(()), limits={"maxModelCallsPerStep": 2})
    ran = await run_recipe(step, lambda prompt: "status: done")
    assert (len(ran.prompts), ran.only.error and ran.only.error.code) == (2, "max-model-calls")


async def test_tool_calls_of_the_last_permitted_answer_still_run() -> None:
    """A-15: a tool might complete the step."""
    look = fake_tool()
    ran = await run_recipe(
        signal_step(tools=["look"]),
        [tool_request("look"), tool_request("look")],
        tools=[look],
        max_model_calls_per_step=2,
    )
    assert (len(look.asked), ran.only.error and ran.only.error.code) == (2, "max-model-calls")


async def test_completion_on_the_last_permitted_call_counts() -> None:
    """A-16."""
    answers = ["thinking", "thinking", "status: done"]
    ran = await run_recipe(signal_step(), answers, max_model_calls_per_step=3)
    assert (ran.only.status, ran.only.output) == (StepStatus.COMPLETED, "status: done")


async def test_a_tool_may_complete_the_step_on_the_last_permitted_call() -> None:
    """A-16."""
    finish = fake_tool("finish", lambda _: {"step_complete": True})
    ran = await run_recipe(
        signal_step(tools=["finish"]),
        [tool_request("finish")],
        tools=[finish],
        max_model_calls_per_step=1,
    )
    assert ran.only.status is StepStatus.COMPLETED


# --- the model's own instruction ---------------------------------------------------------------


def instructed(instruction: StepCompletionInstruction, *calls: str) -> Answer:
    requests = [tool_request(name) for name in calls]
    return minions.ModelCallResponse(
        message=assistant("as I said", tool_calls=requests), completion_instruction=instruction
    )


async def test_is_complete_ends_the_step_after_that_answers_tool_calls() -> None:
    """A-17."""
    look = fake_tool()
    answer = instructed(StepCompletionInstruction(is_complete=True), "look", "look")
    ran = await run_recipe(signal_step(tools=["look"]), [answer, "never"], tools=[look])
    assert ran.only.status is StepStatus.COMPLETED
    assert (len(ran.prompts), len(look.asked)) == (1, 2)
    assert ran.only.completion is not None
    assert ran.only.completion.decided_by == "InstructionLink"


async def test_is_non_recoverable_fails_the_step_without_further_calls() -> None:
    """A-17: not even the tool calls beside it."""
    look = fake_tool()
    instruction = StepCompletionInstruction(
        is_non_recoverable=True, is_complete=True, failure_reason="no such city"
    )
    answers = [instructed(instruction, "look"), "never"]
    ran = await run_recipe(signal_step(tools=["look"]), answers, tools=[look])
    assert ran.only.error is not None
    assert (ran.only.error.code, ran.only.reason) == ("non-recoverable", "no such city")
    assert (len(ran.prompts), look.asked) == (1, [])


async def test_is_more_calls_needed_means_another_call() -> None:
    """A-17."""
    answers: list[Answer] = [
        instructed(StepCompletionInstruction(is_more_calls_needed=True)),
        '{"isMoreCallsNeeded": true}',
        '{"is_complete": true}',
    ]
    ran = await run_recipe(signal_step(), answers)
    assert (ran.only.status, len(ran.prompts)) == (StepStatus.COMPLETED, 3)


@pytest.mark.parametrize(
    "text",
    [
        'He said {"is_complete": true}.',
        '{"is_complete": "true"}',
        '{"is_complete": 1}',
        '["is_complete"]',
        '{"nested": {"is_complete": true}}',
        '{"is_complete": true',
        '{"is_complete": false}',
        "{" * 5000 + '"is_complete": true',
    ],
)
async def test_what_only_looks_like_an_instruction_is_none(text: str) -> None:
    """A-17."""
    ran = await run_recipe(signal_step(), [text, "status: done"])
    assert (ran.only.status, len(ran.prompts)) == (StepStatus.COMPLETED, 2)


# --- patterns ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "status: done",
        "Status = DONE",
        "STATUS:completed",
        "all good\nstatus : success.",
        '{"status": "done"}',
        "step_status: complete",
        "next_step = 'done'",
    ],
)
async def test_a_text_that_says_done_completes_the_step(text: str) -> None:
    """A-18."""
    ran = await run_recipe(signal_step(), [text])
    assert ran.only.status is StepStatus.COMPLETED
    assert ran.only.completion is not None
    assert ran.only.completion.decided_by == "PatternLink"
    assert ran.only.completion.evidence
    assert ran.only.completion.evidence in text


@pytest.mark.parametrize(
    "text",
    [
        "status: pending",
        "status: not done",
        "done",
        "status done",
        "my_status: done",
        "status: doner",
    ],
)
async def test_a_text_that_does_not_say_done_does_not(text: str) -> None:
    """A-18."""
    ran = await run_recipe(signal_step(), [text], max_model_calls_per_step=1)
    assert ran.only.status is StepStatus.FAILED


async def test_patterns_of_the_steps_own_complete_it_too() -> None:
    """A-18."""
    step = signal_step(patterns=[r"(?i)over and out"])
    ran = await run_recipe(step, ["hm", "Over and OUT."])
    assert ran.only.completion is not None
    assert (ran.only.completion.evidence, len(ran.prompts)) == ("Over and OUT", 2)


async def test_a_pattern_that_is_no_expression_fails_the_step_with_its_text() -> None:
    """A-18."""
    ran = await run_recipe(signal_step(patterns=["("]), ["x"])
    assert ran.only.error is not None
    assert ran.only.error.code == "step-raised"


# --- what tools say ----------------------------------------------------------------------------


async def test_a_call_of_final_answer_completes_the_step_though_there_is_no_such_tool() -> None:
    """A-19: its argument is the output."""
    ran = await run_recipe(signal_step(), [tool_request("final_Answer", {"answer": "42"})])
    assert (ran.only.status, ran.only.output) == (StepStatus.COMPLETED, "42")
    (call,) = ran.only.tool_calls
    assert (call.name, call.status) == ("final_Answer", CallStatus.COMPLETED)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ('{"answer": ""}', ""),
        ('{"a": "x", "b": 1}', '{"a": "x", "b": 1}'),
        ('{"n": 0}', '{"n": 0}'),
        ("no JSON", "no JSON"),
        ("", ""),
        ("[" * 50_000, "[" * 50_000),
    ],
)
async def test_whatever_final_answer_is_given_is_the_output(arguments: str, output: str) -> None:
    """A-19."""
    ran = await run_recipe(signal_step(), [tool_request("final_Answer", arguments)])
    assert (ran.only.status, ran.only.output) == (StepStatus.COMPLETED, output)


async def test_a_tool_result_with_step_complete_completes_the_step() -> None:
    """A-19."""
    finish = fake_tool("finish", lambda _: {"step_complete": True, "rows": 3})
    ran = await run_recipe(signal_step(tools=["finish"]), [tool_request("finish")], tools=[finish])
    assert ran.only.status is StepStatus.COMPLETED
    assert ran.only.output == {"step_complete": True, "rows": 3}


@pytest.mark.parametrize(
    "result",
    [
        "step_complete: true",
        '{"step_complete": true}',
        {"result": {"step_complete": True}},
        [{"step_complete": True}],
        {"step_complete": "true"},
        {"step_complete": 1},
    ],
)
async def test_only_a_key_of_the_result_itself_counts(result: JsonValue) -> None:
    """A-19, A-104: what a tool quotes is not what it says."""
    finish = fake_tool("finish", lambda _: result)
    answers: list[Answer] = [tool_request("finish"), "status: done"]
    ran = await run_recipe(signal_step(tools=["finish"]), answers, tools=[finish])
    assert (ran.only.status, len(ran.prompts)) == (StepStatus.COMPLETED, 2)


# --- links of ones own -------------------------------------------------------------------------


class Passing(CompletionLink):
    """Notes that it was asked, decides nothing."""

    def __init__(self) -> None:
        self.asked = 0

    def check(self, execution: StepExecution[object]) -> Completion:
        self.asked += 1
        return Completion.UNDECIDED


class Deciding(CompletionLink):
    """Always the same word."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion

    def check(self, execution: StepExecution[object]) -> Completion:
        return self._completion


DONE = Deciding(Completion.complete("because"))
REFUSED = Deciding(Completion.failed("not today", code="refused-here"))


@pytest.mark.parametrize(
    ("chain", "status"),
    [
        (DefaultStepCompletionChain().prepend(REFUSED), StepStatus.FAILED),
        (DefaultStepCompletionChain().append(REFUSED), StepStatus.COMPLETED),
        (DefaultStepCompletionChain().insert_before(PatternLink, REFUSED), StepStatus.FAILED),
        (DefaultStepCompletionChain().insert_after(PatternLink, REFUSED), StepStatus.COMPLETED),
        (DefaultStepCompletionChain().insert_before("PatternLink", REFUSED), StepStatus.FAILED),
        (DefaultStepCompletionChain().replace(PatternLink, REFUSED), StepStatus.FAILED),
        (StepCompletionChain((DONE, REFUSED)), StepStatus.COMPLETED),
        (StepCompletionChain((REFUSED, DONE)), StepStatus.FAILED),
    ],
)
async def test_a_link_judges_at_its_place_and_the_first_decisive_one_wins(
    chain: StepCompletionChain, status: StepStatus
) -> None:
    """A-20."""
    ran = await run_recipe(signal_step(chain=chain), ["status: done"])
    assert ran.only.status is status
    if status is StepStatus.FAILED:
        assert ran.only.error is not None
        assert (ran.only.error.code, ran.only.reason) == ("refused-here", "not today")


async def test_a_passing_link_never_hides_the_later_ones() -> None:
    """A-20: at every place of the chain."""
    links = [Passing() for _ in range(4)]
    chain = (
        DefaultStepCompletionChain()
        .prepend(links[0])
        .insert_before(TextLink, links[1])
        .insert_after(CallBudgetLink, links[2])
        .append(links[3])
    )
    ran = await run_recipe(signal_step(chain=chain), ["thinking", "status: done"])
    assert ran.only.status is StepStatus.COMPLETED
    assert [link.asked for link in links] == [2, 1, 1, 1]


async def test_a_link_that_raises_fails_the_step_with_its_text() -> None:
    """A-20."""

    class Broken(CompletionLink):
        def check(self, execution: StepExecution[object]) -> Completion:
            raise ZeroDivisionError

    ran = await run_recipe(signal_step(chain=StepCompletionChain((Broken(),))), ["x"])
    assert ran.only.error is not None
    assert ran.only.error.message == "Step 'work' raised ZeroDivisionError"


async def test_a_step_that_would_end_the_program_fails() -> None:
    async def leave(scope: StepScope) -> object:
        raise SystemExit(3)

    ran = await run_recipe(python_step(leave))
    assert ran.only.error is not None
    assert (ran.only.error.code, ran.only.error.message) == (
        "step-raised",
        "Step 'code' raised SystemExit: 3",
    )


async def test_a_step_that_would_end_the_program_by_its_messages_fails() -> None:
    class Leaving(DefaultStep[object]):
        def messages(self, view: RunContext) -> Sequence[Message]:
            raise SystemExit(3)

    ran = await run_recipe(Leaving(id="work", messages=MessageBundle.of(goal="Go.")))
    assert ran.only.error is not None
    assert ran.only.error.message == "Step 'work' raised SystemExit: 3"


async def test_a_link_sees_the_calls_made_so_far() -> None:
    """A-20."""
    seen: list[tuple[int, int, str | None, tuple[str, ...]]] = []

    class Watching(CompletionLink):
        def check(self, execution: StepExecution[object]) -> Completion:
            names = tuple(call.name for call in execution.last_tool_calls)
            counts = len(execution.model_calls), len(execution.tool_calls)
            seen.append((*counts, execution.last_text, names))
            return Completion.UNDECIDED

    chain = DefaultStepCompletionChain().prepend(Watching())
    answers: list[Answer] = [tool_request("look"), "status: done"]
    await run_recipe(signal_step(tools=["look"], chain=chain), answers, tools=[fake_tool()])
    assert seen == [(1, 1, None, ("look",)), (2, 1, "status: done", ())]


# --- tool calls --------------------------------------------------------------------------------


async def test_the_follow_up_prompt_holds_each_result_with_its_call_id_in_request_order() -> None:
    """A-21: though they end in another order."""
    ended: list[str] = []
    second_ended = asyncio.Event()

    async def work(arguments: Mapping[str, JsonValue]) -> object:
        if arguments["n"] == 1:
            await second_ended.wait()
        else:
            second_ended.set()
        ended.append(str(arguments["n"]))
        return {"n": arguments["n"]}

    requests = [tool_request("look", {"n": n}, id=f"call_{n}") for n in (1, 2)]
    ran = await run_recipe(
        text_step(tools=["look"]), [requests, "done"], tools=[fake_tool(work=work)]
    )
    assert ended == ["2", "1"]
    assert list(ran.prompts[1][-3:]) == [
        assistant(tool_calls=requests),
        tool_result('{"n":1}', tool_call_id="call_1", name="look"),
        tool_result('{"n":2}', tool_call_id="call_2", name="look"),
    ]


async def test_ids_that_a_weak_server_uses_twice_are_answered_twice() -> None:
    """A-21: ids are data, never keys."""
    requests = [tool_request("look", {"n": n}, id="same") for n in (1, 2)]
    tools = [fake_tool(work=lambda arguments: arguments["n"])]
    ran = await run_recipe(text_step(tools=["look"]), [requests, requests, "done"], tools=tools)
    answers = [message for message in ran.prompts[2] if message.role.value == "tool"]
    assert answers == [
        tool_result(text, tool_call_id="same", name="look") for text in ("1", "2", "1", "2")
    ]
    assert [call.key for call in ran.only.tool_calls] == [
        "work/1/0/tool/1/0",
        "work/1/0/tool/1/1",
        "work/1/0/tool/2/0",
        "work/1/0/tool/2/1",
    ]


async def test_a_hundred_calls_at_once_are_all_answered_in_order() -> None:
    """A-21."""
    requests = [tool_request("look", {"n": n}) for n in range(100)]
    tools = [fake_tool(work=lambda arguments: arguments["n"])]
    ran = await run_recipe(text_step(tools=["look"]), [requests, "done"], tools=tools)
    contents = [message.content for message in ran.prompts[1][-100:]]
    assert contents == [str(n) for n in range(100)]


async def test_the_calls_of_one_answer_run_at_the_same_time() -> None:
    """A-22: each ends only after all have begun."""
    begun = asyncio.Barrier(3)

    async def meet(arguments: Mapping[str, JsonValue]) -> object:
        await asyncio.wait_for(begun.wait(), HANG_S)
        return arguments["n"]

    requests = [tool_request("meet", {"n": n}) for n in range(3)]
    tools = [fake_tool("meet", meet)]
    ran = await run_recipe(text_step(tools=["meet"]), [requests, "done"], tools=tools)
    assert [call.response and call.response.value for call in ran.only.tool_calls] == [0, 1, 2]


async def test_calls_that_block_a_thread_run_at_the_same_time_too() -> None:
    """A-22."""
    begun = threading.Barrier(3)

    @tool
    def block() -> int:
        """Wait in a thread."""
        return begun.wait(20)

    requests = [tool_request("block")] * 3
    ran = await run_recipe(text_step(tools=["block"]), [requests, "done"], tools=[block])
    values = [call.response and call.response.value for call in ran.only.tool_calls]
    assert set(values) == {0, 1, 2}


@pytest.mark.parametrize("spelling", ["sequentialToolCalls", "sequential_tool_calls"])
async def test_sequential_tool_calls_run_one_at_a_time_in_order(spelling: str) -> None:
    """A-22."""
    story: list[str] = []

    async def work(arguments: Mapping[str, JsonValue]) -> object:
        story.append(f"begin {arguments['n']}")
        await asyncio.sleep(0)
        story.append(f"end {arguments['n']}")
        return arguments["n"]

    requests = [tool_request("look", {"n": n}) for n in range(3)]
    step = text_step(tools=["look"], limits={spelling: True})
    ran = await run_recipe(step, [requests, "done"], tools=[fake_tool(work=work)])
    assert story == [f"{word} {n}" for n in range(3) for word in ("begin", "end")]
    assert [message.content for message in ran.prompts[1][-3:]] == ["0", "1", "2"]


async def test_a_tool_outside_the_step_is_not_executed_and_the_model_learns_the_names() -> None:
    """A-23."""
    mine, other = fake_tool("fetch"), fake_tool("delete")
    answers: list[Answer] = [tool_request("delete", id="c1"), "done"]
    ran = await run_recipe(text_step(tools=["fetch"]), answers, tools=[mine, other])
    assert (mine.asked, other.asked) == ([], [])
    assert ran.prompts[1][-1] == tool_result(
        "Error: There is no tool 'delete' here. Available tools: fetch.",
        tool_call_id="c1",
        name="delete",
    )
    assert ran.only.status is StepStatus.COMPLETED
    (call,) = ran.only.tool_calls
    assert call.failure is not None
    assert call.failure.code == "unknown-tool"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fetsh", "Did you mean 'fetch'? Available tools: fetch."),
        ("", "There is no tool '' here. Available tools: fetch."),
        ("Fetch", "Did you mean 'fetch'?"),
        ("ファイル", "Available tools: fetch."),
    ],
)
async def test_a_name_that_is_no_tool_is_answered_with_the_near_one(name: str, words: str) -> None:
    """A-23."""
    answers: list[Answer] = [tool_request(name), "done"]
    ran = await run_recipe(text_step(tools=["fetch"]), answers, tools=[fake_tool("fetch")])
    assert words in (ran.prompts[1][-1].content or "")
    assert ran.only.status is StepStatus.COMPLETED


async def test_two_steps_share_a_tool_and_keep_their_own_calls() -> None:
    """A-23."""
    look = fake_tool()
    steps = [text_step("a", tools=["look"]), text_step("b", tools=["look"])]
    answers: list[Answer] = [tool_request("look"), "1", tool_request("look"), "2"]
    ran = await run_recipe(steps, answers, tools=[look])
    assert [scope.step_id for scope in look.scopes] == ["a", "b"]
    assert [len(each.tool_calls) for each in ran.result.executions] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{broken", "are not JSON"),
        ("[1]", "are a JSON array, not an object"),
        ('{"n": "one"}', "$.n: 'one' is not of type 'integer'"),
        ("{}", "'n' is a required property"),
    ],
)
async def test_arguments_that_do_not_fit_never_reach_the_tool(arguments: str, words: str) -> None:
    parameters: Mapping[str, JsonValue] = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }
    look = fake_tool(parameters=parameters)
    answers: list[Answer] = [tool_request("look", arguments), "done"]
    ran = await run_recipe(text_step(tools=["look"]), answers, tools=[look])
    assert look.asked == []
    assert words in (ran.prompts[1][-1].content or "")
    assert ran.only.status is StepStatus.COMPLETED


# --- text --------------------------------------------------------------------------------------


async def test_in_mode_text_an_answer_without_tool_calls_completes_after_one_call() -> None:
    """A-24."""
    ran = await run_recipe(text_step(), ["just words", "never"])
    assert (ran.only.status, ran.only.output) == (StepStatus.COMPLETED, "just words")
    assert (len(ran.prompts), ran.only.completion and ran.only.completion.decided_by) == (
        1,
        "TextLink",
    )


async def test_words_beside_a_tool_call_do_not_complete() -> None:
    """A-24."""
    first = assistant("let me look", tool_calls=[tool_request("look")])
    ran = await run_recipe(text_step(tools=["look"]), [first, "seen it"], tools=[fake_tool()])
    assert (ran.only.output, len(ran.prompts)) == ("seen it", 2)


@pytest.mark.parametrize("text", ["", "0", "null", "naïve 🦉 \u2028 text", "\ud800"])
async def test_any_text_is_an_output(text: str) -> None:
    """A-24."""
    ran = await run_recipe(text_step(), [text])
    assert (ran.only.status, ran.result.output) == (StepStatus.COMPLETED, text)


# --- the record --------------------------------------------------------------------------------


async def test_every_call_is_recorded_with_input_output_status_and_times() -> None:
    """A-25: chronologically."""
    services = deterministic_services()
    clock = services.clock
    assert isinstance(clock, FakeClock)
    start = clock.now()

    def answer(prompt: Prompt) -> Answer:
        clock.advance(1)
        return next(answers)

    def work(arguments: Mapping[str, JsonValue]) -> object:
        clock.advance(10)
        return arguments["n"]

    requests = [tool_request("look", {"n": n}, id=f"c{n}") for n in (1, 2)]
    answers = iter([answer_of(tool_calls=requests), answer_of("done")])
    step = text_step(tools=["look"], limits={"sequential_tool_calls": True})
    ran = await run_recipe(step, answer, tools=[fake_tool(work=work)], services=services)
    execution = ran.only
    first, one, two, second = execution.calls
    assert isinstance(first, ModelCall)
    assert isinstance(second, ModelCall)
    assert isinstance(one, ToolCall)
    assert isinstance(two, ToolCall)
    assert execution.model_calls == (first, second)
    assert execution.tool_calls == (one, two)
    assert [call.prompt.messages for call in execution.model_calls] == ran.prompts
    assert [call.response and call.response.text for call in (first, second)] == [None, "done"]
    assert [call.request for call in (one, two)] == requests
    assert [call.response and call.response.value for call in (one, two)] == [1, 2]
    assert {call.status for call in execution.calls} == {CallStatus.COMPLETED}
    times = [
        ((call.started_at or start) - start, (call.completed_at or start) - start)
        for call in execution.calls
    ]
    assert [(begin.seconds, end.seconds) for begin, end in times] == [
        (0, 1),
        (1, 11),
        (11, 21),
        (21, 22),
    ]
    assert (execution.started_at, execution.duration_ms) == (start, 22_000.0)
    assert execution.completed_at == clock.now()
    assert (execution.usage.input_tokens, execution.usage.output_tokens) == (20, 10)


async def test_failed_calls_are_recorded_with_what_went_wrong() -> None:
    """A-25."""
    ran = await run_recipe(text_step(), [ValueError("bad wire")])
    (call,) = ran.only.model_calls
    assert (call.status, call.attempts, call.response) == (CallStatus.FAILED, 1, None)
    assert call.failure is not None
    assert "bad wire" in call.failure.message
    assert call.completed_at is not None


async def test_a_model_that_raises_is_a_failed_call_too() -> None:
    """A-25: not only those that give a failure as a value."""

    class Raising(ScriptedModel):
        async def complete(
            self, prompt: Prompt, on_delta: DeltaSink | None = None
        ) -> Result[ModelCallResponse, ModelFailure]:
            raise LookupError("no such model")

    ran = await run_recipe(text_step(), Raising([]))
    (call,) = ran.only.model_calls
    assert call.failure is not None
    assert (call.failure.code, call.failure.message) == (
        "model-raised",
        "The model call raised LookupError: no such model",
    )
    assert ran.only.error == evolve(call.failure.info(), where="work")
    assert ("model_call", "work/1/0/model/1", "failed") in ran.facts


def test_the_synchronous_door_gives_the_same_execution() -> None:
    """A-25."""

    def executor() -> StepExecutor[object]:
        step = text_step(tools=["look"])
        context = context_of(step, tools=(LOOK,))
        return step_executor(step, context, tool_request("look"), "done")

    awaited = asyncio.run(executor().execute())
    assert minions.run(executor().execute()) == awaited
    assert awaited.status is StepStatus.COMPLETED


LOOK = fake_tool()


def test_the_synchronous_door_gives_the_same_result_of_a_recipe() -> None:
    """A-25."""
    recipe = recipe_of([text_step("a"), text_step("b")])
    model = ScriptedModel(["one", "two"])
    result = minions.run(recipe, model=model, services=deterministic_services())
    again = executor_of(ScriptedModel(["one", "two"]))
    assert asyncio.run(again.execute(recipe)) == result


async def test_the_record_is_json_in_the_journal_whatever_came_out() -> None:
    """A-25: the journal's rows of a step can be written as text."""
    result = {"set": {3, 1}, "bytes": b"\xff", "enum": StepStatus.FAILED}
    look = fake_tool(work=lambda _: result)
    answers: list[Answer] = [tool_request("look"), "done"]
    ran = await run_recipe(text_step(tools=["look"]), answers, tools=[look])
    rows = [json.dumps(entry.body, allow_nan=False) for entry in ran.entries]
    assert len(rows) == len(ran.entries)
    (call,) = ran.only.tool_calls
    assert call.response is not None
    assert call.response.value == {"set": [1, 3], "bytes": "/w==", "enum": "failed"}


# --- code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [None, 0, False, "", [], {}, 0.0, "ü", [None], {"": None}])
async def test_a_falsy_output_is_an_output_like_any_other(output: JsonValue) -> None:
    async def give(scope: StepScope) -> object:
        return output

    async def read(scope: StepScope) -> object:
        values = scope.context.values
        return [values["code"], copy.deepcopy(values["steps"])]

    ran = await run_recipe([python_step(give), python_step(read, "reader")])
    assert ran.result.step("code").output == output
    assert ran.result.output == [
        output,
        {"code": {"status": "completed", "output": output, "error": None}},
    ]


@pytest.mark.parametrize("step_id", ["inputs", "steps", "run", "warning", "#1", "ä b.c-🦉", "x\ny"])
async def test_odd_ids_are_ids(step_id: str) -> None:
    """And a step that is called like a root of the values does not hide it."""

    async def give(scope: StepScope) -> object:
        return await scope.call_model("q")

    async def read(scope: StepScope) -> object:
        values = scope.context.values
        run, steps = values["run"], values["steps"]
        assert isinstance(run, Mapping)
        assert isinstance(steps, Mapping)
        return [run["id"], steps[step_id], values["inputs"]]

    ran = await run_recipe([python_step(give, step_id), python_step(read, "reader")], ["a"])
    done = {"status": "completed", "output": "a", "error": None}
    assert ran.result.output == ["run_1", done, {}]


@pytest.mark.parametrize(
    "output",
    [object(), {1: "x"}, float("nan"), float("-inf"), [[{"deep": object()}]], lambda: None],
)
async def test_an_output_that_is_not_json_fails_the_step(output: object) -> None:
    async def give(scope: StepScope) -> object:
        return output

    ran = await run_recipe(python_step(give))
    assert ran.only.error is not None
    assert ran.only.error.code == "step-raised"
    assert "Step 'code' raised TypeError" in ran.only.error.message


async def test_an_output_without_end_fails_the_step() -> None:
    async def give(scope: StepScope) -> object:
        endless: list[object] = []
        endless.append(endless)
        return endless

    ran = await run_recipe(python_step(give))
    assert ran.only.error is not None
    assert "RecursionError" in ran.only.error.message


async def test_a_converter_that_gives_no_json_fails_the_step() -> None:
    class Opaque(OutputInstructions[object]):
        def convert(self, value: JsonValue) -> object:
            return object()

    ran = await run_recipe(text_step(output=Opaque(schema={"type": "object"})), ["{}"])
    assert ran.only.status is StepStatus.FAILED
    assert "not JSON" in (ran.only.reason or "")


@pytest.mark.parametrize("member", ["messages", "completion_chain", "output", "decision_tool"])
async def test_a_member_of_a_step_that_raises_fails_the_run_not_the_engine(member: str) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError(f"no {member}")

    made = broken if member == "messages" else property(broken)
    kind = type("Odd", (Step,), {"id": "odd", member: made})
    steps: list[Step[object]] = [kind(), text_step("b"), text_step("c")]
    recipe = recipe_of(steps, graph={"odd": ["b", "c"]})
    ran = await run_of(recipe, ["status: done", "x"])
    assert ran.result.status.value == "failed"
    assert ran.result.error is not None
    assert f"RuntimeError: no {member}" in ran.result.error.message
    assert ran.facts[-1] == ("run", "run", "finished")


async def test_models_are_asked_at_the_same_time_by_code() -> None:
    """Each in a conversation of its own, all in one record and one budget."""
    begun = asyncio.Barrier(3)

    async def answer(prompt: Prompt) -> Answer:
        await asyncio.wait_for(begun.wait(), HANG_S)
        return f"re: {prompt.messages[-1].content}"

    async def ask(scope: StepScope) -> object:
        return await asyncio.gather(*[scope.call_model(f"q{n}") for n in range(3)])

    ran = await run_recipe(python_step(ask), answer)
    assert ran.result.output == ["re: q0", "re: q1", "re: q2"]
    keys = {call.response.text: call.key for call in ran.only.model_calls if call.response}
    assert len(set(keys.values())) == 3
    conversation = keys["re: q1"].removesuffix("/model/1")
    assert [message.content for message in ran.conversation(conversation)] == ["q1", "re: q1"]


async def test_code_that_asks_beyond_the_budget_is_refused_also_when_it_asks_all_at_once() -> None:
    async def ask(scope: StepScope) -> object:
        asked = [scope.call_model("q") for _ in range(5)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [str(each)[:20] for each in found]

    class SlowJournal(MemoryJournal):
        async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
            await asyncio.sleep(0)
            return await super().append(lease, draft)

    services = deterministic_services(SlowJournal(FakeClock()))
    ran = await run_recipe(
        python_step(ask), lambda prompt: "a", services=services, max_model_calls_per_step=2
    )
    assert len(ran.prompts) == 2
    assert ran.result.output == ["a", "a", *["Step 'code' made 2 m"] * 3]


async def test_an_empty_answer_is_an_empty_text_for_code() -> None:
    async def ask(scope: StepScope) -> object:
        return await scope.call_model("q")

    assert (await run_recipe(python_step(ask), [""])).result.output == ""


async def test_code_that_raises_a_group_fails_its_step_with_the_first_of_our_own_errors() -> None:
    async def ask(scope: StepScope) -> object:
        async with asyncio.TaskGroup() as group:
            group.create_task(scope.call_tool("nothing", {}))
            group.create_task(asyncio.sleep(0))
        return None

    ran = await run_recipe(python_step(ask))
    assert ran.only.error is not None
    assert ran.only.error.code == "unknown-tool"


async def test_code_that_raises_a_group_of_strangers_fails_its_step_with_the_first() -> None:
    async def fall() -> None:
        raise LookupError("one")

    async def ask(scope: StepScope) -> object:
        async with asyncio.TaskGroup() as group:
            group.create_task(fall())
        return None

    ran = await run_recipe(python_step(ask))
    assert ran.only.reason == "Step 'code' raised LookupError: one"


async def test_code_that_leaves_work_behind_cannot_write_after_the_run() -> None:
    left: list[asyncio.Task[str]] = []

    async def leave(scope: StepScope) -> object:
        async def later() -> str:
            await ended.wait()
            return await scope.call_model("too late")

        left.append(asyncio.create_task(later()))
        return "gone"

    ended = asyncio.Event()
    services = deterministic_services()
    ran = await run_recipe(python_step(leave), ["never"], services=services)
    ended.set()
    with pytest.raises(minions.MinionsError, match="has ended; nothing more is stored"):
        await left[0]
    assert await services.journal.entries() == list(ran.entries)


def test_the_default_links_in_their_order() -> None:
    """A-20: what a link can be put before or after."""
    assert [link.name for link in DefaultStepCompletionChain().links] == [
        "InstructionLink",
        "PatternLink",
        "ToolOutcomeLink",
        "StructuredOutputLink",
        "TextLink",
        "CallBudgetLink",
        "FallbackLink",
    ]
    assert InstructionLink().check(StepExecution(id="e", step_id="s")) is Completion.UNDECIDED
