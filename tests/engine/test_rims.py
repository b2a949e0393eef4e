"""Where strangers' code, servers and clocks meet the engine: nothing there may change a result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from returns.result import Result, Success

from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.tools.function_tool import tool
from minions.contracts.calls import (
    CallStatus,
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelFailure,
    Prompt,
    ToolCall,
    ToolCallResponse,
    ToolFailure,
)
from minions.contracts.completion import CompletionCriteria, CompletionLink
from minions.contracts.context import RunContext, ToolCallExecutor
from minions.contracts.executions import Completion, RunStatus, StepExecution
from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import MessageBundle, TokenUsage, assistant
from minions.contracts.run_events import RunEvent
from minions.contracts.steps import DefaultStep, PythonStep, StepScope
from minions.contracts.tools import Toolbox
from minions.data.errors import MetadataError
from minions.engine.calls.model_executors import ModelCallExecutors
from minions.engine.compile.completion_links import DefaultStepCompletionChain
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.selection import DefaultStepGraph
from minions.engine.context.agent_context import Agent, AgentContext
from minions.engine.history.memory import ConversationMemory
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.run_factory import tool_call_executors
from minions.engine.services.run_services import Services
from minions.engine.step.executor import StepExecutor
from minions.engine.step.next_step import StepManager
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.model import AgentRecipe, ExecutionMode
from minions.testing.virtual_time import FakeClock
from patience import leap


def text_step(**changes: object) -> DefaultStep[object]:
    return DefaultStep(
        id="a",
        messages=MessageBundle.of(goal="go"),
        completion_criteria=CompletionCriteria(mode="text"),
        **changes,  # type: ignore[arg-type]  # a builder
    )


def recipe(*steps: DefaultStep[object] | PythonStep[object], **limits: int | float) -> AgentRecipe:
    return AgentRecipe(id="r", steps=steps, limits=limits)


async def test_a_listener_that_raises_is_dropped_and_the_run_goes_on() -> None:
    heard: list[str] = []

    def broken(event: RunEvent) -> None:
        heard.append(event.type)
        raise BrokenPipeError

    run = AgentExecutor(ScriptedModel(["ok"])).prepare(recipe(text_step()))
    run.listen(broken)
    result = await run.execute()
    assert result.status is RunStatus.COMPLETED
    assert heard == ["run_started"]
    assert run.context.scope.events.problems == [
        "a listener was dropped at run_started: BrokenPipeError"
    ]


class StepWaiting(ChatModel):
    """Never answers, and whatever time there is passes at once."""

    async def complete(self, prompt: Prompt, on_delta: DeltaSink | None = None) -> object:  # type: ignore[override]  # it never comes to that
        leap(3600)
        await asyncio.Event().wait()
        return None


async def test_a_model_call_that_is_cut_off_stands_in_the_record() -> None:
    """A-25: it may have been paid for."""
    services = Services()
    executor = AgentExecutor(StepWaiting(), services=services)
    result = await executor.execute(recipe(text_step(metadata={"timeout_s": 600})))
    (call,) = result.step("a").model_calls
    assert (call.status, call.failure and call.failure.code) == (CallStatus.FAILED, "cut-off")
    states = [(entry.kind, entry.state) for entry in await services.journal.entries()]
    assert ("model_call", "interrupted") in states


async def test_tool_calls_that_are_cut_off_stand_in_the_record_in_request_order() -> None:
    """A-25."""

    @tool
    async def hangs() -> int:
        for _ in range(100):  # in which the other one comes to its end
            await asyncio.sleep(0)
        leap(20)
        await asyncio.Event().wait()
        return 1

    @tool
    async def answers() -> int:
        return 2

    executor = AgentExecutor(
        ScriptedModel([[tool_request("hangs"), tool_request("answers")]]),
        extensions=Extensions(tools=Toolbox((hangs, answers))),
    )
    step = text_step(available_tools={"hangs", "answers"}, metadata={"timeout_s": 10})
    result = await executor.execute(recipe(step))
    calls = result.step("a").tool_calls
    assert [(call.name, call.status.value) for call in calls] == [
        ("hangs", "failed"),
        ("answers", "completed"),
    ]
    assert calls[0].failure is not None
    assert calls[0].failure.code == "cut-off"


class Nothing(CompletionLink):
    def check(self, execution: StepExecution[object]) -> Completion:
        return None  # type: ignore[return-value]  # what an application may do


class Wrong(CompletionLink):
    def check(self, execution: StepExecution[object]) -> Completion:
        return True  # type: ignore[return-value]  # likewise


class Late(CompletionLink):
    async def check(self, execution: StepExecution[object]) -> Completion:  # type: ignore[override]  # likewise
        return Completion.COMPLETE


async def test_a_link_that_says_nothing_passes() -> None:
    """A-20."""
    chain = DefaultStepCompletionChain().prepend(Nothing())
    result = await AgentExecutor(ScriptedModel(["ok"])).execute(
        recipe(text_step(completion_chain=chain))
    )
    assert result.output == "ok"


@pytest.mark.parametrize(("link", "said"), [(Wrong(), "bool"), (Late(), "coroutine")])
async def test_a_link_that_says_something_else_is_named(link: CompletionLink, said: str) -> None:
    chain = DefaultStepCompletionChain().prepend(link)
    result = await AgentExecutor(ScriptedModel(["ok"])).execute(
        recipe(text_step(completion_chain=chain))
    )
    assert result.error is not None
    assert result.error.code == "bad-link"
    assert f"{link.name} returned {said}" in result.error.message


async def test_a_declared_field_is_data_even_if_it_is_called_like_an_instruction() -> None:
    """A-17 and A-104: the schema says what the answer means."""
    output: OutputInstructions[object] = OutputInstructions(
        schema={
            "type": "object",
            "properties": {"is_non_recoverable": {"type": "boolean"}},
            "required": ["is_non_recoverable"],
        }
    )
    step = DefaultStep[object](id="a", messages=MessageBundle.of(goal="go"), output=output)
    result = await AgentExecutor(ScriptedModel(['{"is_non_recoverable": true}'])).execute(
        recipe(step)
    )
    assert result.output == {"is_non_recoverable": True}


class Uncounted(ChatModel):
    """Its server reports no usage."""

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        return Success(ModelCallResponse(message=assistant("x" * 4_000)))


async def test_tokens_are_estimated_and_said_to_be_where_the_server_counts_none() -> None:
    steps = [
        DefaultStep[object](
            id=name,
            messages=MessageBundle.of(goal="go"),
            completion_criteria=CompletionCriteria(mode="text"),
        )
        for name in ("a", "b")
    ]
    result = await AgentExecutor(Uncounted()).execute(recipe(*steps, max_tokens=100))
    assert result.status is RunStatus.LIMIT_REACHED
    assert result.usage.total_tokens > 1_000
    assert [warned.code for warned in result.warnings] == ["usage-unknown", "limit-exceeded"]


async def test_a_server_that_asks_to_wait_for_hours_has_said_no() -> None:
    """A-32: within reason the server's own delay holds; beyond it the call fails at once."""
    clock = FakeClock()
    far = ModelFailure(
        code="rate-limited", message="Wait 27 hours.", is_retryable=True, retry_after_s=99_999
    )
    services = Services(clock=clock, sleep=clock.sleep)
    model = ScriptedModel([far, "never"])
    result = await AgentExecutor(model, services=services).execute(recipe(text_step()))
    assert result.error is not None
    assert result.error.code == "rate-limited"
    assert len(model.prompts) == 1
    assert clock.monotonic() == FakeClock().monotonic()


class Mute(Exception):  # an application's own
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_error_whose_text_cannot_be_had_still_fails_only_its_step() -> None:
    class Raises(PythonStep[object]):
        @property
        def id(self) -> str:
            return "a"

        async def run(self, scope: StepScope) -> object:
            raise Mute

    result = await AgentExecutor(ScriptedModel([])).execute(recipe(Raises()))
    assert result.error is not None
    assert result.error.message == "Step 'a' raised Mute: (its text cannot be shown)"
    assert [execution.step_id for execution in result.executions] == ["a"]


class Unwrapped(ChatModel):
    async def complete(self, prompt: Prompt, on_delta: DeltaSink | None = None) -> object:  # type: ignore[override]  # what an application may forget
        return ModelCallResponse(message=assistant("hi"))


async def test_a_model_that_forgets_to_wrap_its_answer_is_told_how() -> None:
    result = await AgentExecutor(Unwrapped()).execute(recipe(text_step()))
    assert result.error is not None
    assert "wrap an answer in returns.result.Success" in result.error.message


class Heavy(ScriptedModel):
    """Takes its time to load."""

    loads = 0

    def __init__(self, answers: Iterable[Answer]) -> None:
        super().__init__(answers)
        self.clock = FakeClock()

    async def warm_up(self) -> None:
        leap(700)
        self.clock.advance(700)
        self.loads += 1


async def test_loading_a_model_counts_against_no_steps_time() -> None:
    model = Heavy(["ok"])
    executor = AgentExecutor(model, services=Services(clock=model.clock))
    result = await executor.execute(recipe(text_step(metadata={"timeout_s": 600})))
    assert result.output == "ok"
    assert (model.loads, result.step("a").duration_ms) == (1, 0)


@pytest.mark.parametrize("value", ['{"a": 1}', '"ab"'])
async def test_an_output_that_only_looks_like_a_list_is_refused(value: str) -> None:
    output: OutputInstructions[object] = OutputInstructions(schema={})
    step = DefaultStep[object](id="a", messages=MessageBundle.of(goal="go"), output=output)
    result = await AgentExecutor(ScriptedModel([value])).execute(
        recipe(step), output_class=list[str]
    )
    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.code == "invalid-output"


async def test_what_failed_attempts_used_is_counted() -> None:
    """A-28: paid for, though no trace of it is in memory."""
    busy = ModelFailure(
        code="model-unavailable",
        message="Busy.",
        is_retryable=True,
        usage=TokenUsage(input_tokens=100),
    )
    clock = FakeClock()
    services = Services(clock=clock, sleep=clock.sleep)
    answer = ModelCallResponse(message=assistant("ok"), usage=TokenUsage(input_tokens=7))
    result = await AgentExecutor(ScriptedModel([busy, busy, answer]), services=services).execute(
        recipe(text_step())
    )
    assert result.usage.input_tokens == 207
    assert result.step("a").usage.input_tokens == 207


async def test_a_decision_call_is_recorded_and_tried_again() -> None:
    """A-04: it is a tool call like any other."""
    asked: list[int] = []

    @tool
    async def decide() -> str:
        asked.append(1)
        if len(asked) < 2:
            raise RuntimeError("not now")
        return "c"

    first = text_step(decision_tool=tool_request("decide"))
    others = [
        DefaultStep[object](
            id=name,
            messages=MessageBundle.of(goal="go"),
            completion_criteria=CompletionCriteria(mode="text"),
        )
        for name in ("b", "c")
    ]
    clock = FakeClock()
    services = Services(clock=clock, sleep=clock.sleep)
    executor = AgentExecutor(
        ScriptedModel(["one", "two"]),
        services=services,
        extensions=Extensions(tools=Toolbox((decide,))),
    )
    result = await executor.execute(
        AgentRecipe(id="r", steps=[first, *others], graph={"a": ["b", "c"]})
    )
    assert [execution.step_id for execution in result.executions] == ["a", "c"]
    rows = [(entry.kind, entry.key, entry.state) for entry in await services.journal.entries()]
    assert ("tool_call", "a/1/0/decide/1/0", "finished") in rows


async def test_steps_that_the_runs_time_kept_from_starting_are_passed_over() -> None:
    result = await AgentExecutor(StepWaiting()).execute(
        AgentRecipe(
            id="r",
            steps=[GoalSpec(id="a", goal="go"), SetSpec(id="b", set={"n": 1})],
            limits={"timeout_s": 600},
        )
    )
    assert result.status is RunStatus.LIMIT_REACHED
    assert [(each.step_id, each.status.value) for each in result.executions] == [
        ("a", "failed"),
        ("b", "skipped"),
    ]


async def test_parallel_steps_wait_for_one_loading_and_the_runs_time_stands_still() -> None:
    model = Heavy(["one", "two", "three"])
    result = await AgentExecutor(model).execute(
        AgentRecipe(
            id="r",
            execution_mode=ExecutionMode.PARALLEL,
            steps=[GoalSpec(id=name, goal="go", timeout_s=600) for name in "abc"],
            limits={"timeout_s": 650},
        )
    )
    assert result.status is RunStatus.COMPLETED
    assert model.loads == 1


async def test_an_executor_of_ones_own_that_raises_fails_its_call_and_is_recorded() -> None:
    class Breaks(ToolCallExecutor):
        async def execute(
            self, call: ToolCall, context: RunContext
        ) -> Result[ToolCallResponse, ToolFailure]:
            raise KeyError("lost")

    services = Services()
    executor = AgentExecutor(
        ScriptedModel([tool_request("any")]),
        services=services,
        tool_call_executor_factory=lambda call, context: Breaks(),
    )
    result = await executor.execute(recipe(text_step()))
    assert result.error is not None
    assert result.error.code == "tool-failed"
    assert "KeyError: 'lost'" in result.error.message
    states = [(entry.kind, entry.state) for entry in await services.journal.entries()]
    assert ("tool_call", "failed") in states


async def test_limits_set_on_a_context_hold_from_then_on() -> None:
    """A-14: the guide's way of setting them."""
    agent = Agent(AgentRecipe(id="r", steps=[text_step()]))
    manager = StepManager(DefaultStepGraph(agent.recipe.steps))  # type: ignore[arg-type]  # Step objects
    context = AgentContext(agent, manager, ConversationMemory())
    context.metadata["maxTokens"] = 1
    models = ModelCallExecutors(ScriptedModel(["one", "two"]))
    first = await StepExecutor(text_step(), context, models, tool_call_executors()).execute()
    second = await StepExecutor(text_step(), context, models, tool_call_executors()).execute()
    assert first.is_complete
    assert second.error is not None
    assert second.error.code == "limit-reached"


async def test_a_limit_of_the_run_is_refused_in_a_step() -> None:
    with pytest.raises(MetadataError, match="limits a whole run"):
        await AgentExecutor(ScriptedModel([])).execute(
            recipe(text_step(metadata={"max_tokens": 5}))
        )
