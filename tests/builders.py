"""Small builders with defaults: steps, tools, models, services and whole runs for tests."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import cast

from attrs import field, frozen

from minions.adapters.models.script_items import Answer, AnswerFunction
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.body_cipher import BodyCipher, JournalKey
from minions.adapters.tools.file_restorer import LocalFileRestorer
from minions.contracts.calls import ChatModel, ModelCallResponse, ModelCapabilities
from minions.contracts.completion import CompletionCriteria, StepCompletionChain
from minions.contracts.executions import AgentResult, StepExecution
from minions.contracts.instructions import OutputInstructions, OutputMode, OutputRequest
from minions.contracts.journal.facts import Fact, UnreadableFact
from minions.contracts.journal.journal import EntryDraft, Journal, JournalEntry, Lease
from minions.contracts.messages import (
    Message,
    MessageBundle,
    TokenUsage,
    ToolCallRequest,
    assistant,
    is_border_words,
)
from minions.contracts.retry_config import RetryConfig
from minions.contracts.steps import DefaultStep, PythonStep, Step, StepScope
from minions.contracts.tools import Effect, Tool, Toolbox, ToolScope, ToolSpec
from minions.data.codec import encode
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator
from minions.engine.compile.extensions import Extensions
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.memory import ConversationMemory
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services, TextOutputParser
from minions.recipe.model import AgentRecipe, StepSpec
from minions.testing.journal_suite import row_fact
from minions.testing.virtual_time import FakeClock, counting_ids

# --- what is handed in -----------------------------------------------------------------------


def deterministic_services(
    journal: Journal | None = None, clock: FakeClock | None = None, seed: int = 1
) -> Services:
    """A clock that moves only by sleeping, a seeded random, ids that count, and files."""
    clock = clock or FakeClock()
    return Services(
        clock=clock,
        sleep=clock.sleep,
        random=random.Random(seed).random,
        ids=counting_ids(),
        journal=journal or MemoryJournal(clock),
        worker_id="worker",
        parser=ConstrainingParser(),
        file_restorer=LocalFileRestorer(),
        border_secret=lambda: b"of the tests",
    )


class ConstrainingParser(TextOutputParser):
    """Puts the schema's mode into the request, as a provider's parser does."""

    def request(  # type: ignore[override]  # the free-text parser constrains nothing
        self, instructions: OutputInstructions[object], mode: OutputMode
    ) -> OutputRequest:
        return OutputRequest(mode=mode)


class FailingJournal(MemoryJournal):
    """Refuses every fact from the n-th on, counted from 1."""

    def __init__(self, fails_from: int, clock: FakeClock | None = None) -> None:
        super().__init__(clock or FakeClock())
        self._fails_from = fails_from
        self._appended = 0

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        self._appended += 1
        if self._appended >= self._fails_from:
            raise JournalError(f"no room for fact {self._appended}")
        return await super().append(lease, draft)


# --- steps -----------------------------------------------------------------------------------


def signal_step(
    step_id: str = "work",
    *,
    tools: Iterable[str] = (),
    messages: MessageBundle | None = None,
    chain: StepCompletionChain | None = None,
    output: OutputInstructions[object] | None = None,
    decision_tool: ToolCallRequest | None = None,
    optional: bool = False,
    tool_failure: str = "fail",
    mode: str = "signal",
    patterns: Iterable[str] = (),
    limits: Mapping[str, object] | None = None,
) -> DefaultStep[object]:
    """The library's default: it loops until a link of the chain decides."""
    return DefaultStep(
        id=step_id,
        messages=MessageBundle.of(goal=f"Goal of {step_id}.") if messages is None else messages,
        available_tools=frozenset(tools),
        completion_criteria=CompletionCriteria(mode=mode, patterns=patterns),
        completion_chain=chain,
        output=output,
        decision_tool=decision_tool,
        is_optional=optional,
        tool_failure=tool_failure,
        metadata=limits or {},
    )


def text_step(
    step_id: str = "work",
    *,
    tools: Iterable[str] = (),
    messages: MessageBundle | None = None,
    chain: StepCompletionChain | None = None,
    output: OutputInstructions[object] | None = None,
    decision_tool: ToolCallRequest | None = None,
    optional: bool = False,
    tool_failure: str = "fail",
    limits: Mapping[str, object] | None = None,
) -> DefaultStep[object]:
    """Complete with the first answer that calls no tool; structured where output is declared."""
    return signal_step(
        step_id,
        tools=tools,
        messages=messages,
        chain=chain,
        output=output,
        decision_tool=decision_tool,
        optional=optional,
        tool_failure=tool_failure,
        mode="structured" if output is not None else "text",
        limits=limits,
    )


@frozen
class _FunctionStep(PythonStep[object]):
    function: Callable[[StepScope], Awaitable[object]]
    id: str
    is_optional: bool
    metadata: Mapping[str, object]

    async def run(self, scope: StepScope) -> object:
        return await self.function(scope)


def python_step(
    function: Callable[[StepScope], Awaitable[object]],
    step_id: str = "code",
    *,
    optional: bool = False,
    limits: Mapping[str, object] | None = None,
) -> PythonStep[object]:
    """A step whose work is `function`."""
    return _FunctionStep(function, step_id, optional, limits or {})


# --- tools -----------------------------------------------------------------------------------


@frozen(eq=False)
class FakeTool(Tool):
    """Does what `work` says and remembers what it was asked."""

    spec: ToolSpec
    work: Callable[[Mapping[str, JsonValue]], object]
    asked: list[Mapping[str, JsonValue]] = field(factory=list)
    scopes: list[ToolScope] = field(factory=list)

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        self.asked.append(arguments)
        self.scopes.append(scope)
        result = self.work(arguments)
        return await result if isinstance(result, Awaitable) else result


def fake_tool(
    name: str = "look",
    work: Callable[[Mapping[str, JsonValue]], object] | None = None,
    *,
    effect: Effect = Effect.UNDECLARED,
    parameters: Mapping[str, JsonValue] | None = None,
    returns: Mapping[str, JsonValue] | None = None,
    timeout_s: float | None = None,
) -> FakeTool:
    """A tool that gives `seen`, or what `work` gives (awaited where it can be)."""
    spec = ToolSpec(
        name=name,
        effect=effect,
        parameters=parameters or {"type": "object"},
        returns=returns,
        timeout_s=timeout_s,
    )
    return FakeTool(spec, work or (lambda arguments: "seen"))


async def result_of(tool: Tool, arguments: Mapping[str, JsonValue], scope: ToolScope) -> JsonValue:
    """What the tool gives, as JSON, which fits what it declares to return."""
    result = encode(await tool.invoke(arguments, scope))
    if tool.spec.returns is not None:
        assert SchemaValidator(tool.spec.returns).errors(result) == ()
    return result


def flaky_tool(
    name: str = "look",
    *,
    failures: int,
    error: BaseException | None = None,
    result: object = "seen",
    effect: Effect = Effect.UNDECLARED,
) -> FakeTool:
    """Raises `failures` times, then gives `result`."""
    left = itertools.count(failures, -1)

    def work(arguments: Mapping[str, JsonValue]) -> object:
        if next(left) > 0:
            raise error or RuntimeError("not now")
        return result

    return fake_tool(name, work, effect=effect)


# --- models ----------------------------------------------------------------------------------


class ConstrainedModel(ScriptedModel):
    """A scripted model whose server takes a schema."""

    def __init__(
        self,
        answers: Iterable[Answer] | AnswerFunction,
        *,
        output_mode: OutputMode = OutputMode.JSON_SCHEMA,
        tools_with_schema: bool = False,
    ) -> None:
        super().__init__(answers)
        self._capabilities = ModelCapabilities(
            output_mode=output_mode, tools_with_schema=tools_with_schema
        )

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._capabilities


def answer_of(
    text: str | None = None,
    *,
    tool_calls: Iterable[ToolCallRequest] = (),
    input_tokens: int = 10,
    output_tokens: int = 5,
) -> ModelCallResponse:
    """An answer with a known number of tokens."""
    usage = TokenUsage(input_tokens=input_tokens, output_tokens=output_tokens)
    return ModelCallResponse(message=assistant(text, tool_calls=tool_calls), usage=usage)


# --- runs --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Ran:
    """A run from the outside."""

    result: AgentResult[object]
    model: ChatModel
    entries: Sequence[JournalEntry]
    context: AgentContext

    @property
    def only(self) -> StepExecution[object]:
        """The execution of a run of one step."""
        (execution,) = self.result.executions
        return execution

    @property
    def ids(self) -> list[str]:
        """Of the steps, in the order of the result."""
        return [execution.step_id for execution in self.result.executions]

    @property
    def statuses(self) -> dict[str, str]:
        """Of each step."""
        return {each.step_id: each.status.value for each in self.result.executions}

    @property
    def prompts(self) -> list[tuple[Message, ...]]:
        """The messages of every model call."""
        assert isinstance(self.model, ScriptedModel)
        return [prompt.messages for prompt in self.model.prompts]

    @property
    def offered(self) -> list[list[str]]:
        """The tools in the request of every model call."""
        assert isinstance(self.model, ScriptedModel)
        return [[tool.name for tool in prompt.tools] for prompt in self.model.prompts]

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """Kind, key and state of each entry."""
        return [(entry.kind, entry.key, entry.state) for entry in self.entries]

    def conversation(self, key: str) -> list[Message]:
        """The messages of `step/visit/0` as memory holds them at the end."""
        memory = self.context.memory
        return list(memory.prompt_messages(f"{self.context.run_id}/{key}"))


def recipe_of(
    steps: Sequence[StepSpec | Step[object]],
    *,
    limits: Mapping[str, JsonValue] | None = None,
    retry: RetryConfig | None = None,
    **fields: object,
) -> AgentRecipe:
    """A recipe called `recipe`; `fields` are the recipe's own."""
    return AgentRecipe(
        id="recipe",
        steps=tuple(steps),
        limits=limits or {},
        retry=retry or RetryConfig(),
        **fields,  # type: ignore[arg-type]  # each test names fields that exist
    )


def executor_of(
    model: ChatModel,
    *,
    tools: Iterable[Tool] = (),
    services: Services | None = None,
    recipes: Mapping[str, AgentRecipe] | None = None,
) -> AgentExecutor:
    """An executor with one model for all steps."""
    return AgentExecutor(
        model,
        extensions=Extensions(tools=Toolbox(tuple(tools)), recipes=recipes or {}),
        services=services or deterministic_services(),
    )


async def run_of(
    recipe: AgentRecipe,
    answers: Iterable[Answer] | AnswerFunction | ChatModel = (),
    *,
    tools: Iterable[Tool] = (),
    services: Services | None = None,
    inputs: Mapping[str, JsonValue] | None = None,
    output_class: type[object] | None = None,
) -> Ran:
    """Run to the end, with everything that can be looked at afterwards."""
    services = services or deterministic_services()
    model = answers if isinstance(answers, ChatModel) else ScriptedModel(answers)
    executor = executor_of(model, tools=tools, services=services)
    run = executor.prepare(recipe, inputs, output_class=output_class)
    result = await run.execute()
    entries = await services.journal.entries(run.session_id)
    return Ran(result=result, model=model, entries=entries, context=run.context)


async def run_recipe(
    steps: Sequence[StepSpec | Step[object]] | Step[object],
    answers: Iterable[Answer] | AnswerFunction | ChatModel = (),
    *,
    tools: Iterable[Tool] = (),
    services: Services | None = None,
    retry: RetryConfig | None = None,
    **limits: JsonValue,
) -> Ran:
    """As `run_of`, for steps under these limits."""
    listed = [steps] if isinstance(steps, Step) else steps
    recipe = recipe_of(listed, limits=limits, retry=retry)
    return await run_of(recipe, answers, tools=tools, services=services)


def entry_of(
    kind: str,
    state: str,
    body: Mapping[str, JsonValue],
    *,
    key: str = "k",
    position: int = 1,
    generation: int = 1,
    damage: str | None = None,
) -> JournalEntry:
    """A row of run `run_1` as a journal gives it back."""
    fact = row_fact(kind, state, body)
    if damage is not None:
        fact = UnreadableFact(kind=kind, state=state, problem=damage)
    return JournalEntry(
        session_id="ses_1",
        position=position,
        run_id="run_1",
        generation=generation,
        key=key,
        fact=fact,
        epoch=1,
        at=FakeClock().now(),
    )


def draft_of(
    kind: str, state: str, body: Mapping[str, JsonValue] | None = None, *, key: str = "k"
) -> EntryDraft:
    """Likewise, before it is stored; a body that is no fact is stored as it is."""
    return EntryDraft(key=key, fact=cast("Fact", row_fact(kind, state, body or {})))


def live_conversations(context: AgentContext) -> Mapping[str, tuple[Message, ...]]:
    """Every conversation that is not empty."""
    memory = context.memory
    assert isinstance(memory, ConversationMemory)
    return shown_conversations(memory)


def shown_conversations(memory: ConversationMemory) -> Mapping[str, tuple[Message, ...]]:
    """Likewise, of a memory that was folded."""
    ids = memory._conversations
    return {each: found for each in ids if (found := memory.prompt_messages(each))}


def border_in(messages: Iterable[Message]) -> str:
    """The tags around data of which the system text of these messages speaks."""
    text = next(each.content or "" for each in messages if is_border_words(each))
    found = re.search(r"data-\w+", text)
    assert found is not None
    return found[0]


def body_cipher(*key_ids: str) -> BodyCipher:
    """A cipher with these keys; the same id is the same key each time."""
    return BodyCipher(
        [JournalKey(each, hashlib.sha256(each.encode()).digest()) for each in key_ids or ("k1",)]
    )
