"""Attempts, delays, what is never tried again, and what memory keeps of it: A-26 to A-35."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from attrs import define, evolve
from returns.result import Result

from builders import (
    deterministic_services,
    executor_of,
    fake_tool,
    flaky_tool,
    live_conversations,
    python_step,
    recipe_of,
    run_recipe,
    text_step,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import (
    CallStatus,
    DeltaSink,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    Prompt,
)
from minions.contracts.context import ModelCallExecutor, RunContext
from minions.contracts.executions import RunStatus, StepStatus
from minions.contracts.messages import Message, MessageBundle, assistant, goal, tool_result
from minions.contracts.retry_config import RetryConfig
from minions.contracts.run_events import AttemptFailed
from minions.contracts.steps import StepScope
from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
from minions.data.errors import ToolError, UsageError, words_of
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.recipe.model import AgentRecipe, Permissions
from minions.testing.virtual_time import FakeClock
from patience import HANG_S

NO_JITTER = RetryConfig(jitter=False)
BUSY = ModelFailure(code="rate-limited", message="slow down", is_retryable=True)


class Sleeper:
    """Notes every delay instead of waiting."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.delays.append(seconds)


def services_with(sleep: Callable[[float], Awaitable[None]]) -> Services:
    return evolve(deterministic_services(), sleep=sleep)


# --- tools -------------------------------------------------------------------------------------


async def test_a_tool_that_fails_twice_completes_at_its_third_attempt() -> None:
    """A-26: memory holds the successful result and nothing else."""
    look = flaky_tool(failures=2, result={"sun": True})
    answers: list[Answer] = [tool_request("look", id="c1"), "done"]
    ran = await run_recipe(text_step(tools=["look"]), answers, tools=[look])
    (call,) = ran.only.tool_calls
    assert (call.status, call.attempts, len(look.asked)) == (CallStatus.COMPLETED, 3, 3)
    assert call.failure is None
    assert ran.conversation("work/1/0") == [
        goal("Goal of work."),
        assistant(tool_calls=[tool_request("look", id="c1")]),
        tool_result('{"sun":true}', tool_call_id="c1", name="look"),
        assistant("done"),
    ]
    assert ran.only.attempts == 3


async def test_every_attempt_has_the_same_key_for_its_effect() -> None:
    """A-26."""
    look = flaky_tool(failures=1)
    answers: list[Answer] = [[tool_request("look"), tool_request("look")], "done"]
    await run_recipe(text_step(tools=["look"]), answers, tools=[look])
    keys = sorted(scope.idempotency_key for scope in look.scopes)
    assert keys == [
        "run_1/work/1/0/tool/1/0",
        "run_1/work/1/0/tool/1/0",
        "run_1/work/1/0/tool/1/1",
    ]


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_a_tool_has_one_attempt_more_than_its_retries(retries: int) -> None:
    """A-27: policy fail."""
    look = flaky_tool(failures=99, error=RuntimeError("no bus today"))
    answers: list[Answer] = [tool_request("look"), "never"]
    ran = await run_recipe(
        text_step(tools=["look"]), answers, tools=[look], max_tool_call_retries=retries
    )
    assert (len(look.asked), len(ran.prompts)) == (retries + 1, 1)
    assert ran.only.status is StepStatus.FAILED
    assert ran.only.error is not None
    assert ran.only.error.code == "tool-failed"
    assert ran.only.reason == "The tool 'look' failed: RuntimeError: no bus today"
    assert ran.only.tool_calls[0].status is CallStatus.FAILED


async def test_under_policy_report_the_model_reads_the_error_and_the_step_goes_on() -> None:
    """A-27."""
    look = flaky_tool(failures=3, error=RuntimeError("no bus today"))
    answers: list[Answer] = [tool_request("look", id="c1"), "without the bus, then"]
    step = text_step(tools=["look"], tool_failure="report")
    ran = await run_recipe(step, answers, tools=[look])
    assert len(look.asked) == 3
    assert ran.prompts[1][-1] == tool_result(
        "Error: The tool 'look' failed: RuntimeError: no bus today", tool_call_id="c1", name="look"
    )
    assert (ran.only.status, ran.only.output) == (StepStatus.COMPLETED, "without the bus, then")
    (call,) = ran.only.tool_calls
    assert call.failure is not None
    assert (call.failure.code, call.attempts) == ("tool-failed", 3)


@pytest.mark.parametrize("policy", ["fail", "report"])
async def test_what_the_model_can_mend_goes_to_it_under_either_policy(policy: str) -> None:
    """A-27: a ToolError, at its first attempt."""
    look = flaky_tool(failures=1, error=ToolError("No file 'a'. Files here: b."))
    answers: list[Answer] = [tool_request("look"), tool_request("look"), "done"]
    step = text_step(tools=["look"], tool_failure=policy)
    ran = await run_recipe(step, answers, tools=[look])
    assert ran.prompts[1][-1].content == "Error: No file 'a'. Files here: b."
    assert [call.attempts for call in ran.only.tool_calls] == [1, 1]
    assert ran.only.output == "done"


@pytest.mark.parametrize("policy", ["fail", "report"])
async def test_a_write_that_is_not_allowed_is_told_like_an_unknown_tool(policy: str) -> None:
    """A-111: and it is in no request."""
    send, look = fake_tool("send", effect=Effect.ONCE), fake_tool("look")
    answers: list[Answer] = [tool_request("send"), "done without"]
    step = text_step(tools=["send", "look"], tool_failure=policy)
    ran = await run_recipe(step, answers, tools=[send, look])
    assert send.asked == []
    assert ran.offered == [["look"], ["look"]]
    assert ran.prompts[1][-1].content == (
        "Error: There is no tool 'send' here. Available tools: look."
    )
    assert ran.only.output == "done without"


async def test_a_result_that_says_success_false_is_a_failure_the_model_reads() -> None:
    look = fake_tool(work=lambda _: {"success": False, "error": "no such user"})
    answers: list[Answer] = [tool_request("look"), "ah"]
    ran = await run_recipe(text_step(tools=["look"]), answers, tools=[look])
    assert ran.prompts[1][-1].content == (
        "Error: The tool 'look' says success: false: no such user"
    )


async def test_a_failed_attempt_of_one_tool_never_loses_the_success_of_its_neighbour() -> None:
    """A-29: the first ends before the second's rollback, and between its attempts."""
    quick_ended = asyncio.Event()
    attempts: list[str] = []

    async def quick(_: Mapping[str, JsonValue]) -> object:
        quick_ended.set()
        return "quick result"

    async def slow(_: Mapping[str, JsonValue]) -> object:
        await quick_ended.wait()
        attempts.append("slow")
        if len(attempts) < 3:
            raise ConnectionError("lost")
        return "slow result"

    requests = [tool_request("quick", id="q"), tool_request("slow", id="s")]
    tools = [fake_tool("quick", quick), fake_tool("slow", slow)]
    step = text_step(tools=["quick", "slow"])
    ran = await run_recipe(step, [requests, "done"], tools=tools)
    assert [call.attempts for call in ran.only.tool_calls] == [1, 3]
    assert list(ran.prompts[1][-2:]) == [
        tool_result("quick result", tool_call_id="q", name="quick"),
        tool_result("slow result", tool_call_id="s", name="slow"),
    ]


async def test_a_failing_neighbour_does_not_cancel_a_tool_that_runs() -> None:
    """A-29: under policy fail as well; both ends are recorded."""
    failed = asyncio.Event()

    def broken(_: Mapping[str, JsonValue]) -> object:
        failed.set()
        raise TypeError("never again")

    async def patient(_: Mapping[str, JsonValue]) -> object:
        await failed.wait()
        await asyncio.sleep(0)
        return "made it"

    tools = [fake_tool("broken", broken), fake_tool("patient", patient)]
    requests = [tool_request("broken"), tool_request("patient")]
    ran = await run_recipe(text_step(tools=["broken", "patient"]), [requests], tools=tools)
    assert [call.status for call in ran.only.tool_calls] == [
        CallStatus.FAILED,
        CallStatus.COMPLETED,
    ]
    assert ran.only.status is StepStatus.FAILED
    assert ran.conversation("work/1/0")[-1].content == "made it"


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("lost"), RuntimeError("")])
@pytest.mark.parametrize("count", [1, 2])
async def test_whatever_a_tool_raises_is_a_failure_of_that_call(
    error: BaseException, count: int
) -> None:
    """A-27: nobody cancelled the run, nobody wanted the process to end."""
    look = flaky_tool(failures=99, error=error)
    requests = [tool_request("look") for _ in range(count)]
    step = text_step(tools=["look"], tool_failure="report")
    ran = await run_recipe(step, [requests, "done"], tools=[look])
    assert ran.only.output == "done"
    messages = {call.failure.message for call in ran.only.tool_calls if call.failure}
    assert messages == {f"The tool 'look' failed: {words_of(error)}"}


@pytest.mark.parametrize(
    "result", [float("nan"), float("inf"), {1: 2}, object(), [object()], {"a": {"b": lambda: 0}}]
)
async def test_a_result_that_is_not_json_fails_the_call_without_another_attempt(
    result: object,
) -> None:
    look = fake_tool(work=lambda _: result)
    ran = await run_recipe(text_step(tools=["look"]), [tool_request("look")], tools=[look])
    assert (len(look.asked), ran.only.status) == (1, StepStatus.FAILED)
    assert ran.only.error is not None
    assert ran.only.error.code == "tool-result-not-json"


async def test_a_result_that_is_too_large_is_refused_with_its_size() -> None:
    look = fake_tool(work=lambda _: "x" * 1001)
    answers: list[Answer] = [tool_request("look"), "less, then"]
    ran = await run_recipe(
        text_step(tools=["look"]), answers, tools=[look], max_tool_result_bytes=1000
    )
    assert "returned 1,001 bytes; at most 1,000" in (ran.prompts[1][-1].content or "")
    assert look.scopes[0].max_result_bytes == 1000


async def test_a_tool_needs_no_hash() -> None:
    @define
    class Options(Tool):
        options: dict[str, int]

        @property
        def spec(self) -> ToolSpec:
            return ToolSpec(name="look")

        async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
            return self.options

    answers: list[Answer] = [tool_request("look"), "done"]
    ran = await run_recipe(text_step(tools=["look"]), answers, tools=[Options({"a": 1})])
    assert ran.prompts[1][-1].content == '{"a":1}'


# --- models ------------------------------------------------------------------------------------


async def test_a_second_attempt_sees_an_identical_prompt_and_memory_no_trace_of_the_first() -> None:
    """A-28."""
    ran = await run_recipe(text_step(), [TimeoutError("slow"), "done"])
    first, second = ran.prompts
    assert first == second
    assert ran.conversation("work/1/0") == [goal("Goal of work."), assistant("done")]
    (call,) = ran.only.model_calls
    assert (call.status, call.attempts) == (CallStatus.COMPLETED, 2)


async def test_attempts_in_the_middle_of_a_conversation_see_all_of_it() -> None:
    """A-28."""
    answers: list[Answer] = [tool_request("look"), BUSY, BUSY, "done"]
    ran = await run_recipe(text_step(tools=["look"]), answers, tools=[fake_tool()])
    assert ran.prompts[1] == ran.prompts[2] == ran.prompts[3]
    assert [call.attempts for call in ran.only.model_calls] == [1, 3]


async def test_attempts_do_not_count_against_the_steps_budget() -> None:
    """A-28: the budget counts logical calls."""
    ran = await run_recipe(text_step(), [BUSY, BUSY, "done"], max_model_calls_per_step=1)
    assert (ran.only.status, len(ran.prompts)) == (StepStatus.COMPLETED, 3)


def conversation_in(context: RunContext) -> str:
    """Of the only step's first visit."""
    return "/".join((context.run_id, "work", "1", "0"))


async def test_what_an_executor_of_ones_own_wrote_before_it_failed_is_rolled_back() -> None:
    """A-28."""
    seen: list[tuple[Message, ...]] = []

    class Scribbling(ModelCallExecutor):
        async def execute(
            self, call: ModelCall, context: RunContext
        ) -> Result[ModelCallResponse, ModelFailure]:
            seen.append(context.memory.prompt_messages(conversation_in(context)))
            context.memory.save_chat_response(conversation_in(context), assistant("half"))
            raise ConnectionError("cut off")

    executor = AgentExecutor(
        ScriptedModel([]),
        services=deterministic_services(),
        model_call_executor_factory=lambda call, context: Scribbling(),
    )
    run = executor.prepare(recipe_of([text_step()]))
    result = await run.execute()
    assert seen == [(goal("Goal of work."),)] * 3
    assert live_conversations(run.context) == {"run_1/work/1/0": (goal("Goal of work."),)}
    assert result.error is not None
    assert result.error.code == "model-raised"


async def test_a_model_that_fails_for_good_fails_the_step_with_its_reason() -> None:
    """A-28: and leaves the conversation as it was."""
    refusal = ModelFailure(code="auth-rejected", message="The key was refused.")
    ran = await run_recipe(text_step(), [refusal, "never"])
    assert (ran.only.error, len(ran.prompts)) == (evolve(refusal.info(), where="work"), 1)
    assert ran.conversation("work/1/0") == [goal("Goal of work.")]


# --- which errors ------------------------------------------------------------------------------


class ValidationError(Exception):
    """As several libraries call theirs."""


class HttpError(Exception):
    """As HTTP libraries carry their status."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code


class HttpStatusError(Exception):
    """The status on the response, as httpx has it."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"HTTP {status_code}")
        self.response = HttpError(status_code)


NEVER: list[Exception] = [
    TypeError("x"),
    AttributeError("x"),
    NameError("x"),
    SyntaxError("x"),
    ValidationError("x"),
    HttpError(400),
    HttpError(401),
    HttpError(403),
    HttpError(404),
    HttpStatusError(401),
    UsageError("ours"),
    MemoryError("x"),
]
TRANSIENT: list[Exception] = [
    TimeoutError("x"),
    ConnectionError("x"),
    ConnectionResetError("x"),
    HttpError(408),
    HttpError(429),
    HttpError(500),
    HttpError(503),
    HttpStatusError(503),
]


class RaisingModel(ScriptedModel):
    """Raises the same error at every call."""

    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self._error = error

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        self.prompts.append(prompt)
        raise self._error


def names_of(error: object) -> str:
    return f"{type(error).__name__}-{error}"


@pytest.mark.parametrize("error", NEVER, ids=names_of)
async def test_what_cannot_get_better_is_not_tried_again(error: Exception) -> None:
    """A-31: of models and of tools."""
    ran = await run_recipe(text_step(), RaisingModel(error))
    assert (len(ran.prompts), ran.only.status) == (1, StepStatus.FAILED)
    look = flaky_tool(failures=99, error=error)
    await run_recipe(text_step(tools=["look"]), [tool_request("look")], tools=[look])
    assert len(look.asked) == 1


async def test_too_little_memory_is_a_limit_of_resources_and_is_not_tried_again() -> None:
    ran = await run_recipe(text_step(), RaisingModel(MemoryError()))
    assert ran.only.error is not None
    assert (len(ran.prompts), ran.only.error.code) == (1, "resource-limit")
    assert ran.only.error.category == "resource"
    look = flaky_tool(failures=99, error=MemoryError())
    called = await run_recipe(text_step(tools=["look"]), [tool_request("look")], tools=[look])
    assert len(look.asked) == 1
    failure = called.only.tool_calls[0].failure
    assert failure is not None
    assert failure.code == "resource-limit"


@pytest.mark.parametrize("error", TRANSIENT, ids=names_of)
async def test_what_is_transient_is_tried_up_to_three_times(error: Exception) -> None:
    """A-31: of models and of tools."""
    ran = await run_recipe(text_step(), RaisingModel(error))
    assert (len(ran.prompts), ran.only.model_calls[0].attempts) == (3, 3)
    look = flaky_tool(failures=99, error=error)
    await run_recipe(text_step(tools=["look"]), [tool_request("look")], tools=[look])
    assert len(look.asked) == 3


async def test_an_error_nobody_knows_is_tried_again_for_tools_and_not_for_models() -> None:
    """A-31."""
    ran = await run_recipe(text_step(), RaisingModel(LookupError("x")))
    look = flaky_tool(failures=99, error=LookupError("x"))
    await run_recipe(text_step(tools=["look"]), [tool_request("look")], tools=[look])
    assert (len(ran.prompts), len(look.asked)) == (1, 3)


async def test_named_exceptions_alone_are_tried_again_for_models_and_tools() -> None:
    """A-31: also where a lost connection or an unknown error of a tool would be."""
    retry = RetryConfig(retryable_exceptions=(LookupError,))
    counts = []
    for error in (KeyError("x"), ConnectionError("lost"), ValueError("x"), HttpError(404)):
        ran = await run_recipe(text_step(), RaisingModel(error), retry=retry)
        look = flaky_tool(failures=99, error=error)
        step = text_step(tools=["look"])
        await run_recipe(step, [tool_request("look")], tools=[look], retry=retry)
        counts.append((len(ran.prompts), len(look.asked)))
    assert counts == [(3, 3), (1, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("error", [TypeError("x"), MemoryError()], ids=names_of)
async def test_naming_an_error_that_cannot_get_better_does_not_retry_it(error: Exception) -> None:
    """A-31."""
    retry = RetryConfig(retryable_exceptions=(Exception,))
    ran = await run_recipe(text_step(), RaisingModel(error), retry=retry)
    assert len(ran.prompts) == 1


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_max_attempts_counts_the_first_one(most: int) -> None:
    """A-31."""
    ran = await run_recipe(text_step(), lambda prompt: BUSY, retry=RetryConfig(max_attempts=most))
    assert len(ran.prompts) == most


# --- delays ------------------------------------------------------------------------------------


async def test_delays_double_up_to_the_cap() -> None:
    """A-32: between attempts 1, 2, 3 …"""
    sleeper = Sleeper()
    retry = RetryConfig(max_attempts=9, jitter=False)
    await run_recipe(text_step(), lambda prompt: BUSY, retry=retry, services=services_with(sleeper))
    assert sleeper.delays == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_delays_with_jitter_are_in_their_range() -> None:
    """A-32."""
    sleeper = Sleeper()
    retry = RetryConfig(max_attempts=9)
    await run_recipe(text_step(), lambda prompt: BUSY, retry=retry, services=services_with(sleeper))
    bases = [1, 2, 4, 8, 16, 32, 60, 60]
    assert all(
        base * 0.5 <= delay <= min(60, base * 1.5)
        for base, delay in zip(bases, sleeper.delays, strict=True)
    )
    assert len(set(sleeper.delays)) > 5


async def test_tools_wait_likewise_between_attempts() -> None:
    """A-32."""
    sleeper = Sleeper()
    await run_recipe(
        text_step(tools=["look"]),
        [tool_request("look")],
        tools=[flaky_tool(failures=99)],
        retry=NO_JITTER,
        services=services_with(sleeper),
    )
    assert sleeper.delays == [1, 2]


@pytest.mark.parametrize("retry_after_s", [0.0, 7.5, 120.0])
async def test_a_retry_after_of_the_server_overrides_the_delay(retry_after_s: float) -> None:
    """A-32: zero and more than the cap, too."""
    sleeper = Sleeper()
    busy = evolve(BUSY, retry_after_s=retry_after_s)
    await run_recipe(
        text_step(), [busy, BUSY, "x"], retry=NO_JITTER, services=services_with(sleeper)
    )
    assert sleeper.delays == [retry_after_s, 2]


async def test_each_retry_is_told_before_its_delay() -> None:
    """A-32: with the attempt that failed."""
    services = deterministic_services()
    clock = services.clock
    assert isinstance(clock, FakeClock)
    start = clock.now()
    executor = executor_of(ScriptedModel([BUSY, BUSY, "done"]), services=services)
    recipe = recipe_of([text_step()], retry=NO_JITTER)
    told = [event async for event in executor.stream(recipe) if isinstance(event, AttemptFailed)]
    assert [(event.what, event.attempt, event.delay_s) for event in told] == [
        ("model", 1, 1.0),
        ("model", 2, 2.0),
    ]
    assert [(event.timestamp - start).seconds for event in told] == [0, 1]
    assert told[0].error["code"] == "rate-limited"


# --- cancellation ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["model", "tool"])
async def test_cancelled_during_a_retry_delay_no_attempt_follows(what: str) -> None:
    """A-33: it passes through at once."""
    asleep = asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    look = flaky_tool(failures=99)
    model = ScriptedModel([tool_request("look"), "never"] if what == "tool" else [BUSY, "never"])
    services = services_with(sleep)
    executor = executor_of(model, tools=[look], services=services)
    task = asyncio.create_task(executor.execute(recipe_of([text_step(tools=["look"])])))
    await asyncio.wait_for(asleep.wait(), HANG_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (len(model.prompts), len(look.asked)) == (1, 1 if what == "tool" else 0)
    rows = [(entry.kind, entry.state) for entry in await services.journal.entries()]
    assert rows[-2:] == [("step", "interrupted"), ("run", "finished")]


async def test_a_run_that_is_told_to_stop_during_a_delay_ends_cancelled() -> None:
    """A-33: as a result, with what was done."""

    async def sleep(seconds: float) -> None:
        run.cancel()
        run.cancel()
        await asyncio.Event().wait()

    executor = executor_of(ScriptedModel(["one", BUSY, "never"]), services=services_with(sleep))
    run = executor.prepare(recipe_of([text_step("a"), text_step("b")]))
    result = await run.execute()
    assert result.status is RunStatus.CANCELLED
    assert [(each.step_id, each.status.value) for each in result.executions] == [
        ("a", "completed"),
        ("b", "failed"),
    ]
    errors = (result.error, result.step("b").error)
    assert [error and error.code for error in errors] == ["cancelled", "cancelled"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_run_that_is_told_to_stop_before_it_begins_runs_nothing() -> None:
    model = ScriptedModel(["never"])
    run = executor_of(model).prepare(recipe_of([text_step()]))
    run.cancel()
    result = await run.execute()
    assert (result.status, result.executions, model.prompts) == (RunStatus.CANCELLED, (), [])


async def test_stopping_a_run_that_has_ended_stops_nothing_else() -> None:
    run = executor_of(ScriptedModel(["done"])).prepare(recipe_of([text_step()]))
    assert (await run.execute()).status is RunStatus.COMPLETED
    run.cancel()
    await asyncio.sleep(0)


async def test_a_stop_that_comes_with_the_last_event_stays_inside_the_run() -> None:
    run = executor_of(ScriptedModel(["done"])).prepare(recipe_of([text_step()]))
    run.listen(lambda event: run.cancel() if event.type == "step_finished" else None)
    result = await run.execute()
    assert (result.status, len(result.executions)) == (RunStatus.CANCELLED, 1)
    await asyncio.sleep(0)


# --- effects -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("x"), ConnectionError("x"), TimeoutError("x")])
async def test_a_tool_that_may_run_once_is_not_tried_again_after_it_began(error: Exception) -> None:
    """A-34: though the error is a transient one."""
    send = flaky_tool("send", failures=1, error=error, effect=Effect.ONCE)
    recipe = recipe_of([text_step(tools=["send"])], permissions=Permissions(allow_write=True))
    executor = executor_of(ScriptedModel([tool_request("send"), "never"]), tools=[send])
    result = await executor.execute(recipe)
    assert (len(send.asked), result.status) == (1, RunStatus.FAILED)
    assert result.executions[0].tool_calls[0].attempts == 1


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT, Effect.UNDECLARED])
async def test_any_other_tool_is_tried_again(effect: Effect) -> None:
    """A-34: the counterpart."""
    send = flaky_tool("send", failures=1, effect=effect)
    recipe = recipe_of([text_step(tools=["send"])], permissions=Permissions(allow_write=True))
    executor = executor_of(ScriptedModel([tool_request("send"), "done"]), tools=[send])
    assert ((await executor.execute(recipe)).output, len(send.asked)) == ("done", 2)


@pytest.mark.parametrize(
    ("effect", "attempts"),
    [(Effect.PURE, 3), (Effect.IDEMPOTENT, 3), (Effect.ONCE, 1), (Effect.UNDECLARED, 1)],
)
async def test_after_a_timeout_only_what_may_be_repeated_is_tried_again(
    effect: Effect, attempts: int
) -> None:
    """A-34: an overrun may still have its effect."""

    async def hang(_: Mapping[str, JsonValue]) -> object:
        await asyncio.Event().wait()
        return "too late"

    send = fake_tool("send", hang, effect=effect, timeout_s=0.01)
    recipe = recipe_of([text_step(tools=["send"])], permissions=Permissions(allow_write=True))
    executor = executor_of(ScriptedModel([tool_request("send")]), tools=[send])
    result = await executor.execute(recipe)
    assert len(send.asked) == attempts
    assert result.error is not None
    assert result.error.code == "tool-timeout"


# --- two runs at once --------------------------------------------------------------------------


async def test_two_runs_on_one_executor_share_nothing() -> None:
    """A-35: they meet in the middle of a model call and of a tool call, each its own way."""
    in_model, in_tool = asyncio.Barrier(2), asyncio.Barrier(2)

    async def answer(prompt: Prompt) -> Answer:
        await asyncio.wait_for(in_model.wait(), HANG_S)
        name = str(prompt.messages[0].content)
        if len(prompt.messages) == 1:
            return tool_request("look", {"for": name})
        return f"{name} saw {prompt.messages[-1].content}"

    async def look(arguments: Mapping[str, JsonValue]) -> object:
        await asyncio.wait_for(in_tool.wait(), HANG_S)
        return f"what {arguments['for']} asked"

    async def note(scope: StepScope) -> object:
        return [dict(scope.context.inputs), sorted(scope.context.metadata), scope.context.run_id]

    tools = [fake_tool(work=look)]
    services = deterministic_services()
    executor = executor_of(ScriptedModel(answer), tools=tools, services=services)

    def recipe(name: str, **limits: JsonValue) -> AgentRecipe:
        step = text_step(tools=["look"], messages=MessageBundle.of(user=name))
        return recipe_of([step, python_step(note)], limits=limits)

    runs = [
        executor.prepare(recipe("anna", max_model_calls_per_step=5)),
        executor.prepare(recipe("bert", max_tool_call_retries=0)),
    ]
    runs[0].context.metadata["colour"] = "red"
    first, second = await asyncio.gather(*[run.execute() for run in runs])
    assert first.step("work").output == "anna saw what anna asked"
    assert second.step("work").output == "bert saw what bert asked"
    assert first.output == [{}, ["colour", "max_model_calls_per_step"], "run_1"]
    assert second.output == [{}, ["max_tool_call_retries"], "run_2"]
    for run, name in zip(runs, ("anna", "bert"), strict=True):
        (conversation,) = live_conversations(run.context).values()
        assert [message.content for message in conversation] == [
            name,
            None,
            f"what {name} asked",
            f"{name} saw what {name} asked",
        ]
        entries = await services.journal.entries(run.session_id)
        assert {entry.run_id for entry in entries} == {run.run_id}
    assert first.session_id != second.session_id


async def test_many_runs_at_once_each_get_their_own_answers() -> None:
    """A-35."""

    async def answer(prompt: Prompt) -> Answer:
        await asyncio.sleep(0)
        return f"re: {prompt.messages[0].content}"

    executor = executor_of(ScriptedModel(answer))
    recipes = [recipe_of([text_step(messages=MessageBundle.of(user=str(n)))]) for n in range(50)]
    results = await asyncio.gather(*[executor.execute(recipe) for recipe in recipes])
    assert [result.output for result in results] == [f"re: {n}" for n in range(50)]
    assert len({result.run_id for result in results}) == 50


# --- the same again ----------------------------------------------------------------------------


async def test_the_same_recipe_model_seed_and_clock_give_the_same_facts() -> None:
    """Ids, times, delays and keys included."""

    async def once() -> object:
        answers: list[Answer] = [
            [tool_request("look", {"n": 1}), tool_request("flaky")],
            BUSY,
            ModelCallResponse(message=assistant("done")),
            "more",
        ]
        tools = [fake_tool(), flaky_tool("flaky", failures=2)]
        steps = [text_step("a", tools=["look", "flaky"]), text_step("b")]
        ran = await run_recipe(steps, answers, tools=tools)
        return ran.result, ran.entries

    assert await once() == await once()
