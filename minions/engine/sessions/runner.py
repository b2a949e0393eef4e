"""Turns of a session: ask, go on, regenerate. Each is a run of the session's recipe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeAlias

from attrs import field, frozen

from minions.contracts.calls import ChatModel
from minions.contracts.completion import CompletionCriteria
from minions.contracts.errors import MinionsError, UsageError
from minions.contracts.events import RunCompleted, RunEvent, RunFailed
from minions.contracts.executions import OPEN_STATES, RunStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import MessageBundle
from minions.contracts.secrets import InputValue
from minions.contracts.sessions import AgentHooks, Session, SessionStep
from minions.contracts.steps import DefaultStep
from minions.contracts.tools import Tool, Toolbox
from minions.contracts.verdicts import CompletionMode
from minions.engine.compile.extensions import Extensions, ModelSource
from minions.engine.context.agent_context import Agent
from minions.engine.history.conversation import MESSAGE_INPUT, ConversationStart, pending_calls
from minions.engine.history.session_messages import CONVERSATION_KINDS, sequence_of
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.services import Services
from minions.engine.sessions.store import StepRepository
from minions.recipe.model import AgentRecipe, InputSpec, Permissions

__all__ = ["ChatAgent", "StepRunner", "fork_session", "retry_from_sequence"]

_GOES_ON = (
    *OPEN_STATES,
    RunStatus.CANCELLED,
    RunStatus.LIMIT_REACHED,
    RunStatus.NEEDS_DECISION,
)


def _as_tools(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    return tuple(tools)


@frozen(kw_only=True)
class ChatAgent:
    """A model with a prompt and tools that answers what it is asked: the smallest recipe."""

    model: ChatModel | ModelSource
    id: str = "chat"
    system_prompt: str | None = None
    tools: tuple[Tool, ...] = field(default=(), converter=_as_tools)
    max_steps: int = 10
    """Model calls of one turn."""

    def executor(self, services: Services) -> AgentExecutor:
        """What runs its turns: its own model and tools, with nothing else registered."""
        extensions = Extensions(tools=Toolbox(self.tools))
        return AgentExecutor(self.model, extensions=extensions, services=services)

    def recipe(self) -> AgentRecipe:
        """One step that shares the session's conversation."""
        step: DefaultStep[object] = DefaultStep(
            id="answer",
            messages=MessageBundle.of(system=self.system_prompt),
            available_tools=frozenset(tool.spec.name for tool in self.tools),
            completion_criteria=CompletionCriteria(mode=CompletionMode.TEXT),
            shares_conversation=True,
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
"""A session or its id."""


class StepRunner:
    """Runs turns; every message becomes a step of the session."""

    def __init__(
        self,
        agent: ChatAgent | Agent | AgentRecipe | str,
        hooks: AgentHooks | None = None,
        *,
        repository: StepRepository | None = None,
        executor: AgentExecutor | None = None,
        note: Mapping[str, JsonValue] | None = None,
        inputs: Mapping[str, InputValue] | None = None,
    ) -> None:
        """Of one agent.

        Args:
            agent: Who answers; a recipe, or the id of one, needs the executor that runs it.
            repository: Where the sessions are; None: in memory, or where the executor's runs are.
            inputs: Of each turn, over those of the session, which are over those of its last run.
            note: Stored with the start of each run, for the caller to find when it goes on.
        Raises:
            UsageError: No executor for a recipe, or its runs are kept in another journal.
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
        self.repository = repository
        self._executor = executor
        self._hooks = hooks or AgentHooks()
        self._note = note
        self._given = inputs or {}
        if isinstance(agent, ChatAgent):
            self._agent: AgentRecipe | str = agent.recipe()
        else:
            self._agent = agent.recipe if isinstance(agent, Agent) else agent

    # --- streams ----------------------------------------------------------------------------------

    async def run_stream(self, session: SessionName, query: str) -> AsyncGenerator[RunEvent, None]:
        """Ask: the events of the turn. Leaving the loop early cancels it.

        Open tool calls of the conversation are carried out first. A turn that fails ends with
        `run_failed`; its question stays.

        Raises:
            UsageError, NotFoundError, EnvironmentRefusedError: Before anything was stored.
            LeaseHeldError: Another turn of the session is going on.
        """
        run = await self.prepare_turn(session, query)
        async with aclosing(self._events(run, query)) as events:
            async for event in events:
                yield event

    async def resume(self, session: SessionName) -> AsyncGenerator[RunEvent, None]:
        """Go on where the session stands.

        A run that was cut off goes on; nothing of it is done twice. After a question, or an answer
        of a tool, the model is asked; open tool calls are carried out before. An answer that is
        there is told again, and nothing runs.

        Raises:
            As `run_stream`; UsageError also where the session has no steps.
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
        """The same as `resume`, which looks itself at what the last step is."""
        async with aclosing(self.resume(session)) as events:
            async for event in events:
                yield event

    async def retry(self, session: SessionName, sequence: int) -> AsyncGenerator[RunEvent, None]:
        """Regenerate from that step on; see `prepare_retry`."""
        run = await self.prepare_retry(session, sequence)
        async with aclosing(self._events(run, None)) as events:
            async for event in events:
                yield event

    # --- prepared runs: everything that can be refused is refused here ---------------------------

    async def prepare_turn(self, session: SessionName, query: str) -> AgentRun:
        """The run that asks; it has not begun.

        Raises:
            UsageError: The recipe is none for conversations, or the inputs are wrong.
            EnvironmentRefusedError: No model, or a secret is missing.
        """
        session_id = _id_of(session)
        return self._prepare(session_id, await self._inputs(session_id, query), ConversationStart())

    async def prepare_resume(self, session: SessionName) -> AgentRun | None:
        """The run that goes on with the session; None: its last step is an answer.

        Raises:
            As `prepare_turn`; UsageError also where there is nothing to go on with.
        """
        session_id = _id_of(session)
        if (run := await self._cut_off_run(session_id)) is not None:
            return run
        steps = await self.repository.get_steps(session_id)
        if not steps:
            raise _nothing_said(session_id)
        if steps[-1].is_assistant_step() and not pending_calls(steps):
            return await self._failed_run(session_id, steps[-1])
        return await self._continued(session_id, steps, ConversationStart(continues=True))

    async def prepare_retry(self, session: SessionName, sequence: int) -> AgentRun:
        """The run that takes the place of the steps from `sequence` on, once it has said something.

        Until then, and if it fails before, they stay. What is kept may end with an answer: then
        that is regenerated, too.

        Raises:
            UsageError: There is no such step, or nothing would be left. As `prepare_turn`.
        """
        session_id = _id_of(session)
        steps = await self.repository.get_steps(session_id)
        if not steps:
            raise _nothing_said(session_id)
        if not 1 <= sequence <= len(steps):
            raise UsageError(
                f"Session '{session_id}' has no step {sequence} to retry from: its steps are 1 to "
                f"{len(steps)}. Nothing was changed.",
                code="sequence-out-of-range",
            )
        kept = steps[: sequence - 1]
        while kept and kept[-1].is_assistant_step() and not kept[-1].tool_calls:
            kept.pop()
        if not any(step.is_user_step() for step in kept):
            raise UsageError(
                f"A retry of session '{session_id}' from step {sequence} would leave no "
                "question to answer. Nothing was changed. Retry from a later step, or ask anew.",
                code="nothing-left",
            )
        start = ConversationStart(keep=len(kept), continues=True, expects=len(steps))
        return await self._continued(session_id, kept, start)

    async def _cut_off_run(self, session_id: str) -> AgentRun | None:
        """The session's last run, where it has no end and nothing came after it."""
        journal = self.repository.services.journal
        session = await self._known(session_id)
        if session is None or session.last_run_id is None or session.status not in _GOES_ON:
            return None
        recorded = await load_recorded_run(journal, session.last_run_id)
        first = recorded.entries[0].position
        later = await journal.entries(session_id, kinds=CONVERSATION_KINDS, after=first)
        said = (row for row in later if row.run_id != recorded.run_id and row.kind != "run")
        if any(sequence_of(row.fact) is not None for row in said):
            return None
        recipe = self._executor.find(self._agent) if recorded.document is None else None
        return self._executor.prepare_resume(recorded, recipe=recipe)

    async def _failed_run(self, session_id: str, last: SessionStep) -> AgentRun | None:
        """The run that gave the last answer, where a later step of it failed: that is done again.

        None where it did not fail.
        """
        session = await self._known(session_id)
        if session is None or session.status != RunStatus.FAILED:
            return None
        if session.last_run_id != last.run_id:
            return None
        recorded = await load_recorded_run(self.repository.services.journal, last.run_id)
        recipe = self._executor.find(self._agent) if recorded.document is None else None
        return self._executor.prepare_retry(recorded, recipe=recipe, is_edited=False)

    async def _known(self, session_id: str) -> Session | None:
        """None where nothing is stored of it."""
        if not await self.repository.services.journal.entries(session_id, limit=1):
            return None
        return await self.repository.get_session(session_id)

    async def _continued(
        self, session_id: str, steps: Sequence[SessionStep], start: ConversationStart
    ) -> AgentRun:
        asked = next((step.content for step in reversed(steps) if step.is_user_step()), None)
        return self._prepare(session_id, await self._inputs(session_id, asked or ""), start)

    async def _inputs(self, session_id: str, message: str) -> Mapping[str, InputValue]:
        known = self._executor.find(self._agent).inputs
        own, before = await self.repository.inputs_of(session_id)
        kept = {name: value for name, value in before.items() if name in known}
        return {**kept, **own, **self._given, MESSAGE_INPUT: message}

    def _prepare(
        self, session_id: str, inputs: Mapping[str, InputValue], start: ConversationStart
    ) -> AgentRun:
        recipe = self._executor.find(self._agent)
        message = recipe.inputs.get(MESSAGE_INPUT)
        is_text = message is not None and message.schema.get("type", "string") == "string"
        if message is not None and (message.is_secret or not is_text):
            # What is said is stored and shown: it is no place for a reference to a secret.
            kind = "a secret" if message.is_secret else "no text"
            raise UsageError(
                f"Recipe '{recipe.id}' cannot be talked with: its input 'message' is {kind}. "
                "Declare `inputs: {message: {type: string}}`.",
                code="not-a-conversation",
            )
        if message is None:
            raise UsageError(
                f"Recipe '{recipe.id}' cannot be talked with: it takes no input 'message'. Declare "
                "`inputs: {message: {type: string}}`.",
                code="not-a-conversation",
            )
        run = self._executor.prepare(
            recipe, inputs, session_id=session_id, note=self._note, live_conversation=start
        )
        if not run.has_conversation:
            raise UsageError(
                f"Recipe '{recipe.id}' cannot be talked with: no goal step of it has "
                "`memory: conversation`.",
                code="not-a-conversation",
            )
        return run

    def check(self) -> None:
        """Refuse a recipe that nobody can talk with, before there is anything to say.

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
                    yield event  # it is stored, whatever the hook makes of it
                    raise
                yield event
            try:
                await task
            except MinionsError as error:
                told = error.info().to_json()
                await self._hooks.on_error(run.session_id, run.run_id, dict(told))
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
            told = error if isinstance(error, Mapping) else {}
            await self._hooks.on_error(run.session_id, run.run_id, told)

    async def _replayed(self, session_id: str) -> RunEvent:
        last = await self.repository.get_last_step(session_id)
        assert last is not None  # noqa: S101  # looked at just before
        return RunCompleted(
            run_id=last.run_id,
            session_id=session_id,
            timestamp=self.repository.services.clock.now(),
            status=RunStatus.COMPLETED.value,
            data={"response": last.content},
        )


async def retry_from_sequence(
    session_id: str, sequence: int, repository: StepRepository, runner: StepRunner
) -> AsyncGenerator[RunEvent, None]:
    """Regenerate the session from that step on; see `StepRunner.prepare_retry`.

    Raises:
        UsageError: The runner keeps its sessions elsewhere; as `StepRunner.retry`.
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
    """The id of a new session that begins with the steps up to `sequence`.

    Raises:
        NotFoundError, UsageError: As `StepRepository.fork`.
    """
    return (await repository.fork(session_id, sequence)).id


def _id_of(session: SessionName) -> str:
    return session if isinstance(session, str) else session.id


def _nothing_said(session_id: str) -> UsageError:
    return UsageError(
        f"Session '{session_id}' has no steps: there is nothing to go on with. Ask "
        "something first.",
        code="empty-session",
    )
