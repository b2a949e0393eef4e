"""The run as one step sees it."""

from __future__ import annotations

import asyncio
import base64
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, cast

from minions.contracts.calls import DeltaSink, ModelDelta
from minions.contracts.context import AnswerLater, Limits, RunContext
from minions.contracts.executions import item_address
from minions.contracts.file_changes import ChangeRecorder, FileChange
from minions.contracts.journal.facts import FileChangeRecorded
from minions.contracts.retry_config import RetryConfig
from minions.contracts.run_events import StepDelta, StepDeltaEvent, ToolProgress
from minions.contracts.runtime import BlockingCalls, Log
from minions.contracts.secrets import Secrets
from minions.contracts.session_views import ModelMemory
from minions.contracts.tools import (
    AgentCalls,
    ReportProgress,
    StoreBlob,
    Tool,
    Toolbox,
    ToolQuestions,
    ToolSpec,
)
from minions.data.errors import JournalError, ToolError
from minions.data.json_values import JsonValue
from minions.engine.context.run_progress import Iteration
from minions.engine.history.conversation import LiveConversation
from minions.engine.history.recorder import Recorder

if TYPE_CHECKING:
    from minions.contracts.tracing import StepSubject
    from minions.engine.context.agent_context import AgentContext
    from minions.engine.context.strangers_words import StrangersWords


class StepView(RunContext):
    """The run as one step sees it: its own limits, tools and conversation."""

    # Slots, as the contract has properties of these names, and each call reads them many times.
    __slots__ = (
        "inputs",
        "limits",
        "memory",
        "metadata",
        "run_id",
        "secrets",
        "session_id",
        "step_id",
        "tools",
        "values",
    )
    run_id: str
    session_id: str
    inputs: Mapping[str, JsonValue]
    values: Mapping[str, JsonValue]
    """The run's; in a loop also `loop.item` and `loop.index`, for this step alone."""
    limits: Limits
    """The step's own over the agent's."""
    metadata: Mapping[str, object]
    """The step's own over the agent's."""
    tools: Toolbox
    """Only what this step may use."""
    memory: ModelMemory
    """The run's; this step's conversation is `conversation_id`."""
    step_id: str
    """The step's, as the whole run knows it."""
    secrets: Secrets

    def __init__(
        self,
        context: AgentContext,
        *,
        step_id: str,
        key: str,
        limits: Limits,
        metadata: Mapping[str, object],
        tools: Toolbox,
        item: Iteration | None = None,
        retry: RetryConfig | None = None,
        live_conversation: LiveConversation | None = None,
        is_agent: bool = False,
    ) -> None:
        self.deadline: asyncio.Timeout | None = None
        """When the time of the step is over; None: it has none of its own, or has not begun."""
        base = context.scope.retry
        self.retry: RetryConfig = base if retry is None else retry.over(base)
        """How calls of the step are tried again."""
        self.context = context
        self._run_tools = context.tools
        self._progress = context.progress
        self._recipe_id = context.recipe.id
        self._scope = context.scope
        self._events = context.scope.events
        self._services = context.scope.services
        self._clock = self._services.clock
        self._journal = self._services.journal
        self.live_conversation = live_conversation
        """The session's conversation, where the step has part in it."""
        self._item = item
        self.key = key
        self.conversation_id = f"{context.run_id}/{key}"
        self.run_id = context.run_id
        self.session_id = context.session_id
        self.inputs = context.inputs
        self.values = context.values
        if item is not None:
            here: dict[str, JsonValue] = {"loop": item.loop}
            self.values = ChainMap(here, cast("dict[str, JsonValue]", context.values))
        self.memory = context.memory
        self.secrets = context.secrets
        self.step_id = step_id
        self._is_agent = is_agent
        self._subject: StepSubject | None = None
        self.limits = limits
        self.metadata = metadata
        self.tools = tools
        self._border_seed: str | None = None
        self.private_models: set[str] = set()
        """Names of models of other parties that a person let read private data here."""
        self.has_older_borders = False
        """Whether prompts are as earlier versions wrote them: to find what they recorded."""
        self._is_silent = False
        self._agents: AgentCalls | None = None
        self._questions: ToolQuestions | None = None

    def _copied(self) -> StepView:
        """As `copy.copy`, at a tenth of the calls: each tool call has a view of its own."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.run_id, made.session_id, made.inputs = self.run_id, self.session_id, self.inputs
        made.values, made.limits, made.metadata = self.values, self.limits, self.metadata
        made.tools, made.memory, made.step_id = self.tools, self.memory, self.step_id
        made.secrets = self.secrets
        return made

    def with_tools(self, names: frozenset[str]) -> StepView:
        """The same step, with these tools of the run beside its own."""
        wider = self._copied()
        wider.tools = self._run_tools.subset({*self.tools.names, *names})
        return wider

    def with_toolbox(self, tools: Toolbox) -> StepView:
        """The same step, with these tools in place of its own."""
        other = self._copied()
        other.tools = tools
        return other

    def with_only(self, names: Sequence[str]) -> StepView:
        """The same step, with these of its tools alone."""
        narrower = self._copied()
        narrower.tools = self.tools.subset(names)
        return narrower

    def with_own_tool(self, tool: Tool) -> StepView:
        """The same step, with a tool of the engine's own."""
        wider = self._copied()
        wider.tools = self.tools.plus([tool])
        return wider

    def for_call(self, agents: AgentCalls, questions: ToolQuestions) -> StepView:
        """The same step, for one tool call, which may run these agents and ask these questions."""
        wider = self._copied()
        wider._agents, wider._questions = agents, questions  # noqa: SLF001  # a copy of itself
        return wider

    def answering(self, later: AnswerLater) -> StepView:
        """The same step, for one model call, which is answered in that way."""
        waiting = self._copied()
        waiting.answer_later = later
        return waiting

    def without_deltas(self) -> StepView:
        """The same step, of whose answers no pieces are published."""
        silent = self._copied()
        silent._is_silent = True  # noqa: SLF001  # a copy of itself
        return silent

    @property
    def time_left_s(self) -> float | None:
        """Seconds that are left to the step; None: neither it nor its run has a limit of time."""
        of_run = self._progress.deadline
        if self.deadline is None and of_run is None:
            return None
        ends = [
            at
            for each in (self.deadline, of_run)
            if each is not None and (at := each.when()) is not None
        ]
        return max(0.0, min(ends) - asyncio.get_running_loop().time()) if ends else None

    @property
    def border_seed(self) -> str:
        """Of the recipe and the installation; empty in a view without it."""
        if self._border_seed is None:
            secret = self._services.border_secret()
            recipe_id = self._recipe_id.encode("utf-8", "replace")
            self._border_seed = blake2b(recipe_id, key=secret, digest_size=16).hexdigest()
        return self._border_seed

    @property
    def own_id(self) -> str:
        """The step's, as its own recipe knows it."""
        return self.step_id.removeprefix(self._scope.path)

    def read_words(
        self, words: StrangersWords, calls: Iterable[tuple[str, Iterable[str] | None]]
    ) -> None:
        """Note which results of calls gave the step strangers' words.

        Args:
            calls: Each tool, with the words in the results of agents that the call ran; None: the
                tool says what it reads.
        """
        from minions.engine.context.strangers_words import may_bring_words

        own_id, find = "", self._run_tools.find
        for name, brought in calls:
            tool = find(name) if brought is None else None
            if brought is None and (tool is None or not may_bring_words(tool.spec)):
                continue
            own_id = own_id or self.own_id
            if tool is not None:
                words.read(own_id, tool.spec)
            else:
                words.add(own_id, brought or ())

    def with_older_borders(self) -> StepView:
        """The same step, with the prompts of earlier versions."""
        older = self._copied()
        older.has_older_borders = True
        return older

    def without_border_seed(self) -> StepView:
        """The same step, with prompts that are equal in every run that asks the same."""
        bare = self._copied()
        bare._border_seed = ""  # noqa: SLF001  # a copy of itself
        return bare

    @property
    def recorded_examples(self) -> Sequence[tuple[str, JsonValue]]:
        """Those that were pinned for it."""
        scope = self._scope
        return scope.examples.of(self._recipe_id, self.own_id)

    @property
    def trace_headers(self) -> Mapping[str, str]:
        """Those of the current span; empty: nothing is traced."""
        tracer = self._services.tracer
        return tracer.headers() if tracer is not None else {}

    @property
    def subject(self) -> StepSubject:
        """What a trace says of the step."""
        from minions.contracts.tracing import StepSubject

        if self._subject is None:
            scope = self._scope
            self._subject = StepSubject(
                run_id=scope.run_id,
                session_id=scope.session_id,
                step_id=self.step_id,
                address=self.address,
                is_agent=self._is_agent,
            )
        return self._subject

    @property
    def item(self) -> Iteration | None:
        """Which item or attempt of the step it is; None: the step is done once."""
        return self._item

    @property
    def address(self) -> str:
        """The execution's: the step with the item that it is about, `outer[1]/step[2]`."""
        return item_address(self.step_id, self._item.index if self._item is not None else None)

    @property
    def log(self) -> Log:
        """The log of the run's services, with run and step bound to each line."""
        return self._scope.log_of(self.step_id, self.address)

    def log_info(self, event: str, /, **facts: object) -> None:
        """Log a line, with run and step bound to it."""
        self.log.info(event, **facts)

    @property
    def may_write(self) -> bool:
        """The run's."""
        return self.context.may_write

    def now(self) -> datetime:
        """By the clock of the run's services."""
        return self.context.now()

    async def sleep(self, seconds: float) -> None:
        """By the `sleep` of the run's services."""
        await self.context.sleep(seconds)

    @property
    def blocking(self) -> BlockingCalls:
        """Calls synchronous tools: `blocking` of the run's services."""
        return self.context.blocking

    @property
    def beside(self) -> BlockingCalls:
        """Compute beside the event loop: `beside` of the run's services."""
        return self.context.beside

    def change_recorder(self, key: str) -> ChangeRecorder | None:
        """Of a call that this step makes, while its tool is being called; None: nobody restores
        files.
        """
        scope = self._scope
        if scope.services.file_restorer is None:
            return None
        return CallChanges(scope.recorder, key, self.step_id, scope.secrets)

    @property
    def agents(self) -> AgentCalls | None:
        """Those of the tool call for which the view was made; None: it was made for none."""
        return self._agents

    @property
    def questions(self) -> ToolQuestions | None:
        """Those of the tool call for which the view was made; None: it was made for none."""
        return self._questions

    def progress_reporter(self, key: str, tool: str) -> ReportProgress | None:
        """Publishes `tool_progress` events; None: nobody listens."""
        if not self._events.is_watched:
            return None

        def report(progress: float, total: float | None, message: str | None) -> None:
            self._events.publish(
                ToolProgress(
                    run_id=self.run_id,
                    session_id=self.session_id,
                    timestamp=self._clock.now(),
                    step_id=self.step_id,
                    address=self.address,
                    tool=tool,
                    call=key,
                    progress=progress,
                    total=total,
                    message=message,
                )
            )

        return report

    @property
    def store_blob(self) -> StoreBlob | None:
        """Stores bytes in the journal."""
        return self._journal.put_blob

    def refusal(self, tool: ToolSpec) -> str | None:
        """The run's."""
        return self.context.refusal(tool)

    @property
    def delta_sink(self) -> DeltaSink | None:
        """Publishes streamed pieces as `step_delta` events; None: nobody listens."""
        is_heard = self._events.is_watched and not self._is_silent
        return self._publish_delta if is_heard else None

    def _publish_delta(self, delta: ModelDelta) -> None:
        calls = (delta.tool_call,) if delta.tool_call is not None else ()
        self._events.publish(
            StepDeltaEvent(
                run_id=self.run_id,
                session_id=self.session_id,
                timestamp=self._clock.now(),
                step_id=self.step_id,
                address=self.address,
                delta=StepDelta(content=delta.content, tool_calls=calls, reasoning=delta.reasoning),
            )
        )


# --- records the changes of files that one tool call makes, from the thread of its tool ----------


_LOOK_S: Final = 1.0
"""Seconds after which a thread looks whether the event loop that it waits for is still there."""


class CallChanges(ChangeRecorder):
    """Stores each change as a fact of the run. Made on the event loop of the run."""

    def __init__(self, recorder: Recorder, key: str, step_id: str, secrets: Secrets) -> None:
        """Nothing is stored yet.

        Args:
            key: Of the tool call.
        """
        self._recorder = recorder
        self._key = key
        self._step_id = step_id
        self._secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def record(self, change: FileChange) -> None:
        """Store one change, and wait until it is stored."""
        fact = self._fact(change)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            stored = asyncio.run_coroutine_threadsafe(self._store(fact), self._loop)
        else:
            raise RuntimeError(
                "A change of a file is recorded from a thread beside the event loop: this call "
                "would wait for itself. Make the tool a synchronous function."
            )
        self._wait(stored)

    def close(self) -> None:
        """Refuse further changes."""
        self._is_closed = True

    async def _store(self, fact: FileChangeRecorded) -> None:
        self._refuse_late(fact)
        number = next(self._recorder.changes)
        await self._recorder.record(f"{self._key}/file/{number}", fact)
        # A rollback may have read the rows before this one; recorded and not made does no harm.
        self._refuse_late(fact)

    def _refuse_late(self, fact: FileChangeRecorded) -> None:
        if self._is_closed:
            raise JournalError(
                f"The call that changes '{fact.path}' has ended, as by a timeout: the change is "
                "not made.",
                code="call-ended",
            )

    def _wait(self, stored: Future[None]) -> None:
        while not wait([stored], _LOOK_S).done:
            if self._loop.is_closed():
                raise RuntimeError("The event loop of the run is closed.")
        stored.result()

    def _fact(self, change: FileChange) -> FileChangeRecorded:
        self._refuse_secrets(change)
        text = _text(change.content)
        is_base64 = change.content is not None and text is None
        if change.content is not None and is_base64:
            text = base64.b64encode(change.content).decode()
        return FileChangeRecorded(
            step_id=self._step_id,
            root=change.root,
            path=change.path,
            content=text,
            is_base64=is_base64,
            mode=change.mode,
            after=change.after,
            folders=change.folders or None,
        )

    def _refuse_secrets(self, change: FileChange) -> None:
        """A journal holds no secret in clear, and with another text in its place the file could
        not be restored.
        """
        if not self._secrets:
            return
        content = (change.content or b"").decode("utf-8", "surrogateescape")
        if not any(self._secrets.occur_in(each) for each in (change.path, content)):
            return
        place = self._secrets.clean_text(change.path)
        raise ToolError(
            f"'{place}' holds a secret of the run, which no journal may hold, so the change cannot "
            "be recorded for a rollback (`undo: true`). Nothing was changed. Leave that file out, "
            "or write it with a toolset without `undo`.",
            code="secret-in-file",
        )


def _text(content: bytes | None) -> str | None:
    """The content as text; None: it is no text, or there is none."""
    if content is None or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
