"""Runs exactly one step and returns its execution. Does not advance the graph."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from attrs import evolve
from msgspec import UNSET
from msgspec.structs import replace

from minions.contracts.calls import ModelOptions
from minions.contracts.context import (
    Limits,
    ModelCallExecutorFactory,
    RunContext,
    ToolCallExecutorFactory,
)
from minions.contracts.executions import Completion, StepExecution
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.facts import (
    StepFailed,
    StepFinished,
    StepInterrupted,
    StepStarted,
    ToolCallOutcome,
)
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Toolbox
from minions.data.codec import decode, encode
from minions.data.errors import FailureInfo, JournalError, MinionsError, UsageError, words_of
from minions.data.failure_categories import RESOURCE_LIMIT
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.engine.calls.call_records import store_attachments
from minions.engine.calls.model_executors import recall
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.recipe_step import (
    CacheableStep,
    Fingerprint,
    RecordedInParts,
    Replayable,
    WrittenStep,
)
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.run_progress import Attempt, Iteration
from minions.engine.context.step_view import StepView
from minions.engine.context.time_limits import TimeLimit
from minions.engine.history.conversation import LiveConversation
from minions.engine.services.event_loop import leading_error
from minions.engine.services.retry import is_being_cancelled
from minions.engine.step.model_work import ModelWork
from minions.engine.step.work import (
    Ending,
    Opening,
    RecordStart,
    StepCourse,
    StepWork,
    WorkParts,
    cut_off,
    end_status,
    step_over,
)

if TYPE_CHECKING:
    from minions.contracts.tracing import Tracer
    from minions.engine.history.step_rows import StepRows
    from minions.engine.step.cache import StepCaching

T = TypeVar("T")


class StepExecutor(Generic[T]):
    """One step, once. A new executor for every run of a step."""

    def __init__(
        self,
        step: Step[T],
        context: AgentContext,
        model_call_executor_factory: ModelCallExecutorFactory,
        tool_call_executor_factory: ToolCallExecutorFactory,
        *,
        options: ModelOptions | None = None,
        item: Iteration | None = None,
        caching: StepCaching | None = None,
    ) -> None:
        """Reads the limits now, most specific first: step, context, defaults.

        Args:
            item: Of a loop: the execution is one of its iterations, numbered from 1 in keys.
            caching: Of a step that says `cache: true`, or that may have said so when the run began.
        Raises:
            MetadataError: A limit of a wrong name or type.
        """
        self.step = step
        self._item = item
        self.context = context
        self._recorder = context.scope.recorder
        self._services = context.scope.services
        self._metrics = context.scope.services.metrics
        self._secrets = context.secrets
        self._step_manager = context.step_manager
        self._budget = context.progress.budget
        self._models = model_call_executor_factory
        self._caching = caching
        self._cache_key: str | None = None
        self._cached_from: str | None = None
        step_id, own = step.id, step.metadata
        limits = context.progress.read_limits()
        if own:
            limits = Limits.of_step(own, base=limits)
        has_own_time = own and ("timeout_s" in own or "timeoutS" in own)
        self._timeout_s = limits.timeout_s if has_own_time else None
        iteration = 0 if item is None else item.index + 1
        visit = self._step_manager.visits(step_id) + 1
        self._is_again = visit > 1 or (
            item is not None and item.index > 0 and isinstance(item, Attempt)
        )
        base = f"{context.scope.keys}{step_id}/{visit}/{iteration}"
        self.base = base
        """The key without generation: `step/visit/iteration`."""
        replay = context.scope.replay
        key = base if replay is None else replay.key_of(base)
        self.rows = None if replay is None else replay.execution(base)
        """What an earlier execution of the run recorded of it; None: nothing."""
        kind: type[StepWork] = CodeWork if step.is_code else ModelWork
        any_step: Step[object] = step
        self._view = StepView(
            context,
            step_id=f"{context.scope.path}{step_id}",
            key=key,
            limits=limits,
            metadata={**context.metadata, **own} if own else context.metadata,
            tools=kind.tools_of(any_step, context),
            item=item,
            retry=step.retry,
            live_conversation=kind.conversation_of(any_step, context),
            is_agent=kind is ModelWork,
        )
        # Once per execution: a property of a subclass may build it anew at each look.
        self._output = kind.output_of(any_step)
        self.output_json: JsonValue = None
        """The output of a step that COMPLETED, as later steps and the journal read it."""
        self._clock = context.scope.services.clock
        self._begin = self._clock.monotonic()
        self._trace = StepTrace(
            any_step,
            step_id=step_id,
            execution_id=self._view.conversation_id,
            key=key,
            limits=limits,
            is_code=kind.is_code,
            declares_output=self._output is not None,
            started_at=self._clock.now(),
        )
        parts = WorkParts(
            view=self._view,
            trace=self._trace,
            recorded=self.rows,
            output=self._output,
            options=options,
            models=model_call_executor_factory,
            tools=tool_call_executor_factory,
        )
        self._work: StepWork = kind(any_step, parts)

    @property
    def key(self) -> str:
        """`step/visit/iteration`, with `@generation` where it is a later try."""
        return self._trace.key

    @property
    def is_withdrawn(self) -> bool:
        """Whether it waited for a person when the run went back."""
        return self.rows is not None and self.rows.is_withdrawn

    @property
    def has_recorded_end(self) -> bool:
        """Whether an earlier execution of the run brought this execution to its end.

        A step that tells itself is entered again all the same, unless it did nothing, or failed
        while work in it was cut off: that would be continued, and might come to another end.
        """
        rows = self.rows
        if rows is None or rows.ended is None:
            return False
        is_entered = isinstance(self.step, RecordedInParts) and not self.was_cached
        return rows.was_cut_off or not is_entered

    @property
    def has_ended_before(self) -> bool:
        """Whether its end is recorded, also where it is entered again to replay its parts."""
        return self.rows is not None and self.rows.ended is not None

    @property
    def was_cached(self) -> bool:
        """Whether its recorded end was a cached output; then the entry holds the cache key."""
        return self.rows is not None and self.rows.cache_key is not None

    def is_unchanged(self) -> bool:
        """Whether the step would ask now what it asked when it was recorded.

        Code that is no step of a recipe cannot be asked; it is never known to be unchanged.
        """
        rows = self.rows
        if rows is None or rows.ended is None:
            return False
        if self.was_cached:
            key = self._key_in_cache()
            return key is not None and key == rows.cache_key
        return self._work.is_unchanged(rows)

    def is_begun_otherwise(self) -> bool:
        """Whether an earlier execution left a conversation open that would begin otherwise now.

        Code is entered in any case: its calls are known by what they ask.
        """
        rows = self.rows
        if rows is None or rows.ended is not None or rows.start is None:
            return False
        return self._work.is_begun_otherwise(rows)

    def recorded(self) -> StepExecution[T]:
        """Replay the recorded end of the step; nothing is called.

        Raises:
            ValueError: The recorded output is no longer what the step declares.
        """
        from minions.engine.history.recorded_calls import recorded_execution

        assert self.rows is not None and self.rows.ended is not None  # noqa: S101, PT018  # asked only then
        output = self.rows.output
        self.output_json = output
        has_form = self._output is not None and output is not None
        typed = self._output.convert(output) if self._output and has_form else output
        if not has_form:
            typed = self._work.typed(output)
        live_conversation = self._view.live_conversation
        if live_conversation is not None:
            live_conversation.begin_step()
            live_conversation.follow(self.rows.until_end)
        execution = recorded_execution(
            self._trace.picture(),
            self.rows,
            typed,
            history=live_conversation.history if live_conversation is not None else (),
        )
        for entry in self.rows.until_end:
            self._recorder.note_replayed(entry)
        if self.rows.cache_key is not None and self._caching is not None:
            self._caching.note_asked(self.rows.cache_key)
        for call in execution.model_calls:
            recall(self._models, call.prompt)
        for done in execution.model_calls:
            self._budget.spend_replayed(done.key, done.usage)
        self._work.keep_conversation(execution)
        if (words := self.context.words) is not None:
            facts = (entry.fact for entry in self.rows.until_end)
            ends = (each for each in facts if isinstance(each, ToolCallOutcome))
            self._view.read_words(words, ((each.tool, each.words_of) for each in ends))
            if self.rows.cache_key is not None or isinstance(self.step, RecordedInParts):
                words.assume(self.step.id, "a recorded output")
        if self._item is None:
            self._step_manager.record(execution)
        return cast("StepExecution[T]", execution)

    def execute(self) -> Coroutine[object, object, StepExecution[T]]:
        """Run it: COMPLETED with its output, or FAILED with the error. Never raises for the step.

        A step that an earlier execution of the run left unfinished is continued.

        Raises:
            JournalError: A fact could not be stored: the run must stop.
            CancelledError: Passes through, after the step was recorded as FAILED.
        """
        tracer = self._services.tracer
        return self._executed() if tracer is None else self._traced(tracer)

    async def _traced(self, tracer: Tracer) -> StepExecution[T]:
        with tracer.step(self._view.subject) as span:
            execution = await self._executed()
            span.end(execution.status, execution.error)
        return execution

    async def _executed(self) -> StepExecution[T]:
        timeout_s = self._timeout_s
        try:
            ending = await (self._guarded() if timeout_s is None else self._within_time(timeout_s))
        except asyncio.CancelledError:
            await self._end(Ending(error=cut_off(self.step.id, self.context)))
            raise
        return await self._end(ending)

    async def _within_time(self, timeout_s: float) -> Ending:
        try:
            async with TimeLimit(asyncio.timeout(timeout_s)) as deadline:
                self._view.deadline = deadline
                return await self._guarded()
        except TimeoutError:
            if not deadline.expired():
                raise
        return Ending(
            error=FailureInfo(
                code="step-timeout",
                message=f"Step '{self.step.id}' did not end within {timeout_s:g} s (timeout_s).",
            )
        )

    async def _guarded(self) -> Ending:
        """Whatever a step's own code raises is this step's failure."""
        try:
            ending = await self._from_cache() if self._caching is not None else None
            ending = ending or await self._work.run(self._record_start)
            if self._trace.waits_for is not None:  # whatever the step made of it
                return Ending(error=self._trace.waits_for)
            output = ending.output
            if is_large(output):
                calls = self._services.beside
                self.output_json = await calls.run(lambda: encode(output))
            else:
                self.output_json = encode(output)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            return self._raised(error)
        except (Exception, SystemExit) as error:  # the rim: an application's code raises anything
            leading = leading_error(error)
            if isinstance(leading, JournalError):
                raise leading from error
            return self._raised(leading)
        return ending

    def _raised(self, error: BaseException) -> Ending:
        if self._trace.waits_for is not None:
            return Ending(error=self._trace.waits_for)
        if isinstance(error, MinionsError):
            return Ending(error=error.info())
        words = self._secrets.clean_text(words_of(error))
        text = f"Step '{self.step.id}' raised {words}"
        code = RESOURCE_LIMIT if isinstance(error, MemoryError) else "step-raised"
        return Ending(error=FailureInfo(code=code, message=text))

    async def _from_cache(self) -> Ending | None:
        """The cached output of the same question; None: the step has to run.

        A step that an earlier execution began is continued, and one that runs again asks again.
        """
        caching = self._caching
        if caching is None or caching.cache is None:
            return None
        self._cache_key = key = self._key_in_cache()
        if key is None or self.rows is not None or self._trace.key != self.base:
            return None
        if self._is_again and key in caching.asked:
            return None  # the answer was not good enough
        caching.note_asked(key)
        kept = await caching.find(key, self._view)
        if kept is None or (self._is_again and kept.run_id == self._view.run_id):
            return None
        try:
            output = self._output.convert(kept.output) if self._output else kept.output
        except Exception:  # noqa: BLE001  # an application's class raises anything
            return None
        self._cached_from = kept.run_id
        if (words := self.context.words) is not None:
            words.assume(self.step.id, "a cached output")
        return Ending(output=output)

    def _key_in_cache(self) -> str | None:
        """The cache key; None: the output must not be cached, or the step has no fingerprint."""
        if self._caching is None:
            return None
        try:
            return self._caching.key(self._work.fingerprint(), self._view)
        except MinionsError:  # the step itself will tell
            return None

    async def _record_start(self, opening: Opening | None) -> datetime:
        if self.rows is not None and (started := self.rows.started) is not None:
            return started.at
        own = history = None
        if opening is not None and opening.messages:
            own = opening.own
            history = opening.history_place if opening.history else None
            if opening.messages.attached:
                await store_attachments(self._services.journal, own)
        begun = StepStarted(
            step_id=self._view.step_id,
            version=self.step.version,
            index=self._item.index if self._item is not None else None,
            conversation=self._view.conversation_id if own is not None else None,
            messages=own,
            history=history,
        )
        return (await self._recorder.record(self._trace.key, begun)).at

    async def _end(self, ending: Ending) -> StepExecution[Any]:  # Any: of T, as `recorded` is
        """Record the end, then tell the manager."""
        if ending.error is not None and ending.error.where is None:
            ending = replace(ending, error=evolve(ending.error, where=self._view.address))
        trace = self._trace
        status = end_status(ending.error)
        duration_ms = round((self._clock.monotonic() - self._begin) * 1000, 3)
        sandbox = self._work.sandbox_name if self._cached_from is None else None
        fact = self._end_fact(ending, duration_ms, sandbox)
        if isinstance(fact, StepFinished):
            ended_at = await self._recorder.record_later(trace.key, fact)
        else:
            ended_at = (await self._recorder.record(trace.key, fact)).at
        execution = trace.picture(
            status,
            completed_at=ended_at,
            duration_ms=duration_ms,
            output=ending.output,
            error=ending.error,
            completion=ending.completion,
            cached_from=self._cached_from,
            sandbox=sandbox,
        )
        self._work.keep_conversation(execution)
        if self._item is None:
            self._step_manager.record(execution)
        code = ending.error.code if ending.error is not None else None
        self._metrics.step_ended(status._value_, code, duration_ms / 1000)
        if self._services.has_log:
            self._view.log_info("step_finished", status=status._value_, duration_ms=duration_ms)
        is_whole = ending.error is None and not self._trace.is_partial
        if is_whole and self._cache_key is not None and self._cached_from is None:
            await self._keep(ending.completion)  # last: by now it is recorded
        return execution

    def _end_fact(
        self, ending: Ending, duration_ms: float, sandbox: str | None
    ) -> StepFinished | StepFailed | StepInterrupted:
        """The fact of the end, with output, usage and counts; no counts if there were no calls."""
        trace, completion = self._trace, ending.completion
        course: StepCourse = {
            "step_id": self._view.step_id,
            "duration_ms": duration_ms,
            "index": self._item.index if self._item is not None else None,
            "output": self.output_json if ending.error is None else UNSET,
            "sandbox": sandbox,
        }
        if trace.has_calls:
            usage = trace.usage
            course["usage"] = usage.to_json()
            course["model_calls"] = len(trace.model_calls)
            course["tool_calls"] = len(trace.tool_calls)
            course["attempts"] = trace.attempts
        if completion is not None:
            course["decided_by"] = completion.decided_by
            course["next_step_id"] = completion.next_step_id
        ended = step_over(ending.error, **course)
        if trace.is_partial and isinstance(ended, StepFinished):
            ended = replace(ended, partial=True)
        if self._cached_from is None or not isinstance(ended, StepFinished):
            return ended
        return replace(ended, cached_from=self._cached_from, cache_key=self._cache_key)

    async def _keep(self, completion: Completion | None) -> None:
        """Store the output in the cache, unless the model also named a next step."""
        has_wish = completion is not None and completion.next_step_id is not None
        if self._caching is not None and self._cache_key is not None and not has_wish:
            await self._caching.keep(self._cache_key, self.output_json, self._view)


# --- a step that is Python code ------------------------------------------------------------------


class CodeWork(StepWork):
    """A Python step: its code decides what is called."""

    is_code = True

    def __init__(self, step: Step[object], parts: WorkParts) -> None:
        self._step: PythonStep[object] = step  # type: ignore[assignment]  # as `is_code` says
        self._parts = parts

    @property
    def sandbox_name(self) -> str | None:
        """The sandbox that the step itself names."""
        return self._step.sandbox_name

    @staticmethod
    def tools_of(step: Step[object], context: AgentContext) -> Toolbox:
        """All tools of the run: code calls what it likes."""
        return context.tools

    @staticmethod
    def conversation_of(step: Step[object], context: AgentContext) -> LiveConversation | None:
        """Never: what code asks a model has conversations of its own."""
        return None

    @staticmethod
    def output_of(step: Step[object]) -> OutputInstructions[object] | None:
        """Never: what the code returns is the output."""
        return None

    async def run(self, record_start: RecordStart) -> Ending:
        """Run the code; of a step that takes no time its end is the only row."""
        from minions.engine.step.code_scope import JournalledScope

        begun_at = None if self._step.is_instant else await record_start(None)
        parts = self._parts
        scope = JournalledScope(
            parts.view,
            parts.trace,
            options=parts.options,
            model_call_executor_factory=parts.models,
            tool_call_executor_factory=parts.tools,
            recorded=parts.recorded,
            begun_at=begun_at,
        )
        return Ending(output=await self._step.run(scope))

    def typed(self, value: JsonValue) -> object:
        """Converted to what the code returns; JSON where it says no type that JSON converts to."""
        hint = None if isinstance(self._step, WrittenStep) else self._step.returned_type
        if value is None or hint is None or hint is object:
            return value
        try:
            return decode(value, cast("type[object]", hint))
        except ValueError:
            return value

    def is_unchanged(self, rows: StepRows) -> bool:
        """Whether its fingerprint is the recorded one; code without one is never unchanged."""
        return isinstance(self._step, Replayable) and would_repeat(
            self._step, self._parts.view, rows
        )

    def is_begun_otherwise(self, rows: StepRows) -> bool:
        """Never: its calls are known by what they ask, so it is run again in any case."""
        return False

    def fingerprint(self) -> Fingerprint:
        """The fingerprint that the step itself gives.

        Raises:
            UsageError: It does not.
        """
        if not isinstance(self._step, CacheableStep):
            raise UsageError(
                f"Step '{self._step.id}' has no fingerprint: it does not say what it depends on."
            )
        return self._step.fingerprint(self._parts.view)

    def keep_conversation(self, execution: StepExecution[object]) -> None:
        """Code has no conversation of its own."""


def would_repeat(step: Replayable, view: RunContext, rows: StepRows) -> bool:
    """Whether a step of code would do now what these rows say it did."""
    try:
        return step.would_repeat(view, rows)
    except MinionsError:  # what it reads is not there any more
        return False
