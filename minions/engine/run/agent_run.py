"""One run of a recipe: its walk through the graph, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Required, TypedDict, cast

from attrs import evolve

from minions.contracts.codec import encode
from minions.contracts.decision_words import word_of
from minions.contracts.errors import FailureInfo, FencedError, JournalError, MinionsError, words_of
from minions.contracts.events import RunCompleted
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.facts import (
    MessageRecorded,
    RecordedConversation,
    RecordedPart,
    RunFinished,
    RunLimitReached,
    RunResumed,
    RunStarted,
    ToolCallInDoubt,
)
from minions.contracts.instructions import T_co
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.messages import user
from minions.contracts.steps import PythonStep
from minions.contracts.tools import Effect
from minions.engine.compile.build import BuiltRecipe
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.conversation import MESSAGE_INPUT, open_conversation
from minions.engine.history.events import Listener
from minions.engine.history.keys import base_key, execution_key, path_of
from minions.engine.run.run_models import RunModels
from minions.engine.run.run_output import RunOutput
from minions.engine.run.run_start import RunStart
from minions.engine.run.walk import RecipeWalk, WalkEnd
from minions.engine.services.error_groups import leading_error
from minions.recipe.bundles import bundle_of
from minions.recipe.model import ModelConfig

__all__ = ["AgentRun"]


class _Beginning(TypedDict, total=False):
    """Fields that the facts of a start and of a resume have in common."""

    recipe: Required[str]
    version: str | None
    inputs: Mapping[str, JsonValue] | None
    model: str | None
    note: Mapping[str, JsonValue] | None
    thread: RecordedConversation | None
    part: RecordedPart | None
    document: str | None
    directory: str | None
    recipes: str | None
    steps: Mapping[str, str] | None


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
        self._built = built
        self._models = models
        self._walk = walk
        self._output = output
        self._note = dict(start.note)
        self._resume_plan = start.resume_plan
        self._is_over = start.is_over
        self._chosen = start.chosen
        self._live_conversation = start.live_conversation if _has_conversation(built) else None
        self._has_recorded_end = start.is_over
        self._is_cancel_wanted = False
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
        return _has_conversation(self._built)

    @property
    def keeps(self) -> int | None:
        """How many messages of the session it goes on with; None: all."""
        return self._live_conversation.keep if self._live_conversation is not None else None

    @property
    def model_name(self) -> str | None:
        """Which models answer, as far as is known; None when none is needed."""
        return self._models.names

    def require_model(self, config: ModelConfig) -> None:
        """Make sure before the run that there is one.

        Raises:
            EnvironmentRefusedError: No model is configured, or its key is missing.
        """
        self._models.require(config)

    def listen(self, listener: Listener) -> None:
        """Hand every event from now on to `listener`."""
        self.context.scope.events.listen(listener)

    def outlook(self) -> Iterator[str]:
        """What is kept of a recorded run, what is a part of it, what is to be done; for a person.

        Nothing of a new run that is whole.
        """
        replay = self.context.scope.replay
        if replay is None:
            yield from self._outlook_of_part()
            return
        if self._is_over:
            yield f"run {self.run_id} has its output; nothing is done again"
            return
        kept, begun, again = [], [], []
        for step in self._built.graph.steps:
            if self._chosen is not None and step.id not in self._chosen.runs:
                continue
            rows = replay.newest_visit(step.id)
            if rows is not None and rows.ended is not None:
                kept.append(step.id)
            elif rows is not None:
                begun.append(step.id)
            else:
                again.append(step.id)
        waits = bool(self.context.progress.open_calls)
        yield f"run {self.run_id} {'waits for a decision' if waits else 'goes on'}"
        if_unchanged = " (where what they read is the same)" if replay.checks_inputs else ""
        for words, ids in ((f"kept{if_unchanged}", kept), ("half done", begun), ("to do", again)):
            if ids:
                yield f"  {words}: {_few(ids)}"
        if (calls := self._effects_again(again)) and not waits:
            yield f"  may have their effect a second time: {_few(calls)}"

    def _outlook_of_part(self) -> Iterator[str]:
        chosen = self._chosen
        if chosen is None:
            return
        ids = [step.id for step in self._built.graph.steps]
        pinned = [step_id for step_id in ids if step_id in chosen.pinned]
        runs = [step_id for step_id in ids if step_id in chosen.runs]
        others = [step_id for step_id in ids if step_id not in {*pinned, *runs}]
        yield f"run {self.run_id} does a part of '{self.context.recipe.id}'"
        if pinned:
            yield f"  pinned (as in {chosen.pinned_from}): {_few(pinned)}"
        yield f"  to do: {_few(runs)}"
        if others:
            yield f"  not asked for: {_few(others)}"

    def _effects_again(self, step_ids: Sequence[str]) -> list[str]:
        """Calls that changed something, in executions that are begun anew, by tool and step."""
        tools, replay = self.context.tools, self.context.scope.replay
        found: dict[str, None] = {}
        for key, tool in replay.begun_calls(step_ids) if replay is not None else ():
            known = tools.find(tool)
            if known is None or known.spec.effect is not Effect.PURE:
                found[f"{tool} in {path_of(base_key(execution_key(key)))}"] = None
        return list(found)

    @property
    def waiting_calls(self) -> Sequence[str]:
        """Keys of the calls that wait for a decision."""
        return [call.key for call in self.context.progress.open_calls]

    @property
    def has_recorded_end(self) -> bool:
        """Whether the journal knows how the run ended; else it can be resumed."""
        return self._has_recorded_end

    def cancel(self) -> None:
        """Stop as soon as may be; `execute` then returns a CANCELLED result."""
        if self._task is not None and not self._is_cancel_wanted:
            self._task.cancel()
        self._is_cancel_wanted = True

    # --- the run ----------------------------------------------------------------------------

    async def execute(self) -> AgentResult[T_co]:
        """Run to the end. Once begun, every end is a result.

        Raises:
            LeaseHeldError, JournalError: The journal refused before anything was done.
            CancelledError: The task was cancelled by somebody else; what was done is recorded.
        """
        recorder = self.context.scope.recorder
        if not self._is_over:
            await recorder.open()
        try:
            if not self._is_over:
                await self._refuse_what_went_on()
            await self._take_up_conversation()
            if not self._is_over:
                await self._record_start()
            await self._record_message()
            try:
                end = _CANCELLED if self._is_cancel_wanted else await self._walk_until_cancelled()
            except asyncio.CancelledError:
                await self._finish(_CANCELLED)
                raise
            return await self._finish(end)
        finally:
            await recorder.close()

    async def _refuse_what_went_on(self) -> None:
        """What another worker did between the look at the run and its lease must not be repeated.

        Raises:
            JournalError: There is such work.
        """
        replay, journal = self.context.scope.replay, self.context.scope.services.journal
        if replay is None:
            return
        after = replay.position
        if await journal.entries(self.session_id, run_id=self.run_id, after=after):
            raise JournalError(
                f"Run '{self.run_id}' went on elsewhere while this was about to begin. Nothing was "
                "done here; say it again if there is still something to do.",
                code="run-went-on",
            )

    async def _walk_until_cancelled(self) -> WalkEnd:
        """The walk, in reach of `cancel` from its first moment to its last."""
        self._task = task = asyncio.current_task()
        try:
            end = await self._walk_within_time()
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

    async def _take_up_conversation(self) -> None:
        """What was said in the session before, for the steps that go on with it."""
        if self._live_conversation is None:
            return
        context = self.context
        message = context.inputs.get(MESSAGE_INPUT)
        live, self._live_conversation = await open_conversation(
            context.scope.services.journal,
            self.session_id,
            self._live_conversation,
            run_id=self.run_id,
            message=message if isinstance(message, str) else None,
            tools=context.tools,
        )
        talking = (step for step in self._built.graph.steps if not isinstance(step, PythonStep))
        live.pending_tools = frozenset[str]().union(
            *(step.available_tools for step in talking if step.shares_conversation)
        )
        context.progress.join_session(live)

    async def _record_message(self) -> None:
        """What the user says, at once; behind the answers of tools where there are open calls."""
        live_conversation = self.context.progress.live_conversation
        if (
            live_conversation is None
            or live_conversation.message is None
            or live_conversation.pending
        ):
            return
        message = user(live_conversation.message)
        live_conversation.say(message)
        said = MessageRecorded(message=message, sequence=live_conversation.count)
        if not self._is_over:
            await self.context.scope.recorder.record("turn/1/0/message", said)

    async def _record_start(self) -> None:
        context, resume_plan = self.context, self._resume_plan
        recipe, beginning = context.recipe, await self._beginning()
        if resume_plan is None:
            await context.scope.recorder.record("run", RunStarted(**beginning))
            context.scope.services.log.info("run_started", run_id=self.run_id, recipe=recipe.id)
            return
        resumed = RunResumed(
            **beginning,
            retries=resume_plan.retries,
            anew=sorted(resume_plan.anew),
            decisions={key: word_of(said) for key, said in resume_plan.decisions.items()},
        )
        await context.scope.recorder.record("run", resumed)
        context.scope.services.log.info("run_resumed", run_id=self.run_id, recipe=recipe.id)
        for call in resume_plan.doubt:
            in_doubt = ToolCallInDoubt(
                step_id=call.step_id, tool=call.tool, arguments=call.arguments
            )
            await context.scope.recorder.record(call.key, in_doubt)

    async def _beginning(self) -> _Beginning:
        """What the rows of a start and of a resume have in common; large parts are blobs."""
        context = self.context
        recipe, journal = context.recipe, context.scope.services.journal
        beginning: _Beginning = {
            "recipe": recipe.id,
            "version": recipe.version,
            "inputs": context.inputs,
            "model": self.model_name,
            "note": self._note or None,
            "thread": self._live_conversation.recorded()
            if self._live_conversation is not None
            else None,
            "part": await self._chosen.stored(journal) if self._chosen is not None else None,
        }
        if self._built.document is None:
            beginning["steps"] = {step.id: step.version for step in self._built.graph.steps}
            return beginning
        beginning["document"] = await journal.put_blob(self._built.document)
        beginning["directory"] = recipe.directory
        if bundle := bundle_of(recipe):
            beginning["recipes"] = await journal.put_blob(dumps(bundle).encode())
        return beginning

    async def _walk_within_time(self) -> WalkEnd:
        context = self.context
        deadline = context.progress.start_time()
        try:
            async with deadline:
                await self._walk.walk()
        except Exception as error:  # noqa: BLE001  # the rim of a run: once begun, every end is a result
            if not (isinstance(error, TimeoutError) and deadline.expired()):
                leading = leading_error(error)
                if isinstance(leading, JournalError) and not leading.is_about_one_fact:
                    self._lost = leading
                return WalkEnd(status=RunStatus.FAILED, error=_raised(leading))
            context.progress.budget.run_out_of_time()
        return self._walk.end()

    # --- the end ------------------------------------------------------------------------------

    async def _finish(self, end: WalkEnd) -> AgentResult[T_co]:
        """The result, recorded. A store that fails now cannot hide what was done."""
        context = self.context
        context.step_manager.set_workflow_complete()
        end, output = self._with_output(end)
        try:
            if self._lost is not None:
                raise self._lost
            if not self._is_over:
                await self._walk.record_what_never_started(end)
                await self._record_end_of_run(end, output)
                self._has_recorded_end = True
        except JournalError as error:
            end = WalkEnd(status=RunStatus.FAILED, error=end.error or error.info())
            if isinstance(error, FencedError) and await self._was_cancelled():
                end = _CANCELLED_OUTSIDE
        if self._is_over:
            self._tell_again(end, output)
        executions = context.step_manager.step_executions
        return AgentResult(
            run_id=self.run_id,
            session_id=self.session_id,
            recipe_id=context.recipe.id,
            status=end.status,
            executions=executions,
            output=cast("T_co | None", output),
            usage=context.progress.budget.usage,
            error=end.error,
            model_name=self.model_name,
            warnings=tuple(context.progress.warnings),
            step_ids={execution.step_id: at for at, execution in enumerate(executions)},
        )

    async def _was_cancelled(self) -> bool:
        """Whether somebody else recorded that it is cancelled."""
        rows = await self.context.scope.services.journal.entries(
            self.session_id, run_id=self.run_id, kinds={"run"}, limit=1, newest_first=True
        )
        last = rows[0].fact if rows else None
        self._has_recorded_end = (
            isinstance(last, RunFinished) and last.status == RunStatus.CANCELLED
        )
        return self._has_recorded_end

    def _tell_again(self, end: WalkEnd, output: object) -> None:
        """The last event of a run whose end is recorded already."""
        context = self.context
        context.scope.events.publish(
            RunCompleted(
                run_id=self.run_id,
                session_id=self.session_id,
                timestamp=context.scope.services.clock.now(),
                status=end.status.value,
                data={
                    "response": encode(output),
                    "metrics": context.progress.budget.usage.to_json(),
                },
            )
        )

    async def _record_end_of_run(self, end: WalkEnd, output: object) -> None:
        context = self.context
        if end.status is RunStatus.LIMIT_REACHED and end.error is not None:
            limit = RunLimitReached(
                limit=context.progress.budget.reached, message=end.error.message
            )
            await context.scope.recorder.record("run/limit", limit)
        live_conversation, has_failed = (
            context.progress.live_conversation,
            end.status is RunStatus.FAILED,
        )
        finished = RunFinished(
            status=end.status.value,
            output=encode(output),
            usage=context.progress.budget.usage.to_json(),
            error=end.error.to_json() if end.error else None,
            # what it took the place of is there again
            sequence=live_conversation.restores
            if live_conversation is not None and has_failed
            else None,
        )
        await context.scope.recorder.record("run", finished)
        context.scope.services.log.info("run_finished", run_id=self.run_id, status=end.status.value)

    def _with_output(self, end: WalkEnd) -> tuple[WalkEnd, object]:
        """The run's result: the recipe's template, or the last completed step's output."""
        if end.status not in (RunStatus.COMPLETED, RunStatus.PARTIAL):
            return end, None
        try:
            return end, self._output.get()
        except (MinionsError, ValueError) as error:
            message = f"The run's output: {error}"
            info = FailureInfo(code=getattr(error, "error_code", "invalid-output"), message=message)
            return evolve(end, status=RunStatus.FAILED, error=info), None


def _has_conversation(built: BuiltRecipe) -> bool:
    steps = built.graph.steps
    return any(not isinstance(step, PythonStep) and step.shares_conversation for step in steps)


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


def _few(ids: Sequence[str]) -> str:
    """The first ones by name, the rest as a number."""
    shown, more = ids[:8], len(ids) - 8
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _raised(error: BaseException) -> FailureInfo:
    if isinstance(error, MinionsError):
        return error.info()
    text = f"The run raised {words_of(error)}. What was done is kept."
    return FailureInfo(code="run-raised", message=text)
