"""One run of a recipe: its walk through the graph, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, cast

from msgspec.structs import replace

from minions.contracts.executions import AgentResult, RunState, RunStatus
from minions.contracts.instructions import T_co
from minions.contracts.journal.child_run_links import WAITS_FOR_RUNS, ChildWait
from minions.contracts.journal.facts import RunFinished
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import BlockingCalls
from minions.contracts.steps import PythonStep
from minions.data.errors import (
    NEEDS_DECISION,
    BudgetSpentError,
    FailureInfo,
    FencedError,
    JournalError,
    LeaseHeldError,
    MinionsError,
    UsageError,
    words_of,
)
from minions.data.failure_categories import RESOURCE_LIMIT
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.engine.compile.build import BuiltRecipe
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.time_limits import TimeLimit
from minions.engine.history.conversation import open_conversation
from minions.engine.history.event_stream import Listener
from minions.engine.run.run_models import RunModels
from minions.engine.run.run_record import RunOutput, RunRecord
from minions.engine.run.run_start import RunStart, preview_lines
from minions.engine.run.walk import RecipeWalk, WalkEnd
from minions.engine.services.event_loop import leading_error
from minions.recipe.model import MESSAGE_INPUT

if TYPE_CHECKING:
    from minions.contracts.tracing import RunSubject, Tracer
    from minions.engine.calls.pending_decisions import PendingDecision
    from minions.engine.history.open_calls import OpenCall
    from minions.engine.history.replay import Replay
    from minions.engine.services.shared_budgets import BudgetedRun, BudgetShare


class AgentRun(Generic[T_co]):
    """Prepared by an `AgentExecutor`; runs once. T_co is the type of its output."""

    def __init__(
        self,
        context: AgentContext,
        built: BuiltRecipe,
        models: RunModels,
        walk: RecipeWalk,
        output: RunOutput,
        start: RunStart,
    ) -> None:
        """Take what was assembled; nothing runs, nothing is stored.

        Args:
            models: Those of its steps.
            walk: Runs its steps.
            output: Makes its output when the steps have ended.
            start: Whether it is new, resumed or retried.
        """
        self.context = context
        self._recipe = context.recipe
        self._progress = context.progress
        self._values = context.run_values
        self._scope = context.scope
        self._events = context.scope.events
        self._examples = context.scope.examples
        self._recorder = context.scope.recorder
        self._services = context.scope.services
        self._journal = context.scope.services.journal
        self._built = built
        self._graph = built.graph
        self._models = models
        self._walk = walk
        self._output = output
        self._start = start
        self._live_conversation = start.live_conversation if built.has_conversation else None
        self._record = RunRecord(context, start, built)
        self._has_recorded_end = start.is_over
        self._is_cancel_wanted = False
        self._is_handed_over = False
        self._waits_for_children = self._waits_for_person = self._has_paused = False
        self._lost: JournalError | None = None
        """Why the journal could not be written; then no end is recorded, and the run can be
        resumed, also where the journal works again before this process is done with the run."""
        self._task: asyncio.Task[object] | None = None

    @property
    def run_id(self) -> str:
        """`run_…`."""
        return self.context.run_id

    @property
    def session_id(self) -> str:
        """`ses_…`."""
        return self.context.session_id

    @property
    def has_conversation(self) -> bool:
        """Whether a step of it shares the conversation of its session."""
        return self._built.has_conversation

    @property
    def keeps(self) -> int | None:
        """How many messages of its session the run continues with; None: all."""
        return self._live_conversation.keep if self._live_conversation is not None else None

    @property
    def model_name(self) -> str | None:
        """Which models answer, as far as is known; None when none is needed."""
        return self._models.names

    def listen(self, listener: Listener) -> None:
        """Hand every event from now on to `listener`."""
        self._events.listen(listener)

    def preview(self) -> Iterator[str]:
        """What is replayed, resumed, pinned and run, for a person; empty for a whole, new run."""
        return preview_lines(self.context, self._start, self._graph.steps)

    @property
    def calls_in_doubt(self) -> Sequence[OpenCall]:
        """The calls that wait for a decision, before the run is resumed."""
        return tuple(self._progress.open_calls)

    @property
    def waiting_calls(self) -> Sequence[str]:
        """Keys of the calls that wait for a decision."""
        return [call.key for call in self._progress.open_calls]

    @property
    def has_recorded_end(self) -> bool:
        """Whether the journal knows how the run ended; else it can be resumed."""
        return self._has_recorded_end

    @property
    def waits_for_person(self) -> bool:
        """Whether its recorded end is that of a run that waits for a decision."""
        return self._waits_for_person

    @property
    def child_waits(self) -> Sequence[ChildWait]:
        """The steps that wait for child runs: the run has no end, and is to be queued again."""
        return tuple(self._progress.child_waits) if self._waits_for_children else ()

    @property
    def is_paused(self) -> bool:
        """Whether it ended without an end, in order to wait as `services.pause` says."""
        return self._has_paused

    def cancel(self) -> None:
        """Stop as soon as may be; `execute` then returns a CANCELLED result."""
        if self._task is not None and not self._is_cancel_wanted:
            self._task.cancel()
        self._is_cancel_wanted = True

    def hand_over(self) -> None:
        """Stop as soon as may be without an end: another worker resumes the run."""
        self._is_handed_over = True
        self.cancel()

    # --- the run ----------------------------------------------------------------------------

    def execute(self) -> Coroutine[object, object, AgentResult[T_co]]:
        """Run to the end. Once begun, every end is a result, never an exception.

        Raises:
            LeaseHeldError, JournalError: The journal refused before anything was done.
            UsageError: `no-event-loop`; it is awaited by something else than asyncio.
            CancelledError: The task was cancelled by somebody else; what was done is recorded.
        """
        tracer = self._services.tracer
        return self._executed() if tracer is None else self._traced(tracer)

    async def _traced(self, tracer: Tracer) -> AgentResult[T_co]:
        _refuse_other_loops()
        with tracer.run(self._subject) as span:
            result = await self._executed()
            span.end(result.status, result.error)
        return result

    @property
    def note(self) -> Mapping[str, JsonValue]:
        """What the caller stored with its start, or stores now."""
        return self._start.note

    async def record_queued(self, note: Mapping[str, JsonValue]) -> JournalEntry:
        """Record its start, or how it is resumed, for a worker that executes it later.

        Nothing is executed here. The run needs nothing of this process any more.

        Args:
            note: Added to its note.
        Raises:
            UsageError: `run-over`; it came to its output.
            LeaseHeldError: Another run of the session is active, or is queued before it in the
                same conversation.
            JournalError: It cannot be stored; nothing was done.
        """
        recorder = self._scope.recorder
        await recorder.open()
        try:
            await self._refuse_if_resumed_elsewhere()
            await self._refuse_if_queued_before()
            await self._join_conversation()
            entry = await self._record.start(
                self.model_name, self._live_conversation, queue_note=note
            )
        finally:
            await recorder.close()
        if entry is None:
            raise UsageError(
                f"Run '{self.run_id}' has come to its output: there is nothing to queue.",
                code="run-over",
            )
        return entry

    async def _refuse_if_queued_before(self) -> None:
        """A run sees the messages that its session has when it is queued, and no later ones.

        Raises:
            LeaseHeldError: Another run that shares the conversation waits in a queue.
        """
        if not self.has_conversation:
            return
        queued = RunFilter(session_id=self.session_id, statuses={RunState.QUEUED})
        for row in await self._journal.runs(queued):
            if row.run_id != self.run_id:
                raise LeaseHeldError(
                    f"Session '{self.session_id}' is busy: run '{row.run_id}' waits in a queue to "
                    f"continue its conversation. Run '{self.run_id}' can start when that run ends.",
                    worker_id="",
                    run_id=row.run_id,
                )

    @property
    def _subject(self) -> RunSubject:
        from minions.contracts.tracing import RunSubject

        scope, replay = self._scope, self._start.replay
        return RunSubject(
            run_id=scope.run_id,
            session_id=scope.session_id,
            recipe=self._recipe.id,
            is_resumed=replay is not None,
            queued_by=replay.queued_trace if replay is not None else {},
            earlier=replay.trace if replay is not None else {},
        )

    async def _executed(self) -> AgentResult[T_co]:
        _refuse_other_loops()
        services, replay = self._services, self._start.replay
        opens_later = self._start.makes_session and self._journal.stores_together
        if not (opens_later or self._start.is_over):  # else with its first facts
            await self._recorder.open()
        shares = None
        begin, status = services.clock.monotonic(), RunStatus.FAILED
        services.metrics.run_began()
        try:
            if replay is not None:
                await self._refuse_if_resumed_elsewhere()
            if services.budgets is not None:
                shares = await self._share_budgets()
            if self._live_conversation is not None:
                await self._join_conversation()
            await self._record.start(self.model_name, self._live_conversation)
            if replay is not None and replay.prefixes:
                from minions.engine.calls.stored_prefix_use import restore_prefixes

                restore_prefixes(replay.prefixes, self.context)
            if shares is not None and replay is not None:
                await self._decide_on_budgets(replay)
            if self._built.has_pinned_examples and not self._start.is_over:
                # They stay the same to the end of the run.
                await self._examples.pin(self._recipe)
            if self._live_conversation is not None:
                await self._record.message()
            try:
                end = _CANCELLED if self._is_cancel_wanted else await self._walk_until_cancelled()
            except asyncio.CancelledError:
                status = RunStatus.CANCELLED
                with contextlib.suppress(JournalError):
                    await self._finish(_CANCELLED)
                raise
            result = await self._finish(end)
            status = result.status
            return result
        finally:
            if shares is not None and services.budgets is not None:
                await services.budgets.close(shares, is_recorded=self._has_recorded_end)
            services.metrics.run_ended(status._value_, services.clock.monotonic() - begin)
            recipe = self._recipe
            services.metrics.recipe_run_ended(recipe.id, recipe.version, status._value_)
            await self._recorder.close()

    async def _refuse_if_resumed_elsewhere(self) -> None:
        """Another worker may have recorded work between the look at the run and its lease.

        Raises:
            JournalError: `run-went-on`; that work must not be done a second time.
        """
        scope = self._scope
        if scope.replay is None or self._start.is_over:
            return
        if await scope.services.journal.entries(
            self.session_id, run_id=self.run_id, after=scope.replay.position
        ):
            raise JournalError(
                f"Run '{self.run_id}' was resumed by another process just now. Nothing was done "
                f"here; `minions sessions show {shell_word(self.run_id)}` shows where it stands.",
                code="run-went-on",
            )

    async def check_budgets(self) -> None:
        """Refuse a new run that could call no model; one that is resumed may have other work.

        Raises:
            BudgetSpentError: The budget of its session, its user or its day is spent.
            JournalError: The journal cannot be read.
        """
        services = self._services
        if services.budgets is not None and self._start.replay is None:
            try:
                await services.budgets.check(self._budgeted, services.journal, services.clock)
            except BudgetSpentError as error:
                services.metrics.budget_refused(error.limit)
                raise

    @property
    def labels(self) -> Mapping[str, str]:
        """By what queues may share their workers: the run's user, project, recipe and schedule, as
        far as it has them.
        """
        who = self._budgeted
        said = {
            "user": who.user,
            "project": who.project,
            "recipe": self._recipe.id,
            "schedule": who.schedule,
        }
        return {name: value for name, value in said.items() if value is not None}

    async def _share_budgets(self) -> BudgetShare | None:
        """Let the run spend from the budgets that it shares; None: there are none."""
        services = self._services
        if services.budgets is None or self._start.is_over:
            return None
        return await services.budgets.begin(self._budgeted, services.journal, services.clock)

    async def _decide_on_budgets(self, replay: Replay) -> None:
        """What persons said at thresholds counts for all runs from now on."""
        from minions.engine.calls.pending_decisions import decide_on_budgets

        scope = self._scope
        if scope.services.budgets is not None and replay.decisions:
            await decide_on_budgets(replay, scope.recorder, scope.services.budgets, self.run_id)

    @property
    def _budgeted(self) -> BudgetedRun:
        from minions.contracts.journal.start_note import SCHEDULE, TOKEN, name_noted
        from minions.engine.services.shared_budgets import BudgetedRun

        return BudgetedRun(
            run_id=self.run_id,
            session_id=self.session_id,
            user=self._start.user,
            budget=self._progress.budget,
            is_new=self._start.replay is None,
            recipe=self._recipe.id,
            schedule=name_noted(self._start.note, SCHEDULE),
            token=name_noted(self._start.note, TOKEN),
            project=self._start.project,
        )

    async def _walk_until_cancelled(self) -> WalkEnd:
        """The walk within the run's time, always in reach of `cancel`."""
        self._task = task = asyncio.current_task()
        context = self.context
        deadline = context.progress.start_time()
        try:
            try:
                if deadline is None:
                    await self._walk.walk()
                else:
                    async with TimeLimit(deadline):
                        await self._walk.walk()
            except Exception as error:  # noqa: BLE001  # the rim of a run: once begun, every end is a result
                if isinstance(error, TimeoutError) and deadline and deadline.expired():
                    context.progress.budget.run_out_of_time()
                    end = self._walk.end()
                else:
                    end = self._broken_off(leading_error(error))
            else:
                end = self._walk.end()
            if self._is_cancel_wanted:
                await asyncio.sleep(0)  # the request arrives here, not at the caller's
        except asyncio.CancelledError:
            # Our own request is used up here; any other one goes on to whoever made it.
            if task is None or not self._is_cancel_wanted or task.uncancel() > 0:
                raise
            return _CANCELLED
        else:
            return end
        finally:
            self._task = None

    def _broken_off(self, error: BaseException) -> WalkEnd:
        if isinstance(error, JournalError) and not error.is_about_one_fact:
            self._lost = error
        return WalkEnd(status=RunStatus.FAILED, error=_raised(error))

    async def _join_conversation(self) -> None:
        """Read the session's conversation, for the steps that share it."""
        if self._live_conversation is None:
            return
        context = self.context
        message = context.inputs.get(MESSAGE_INPUT)
        live, self._live_conversation = await open_conversation(
            self._journal,
            self.session_id,
            self._live_conversation,
            run_id=self.run_id,
            message=message if isinstance(message, str) else None,
            tools=context.tools,
        )
        steps = (step for step in self._graph.steps if not isinstance(step, PythonStep))
        sharing = [step for step in steps if step.shares_conversation]
        live.pending_tools = frozenset[str]().union(*(step.available_tools for step in sharing))
        if any(step.tool_search.caller for step in sharing):
            live.pending_tools |= {each.spec.name for each in self._scope.caller_tools}
        self._progress.join_session(live)

    @property
    def _calls(self) -> BlockingCalls:
        """The threads for what would hold the event loop."""
        return self._services.beside

    # --- the end ------------------------------------------------------------------------------

    async def _finish(self, end: WalkEnd) -> AgentResult[T_co]:
        """Record the end and make the result, also when the journal fails now.

        Raises:
            JournalError: The run was to be opened with this end, and the journal refused.
        """
        context = self.context
        if self._progress.prefixes and not self._is_handed_over:
            await self._delete_prefixes()
        context.step_manager.set_workflow_complete()
        end, output = await self._with_output(end)
        try:
            if self._lost is not None:
                raise self._lost
            self._waits_for_children = end.error is not None and end.error.code == WAITS_FOR_RUNS
            is_handed_over = self._is_handed_over and end.status is RunStatus.CANCELLED
            if is_handed_over or self._waits_for_children:
                await self._recorder.flush()
            else:
                end = await self._recorded_end(end, output)
        except JournalError as error:
            if self._recorder.refusal is error:
                raise
            end = WalkEnd(status=RunStatus.FAILED, error=end.error or error.info())
            if isinstance(error, FencedError) and await self._was_cancelled():
                end = _CANCELLED_OUTSIDE
        executions, budget = context.step_manager.step_executions, context.progress.budget
        return AgentResult(
            run_id=context.run_id,
            session_id=context.session_id,
            recipe_id=context.recipe.id,
            status=end.status,
            executions=executions,
            output=cast("T_co | None", output),
            usage=budget.usage,
            discarded_usage=budget.discarded,
            error=end.error,
            model_name=self.model_name,
            warnings=tuple(context.progress.warnings),
            step_ids={execution.step_id: at for at, execution in enumerate(executions)},
        )

    async def _delete_prefixes(self) -> None:
        """Have providers keep no beginnings of the run's prompts any more."""
        from minions.engine.calls.stored_prefix_use import delete_stored_prefixes

        try:
            await delete_stored_prefixes(self.context)
        except JournalError as error:
            self._lost = self._lost or error

    async def _recorded_end(self, end: WalkEnd, output: object) -> WalkEnd:
        pending: Sequence[PendingDecision] = ()
        if end.status is RunStatus.NEEDS_DECISION:
            found, pending = await self._with_commands(end)
            if self._waits_for_a_time(pending):
                self._has_paused = True
                await self._recorder.flush()
                return end  # no end is recorded: whoever executes it queues the rest
            end = found
        if end.error is not None and not self._start.is_over:
            await self._walk.record_what_never_started(end)
        await self._record.end(end, output, pending)
        self._has_recorded_end = True
        self._waits_for_person = end.status is RunStatus.NEEDS_DECISION
        return end

    def _waits_for_a_time(self, pending: Sequence[PendingDecision]) -> bool:
        """Whether nothing but time is needed, and no decision."""
        pause = self._services.pause
        if pause is None or pause.again_at is None:
            return False
        return not (pending or self._progress.open_calls)

    async def _with_commands(self, end: WalkEnd) -> tuple[WalkEnd, Sequence[PendingDecision]]:
        """What a run waits for, and its end with the commands that decide it."""
        from minions.engine.calls.pending_decisions import waiting_failure

        if end.error is None:
            return end, ()
        pending = await self._record.pending()
        if end.error.code != NEEDS_DECISION:
            return end, pending  # calls in doubt come first
        return replace(end, error=waiting_failure(end.error, pending, self.run_id)), pending

    async def _was_cancelled(self) -> bool:
        """Whether another process recorded the run as cancelled."""
        rows = await self._journal.entries(
            self.session_id, run_id=self.run_id, kinds={"run"}, limit=1, newest_first=True
        )
        last = rows[0].fact if rows else None
        self._has_recorded_end = (
            isinstance(last, RunFinished) and last.status == RunStatus.CANCELLED
        )
        return self._has_recorded_end

    async def _with_output(self, end: WalkEnd) -> tuple[WalkEnd, object]:
        """The run's result: the recipe's template, or the last completed step's output."""
        if end.status not in (RunStatus.COMPLETED, RunStatus.PARTIAL):
            return end, None
        try:
            if self._values.has_large:
                return end, await self._calls.run(self._output.get)
            return end, self._output.get()
        except (MinionsError, ValueError) as error:
            message = f"The run's output: {error}"
            info = FailureInfo(code=getattr(error, "error_code", "invalid-output"), message=message)
            return replace(end, status=RunStatus.FAILED, error=info), None


_CANCELLED = WalkEnd(
    status=RunStatus.CANCELLED,
    error=FailureInfo(code="cancelled", message="The run was cancelled; what was done is kept."),
)
_CANCELLED_OUTSIDE = WalkEnd(
    status=RunStatus.CANCELLED,
    error=FailureInfo(
        code="cancelled", message="The run was cancelled from outside; what was done is kept."
    ),
)


def _raised(error: BaseException) -> FailureInfo:
    if isinstance(error, MinionsError):
        return error.info()
    text = f"The run raised {words_of(error)}. What was done is kept."
    code = RESOURCE_LIMIT if isinstance(error, MemoryError) else "run-raised"
    return FailureInfo(code=code, message=text)


def _refuse_other_loops() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise UsageError(
            "There is no running event loop of asyncio, on which runs are executed (uvloop is one, "
            "too). Under trio or another library run it in a thread, such as "
            "`await trio.to_thread.run_sync(lambda: minions.run(recipe, inputs))`.",
            code="no-event-loop",
        ) from error
