"""Turns of a session: ask, resume, retry. Each turn is a run of the session's recipe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

from attrs import field, frozen

from minions.contracts.agent_errors import StepResult
from minions.contracts.calls import ChatModel
from minions.contracts.completion import CompletionCriteria
from minions.contracts.executions import OPEN_STATES, CompletionMode, RunStatus
from minions.contracts.instructions import HistoryWindow
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.messages import MessageBundle
from minions.contracts.run_events import RunCompleted, RunEvent, RunFailed
from minions.contracts.secrets import InputValue
from minions.contracts.session_views import AgentHooks, Session, SessionStep
from minions.contracts.steps import DefaultStep
from minions.contracts.tools import Tool, Toolbox
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions, ModelSource
from minions.engine.context.agent_context import Agent
from minions.engine.context.agent_memory import AgentMemory
from minions.engine.history.conversation import ConversationStart, pending_calls
from minions.engine.history.session_messages import CONVERSATION_KINDS, sequence_of
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.run_services import Services
from minions.engine.sessions.recipe_agent import ExecutorHost, RecipeAgent
from minions.engine.sessions.store import StepRepository
from minions.recipe.expressions.values import MAX_TEXT
from minions.recipe.model import MESSAGE_INPUT, AgentRecipe, InputSpec, Permissions

_RESUMABLE = (
    *OPEN_STATES,
    RunStatus.CANCELLED,
    RunStatus.LIMIT_REACHED,
    RunStatus.NEEDS_DECISION,
)


def _as_tools(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    return tuple(tools)


@frozen(kw_only=True)
class ChatAgent:
    """The smallest recipe: a model with a prompt and tools that answers messages."""

    model: ChatModel | ModelSource
    id: str = "chat"
    system_prompt: str | None = None
    tools: tuple[Tool, ...] = field(default=(), converter=_as_tools)
    max_steps: int = 10
    """The most model calls of one turn."""
    history: HistoryWindow | None = None
    """The bound of the prompts of a turn; None: the whole conversation is sent."""

    def executor(self, services: Services) -> AgentExecutor:
        """An executor for its turns, with its own model and tools and no extensions."""
        extensions = Extensions(tools=Toolbox(self.tools))
        return AgentExecutor(self.model, extensions=extensions, services=services)

    async def run_step(
        self,
        request: object,
        memory: AgentMemory | None = None,
        metadata: Mapping[str, object] | None = None,
        *,
        services: Services | None = None,
    ) -> StepResult:
        """Answer a request as an agent; see `AgentStepExecutor`.

        Args:
            memory: The messages before the request; None: there are none.
            metadata: Its `from_agent`, `branch_id` and `step_number` are recorded with the run.
            services: Journal, clock and others; None: a journal in memory.
        Returns:
            `content`, `output`, `usage`, `run_id`, `session_id`, `status` and `model`.
        Raises:
            AgentExecutionError: The run did not complete.
        """
        host = ExecutorHost(self.executor(services or Services()))
        agent = RecipeAgent(recipe=self.recipe(), host=host)
        return await agent.run_step(request, memory, metadata)

    def recipe(self) -> AgentRecipe:
        """A recipe of one step that uses the session's conversation."""
        step: DefaultStep[object] = DefaultStep(
            id="answer",
            messages=MessageBundle.of(system=self.system_prompt),
            available_tools=frozenset(tool.spec.name for tool in self.tools),
            completion_criteria=CompletionCriteria(mode=CompletionMode.TEXT),
            shares_conversation=True,
            history=self.history,
            tool_failure="report",
        )
        return AgentRecipe(
            id=self.id,
            steps=(step,),
            inputs={MESSAGE_INPUT: InputSpec(schema={"type": "string"})},
            limits={"max_model_calls_per_step": self.max_steps},
            permissions=Permissions(allow_write=True),
        )


SessionName: TypeAlias = Session | str
"""A session, or the id of one."""


class StepRunner:
    """Runs turns of sessions; every message becomes a step of its session."""

    def __init__(
        self,
        agent: ChatAgent | Agent | AgentRecipe | str,
        hooks: AgentHooks | None = None,
        *,
        repository: StepRepository | None = None,
        executor: AgentExecutor | None = None,
        note: Mapping[str, JsonValue] | None = None,
        inputs: Mapping[str, InputValue] | None = None,
        user: str | None = None,
    ) -> None:
        """Runs turns of one agent.

        Args:
            agent: What answers; a recipe, or the id of one, needs the executor that runs it.
            hooks: Called at the start, the end and a failure of each turn; None: no hooks.
            repository: The store of the sessions; None: that of the executor, else in memory.
            executor: Runs the recipe; None: made for a `ChatAgent`.
            note: Stored with the start of each run, for the caller to read when it resumes the run.
            inputs: Inputs of each turn. They replace those of the session, which replace those of
                its last run.
            user: The label of the user for whom they run, whose daily budget they spend from; None:
                a message has none, and what is regenerated has that of the session's last run.
        Raises:
            UsageError: A recipe without an executor, or an executor with another journal.
        """
        if executor is None and not isinstance(agent, ChatAgent):
            raise UsageError(
                "A StepRunner of a recipe needs the executor that runs it: "
                "StepRunner(recipe, executor=AgentExecutor(model, services=services)).",
                code="executor-needed",
            )
        if repository is None:
            repository = StepRepository(executor.services if executor is not None else None)
        if executor is None and isinstance(agent, ChatAgent):
            executor = agent.executor(repository.services)
        assert executor is not None  # noqa: S101  # one of the branches above
        if executor.services.journal is not repository.services.journal:
            raise UsageError(
                "Executor and repository keep different journals: make both of the same Services.",
                code="other-journal",
            )
        self.repository: Final = repository
        self._journal = repository.services.journal
        self._clock = repository.services.clock
        self._executor = executor
        self._hooks = hooks or AgentHooks()
        self._note = note
        self._user = user
        self._given = inputs or {}
        if isinstance(agent, ChatAgent):
            self._agent: AgentRecipe | str = agent.recipe()
        else:
            self._agent = agent.recipe if isinstance(agent, Agent) else agent

    # --- streams ----------------------------------------------------------------------------------

    async def run_stream(self, session: SessionName, query: str) -> AsyncGenerator[RunEvent, None]:
        """Send a message, and yield the events of the turn. Leaving the loop early cancels the run.

        Open tool calls of the conversation are executed first. A turn that fails ends with
        `run_failed`, and one that waits for a person with `run_waiting`; its message stays in the
        session.

        Raises:
            UsageError, NotFoundError, EnvironmentRefusedError: Before anything was stored.
            LeaseHeldError: Another turn of the session is active.
        """
        run = await self.prepare_turn(session, query)
        async with aclosing(self._events(run, query)) as events:
            async for event in events:
                yield event

    async def resume(self, session: SessionName) -> AsyncGenerator[RunEvent, None]:
        """Resume the session from its present state, and yield the events.

        A run that was cut off is resumed; nothing of it is done twice. After a message of the user
        or of a tool, the model is called; open tool calls are executed before. If the last step is
        an answer, it is replayed, and nothing runs.

        It raises what `run_stream` raises; UsageError also if the session has no steps.
        """
        run = await self.prepare_resume(session)
        if run is None:
            yield await self._replayed(_id_of(session))
            return
        async with aclosing(self._events(run, None)) as events:
            async for event in events:
                yield event

    async def resume_from_user_step(
        self, session: SessionName, last_step: SessionStep | None = None
    ) -> AsyncGenerator[RunEvent, None]:
        """Call `resume`, which finds the last step itself."""
        async with aclosing(self.resume(session)) as events:
            async for event in events:
                yield event

    async def retry(self, session: SessionName, sequence: int) -> AsyncGenerator[RunEvent, None]:
        """Regenerate the session from that step on; see `prepare_retry`."""
        run = await self.prepare_retry(session, sequence)
        async with aclosing(self._events(run, None)) as events:
            async for event in events:
                yield event

    # --- prepared runs: everything that can be refused is refused here ---------------------------

    async def prepare_turn(self, session: SessionName, query: str) -> AgentRun:
        """Prepare the run of a turn; it has not begun.

        Raises:
            UsageError: The recipe has no conversation, the inputs are wrong, or the message is too
                long.
            EnvironmentRefusedError: There is no model, or a secret is missing.
        """
        session_id = _id_of(session)
        if len(query) > MAX_TEXT:
            raise UsageError(
                f"The message has {len(query)} characters, and at most {MAX_TEXT} are taken. "
                "Nothing was stored. Put the text into a file and let a tool read it in parts.",
                code="message-too-long",
            )
        return self._prepare(session_id, await self._inputs(session_id, query), ConversationStart())

    async def prepare_resume(self, session: SessionName) -> AgentRun | None:
        """Prepare the run that resumes the session; None: its last step is an answer.

        It raises what `prepare_turn` raises; UsageError also if there is nothing to resume.
        """
        session_id = _id_of(session)
        if (run := await self._cut_off_run(session_id)) is not None:
            return run
        steps = await self.repository.get_steps(session_id)
        if not steps:
            raise _empty_session(session_id)
        if steps[-1].is_assistant_step() and not pending_calls(steps):
            return await self._failed_run(session_id, steps[-1])
        return await self._continued(session_id, steps, ConversationStart(continues=True))

    async def prepare_retry(self, session: SessionName, sequence: int) -> AgentRun:
        """Prepare the run that replaces the steps from `sequence` on.

        They are replaced when the run stores its first message; if it fails before that, they stay.
        If the steps before them end with an answer, that answer is regenerated, too.

        Raises:
            UsageError: There is no such step, or no question would be left; also as `prepare_turn`.
        """
        session_id = _id_of(session)
        steps = await self.repository.get_steps(session_id)
        if not steps:
            raise _empty_session(session_id)
        if not 1 <= sequence <= len(steps):
            raise UsageError(
                f"Session '{session_id}' has no step {sequence} to retry from: its steps are 1 to "
                f"{len(steps)}. Nothing was stored.",
                code="sequence-out-of-range",
            )
        remaining = steps[: sequence - 1]
        while remaining and remaining[-1].is_assistant_step() and not remaining[-1].tool_calls:
            remaining.pop()
        if not any(step.is_user_step() for step in remaining):
            raise UsageError(
                f"A retry of session '{session_id}' from step {sequence} would leave no "
                "question to answer. Nothing was stored. Retry from a later step, or send a "
                "message.",
                code="nothing-left",
            )
        start = ConversationStart(keep=len(remaining), continues=True, expects=len(steps))
        return await self._continued(session_id, remaining, start)

    async def _cut_off_run(self, session_id: str) -> AgentRun | None:
        """The session's last run if it has no end and no later message; None: it has."""
        journal = self._journal
        session = await self._known(session_id)
        if session is None or session.last_run_id is None or session.status not in _RESUMABLE:
            return None
        recorded = await load_recorded_run(journal, session.last_run_id)
        first = recorded.entries[0].position
        later = await journal.entries(session_id, kinds=CONVERSATION_KINDS, after=first)
        others = (row for row in later if row.run_id != recorded.run_id and row.kind != "run")
        if any(sequence_of(row.fact) is not None for row in others):
            return None
        recipe = self._executor.find(self._agent) if recorded.document is None else None
        return self._executor.prepare_resume(recorded, recipe=recipe)

    async def _failed_run(self, session_id: str, last: SessionStep) -> AgentRun | None:
        """A retry of the run that stored the last answer, if a later step of that run failed.

        None: it did not fail.
        """
        session = await self._known(session_id)
        if session is None or session.status != RunStatus.FAILED:
            return None
        if session.last_run_id != last.run_id:
            return None
        recorded = await load_recorded_run(self._journal, last.run_id)
        recipe = self._executor.find(self._agent) if recorded.document is None else None
        return self._executor.prepare_retry(recorded, recipe=recipe, is_edited=False)

    async def _known(self, session_id: str) -> Session | None:
        """The session; None: nothing is stored with that id."""
        if not await self._journal.entries(session_id, limit=1):
            return None
        return await self.repository.get_session(session_id)

    async def _continued(
        self, session_id: str, steps: Sequence[SessionStep], start: ConversationStart
    ) -> AgentRun:
        asked = next((step.content for step in reversed(steps) if step.is_user_step()), None)
        inputs = await self._inputs(session_id, asked or "")
        return self._prepare(session_id, inputs, start, await self._last_user(session_id))

    async def _last_user(self, session_id: str) -> str | None:
        """The label of the user of the session's last run; None: it has none."""
        wanted = RunFilter(session_id=session_id)
        last = await self._journal.runs(wanted, limit=1)
        return last[0].user if last else None

    async def _inputs(self, session_id: str, message: str) -> Mapping[str, InputValue]:
        known = self._executor.find(self._agent).inputs
        own, before = await self.repository.inputs_of(session_id)
        earlier = {name: value for name, value in before.items() if name in known}
        return {**earlier, **own, **self._given, MESSAGE_INPUT: message}

    def _prepare(
        self,
        session_id: str,
        inputs: Mapping[str, InputValue],
        start: ConversationStart,
        user: str | None = None,
    ) -> AgentRun:
        recipe = self._executor.find(self._agent)
        _check_message_input(recipe)
        run = self._executor.prepare(
            recipe,
            inputs,
            session_id=session_id,
            note=self._note,
            user=self._user or user,
            live_conversation=start,
        )
        if not run.has_conversation:
            raise _without_memory(recipe)
        return run

    def check(self) -> None:
        """Refuse a recipe that cannot hold a conversation, before there is a message.

        Raises:
            UsageError, NotFoundError, EnvironmentRefusedError: As `prepare_turn`.
        """
        recipe = self._executor.find(self._agent)
        if {MESSAGE_INPUT} >= {name for name, it in recipe.inputs.items() if not it.has_default}:
            self._prepare("", {**self._given, MESSAGE_INPUT: ""}, ConversationStart())

    # --- running ----------------------------------------------------------------------------------

    async def _events(self, run: AgentRun, query: str | None) -> AsyncGenerator[RunEvent, None]:
        queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        run.listen(queue.put_nowait)
        await self._hooks.on_run_start(run.session_id, run.run_id, query)
        task = asyncio.ensure_future(run.execute())
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                try:
                    await self._tell_hooks(run, event)
                except Exception:
                    yield event  # it is stored, even if a hook fails
                    raise
                yield event
            try:
                await task
            except MinionsError as error:
                failure = error.info().to_json()
                await self._hooks.on_error(run.session_id, run.run_id, dict(failure))
                raise
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _tell_hooks(self, run: AgentRun, event: RunEvent) -> None:
        if isinstance(event, RunCompleted):
            response = event.data.get("response")
            await self._hooks.on_run_end(run.session_id, run.run_id, response)
        elif isinstance(event, RunFailed):
            error = event.data.get("error")
            failure = error if isinstance(error, Mapping) else {}
            await self._hooks.on_error(run.session_id, run.run_id, failure)

    async def _replayed(self, session_id: str) -> RunEvent:
        last = await self.repository.get_last_step(session_id)
        assert last is not None  # noqa: S101  # looked at just before
        return RunCompleted(
            run_id=last.run_id,
            session_id=session_id,
            timestamp=self._clock.now(),
            status=RunStatus.COMPLETED.value,
            data={"response": last.content},
        )


async def retry_from_sequence(
    session_id: str, sequence: int, repository: StepRepository, runner: StepRunner
) -> AsyncGenerator[RunEvent, None]:
    """Regenerate the session from that step on; see `StepRunner.prepare_retry`.

    Raises:
        UsageError: The runner has another journal than the repository; also as `StepRunner.retry`.
    """
    if runner.repository.services.journal is not repository.services.journal:
        raise UsageError(
            "The runner keeps its sessions in another journal than the repository.",
            code="other-journal",
        )
    async with aclosing(runner.retry(session_id, sequence)) as events:
        async for event in events:
            yield event


async def fork_session(session_id: str, sequence: int, repository: StepRepository) -> str:
    """Fork a session after the step `sequence`, and return the id of the new one.

    Raises:
        NotFoundError, UsageError: As `StepRepository.fork`.
    """
    return (await repository.fork(session_id, sequence)).id


def _id_of(session: SessionName) -> str:
    return session if isinstance(session, str) else session.id


def _empty_session(session_id: str) -> UsageError:
    return UsageError(
        f"Session '{session_id}' has no steps: there is nothing to resume. Send a message first.",
        code="empty-session",
    )


def check_conversation(recipe: AgentRecipe) -> None:
    """Refuse a recipe that cannot be talked with.

    Raises:
        UsageError: `not-a-conversation`; it says what is missing.
    """
    _check_message_input(recipe)
    if not any(step.shares_conversation for step in recipe.steps):
        raise _without_memory(recipe)


def _check_message_input(recipe: AgentRecipe) -> None:
    """Refuse a recipe that takes no messages.

    Raises:
        UsageError: `not-a-conversation`.
    """
    message = recipe.inputs.get(MESSAGE_INPUT)
    if message is None:
        raise UsageError(
            f"Recipe '{recipe.id}' cannot hold a conversation: it takes no input "
            "'message'. Declare `inputs: {message: {type: string}}`.",
            code="not-a-conversation",
        )
    if message.is_secret or not _takes_text(message):
        # Messages are stored and shown: they must not be references to secrets.
        kind = "a secret" if message.is_secret else "no text"
        raise UsageError(
            f"Recipe '{recipe.id}' cannot hold a conversation: its input 'message' is {kind}. "
            "Declare `inputs: {message: {type: string}}`.",
            code="not-a-conversation",
        )


def _without_memory(recipe: AgentRecipe) -> UsageError:
    return UsageError(
        f"Recipe '{recipe.id}' cannot hold a conversation: no goal step of it has "
        "`memory: conversation`.",
        code="not-a-conversation",
    )


def _takes_text(spec: InputSpec) -> bool:
    kinds = spec.schema.get("type", "string")
    return kinds == "string" or kinds == ["string", "null"]
