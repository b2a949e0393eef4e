"""What a run records of itself: its start or resume, the user's message, its output, its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Required, TypedDict

import attrs

from minions.contracts.executions import RunStatus, StepExecution, StepStatus
from minions.contracts.journal.facts import (
    MessageRecorded,
    RecordedConversation,
    RecordedPart,
    RunFinished,
    RunLimitReached,
    RunResumed,
    RunStarted,
    ToolCallInDoubt,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import NO_USAGE, usage_document, user
from minions.contracts.run_events import RunCompleted
from minions.data.codec import decode, encode
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue, dumps_in_parts
from minions.data.schema import SchemaValidator
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.selection import DependencyStepGraph
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.conversation import ConversationStart
from minions.engine.run.run_start import ResumePlan, RunStart
from minions.engine.run.walk import WalkEnd
from minions.engine.services.budget import RunBudget
from minions.engine.services.event_loop import beside
from minions.recipe.expressions.values import MissingValueError

if TYPE_CHECKING:
    from minions.engine.calls.pending_decisions import PendingDecision
    from minions.engine.services.run_services import Services


_LONGEST_REPEATED: Final = 4_096
"""Characters of inputs that each start of a run repeats."""


class _Beginning(TypedDict, total=False):
    """Fields that the facts of a start and of a resume have in common."""

    recipe: Required[str]
    version: str | None
    inputs: Mapping[str, JsonValue] | None
    model: str | None
    user: str | None
    note: Mapping[str, JsonValue] | None
    thread: RecordedConversation | None
    part: RecordedPart | None
    document: str | None
    directory: str | None
    recipes: str | None
    steps: Mapping[str, str] | None
    queued: bool | None
    retain_s: float | None
    trace: Mapping[str, str] | None


class RunRecord:
    """The facts about one execution of a run as a whole. Steps and calls record their own.

    A run that came to its output before is only replayed: then nothing is stored.
    """

    def __init__(self, context: AgentContext, start: RunStart, built: BuiltRecipe) -> None:
        self._recipe = context.recipe
        self._values = context.run_values
        self._step_manager = context.step_manager
        self._progress = context.progress
        self._start = start
        self._built = built
        self._graph = built.graph
        self._scope = context.scope
        self._services = context.scope.services
        self._clock = context.scope.services.clock
        self._recorder = context.scope.recorder

    async def start(
        self,
        model: str | None,
        conversation: ConversationStart | None,
        *,
        queue_note: Mapping[str, JsonValue] | None = None,
    ) -> JournalEntry | None:
        """Record the start, or how the run is resumed.

        Args:
            model: The name of the model that answers, as far as it is known.
            conversation: Where it continues the session's conversation; None: it has no part in it.
            queue_note: Added to the run's note where nothing is executed here, and a worker
                resumes the run; None: it is executed here.
        Returns:
            The fact; None: the run came to its output before, or the fact is stored with the next.
        Raises:
            JournalError: The fact, or a blob of it, could not be stored.
        """
        if self._start.is_over:
            return None
        beginning, plan = await self._beginning(model, conversation), self._start.resume_plan
        if queue_note is not None:
            beginning["queued"] = True
            beginning["note"] = {**self._start.note, **queue_note}
        entry = None
        if plan is not None:
            entry = await self._record_resume(beginning, plan)
        else:
            started = RunStarted(**beginning, project=self._start.project)
            if queue_note is None:
                await self._recorder.record_later("run", started)
            else:
                entry = await self._recorder.record("run", started)
        if self._services.has_log:
            word = "started" if plan is None else "resumed"
            done = f"run_{word if queue_note is None else 'queued'}"
            self._scope.log_info(done, recipe=self._recipe.id)
        return entry

    async def _record_resume(self, beginning: _Beginning, plan: ResumePlan) -> JournalEntry:
        from minions.contracts.decision_types import word_of

        resumed = RunResumed(
            **beginning,
            retries=plan.retries,
            anew=sorted(plan.anew),
            anew_at=sorted(plan.anew_at) or None,
            decisions={key: word_of(decision) for key, decision in plan.decisions.items()},
            **maker_fields(plan),
        )
        entry = await self._recorder.record("run", resumed)
        for call in plan.doubt:
            in_doubt = ToolCallInDoubt(
                step_id=call.step_id, tool=call.tool, arguments=call.arguments
            )
            await self._recorder.record(call.key, in_doubt)
        return entry

    async def _beginning(
        self, model: str | None, conversation: ConversationStart | None
    ) -> _Beginning:
        """The common fields; large parts are stored as blobs, once for all runs that share them."""
        recipe, chosen = self._recipe, self._start.chosen
        services, journal = self._services, self._services.journal
        beginning: _Beginning = {
            "recipe": recipe.id,
            "version": recipe.version,
            "inputs": (
                await beside(services.beside, is_long, self._inputs)
                if (is_long := self._values.has_large)
                else self._inputs()
            ),
            "model": model,
            "user": self._start.user,
            "note": dict(self._start.note) or None,
            "thread": conversation.recorded() if conversation is not None else None,
            "part": await chosen.stored(journal) if chosen is not None else None,
        }
        beginning["trace"] = current_trace(services)
        operators, own = services.retain_s, recipe.retain_s
        if operators is not None or own is not None:
            beginning["retain_s"] = min(each for each in (operators, own) if each is not None)
        if self._built.document is None:
            beginning["steps"] = {step.id: step.version for step in self._graph.steps}
            return beginning
        beginning["document"] = await journal.put_blob(self._built.document)
        beginning["directory"] = recipe.directory
        if (bundle := self._built.recipes_within) is not None:
            beginning["recipes"] = await journal.put_blob(bundle)
        return beginning

    def _inputs(self) -> Mapping[str, JsonValue] | None:
        """None: they are long, and stored with an earlier start."""
        inputs = self._start.inputs
        is_stored = (
            self._start.has_stored_inputs and len(dumps_in_parts(inputs)) > _LONGEST_REPEATED
        )
        return None if is_stored else inputs

    async def message(self) -> None:
        """Record what the user says in this run, unless answers of open tool calls come first."""
        conversation = self._progress.live_conversation
        if conversation is None or conversation.message is None or conversation.pending:
            return
        message = user(conversation.message)
        conversation.say(message)
        fact = MessageRecorded(message=message, sequence=conversation.count)
        if not self._start.is_over:
            await self._recorder.record("turn/1/0/message", fact)

    async def end(
        self, end: WalkEnd, output: object, pending: Sequence[PendingDecision] = ()
    ) -> None:
        """Record how the run ended.

        Args:
            pending: The decisions that the run waits for.
        Raises:
            JournalError: The fact could not be stored: the run can be resumed.
        """
        if self._start.is_over:
            await self._publish_end(end, output)
            return
        progress, error = self._progress, end.error
        if end.status is RunStatus.LIMIT_REACHED and error is not None:
            limit = RunLimitReached(limit=progress.budget.reached, message=error.message)
            await self._recorder.record("run/limit", limit)
        is_waiting = end.status is RunStatus.NEEDS_DECISION
        conversation, has_failed = progress.live_conversation, end.status is RunStatus.FAILED
        scope, services = self._scope, self._services
        is_long = is_large(output)
        finished = RunFinished(
            status=end.status._value_,
            output=(
                await beside(services.beside, is_long, lambda: self._as_json(output))
                if is_long
                else self._as_json(output)
            ),
            usage=usage_document(progress.budget.usage, progress.budget.discarded),
            spent=_own_spent(progress.budget),
            error=error.to_json() if error is not None else None,
            # The messages that a failed regeneration replaced are there again.
            sequence=conversation.restores if conversation is not None and has_failed else None,
            waiting=self._waiting(pending) if is_waiting else None,
            resumes_at=self._resumes_at(pending) if is_waiting else None,
            remind_every_s=_remind_every_s(pending) if is_waiting else None,
        )
        heads = services.heads
        # The head of the chain is read while nobody else can write the session.
        await self._recorder.record("run", finished, is_last=heads is None)
        if heads is not None:
            await heads.run_ended(scope.session_id, scope.run_id)
        if services.has_log:
            scope.log_info("run_finished", status=end.status.value)

    def _as_json(self, output: object) -> JsonValue:
        """The run's output; that of its last step is there as JSON already."""
        if output is None:
            return None  # a failed loop has none either, and results that others may read
        executions = self._step_manager.step_executions
        if executions and executions[-1].output is output:
            known = self._values.ended(executions[-1].step_id)
            if known is not None and "output" in known:
                return known["output"]
        return encode(output)

    async def pending(self) -> tuple[PendingDecision, ...]:
        """The decisions that the run waits for, as they are recorded.

        Raises:
            JournalError: They could not be read.
        """
        from minions.engine.calls.pending_decisions import pending_decisions
        from minions.engine.history.replay import Replay

        scope, journal = self._scope, self._services.journal
        await self._recorder.flush()
        rows = await journal.entries(
            scope.session_id, run_id=scope.run_id, kinds={"run", "step", "decision"}
        )
        return pending_decisions(Replay(rows, max(row.generation for row in rows) + 1))

    def _resumes_at(self, pending: Sequence[PendingDecision]) -> str | None:
        """When the run can be resumed although nobody decides; calls in doubt come first."""
        if self._progress.open_calls:
            return None
        pause = self._services.pause
        times = [each.due for each in pending if each.due is not None]
        if pause is not None and pause.again_at is not None:
            times.append(pause.again_at)
        return min(times).isoformat() if times else None

    def _waiting(self, pending: Sequence[PendingDecision]) -> list[Mapping[str, JsonValue]]:
        """What the run waits for: pending decisions, and calls in doubt."""
        return [
            *(each.to_json() for each in pending),
            *(call.to_json() for call in self._progress.open_calls),
        ]

    async def _publish_end(self, end: WalkEnd, output: object) -> None:
        """The last event of a run whose end is recorded already."""
        scope, budget = self._scope, self._progress.budget
        calls = self._services.beside
        response = await beside(calls, is_large(output), lambda: encode(output))
        metrics = usage_document(budget.usage, budget.discarded)
        scope.events.publish(
            RunCompleted(
                run_id=scope.run_id,
                session_id=scope.session_id,
                timestamp=self._clock.now(),
                status=end.status.value,
                data={"response": response, "metrics": metrics},
            )
        )


def _remind_every_s(pending: Sequence[PendingDecision]) -> float | None:
    """The fewest seconds that one of them says; None: none does."""
    said = (each.fact.remind_every_s for each in pending)
    return min((each for each in said if each is not None), default=None)


class _MakerFields(TypedDict, total=False):
    """Who made the decisions of a resume."""

    by: str | None
    person: str | None
    roles: tuple[str, ...] | None
    way: str | None
    is_claimed: bool | None


def maker_fields(plan: ResumePlan) -> _MakerFields:
    """Who made the decisions of a resume, as its fact says it."""
    maker = plan.decided_by
    if maker is None or not plan.decisions:
        return {}
    return {
        "by": maker.name,
        "person": maker.user,
        "roles": maker.roles or None,
        "way": maker.way,
        "is_claimed": maker.is_claimed or None,
    }


def current_trace(services: Services) -> Mapping[str, str] | None:
    """The headers of the current span, as a beginning records them; None: nothing is traced."""
    if services.tracer is None:
        return None
    from minions.contracts.tracing import TRACE_HEADERS

    headers = services.tracer.headers()
    return {name: headers[name] for name in TRACE_HEADERS if name in headers} or None


def _own_spent(budget: RunBudget) -> Mapping[str, JsonValue] | None:
    """What the run used itself; None: it has no child runs, which rows of their own count."""
    if budget.children is NO_USAGE:
        return None
    return {"tokens": budget.spent.tokens, "cost_usd": budget.spent.cost_usd}


class RunOutput:
    """The output as the caller wants it."""

    def __init__(
        self,
        context: AgentContext,
        built: BuiltRecipe,
        output_class: type[object] | None,
        output_check: SchemaValidator | None,
        *,
        is_part: bool = False,
    ) -> None:
        """Read nothing yet.

        Args:
            output_check: Of what `output_class` says.
            is_part: Not all steps were asked for: what the template reads may not be there.
        """
        self._context = context
        self._recipe = context.recipe
        self._step_manager = context.step_manager
        self._graph = built.graph
        self._template = built.output
        self._output_class = output_class
        self._output_check = output_check
        self._is_part = is_part

    def get(self) -> object:
        """The output of a run that came to its end.

        Raises:
            MinionsError: The recipe's template cannot be filled.
            ValueError: It is not what the caller wants.
        """
        output, is_checked = self._raw_output()
        return self._typed(output, is_checked=is_checked)

    def _raw_output(self) -> tuple[object, bool]:
        """The output, and whether its step declared and so checked it."""
        if (surprise := self._recipe.on_surprise) is not None:
            last = self._step_manager.latest(surprise)
            if last is not None and last.status is StepStatus.COMPLETED:
                return last.output, last.declares_output
        if self._template is not None:
            try:
                return self._template.render(self._context.values), False
            except MissingValueError:
                if not self._is_part:
                    raise
        for execution in self._last_first():
            if execution.status is StepStatus.COMPLETED and execution.pinned_from is None:
                return execution.output, execution.declares_output
        return None, False

    def _last_first(self) -> Iterator[StepExecution[object]]:
        """Of parallel steps the one written last counts, not the one that took longest."""
        manager, graph = self._step_manager, self._graph
        if not isinstance(graph, DependencyStepGraph):
            yield from reversed(manager.step_executions)
            return
        for step in reversed(graph.steps):
            if (execution := manager.latest(step.id)) is not None:
                yield execution

    def _typed(self, output: object, *, is_checked: bool) -> object:
        wanted = self._output_class
        if wanted is None:
            return output
        is_wanted = attrs.has(wanted) and isinstance(output, wanted)
        if is_wanted and is_checked:
            return output
        value = encode(output)
        if self._output_check is not None and (errors := self._output_check.errors(value)):
            raise ValueError(f"it does not fit {wanted}: {'; '.join(errors)}")
        return output if is_wanted else decode(value, wanted)
