"""One policy of retries: what recipe, step and executor say of it, and that its counts are true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest
from attrs import evolve, field, frozen, mutable
from returns.result import Failure, Result, Success

from builders import (
    answer_of,
    deterministic_services,
    executor_of,
    fake_tool,
    flaky_tool,
    recipe_of,
    text_step,
)
from command_line import Cli
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.analysis.explanation import explain
from minions.contracts.calls import ChatModel, DeltaSink, ModelCallResponse, ModelFailure, Prompt
from minions.contracts.executions import AgentResult, OutputT
from minions.contracts.flow import Admission, CallAsk, FlowControl
from minions.contracts.journal.facts import ModelCallFact, ToolCallInterrupted, ToolCallOutcome
from minions.contracts.messages import TokenUsage
from minions.contracts.metrics import Metrics
from minions.contracts.retry_config import RetryConfig
from minions.contracts.run_events import AttemptFailed, RunEvent, StepFinished
from minions.data.json_values import JsonValue
from minions.engine.agents.agent_step_executor import AgentStepExecutor
from minions.engine.context.agent_memory import AgentMemory
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.run_services import Services
from minions.engine.sessions.recipe_agent import ExecutorHost, RecipeAgent
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text
from minions.testing.endpoint import Behaviour, ChatEndpoint, answer, drop, error_body, status
from minions.testing.virtual_time import FakeClock
from nested import Document, loaded

SAYS_NOTHING: Final = ""
MESSAGE: Final = "id: r\ninputs: {message: string}\n"


def recipe_with(retry: str, of_step: str = "") -> AgentRecipe:
    """A recipe of one model step; the texts are values of the key `retry`."""
    own = f", retry: {{{of_step}}}" if of_step else ""
    head = f"{MESSAGE}retry: {{{retry}}}\n" if retry else MESSAGE
    return load_recipe_text(
        f"{head}steps: [{{id: s, goal: Go., completion: text{own}}}]\n", "r.yaml", Catalog()
    )


def busy() -> Behaviour:
    return status(429, error_body("slow down"))


def broken() -> Behaviour:
    return status(503, error_body("overloaded"))


def early() -> Behaviour:
    return status(425, error_body("too early"))


def wrong() -> Behaviour:
    return status(400, error_body("no such field"))


def final() -> Behaviour:
    return status(503, error_body("never"), headers={"x-should-retry": "false"})


def away_for_a_day() -> Behaviour:
    return status(429, error_body("tomorrow"), headers={"Retry-After": "86400"})


@mutable
class Counted(Metrics):
    """How often calls were made again."""

    retries: list[str] = field(factory=list)

    def retried(self, what: str) -> None:
        self.retries.append(what)


@frozen(kw_only=True)
class Case:
    """What is said of retries, what the server does, and how many requests follow."""

    recipe: str = SAYS_NOTHING
    step: str = SAYS_NOTHING
    config: RetryConfig | None = None
    server: Sequence[Behaviour]
    requests: int


ONCE, FIVE = RetryConfig(max_attempts=1), RetryConfig(max_attempts=5)
ONLY_LOOKUPS = RetryConfig(max_attempts=4, retryable_exceptions=(LookupError,))
DOWN: Final = [broken()] * 9

CASES: Final = {
    "nobody says anything": Case(server=DOWN, requests=3),
    "the executor says one": Case(config=ONCE, server=DOWN, requests=1),
    "the executor says five": Case(config=FIVE, server=DOWN, requests=5),
    "the recipe says two": Case(recipe="max_attempts: 2", server=DOWN, requests=2),
    "the recipe's two is over one": Case(
        recipe="max_attempts: 2", config=ONCE, server=DOWN, requests=2
    ),
    "the recipe states the default": Case(
        recipe="max_attempts: 3", config=FIVE, server=DOWN, requests=3
    ),
    "the recipe states something else": Case(
        recipe="circuit: fail", config=FIVE, server=DOWN, requests=5
    ),
    "the step says four": Case(
        recipe="max_attempts: 2", step="max_attempts: 4", config=ONCE, server=DOWN, requests=4
    ),
    "the step says something else": Case(
        recipe="max_attempts: 2", step="jitter: false", config=FIVE, server=DOWN, requests=2
    ),
    "only the step says something else": Case(
        step="jitter: false", config=FIVE, server=DOWN, requests=5
    ),
    "the step states the default": Case(
        step="max_attempts: 3", config=ONCE, server=DOWN, requests=3
    ),
    "an answer at once": Case(config=FIVE, server=[answer("hi")], requests=1),
    "an answer after a refusal": Case(server=[busy(), answer("hi")], requests=2),
    "an answer after a lost connection": Case(server=[drop(), answer("hi")], requests=2),
    "an answer at the last attempt": Case(
        config=FIVE, server=[broken(), drop(), busy(), early(), answer("hi")], requests=5
    ),
    "a wrong request": Case(config=FIVE, server=[wrong(), answer("hi")], requests=1),
    "a wrong request after a refusal": Case(config=FIVE, server=[busy(), wrong()], requests=2),
    "a server that wants no retry": Case(config=FIVE, server=[final(), answer("hi")], requests=1),
    "a server that is away for long": Case(
        config=FIVE, server=[broken(), away_for_a_day()], requests=2
    ),
    "statuses come before classes of exceptions": Case(
        config=ONLY_LOOKUPS, server=DOWN, requests=4
    ),
}


@frozen
class Listening(ExecutorHost):
    """An executor whose runs tell their events."""

    events: list[RunEvent] = field(factory=list)

    async def execute(self, run: AgentRun[OutputT]) -> AgentResult[OutputT]:
        run.listen(self.events.append)
        return await super().execute(run)


@frozen(kw_only=True)
class Asked:
    """What came of one agent step of a recipe at a server."""

    requests: int
    run_id: str
    attempts_recorded: int | None
    events: Sequence[RunEvent]
    retries_counted: Sequence[str]
    retry_count: int


async def asked(case: Case, recipe: AgentRecipe, database: Path) -> Asked:
    clock, metrics = FakeClock(), Counted()
    journal = SqliteJournal(database, clock)
    services = evolve(deterministic_services(journal, clock), metrics=metrics)
    async with ChatEndpoint(*case.server) as server:
        model = OpenAIModel("tiny", base_url=server.base_url)
        host = Listening(executor_of(model, services=services))
        agent = RecipeAgent(recipe=recipe, host=host)
        executor = AgentStepExecutor({"a": agent}, case.config, services=services)
        await executor.execute_agent_step("a", "Go.", AgentMemory())
        await model.aclose()
        requests = len(server.requests)
    (row,) = await journal.runs()
    entries = await journal.entries(row.session_id, run_id=row.run_id)
    (fact,) = [each.fact for each in entries if isinstance(each.fact, ModelCallFact)]
    await journal.aclose()
    return Asked(
        requests=requests,
        run_id=row.run_id,
        attempts_recorded=fact.attempts,
        events=host.events,
        retries_counted=metrics.retries,
        retry_count=executor.metrics.retry_count,
    )


@pytest.mark.parametrize("name", CASES)
def test_requests_and_every_count_of_attempts_follow_one_policy(
    name: str, here: Path, cli: Cli
) -> None:
    """Recipe, step and `RetryConfig` decide; journal, events, metrics, `sessions show` and the page
    of the run say the same number (A-32, A-49, A-156).
    """
    case = CASES[name]
    done = asyncio.run(asked(case, recipe_with(case.recipe, case.step), here / "j.sqlite"))
    assert done.requests == case.requests
    shown = cli("sessions", "show", done.run_id, "--db", "j.sqlite").out
    steps = cli("sessions", "show", done.run_id, "--db", "j.sqlite", "--json").json["steps"]
    assert cli("sessions", "export", done.run_id, "--db", "j.sqlite", "--html", "r.html").code == 0
    made, words = done.requests, f"{done.requests} attempts"
    (ended,) = [event for event in done.events if isinstance(event, StepFinished)]
    assert {
        "journal": done.attempts_recorded,
        "event": ended.attempts,
        "failed": [each.attempt for each in done.events if isinstance(each, AttemptFailed)],
        "json": [each["facts"]["attempts"] for each in cast("list[Any]", steps)],
        "shown": words in shown,
        "page": words in (here / "r.html").read_text("utf-8"),
        "metrics": done.retries_counted,
        "retry_count": done.retry_count,
    } == {
        "journal": made,
        "event": made,
        "failed": list(range(1, made)),
        "json": [made],
        "shown": made > 1,
        "page": made > 1,
        "metrics": ["model"] * (made - 1),
        "retry_count": made - 1,
    }


TWO, FOUR = cast("Document", {"max_attempts": 2}), cast("Document", {"max_attempts": 4})
AT_ONCE, ONE = cast("Document", {"initial_delay": 0}), cast("Document", {"max_attempts": 1})
NESTED: Final[dict[str, tuple[Document, Document, Document, int]]] = {
    "the executor": ({}, {}, {}, 5),
    "the outer recipe": (TWO, {}, {}, 2),
    "the step around it": (TWO, FOUR, {}, 4),
    "the inner recipe": (TWO, FOUR, ONE, 1),
    "the outer recipe, where the inner one says something else": (TWO, {}, AT_ONCE, 2),
    "the step around it, where it says something else": (TWO, AT_ONCE, {}, 2),
}


@pytest.mark.parametrize("name", NESTED)
async def test_a_recipe_within_a_run_retries_as_what_is_around_it(name: str) -> None:
    """... where it states nothing itself; `explain` tells the same bound."""
    outer, around, inner, requests = NESTED[name]
    document: Document = {
        "id": "outer",
        "inputs": {"message": "string"},
        "retry": outer,
        "steps": [{"id": "within", "recipe": "inner", "retry": around}],
    }
    steps: list[JsonValue] = [{"id": "s", "goal": "Go.", "completion": "text"}]
    within: Document = {"id": "inner", "retry": inner, "steps": steps}
    recipe = loaded(document, {"inner": within})
    model, services = AlwaysBusy(), deterministic_services()
    agent = RecipeAgent(recipe=recipe, host=ExecutorHost(executor_of(model, services=services)))
    executor = AgentStepExecutor({"a": agent}, FIVE, services=services)
    await executor.execute_agent_step("a", "Go.", AgentMemory())
    assert (model.asked, executor.metrics.retry_count) == (requests, requests - 1)
    if outer:
        assert explain(recipe, {}).attempts_per_model_call == requests


class AlwaysBusy(ChatModel):
    """Refuses every request; the request of that number, from 1, waits for ever."""

    def __init__(self, waits_at: int | None = None) -> None:
        self.asked = 0
        self.waits = asyncio.Event()
        self._waits_at = waits_at

    @property
    def name(self) -> str:
        return "fake/busy"

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        self.asked += 1
        if self.asked == self._waits_at:
            self.waits.set()
            await asyncio.Event().wait()
        return Failure(ModelFailure(code="rate-limited", message="429", is_retryable=True))


async def stopped(
    model: AlwaysBusy, wait: Awaitable[object], services: Services
) -> tuple[int, int | None]:
    """How many retries and attempts are told of a step that is cancelled once `wait` is over."""
    host = ExecutorHost(executor_of(model, services=services))
    agent = RecipeAgent(recipe=recipe_with("max_attempts: 9"), host=host)
    executor = AgentStepExecutor({"a": agent}, services=services)
    task = asyncio.ensure_future(executor.execute_agent_step("a", "Go.", AgentMemory()))
    await wait
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (row,) = await services.journal.runs()
    entries = await services.journal.entries(row.session_id, run_id=row.run_id)
    (fact,) = [each.fact for each in entries if isinstance(each.fact, ModelCallFact)]
    return executor.metrics.retry_count, fact.attempts


async def test_a_step_that_is_cancelled_in_an_attempt_counts_it() -> None:
    """A-49."""
    model = AlwaysBusy(waits_at=3)
    assert await stopped(model, model.waits.wait(), deterministic_services()) == (2, 3)


async def test_a_step_that_is_cancelled_between_two_attempts_counts_the_first_alone() -> None:
    """A-33."""
    sleeps = asyncio.Event()

    async def sleep(seconds: float) -> None:
        sleeps.set()
        await asyncio.Event().wait()

    services = evolve(deterministic_services(), sleep=sleep)
    model = AlwaysBusy()
    assert await stopped(model, sleeps.wait(), services) == (0, 1)
    assert model.asked == 1


async def test_an_attempt_that_the_budget_kept_from_being_sent_is_none() -> None:
    """A-32: the call failed in two attempts and not in three."""
    costly = ModelFailure(
        code="rate-limited", message="429", is_retryable=True, usage=TokenUsage(input_tokens=60)
    )
    recipe = recipe_of([text_step()], limits={"max_tokens": 100})
    result = await executor_of(ScriptedModel([costly, costly, "late"])).execute(recipe)
    (call,) = result.executions[0].model_calls
    assert call.attempts == 2


async def test_retries_of_tools_count_as_those_of_models_do() -> None:
    """A-49."""
    services = deterministic_services()
    model = ScriptedModel([tool_request("look"), "done"])
    host = ExecutorHost(executor_of(model, tools=[flaky_tool(failures=2)], services=services))
    recipe = recipe_of([text_step(tools=["look"])])
    executor = AgentStepExecutor({"a": RecipeAgent(recipe=recipe, host=host)}, services=services)
    await executor.execute_agent_step("a", "Go.", AgentMemory())
    assert executor.metrics.retry_count == 2


async def test_a_tool_call_that_was_cut_off_tells_its_attempts() -> None:
    """... and one that was never made tells none."""
    services, begun = deterministic_services(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    executor = executor_of(
        ScriptedModel([tool_request("look")]),
        tools=[fake_tool("look", lambda _: hang())],
        services=services,
    )
    run = executor.prepare(recipe_of([text_step(tools=["look"])]))
    task = asyncio.ensure_future(run.execute())
    await begun.wait()
    run.cancel()
    await task
    entries = await services.journal.entries(run.session_id, run_id=run.run_id)
    (fact,) = [each.fact for each in entries if isinstance(each.fact, ToolCallInterrupted)]
    assert fact.attempts == 1


async def test_a_call_that_was_not_made_has_no_attempts() -> None:
    """One more than the step may make; the result says what the journal does."""
    services = deterministic_services()
    twice = (tool_request("look"), tool_request("look", {"n": 2}))
    model = ScriptedModel([answer_of(tool_calls=twice), "x"])
    executor = executor_of(model, tools=[fake_tool()], services=services)
    step = text_step(tools=["look"], limits={"max_tool_calls_per_step": 1})
    result = await executor.execute(recipe_of([step]))
    entries = await services.journal.entries(result.session_id, run_id=result.run_id)
    facts = [each.fact for each in entries if isinstance(each.fact, ToolCallOutcome)]
    assert [call.attempts for call in result.executions[0].tool_calls] == [1, 0]
    assert sorted(fact.attempts for fact in facts if fact.attempts is not None) == [0, 1]


class Admitted(Admission):
    """Counts an outcome, or lets the call be made again as no attempt."""

    waited_s = 0.0

    def __init__(self, again_s: float | None) -> None:
        self._again_s = again_s

    def end(self, outcome: ModelCallResponse | ModelFailure | None) -> float | None:
        return self._again_s


@mutable
class ScriptedFlow(FlowControl):
    """For each request: refused before it is sent, sent, or sent and made again as no attempt."""

    script: list[str]

    async def admit(self, ask: CallAsk) -> Result[Admission, ModelFailure]:
        what = self.script.pop(0)
        if what == "refuse":
            return Failure(ModelFailure(code="queue-full", message="full", is_retryable=True))
        return Success(Admitted(0.0 if what == "excuse" else None))


@pytest.mark.parametrize(
    ("script", "attempts"),
    [
        (["refuse", "send"], 1),
        (["refuse", "refuse", "refuse"], 0),
        (["send", "refuse", "send"], 2),
        (["excuse", "excuse", "send"], 1),
        (["send", "excuse", "excuse", "send"], 2),
    ],
)
async def test_what_is_not_sent_or_made_again_as_no_attempt_is_none(
    script: list[str], attempts: int
) -> None:
    """Flow control refuses a request, or says that its failure does not count (A-156)."""
    metrics, refused = Counted(), [busy()] * (len(script) - script.count("refuse") - 1)
    services = evolve(deterministic_services(), metrics=metrics, flow=ScriptedFlow(list(script)))
    events: list[RunEvent] = []
    async with ChatEndpoint(*refused, answer("hi")) as server:
        model = OpenAIModel("tiny", base_url=server.base_url)
        run = executor_of(model, services=services).prepare(recipe_with(""), {"message": "Hello."})
        run.listen(events.append)
        result = await run.execute()
        await model.aclose()
    (call,) = result.executions[0].model_calls
    failed = [each.attempt for each in events if isinstance(each, AttemptFailed)]
    retries = max(0, attempts - 1)
    assert (call.attempts, failed) == (attempts, list(range(1, retries + 1)))
    assert metrics.retries == ["model"] * retries
