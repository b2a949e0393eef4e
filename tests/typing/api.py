"""An application's view of the library: what it subclasses and what types it gets back.

Checked by mypy strict; run by `test_api`. Imports from the public names only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, assert_type

from attrs import field, frozen
from returns.result import Failure, Result, Success

import minions
from minions import (
    AgentExecutor,
    AgentRecipe,
    AgentResult,
    ChatAgent,
    ChatModel,
    Completion,
    CompletionCriteria,
    CompletionLink,
    CompletionMode,
    DefaultStep,
    Message,
    MessageBundle,
    ModelCallResponse,
    ModelFailure,
    OutputInstructions,
    Prompt,
    PythonStep,
    RunContext,
    RunEvent,
    Services,
    Step,
    StepExecution,
    StepRepository,
    StepRunner,
    StepScope,
    Tool,
    ToolError,
    ToolScope,
    ToolSpec,
)
from minions.decisions import ApprovalRequest, Decider, Verdict
from minions.events import RunStream, StepCompleted, StepDeltaEvent
from minions.guide import (
    Agent,
    AgentContext,
    AgentMemory,
    AgentRegistry,
    AgentRun,
    AgentStepError,
    AgentStepExecutor,
    ConversationMemory,
    DefaultStepCompletionChain,
    DefaultStepGraph,
    DeltaSink,
    ExecutionStep,
    JoinPolicy,
    ModelCall,
    ModelCallExecutor,
    ModelCallExecutors,
    RunScope,
    StepCompletionChain,
    StepExecutor,
    StepManager,
    StepResult,
    StepType,
    ToolCall,
    ToolCallExecutor,
    ToolCallResponse,
    ToolFailure,
    tool_call_executors,
)
from minions.mcp import Grant, McpSettings, lock_servers
from minions.models import AnthropicModel, GeminiModel, ResponsesModel, image_of
from minions.recipes import JsonValue
from minions.services import RollbackReport
from minions.sessions import AgentHooks, SessionStep, fork_session, retry_from_sequence
from minions.testing.virtual_time import FakeClock

# --- values ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class Report:
    """What the application wants to have."""

    title: str
    pages: int


# --- output instructions -----------------------------------------------------------------------


@frozen(kw_only=True)
class ShortReport(OutputInstructions[Report]):
    """Own schema, own refusal."""

    most_pages: int = 10
    output_class: type[Report] = Report

    def convert(self, value: JsonValue) -> Report:
        report = super().convert(value)
        if report.pages > self.most_pages:
            raise ValueError(f"at most {self.most_pages} pages, not {report.pages}")
        return report


# --- steps -------------------------------------------------------------------------------------


@frozen
class PhraseLink(CompletionLink):
    """Complete once the model has said `phrase`."""

    phrase: str

    def check(self, execution: StepExecution) -> Completion:
        if self.phrase in (execution.last_text or ""):
            return Completion.complete("the phrase was said", evidence=self.phrase)
        return Completion.UNDECIDED


@frozen
class WriteReport(Step[Report]):
    """A model step with everything overridden that can be."""

    subject: str

    @property
    def id(self) -> str:
        return "write"

    @property
    def available_tools(self) -> frozenset[str]:
        return frozenset({"lookup"})

    @property
    def metadata(self) -> Mapping[str, object]:
        return {"max_model_calls_per_step": 5, "owner": "press"}

    @property
    def completion_criteria(self) -> CompletionCriteria:
        return CompletionCriteria(mode=CompletionMode.STRUCTURED)

    @property
    def completion_chain(self) -> StepCompletionChain:
        return DefaultStepCompletionChain().prepend(PhraseLink("over and out"))

    @property
    def output(self) -> OutputInstructions[Report]:
        return ShortReport()

    def messages(self, view: RunContext) -> Sequence[Message]:
        return [Message(role="user", content=f"Report on {self.subject} for {view.run_id[:4]}.")]


class CountPages(PythonStep[int]):
    """Code: asks a model, calls a tool."""

    @property
    def id(self) -> str:
        return "count"

    async def run(self, scope: StepScope) -> int:
        report = await scope.ask_model("Report.", OutputInstructions(output_class=Report))
        assert_type(report, Report)
        assert_type(await scope.call_model("Anything else?"), str)
        assert_type(await scope.call_tool("lookup", {"word": report.title}), JsonValue)
        return report.pages


# --- models, tools, executors --------------------------------------------------------------------


class EchoModel(ChatModel):
    """Says back what it was told last."""

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        if not prompt.messages:
            return Failure(ModelFailure(code="empty-prompt", message="Nothing was said."))
        text = prompt.messages[-1].content or ""
        return Success(
            ModelCallResponse(message=Message(role="assistant", content=f"status: done. {text}"))
        )


class Lookup(Tool):
    """A tool without the decorator."""

    @property
    def spec(self) -> ToolSpec:
        word: JsonValue = {"type": "string"}
        return ToolSpec(
            name="lookup",
            parameters={"type": "object", "properties": {"word": word}, "required": ["word"]},
        )

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        if arguments["word"] == "":
            raise ToolError("Give a word.")
        return {"word": arguments["word"], "step": scope.step_id}


@frozen
class CannedModelCalls(ModelCallExecutor):
    """Model calls without a model."""

    text: str

    async def execute(
        self, call: ModelCall, context: RunContext
    ) -> Result[ModelCallResponse, ModelFailure]:
        return Success(
            ModelCallResponse(
                message=Message(role="assistant", content=f"{self.text} {call.phase}")
            )
        )


@frozen
class CannedToolCalls(ToolCallExecutor):
    """Tool calls without a tool."""

    known: frozenset[str] = field(default=frozenset({"lookup"}))

    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        if call.name not in self.known:
            return Failure(ToolFailure(code="unknown-tool", message=f"no {call.name}"))
        return Success(ToolCallResponse(content="canned", value="canned"))


def canned_model_calls(_call: ModelCall, _context: RunContext) -> ModelCallExecutor:
    """A `ModelCallExecutorFactory`."""
    return CannedModelCalls("status: done")


def canned_tool_calls(_call: ToolCall, _context: RunContext) -> ToolCallExecutor:
    """A `ToolCallExecutorFactory`."""
    return CannedToolCalls()


# --- running -------------------------------------------------------------------------------------


class Cautious(Decider):
    """Consents to one tool alone."""

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return Verdict.APPROVED if request.tool == "look" else Verdict.LATER


def deciding_services() -> Services:
    return Services(decider=Cautious())


def services() -> Services:
    """With a clock that stands still."""
    clock = FakeClock()
    return Services(clock=clock, sleep=clock.sleep)


def run_typed(recipe: AgentRecipe, model: ChatModel) -> Report:
    """The synchronous door: the type asked for is the type given."""
    result = minions.run(
        recipe, output_class=Report, model=model, tools=[Lookup()], services=services()
    )
    assert_type(result, AgentResult[Report])
    assert_type(result.output, Report | None)
    assert_type(result.unwrap(), Report)
    return result.unwrap()


def run_untyped(recipe: AgentRecipe, model: ChatModel) -> JsonValue:
    """Without a type the output is JSON."""
    result = minions.run(recipe, {}, model=model)
    assert_type(result, AgentResult[JsonValue])
    return result.unwrap()


@frozen
class Wanted:
    """Inputs as the fields of a class."""

    title: str


@dataclass
class WantedFields:
    """Inputs as the fields of a dataclass."""

    title: str


class WantedKeys(TypedDict):
    """Inputs as a mapping of known keys."""

    title: str


async def inputs_of_classes(app: minions.Minions, recipe: AgentRecipe) -> Report:
    """Each way to run takes them, and gives the class that is asked for."""
    keys: WantedKeys = {"title": "T"}
    assert_type(minions.run(recipe, Wanted("T")), AgentResult[JsonValue])
    assert_type(await app.arun(recipe, keys), AgentResult[JsonValue])
    assert_type(minions.run(recipe, WantedFields("T")), AgentResult[JsonValue])
    stream = app.astream(recipe, Wanted("T"), output_class=Report)
    assert_type(stream, RunStream[Report])
    assert_type(app.prepare(recipe, keys, output_class=Report), AgentRun[Report])
    await app.arun(recipe, "T")  # type: ignore[arg-type]  # a text has no names
    return (await stream).unwrap()


async def refused_options(app: minions.Minions, recipe: AgentRecipe) -> None:
    """What is misspelled, or of another type, is refused by every way to run."""
    minions.run(recipe, modle="openai/x")  # type: ignore[call-overload]  # as it is meant
    minions.run(recipe, user=1)  # type: ignore[call-overload]  # as it is meant
    await minions.arun(recipe, session="s")  # type: ignore[call-arg]  # of `Minions.arun`
    minions.astream(recipe, output_class=Report, notes={})  # type: ignore[call-arg]  # likewise
    await app.arun(recipe, sesion="s")  # type: ignore[call-arg]  # likewise
    app.astream(recipe, tools=[Lookup()])  # type: ignore[call-arg]  # of `Minions`
    app.prepare(recipe, note=1)  # type: ignore[arg-type]  # likewise
    await app.resume("run_1", decision={})  # type: ignore[call-arg]  # likewise
    await app.retry("run_1", from_steps="a")  # type: ignore[call-arg]  # likewise
    await app.decide("run_1", "key", "approve", why="x")  # type: ignore[call-arg]  # likewise


def application_with_servers() -> minions.Minions:
    """MCP servers of a program; nothing is started."""
    servers = {"docs": McpSettings(url="https://docs.example.com/mcp", oauth=Grant.BROWSER)}
    return minions.Minions(mcp_servers=servers, mcp_lock="mcp.lock.json")


async def changes_of_servers(lock: Path) -> Mapping[str, Mapping[str, str]]:
    """What changed since somebody looked at the program's servers."""
    found = await lock_servers({}, lock, is_check=True)
    assert_type(found, Mapping[str, Mapping[str, str]])
    return found


async def execute_typed(recipe: AgentRecipe, model: ChatModel) -> Report:
    """The asynchronous door."""
    executor = AgentExecutor(model)
    assert_type(await executor.execute(recipe), AgentResult[JsonValue])
    result = await executor.execute(recipe, output_class=Report)
    assert_type(result, AgentResult[Report])
    return result.unwrap()


def context_of(step: Step) -> AgentContext:
    """One step, one run, by hand."""
    recipe = AgentRecipe(id="one", steps=[step])
    manager = StepManager(DefaultStepGraph([step]))
    scope = RunScope.of_run(recipe, services())
    return AgentContext(Agent(recipe), manager, ConversationMemory(), scope=scope)


async def execute_step(model: ChatModel) -> StepExecution[Report]:
    """A step's type is its execution's."""
    step = WriteReport("tides")
    executor = StepExecutor(
        step, context_of(step), ModelCallExecutors(model), tool_call_executors()
    )
    execution = await executor.execute()
    assert_type(execution, StepExecution[Report])
    assert_type(execution.output, Report | None)
    return execution


def execute_python_step(model: ChatModel) -> int | None:
    """`minions.run` waits for any coroutine of the library and keeps its type."""
    step = CountPages()
    executor = StepExecutor(step, context_of(step), ModelCallExecutors(model), canned_tool_calls)
    execution = minions.run(executor.execute())
    assert_type(execution, StepExecution[int])
    return execution.output


def execute_default_step() -> StepExecution:
    """From parts; a declared output gives the type, none gives `object`."""
    plain = DefaultStep(id="plain", messages=MessageBundle.of(system="Be brief.", goal="Go."))
    assert_type(plain, DefaultStep[object])
    typed = DefaultStep(id="typed", output=OutputInstructions(output_class=Report))
    assert_type(typed, DefaultStep[Report])
    plain.metadata.get("max_model_calls_per_step")
    context = context_of(plain)
    context.metadata["maxModelCallsPerStep"] = 5
    return minions.run(
        StepExecutor(plain, context, canned_model_calls, canned_tool_calls).execute()
    )


async def talk(model: ChatModel, hooks: AgentHooks) -> list[SessionStep]:
    """A conversation: events narrow by their class, steps are values."""
    repository = StepRepository(services())
    runner = StepRunner(ChatAgent(model=model), hooks, repository=repository)
    text = ""
    async for event in runner.run_stream("diary", "Hi"):
        assert_type(event, RunEvent)
        if isinstance(event, StepDeltaEvent):
            text += event.delta.content or ""
        elif isinstance(event, StepCompleted):
            assert_type(event.snapshot, SessionStep)
            assert_type(event.snapshot.metrics.duration_ms, float | None)
    branch = await fork_session("diary", 1, repository)
    async for event in retry_from_sequence(branch, 1, repository, runner):
        assert_type(event, RunEvent)
    return await repository.get_steps(branch, start_seq=1)


# --- the front door for applications ---------------------------------------------------------


@minions.step
async def count_words(text: str) -> int:
    """A function is a step of its return type."""
    return len(text.split())


@minions.step(version="2")
async def judge(count_words: int) -> Report:
    """Write a report about {{ count_words }} words."""
    raise NotImplementedError


async def use_application(recipe: AgentRecipe, model: ChatModel) -> Report:
    """A-129: a kept object; the type asked for is the type given, by every way to run."""
    assert_type(await minions.arun(recipe, model=model), AgentResult[JsonValue])
    assert_type(await minions.arun(recipe, model=model, output_class=Report), AgentResult[Report])
    async with minions.Minions(model=model, tools=[Lookup()]) as app:
        run = app.prepare(recipe, output_class=Report)
        assert_type(await app.execute(run), AgentResult[Report])
        assert_type(await run.execute(), AgentResult[Report])
        stream = app.astream(recipe, output_class=Report)
        async for event in stream:
            assert_type(event, RunEvent)
        assert_type(stream.result, AgentResult[Report])
        assert_type(await app.decide("run_1", "key", "approve"), AgentResult[JsonValue])
        decided = app.decide("run_1", "key", Verdict.APPROVED, reason="fits", output_class=Report)
        assert_type(await decided, AgentResult[Report])
        assert_type(await app.resume("run_1", output_class=Report), AgentResult[Report])
        assert_type(await app.retry("run_1", output_class=Report), AgentResult[Report])
        assert_type(await app.rollback("run_1", dry_run=True), RollbackReport)
    return stream.result.unwrap()


async def use_function_steps() -> int:
    """A-130: typed as steps, and still called like functions."""
    steps: list[Step[object]] = [count_words, judge]
    assert_type(count_words.named("again").id, str)
    assert_type(judge.output, OutputInstructions[Report] | None)
    assert len(steps) == 2
    return await count_words("three small words")


# --- agents by name --------------------------------------------------------------------------


class CautiousExecutor(AgentStepExecutor):
    """Refuses some requests, and answers for an agent that fails."""

    def _contains_injection(self, request: object) -> bool:
        return "ignore all rules" in str(request).lower()

    def _extract_response(self, agent_result: Mapping[str, object]) -> StepResult:
        """An override knows what its agents return."""
        return super()._extract_response(agent_result)

    async def execute_agent_step(
        self,
        agent_name: str,
        request: object,
        memory: AgentMemory,
        metadata: Mapping[str, object] | None = None,
    ) -> StepResult:
        """A-101: a failure of `super()` is an exception here."""
        try:
            return await super().execute_agent_step(agent_name, request, memory, metadata)
        except AgentStepError as error:
            return {"content": "Nobody knows.", "why": error.result["error_type"]}


async def double(request: int, memory: AgentMemory) -> dict[str, int]:
    """A function is an agent."""
    return {"doubled": 2 * request, "messages": len(memory)}


async def use_agents(recipe: AgentRecipe, model: ChatModel) -> list[str]:
    """Recipes, chats and functions answer by name."""
    async with minions.Minions(model=model) as app:
        registry = AgentRegistry(app, {"recipe": recipe, "double": double})
        registry.register("chat", ChatAgent(model=model))
        executor = CautiousExecutor(registry, timeout=5)
        executor.register_tool("lookup", Lookup())
        memory = AgentMemory([{"role": "user", "content": "Hi."}])
        steps = [
            ExecutionStep(step_type=StepType.AGENT, agent_name=name, request=21)
            for name in ("double", "chat", "nobody")
        ]
        results = await executor.execute_parallel_steps(
            steps, memory, {"branch_id": "b"}, join=JoinPolicy.of("all")
        )
        assert_type(results[0], StepResult)
        memory.commit(results[1])
        assert_type(executor.metrics.retry_count, int)
    return [str(result.get("doubled", result.get("content"))) for result in results]


def models_in_their_own_forms(picture: bytes) -> Sequence[ChatModel]:
    """A model of each provider, and a message with an image."""
    message = Message(role="user", content="What is it?", attachments=(image_of(picture),))
    assert message.reasoning is None
    return (
        AnthropicModel("claude-sonnet-4-5", api_key="key", max_requests=8),
        ResponsesModel("gpt-5", headers={"X-Team": "a"}),
        GeminiModel("gemini-2.5-flash", base_url="http://127.0.0.1:8080/v1beta"),
    )
