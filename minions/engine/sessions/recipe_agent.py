"""A recipe as an agent: a request and a memory become a run, and its result a mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from attrs import evolve, field, frozen

from minions.contracts.agent_errors import StepResult
from minions.contracts.executions import AgentResult, OutputT
from minions.contracts.messages import Message, MessageBundle, user
from minions.contracts.retry_config import RetryConfig
from minions.contracts.secrets import InputValue
from minions.contracts.session_views import SessionStep
from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.context.agent_memory import (
    AgentMemory,
    as_request_text,
    attributed_request,
    settled,
)
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.run_services import Services
from minions.engine.sessions.store import StepRepository
from minions.recipe.model import MESSAGE_INPUT, AgentRecipe

MEMORY_INPUT: Final = "memory"
"""The name of a recipe's input that takes the memory as a list of messages."""
_NOTED: Final = ("branch_id", "step_number", "from_agent")
"""The metadata of a step that its run records."""


class RecipeHost(Protocol):
    """What runs recipes: an application (`Minions`), or an `AgentExecutor` in an `ExecutorHost`."""

    @property
    def services(self) -> Services:
        """The services of its runs."""

    def load(self, recipe: AgentRecipe | str | Path) -> AgentRecipe:
        """The recipe of that path or id; a recipe is itself."""

    def prepare(
        self,
        recipe: AgentRecipe | str | Path,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[OutputT] | None = None,
        session: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[OutputT]:
        """Prepare a run; nothing has begun."""

    async def execute(self, run: AgentRun[OutputT]) -> AgentResult[OutputT]:
        """Execute a run that was prepared here."""


@frozen
class ExecutorHost:
    """An `AgentExecutor` as the host of recipes."""

    executor: AgentExecutor

    @property
    def services(self) -> Services:
        """The services of the executor."""
        return self.executor.services

    def load(self, recipe: AgentRecipe | str | Path) -> AgentRecipe:
        """The recipe of that id, as the executor finds it; a recipe is itself."""
        return self.executor.find(str(recipe) if isinstance(recipe, Path) else recipe)

    def prepare(
        self,
        recipe: AgentRecipe | str | Path,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[OutputT] | None = None,
        session: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[OutputT]:
        """Prepare a run of the executor."""
        found = self.load(recipe)
        return self.executor.prepare(
            found, inputs, output_class=output_class, session_id=session, note=note
        )

    async def execute(self, run: AgentRun[OutputT]) -> AgentResult[OutputT]:
        """Execute the run."""
        return await run.execute()


@frozen(kw_only=True)
class _Turn:
    """The recipe and the inputs of one run."""

    recipe: AgentRecipe
    inputs: Mapping[str, InputValue] = field(factory=dict)


@frozen(kw_only=True)
class RecipeAgent:
    """An agent that runs a recipe: with its journal, permissions, limits and budget.

    A text is the recipe's input `message`, or its only required input, or, for a recipe of `Step`
    objects without inputs, a message of the user. A mapping whose keys are inputs of the recipe
    gives these. The memory is the conversation before the message where a step of the recipe shares
    one; else it is the recipe's input `memory`, or data in front of the message.
    """

    recipe: AgentRecipe | str | Path
    host: RecipeHost
    retry: RetryConfig | None = None
    """How its calls are tried again where the recipe and its steps state nothing; None: as usual.
    """
    on_retries: Callable[[int], None] | None = field(default=None, eq=False)
    """Told of each run, however it ended, how many attempts its calls took beyond the first."""

    async def run_step(
        self,
        request: object,
        memory: AgentMemory | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> StepResult:
        """Run the recipe once.

        Args:
            metadata: Its `branch_id`, `step_number` and `from_agent` are recorded with the run.
        Returns:
            `content` (the output as text), `output`, `usage`, `run_id`, `session_id`, `status` and
            `model`.
        Raises:
            AgentExecutionError: The run did not complete; `error.result` is its result.
            UsageError: The request fits no input of the recipe; nothing was started.
        """
        run = await self._prepared(request, memory or AgentMemory(), metadata or {})
        try:
            result = await self.host.execute(run)
        finally:
            if self.on_retries is not None:
                self.on_retries(run.context.progress.retries)
        return run_result(result)

    def fingerprint(self) -> JsonValue:
        """What the recipe is made of; None: it has `Step` objects, which only code knows.

        Raises:
            NotFoundError, UsageError: It cannot be read.
        """
        document = self.host.load(self.recipe).document
        return encode(document) if document is not None else None

    async def _prepared(
        self, request: object, memory: AgentMemory, metadata: Mapping[str, object]
    ) -> AgentRun[JsonValue]:
        host = self.host
        recipe = host.load(self.recipe)
        if self.retry is not None:
            recipe = evolve(recipe, retry=recipe.retry.over(self.retry))
        before, text = _attributed(request, memory, metadata)
        turn = _turn(recipe, request, text)
        note = {name: _as_note(metadata[name]) for name in _NOTED if metadata.get(name) is not None}
        session = host.services.ids("ses")
        if not before:
            return host.prepare(turn.recipe, turn.inputs, session=session, note=note)
        if MEMORY_INPUT in recipe.inputs:
            shown: JsonValue = [message.to_message_dict() for message in before]
            inputs = {**turn.inputs, MEMORY_INPUT: shown}
            return host.prepare(turn.recipe, inputs, session=session, note=note)
        run = host.prepare(turn.recipe, turn.inputs, session=session, note=note)
        if run.has_conversation:
            await self._store(before, session)
            return run
        turn = _turn(recipe, request, f"{AgentMemory(before).as_text_data()}\n\n{text}")
        return host.prepare(turn.recipe, turn.inputs, session=session, note=note)

    async def _store(self, messages: Sequence[Message], session: str) -> None:
        """Store the messages as the conversation that the run continues."""
        steps = [
            SessionStep(
                session_id=session,
                role=message.role,
                content=message.content,
                tool_calls=message.tool_calls,
                tool_call_id=message.tool_call_id,
                name=message.name,
                reasoning=message.reasoning,
                provider_data=message.provider_data,
                attachments=message.attachments,
            )
            for message in messages
        ]
        await StepRepository(self.host.services).save_steps_batch(steps)


def run_result(result: AgentResult[JsonValue]) -> StepResult:
    """The result of a run as that of an agent step.

    Raises:
        AgentExecutionError: The run did not complete.
    """
    output = result.unwrap()
    return {
        "content": output if isinstance(output, str) else dumps(encode(output)),
        "output": output,
        "usage": result.usage.to_json(),
        "run_id": result.run_id,
        "session_id": result.session_id,
        "status": result.status.value,
        "model": result.model_name,
    }


def _attributed(
    request: object, memory: AgentMemory, metadata: Mapping[str, object]
) -> tuple[Sequence[Message], str]:
    """The messages before the request, and the request as text.

    A request that the memory holds already, as that of its sender, is taken out of it once: the
    sender may have asked the same before.
    """
    before = list(settled(memory.messages))
    sender = metadata.get("from_agent")
    if not sender:
        return before, as_request_text(request)
    message = attributed_request(sender, request)
    if message in before:
        del before[len(before) - 1 - before[::-1].index(message)]
    return before, message.content or ""


def _turn(recipe: AgentRecipe, request: object, text: str) -> _Turn:
    """How the recipe is given the request.

    Raises:
        UsageError: It fits no input of the recipe.
    """
    if isinstance(request, Mapping) and request and set(request) <= set(recipe.inputs):
        return _Turn(recipe=recipe, inputs=request)
    if MESSAGE_INPUT in recipe.inputs:
        return _Turn(recipe=recipe, inputs={MESSAGE_INPUT: text})
    required = [name for name, spec in recipe.inputs.items() if not spec.has_default]
    if len(required) == 1:
        return _Turn(recipe=recipe, inputs={required[0]: text})
    if not required and recipe.document is None:
        messages = MessageBundle((*recipe.messages.messages, user(text)))
        return _Turn(recipe=evolve(recipe, messages=messages))
    raise UsageError(
        f"Recipe '{recipe.id}' takes no request: it has no input 'message', and not exactly one "
        "required input. Declare `inputs: {message: {type: string}}`, or give a mapping of its "
        f"inputs: {', '.join(recipe.inputs) or 'none'}.",
        code="no-request-input",
    )


def _as_note(value: object) -> JsonValue:
    return value if isinstance(value, bool | int | float | str) else str(value)
