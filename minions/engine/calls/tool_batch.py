"""The tool calls of one answer: attempts, the journal, and results in request order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from attrs import evolve
from msgspec import UNSET, UnsetType
from returns.result import Failure, Result, Success

from minions.contracts.calls import CallOrigin, CallStatus, ToolCall, ToolCallResponse, ToolFailure
from minions.contracts.context import Limits, ToolCallExecutorFactory
from minions.contracts.decision_types import Decision, Redo, word_of
from minions.contracts.executions import StepExecution
from minions.contracts.journal.facts import (
    MessageRecorded,
    ToolCallFailed,
    ToolCallFinished,
    ToolCallInterrupted,
    ToolCallOutcome,
    ToolCallStarted,
)
from minions.contracts.messages import ToolCallRequest, tool_result
from minions.contracts.run_events import AttemptFailed
from minions.contracts.tools import NO_TOOLS, Effect, Tool
from minions.data.errors import NEEDS_DECISION, JournalError, StepFailedError, words_of
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue, dumps, dumps_in_parts
from minions.data.patterns import match_beside_loop
from minions.engine.calls.agents_of_run import AgentsOfRun
from minions.engine.calls.call_approvals import edited_call, needed_approval
from minions.engine.calls.duplicate_calls import duplicated_result, first_of_each, repeated_in_vain
from minions.engine.calls.pending_decisions import consent_digest, shortened
from minions.engine.calls.questions_of_call import QuestionsOfCall, Reply, pending_replies
from minions.engine.calls.resume_decisions import decided_call
from minions.engine.calls.tool_calls import DefaultToolCallExecutor
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.completion_links import FINAL_ANSWER
from minions.engine.context.step_view import StepView
from minions.engine.context.strangers_words import StrangersWords, WordsOf
from minions.engine.history.conversation import PendingCall
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.memory import READ_RESULT, shown_text
from minions.engine.history.recorded_calls import recorded_tool_call
from minions.engine.services.event_loop import beside
from minions.engine.services.retry import checked_result, with_retries
from minions.recipe.model import UntrustedRule
from minions.recipe.permissions import CallWords, stricter


class ToolBatch:
    """Runs the tool calls of one answer and puts their results into memory in request order."""

    def __init__(
        self,
        *,
        view: StepView,
        factory: ToolCallExecutorFactory,
        trace: StepTrace,
        reports_failures: bool,
    ) -> None:
        """Nothing is called yet.

        Args:
            trace: Holds every call at the end, also one that was cut off.
            reports_failures: Policy `report`: a failure that is left after the retries is a tool
                message for the model.
        """
        self.view = view
        self._tools = view.tools
        self._limits = view.limits
        self._context = context = view.context
        self._scope = scope = context.scope
        self._values = context.run_values
        self._progress = context.progress
        self._replay = scope.replay
        self._recorder = scope.recorder
        self._services = scope.services
        self._metrics = scope.services.metrics
        self.factory = factory
        self.trace = trace
        self.reports_failures = reports_failures
        self._pending: dict[str, str] = {}
        """Names of calls that an earlier run was asked for, by their key here."""
        self._agents: dict[str, Sequence[StepExecution[object]]] = {}
        """Executions of agents that calls ran, by the key of the call."""
        self._made: dict[str, int] = {}
        """Attempts at calls that were cut off, by their key."""
        self._replies: dict[str, Mapping[str, Reply]] = {}
        """Answers that calls waited for, by the key of the call."""
        self._words: dict[str, WordsOf] = {}
        """Whose words may be in the arguments of calls for the sake of which somebody is asked, or
        that are refused, by the key of the call."""
        self._refused: set[str] = set()
        """The keys of those that are refused."""
        self._brought: dict[str, WordsOf] = {}
        """Whose words agents have read that calls ran, by the key of the call."""

    async def run(
        self,
        requests: Sequence[ToolCallRequest],
        key: str,
        *,
        remember: bool = True,
        pending: Sequence[PendingCall] = (),
        filled: tuple[str, ...] = (),
    ) -> tuple[ToolCall, ...]:
        """All calls, carried out, in request order.

        Workers return values and touch no memory, so one call's failed attempt can never
        erase its neighbour's result.

        Args:
            key: Of the answer; each call's key adds its index.
            remember: Whether a conversation waits for the results.
            pending: The same calls, where an earlier run was asked for them.
            filled: The parameters of a step's call that a model filled in.
        """
        calls = [
            ToolCall(
                key=f"{key}/{index}",
                request=request,
                origin=CallOrigin.MODEL if remember else CallOrigin.STEP,
                effect_key=pending[index].effect_key if pending else None,
                filled=filled,
            )
            for index, request in enumerate(requests)
        ]
        self._pending.update((f"{key}/{n}", each.name) for n, each in enumerate(pending))
        words = self._context.words
        if words is not None:
            self._find_words(words, calls)
        ended: dict[int, ToolCall] = {}
        waiting: list[StepFailedError] = []
        tools = self._tools if remember else NO_TOOLS
        surplus = surplus_calls(requests, self.trace, self._limits) if remember else {}
        first = first_of_each(requests, tools, without=surplus)
        try:
            for index, refusal in surplus.items():
                ended[index] = await self._not_made(calls[index], refusal)
            await self._carry_out_all(
                {index: calls[index] for index in first if first[index] == index}, ended, waiting
            )
            for index in first:
                if first[index] in ended and first[index] != index:
                    ended[index] = await self._duplicate(calls[index], ended[first[index]])
        finally:
            done = tuple(ended[index] for index in sorted(ended))
            for call in calls:
                self.trace.add_agent_executions(self._agents.pop(call.key, ()))
            self.trace.add_tool_calls(done)
            if words is not None:
                self.view.read_words(
                    words, ((each.request.name, self._brought.get(each.key)) for each in done)
                )
        if waiting:
            decisions = [each for each in waiting if each.failure.code == NEEDS_DECISION]
            if decisions:
                self.trace.wait(decisions[0].failure)
            raise (decisions or waiting)[0]
        if remember:
            for call in done:
                await self._remember(call)
        return done

    async def _duplicate(self, call: ToolCall, first: ToolCall) -> ToolCall:
        """A call with the result of an identical one of the same answer."""
        return self._replayed(call) or await self._recorded(duplicated_result(call, first))

    async def _not_made(self, call: ToolCall, refusal: ToolFailure) -> ToolCall:
        """A call beyond a limit, with the words that tell the model so."""
        return self._replayed(call) or await self._recorded(self._told(call, refusal))

    def _replayed(self, call: ToolCall) -> ToolCall | None:
        """The call as it ended in an earlier execution of the run; None: it has not ended."""
        recorded = self._scope.recorded("tool_call", call.key)
        if recorded is None:
            return None
        self._recorder.note_replayed(recorded)
        return recorded_tool_call(call, fact_in(recorded, ToolCallOutcome), recorded.at)

    async def _recorded(self, done: ToolCall) -> ToolCall:
        """The end of a call that was not made, stored."""
        over = await self._over(done, attempts=0, arguments=done.request.arguments)
        await self._recorder.record(done.key, over)
        return done

    async def _carry_out_all(
        self,
        calls: Mapping[int, ToolCall],
        ended: dict[int, ToolCall],
        waiting: list[StepFailedError],
    ) -> None:
        """Calls that wait for a decision are left out; the others do not wait for them."""

        async def carry_out(index: int, call: ToolCall) -> None:
            try:
                await self._carry_out(index, call, ended)
            except StepFailedError as error:
                waiting.append(error)

        if self._limits.sequential_tool_calls or len(calls) == 1:
            for index, call in calls.items():
                await carry_out(index, call)
                if waiting:
                    return
            return
        async with asyncio.TaskGroup() as group:
            for index, call in calls.items():
                group.create_task(carry_out(index, call))

    async def _carry_out(self, index: int, call: ToolCall, ended: dict[int, ToolCall]) -> None:
        view, clock, recorder = self.view, self._services.clock, self._recorder
        # Asked once: of most calls nobody has to approve anything.
        words_of = self._words.get(call.key, ()) if self._words else ()
        request = call.request
        asks = bool(words_of) or self._context.needs_approval(request.name, request.arguments)
        edited = edited_call(view, call) if asks else call
        recorded = self._scope.recorded("tool_call", call.key)
        if recorded is not None:
            recorder.note_replayed(recorded)
            fact = fact_in(recorded, ToolCallOutcome)
            if fact.words_of is not None:
                self._brought[call.key] = tuple(fact.words_of)
            ended[index] = recorded_tool_call(edited, fact, recorded.at)
            return
        begin = clock.monotonic()
        if (decision := self._decision(call)) is not None:
            ended[index] = judged = self._judged(decided_call(call, decision))
            await recorder.record(call.key, await self._over(judged, decided=word_of(decision)))
            return
        unfit = self._repeated(call) or (await self._mismatch(call) if asks else None)
        unfit = unfit or self._not_as_decided(edited)
        if asks and unfit is None and (rejected := await self._rejection(call, words_of)):
            ended[index] = unmade = self._unmade(call, rejected)
            await recorder.record(
                call.key, await self._over(unmade, attempts=0, arguments=call.request.arguments)
            )
            return
        if is_edited := edited is not call:
            call, unfit = edited, unfit or await self._mismatch(edited)
        if unfit is None and self._replay is not None:
            self._replies[call.key] = await pending_replies(view, call.key)
        await recorder.record(call.key, self._begun(call))
        running = _with(call, CallStatus.EXECUTING, started_at=clock.now())
        done: ToolCall | None = None
        try:
            done = self._told(running, unfit) if unfit else await self._attempts(running)
            done = _saying_edited(done) if is_edited else done
        finally:
            if done is None:
                made = self._made.pop(call.key, 0)
                done = evolve(running, status=CallStatus.FAILED, failure=_CUT_OFF, attempts=made)
            done = _with(done, done.status, completed_at=clock.now())
            ended[index] = done
            duration_ms = round((clock.monotonic() - begin) * 1000, 3)
            over = await self._over(done, attempts=done.attempts, duration_ms=duration_ms)
            self._count(done, duration_ms)
            await recorder.record(call.key, over)

    def _count(self, call: ToolCall, duration_ms: float) -> None:
        # What a model calls it is no name that a metric should have.
        name = call.request.name
        name = name if self._tools.find(name) is not None else "unknown"
        code = call.failure.code if call.failure is not None else None
        self._metrics.tool_call_ended(name, code, duration_ms / 1000)

    def _begun(self, call: ToolCall) -> ToolCallStarted:
        tool = self._tools.find(call.request.name)
        is_undone = tool is None or tool.spec.effect is Effect.PURE or tool.spec.records_changes
        return ToolCallStarted(
            step_id=self.view.step_id,
            call_id=call.request.id,
            tool=call.request.name,
            pending=self._pending.get(call.key),
            arguments=call.request.arguments,
            effect=None if tool is None or is_undone else tool.spec.effect.value,
            filled=call.filled or None,
        )

    async def _over(
        self,
        call: ToolCall,
        *,
        attempts: int | None = None,
        duration_ms: float | None = None,
        arguments: str | None = None,
        decided: str | None = None,
    ) -> ToolCallFinished | ToolCallFailed | ToolCallInterrupted:
        given = call.response.value if call.response is not None else None
        is_long = is_large(given)
        if is_long:
            content, value = await beside(self.view.beside, is_long, lambda: _result(call))
        else:
            content, value = _result(call)
        return _outcome_class(call)(
            step_id=self.view.step_id,
            call_id=call.request.id,
            tool=call.request.name,
            pending=self._pending.get(call.key),
            attempts=attempts,
            duration_ms=duration_ms,
            content=content,
            value=value,
            error=call.failure.info().to_json() if call.failure is not None else None,
            arguments=arguments,
            decided=decided,
            filled=(call.filled or None) if arguments is not None else None,
            words_of=self._brought.get(call.key) if self._brought else None,
        )

    def _repeated(self, call: ToolCall) -> ToolFailure | None:
        """Why a call of the model that gave the same result again and again is not made."""
        if call.origin is not CallOrigin.MODEL:
            return None
        return repeated_in_vain(call.request, self.trace.tool_calls)

    async def _mismatch(self, call: ToolCall) -> ToolFailure | None:
        """The schema mismatch of arguments that need approval; None: they fit."""
        tool = self._allowed(call)
        if tool is None:
            return None
        try:
            executor = self.factory(call, self.view)
            if not isinstance(executor, DefaultToolCallExecutor):
                return None  # an application's own: what it makes of the arguments only it knows
            return await match_beside_loop(lambda: executor.mismatch(tool, call, self.view))
        except Exception:  # noqa: BLE001  # the attempt at the call will tell
            return None

    async def _rejection(self, call: ToolCall, words_of: WordsOf) -> ToolFailure | None:
        """Why nobody consents to the call; None: it may be made. Rights are looked at before.

        Raises:
            StepFailedError: It waits for a decision.
        """
        if self._allowed(call) is None:
            return None
        if words_of and call.key in self._refused:
            return _refused_words(call, words_of)
        return await needed_approval(self.view, call, words_of)

    def _find_words(self, words: StrangersWords, calls: Iterable[ToolCall]) -> None:
        """Find out which calls somebody has to be asked about, before any of them gives anything:
        what one reads is in no argument of another one.
        """
        rights, outer = self._scope.rights, words.rule
        live, own_id = self.view.live_conversation, ""
        has_history = live is not None and live.has_session_history
        for call in calls:
            tool = self._tools.find(call.request.name)
            takes_effect = tool is not None and rights.takes_effect(tool.spec)
            if tool is not None and (takes_effect or tool.spec.is_asking_others):
                allowed = UntrustedRule.ALLOW
                if outer is allowed and rights.untrusted_of(tool.spec) is allowed:
                    continue
                own_id = own_id or self.view.own_id
                found = words.reaching(own_id, call.request.name, has_history=has_history)
                if takes_effect and tool.spec.is_local:
                    found = words.foreign_among(found, tool.spec)
                elif not takes_effect:  # it changes nothing, but others read its arguments
                    found = words.private_among(found, tool.spec)
                if not found:
                    continue
                whose = CallWords(
                    anywhere=found,
                    by_argument=words.in_arguments(own_id, call.request.name, call.filled),
                    deciding=words.deciding(own_id),
                    results=lambda: words.results(self._output_of),
                )
                said = rights.untrusted_call(tool.spec, call.request.arguments, whose)
                rule = said if outer is UntrustedRule.ALLOW else stricter(said, outer)
                if rule is not UntrustedRule.ALLOW:
                    self._words[call.key] = whose.told(found)
                if rule is UntrustedRule.REFUSE:
                    self._refused.add(call.key)

    def _output_of(self, step_id: str) -> JsonValue:
        return (self._values.ended(step_id) or {}).get("output")

    def _allowed(self, call: ToolCall) -> Tool | None:
        tool = self._tools.find(call.request.name)
        return None if tool is None or self.view.refusal(tool.spec) is not None else tool

    def _unmade(self, call: ToolCall, rejected: ToolFailure) -> ToolCall:
        """A rejected call; under policy `report` the model reads why and continues."""
        if self.reports_failures:
            return self._told(call, rejected)
        return evolve(call, status=CallStatus.FAILED, failure=rejected)

    def _told(self, call: ToolCall, failure: ToolFailure) -> ToolCall:
        """A call that was not made, as one that failed."""
        return self._settled(call, Failure(failure), 0)

    def _decision(self, call: ToolCall) -> Decision | None:
        """The end of a call in doubt as a person declared it; None: execute the call."""
        replay = self._replay
        decision = replay.decisions.get(call.key) if replay is not None else None
        return None if isinstance(decision, Redo) else decision

    def _not_as_decided(self, call: ToolCall) -> ToolFailure | None:
        """Why a call with the decision `redo` is not executed: it is not the one that was shown."""
        replay = self._replay
        if replay is None or not isinstance(replay.decisions.get(call.key), Redo):
            return None
        shown = replay.begun_call(call.key)
        if shown is None or consent_digest(shown.tool, shown.arguments) == consent_digest(
            call.request.name, call.request.arguments
        ):
            return None
        return ToolFailure(
            code="other-arguments",
            message=f"It was decided to make {shown.tool}({shortened(shown.arguments)}) again, but "
            f"the step calls {call.request.name}({shortened(call.request.arguments)}). It was not "
            "called. Retry the step if that is what you want.",
        )

    def _judged(self, call: ToolCall) -> ToolCall:
        """A call that was decided to have failed, treated as one that failed by itself."""
        is_told = call.failure is not None and self.reports_failures
        return evolve(call, status=CallStatus.COMPLETED) if is_told else call

    async def _attempts(self, running: ToolCall) -> ToolCall:
        tracer = self._services.tracer
        if tracer is None:
            return await self._attempted(running)
        tool = self._tools.find(running.name)
        spec = tool.spec if tool is not None else None
        with tracer.tool_call(running, spec, self.view.subject) as span:
            done = await self._attempted(running)
            if done.response is not None:
                span.returned(done.response.content)
            span.end(done.status, done.failure.info() if done.failure is not None else None)
        return done

    async def _attempted(self, running: ToolCall) -> ToolCall:
        agents = AgentsOfRun(self.view, running.key)
        self._agents[running.key] = agents.executions
        replies = self._replies.pop(running.key, {})
        questions = QuestionsOfCall(self.view, running.key, running.request, replies)
        view = self.view.for_call(agents, questions)

        recorder, made = self._recorder, 0

        async def attempt() -> Result[ToolCallResponse, ToolFailure]:
            nonlocal made
            made += 1
            if made > 1:
                self._metrics.retried("tool")
                self._progress.count_retry()
            questions.begin_attempt()
            if recorder.is_late:
                await recorder.confirm_lease()
            try:
                executor = self.factory(running, view)
                outcome = await executor.execute(running, view)
                if not isinstance(outcome, Success):
                    checked_result(executor.execute, outcome)
            except JournalError:
                raise
            except Exception as error:  # noqa: BLE001  # an application's executor raises anything
                message = f"The call of '{running.name}' raised {words_of(error)}"
                outcome = Failure(ToolFailure(code="tool-failed", message=message))
            questions.check()
            agents.check()  # then it has no outcome: the call is made again on resume
            return outcome

        try:
            attempted = await with_retries(
                attempt,
                most=view.limits.max_tool_call_retries + 1,
                config=view.retry,
                services=self._services,
                on_retry=lambda attempt, delay_s, failure: _publish_retry(
                    view, running, attempt, delay_s, failure
                ),
            )
        except BaseException:
            self._made[running.key] = made
            raise
        if agents.words_of is not None:
            self._brought[running.key] = tuple(agents.words_of)
        return self._settled(running, attempted.outcome, made)

    def _settled(
        self, call: ToolCall, outcome: Result[ToolCallResponse, ToolFailure], attempts: int
    ) -> ToolCall:
        """A mendable failure, or any under policy `report`, becomes an answer the model reads."""
        if isinstance(outcome, Success):
            response = outcome.unwrap()
            return _with(call, CallStatus.COMPLETED, response=response, attempts=attempts)
        failure = outcome.failure()
        answers = failure.is_mendable or self.reports_failures
        response = ToolCallResponse(content=f"Error: {failure.message}", is_error=True)
        return evolve(
            call,
            status=CallStatus.COMPLETED if answers else CallStatus.FAILED,
            response=response,
            failure=failure,
            attempts=attempts,
        )

    async def _remember(self, call: ToolCall) -> None:
        view = self.view
        content = call.response.content if call.response else _told_failure(call)
        most = self._limits.max_tool_result_characters
        is_long = len(content) > most and call.request.name != READ_RESULT
        shown = most if is_long else None
        if shown is not None:
            content = shown_text(content, shown, call.request.id)
        view.memory.save_tool_response(
            view.conversation_id,
            tool_result(content, tool_call_id=call.request.id, name=call.request.name),
        )
        if view.live_conversation is not None:
            view.live_conversation.count += 1
        answer = MessageRecorded(
            step_id=view.step_id,
            conversation=view.conversation_id,
            call=call.key,
            tool_call_id=call.request.id,
            name=call.request.name,
            sequence=view.live_conversation.count if view.live_conversation is not None else None,
            shown=shown,
        )
        await self._recorder.record(f"{call.key}/answer", answer)


def _publish_retry(
    view: StepView, call: ToolCall, attempt: int, delay_s: float, failure: ToolFailure
) -> None:
    """Say to the log and whoever watches the run that an attempt failed and another follows."""
    context = view.context
    view.log.warning(
        "tool_call_retried", tool=call.request.name, attempt=attempt, code=failure.code
    )
    context.scope.events.publish(
        AttemptFailed(
            run_id=context.run_id,
            session_id=context.session_id,
            timestamp=context.scope.services.clock.now(),
            step_id=view.step_id,
            address=view.address,
            what=call.request.name,
            attempt=attempt,
            delay_s=delay_s,
            error=dict(failure.info().to_json()),
        )
    )


def _with(
    call: ToolCall,
    status: CallStatus,
    *,
    response: ToolCallResponse | None = None,
    attempts: int = 0,
    started_at: datetime | None = None,
    completed_at: datetime | None = None,
) -> ToolCall:
    """The same call in another state. Spelled out: `evolve` takes ten times as long."""
    return ToolCall(
        key=call.key,
        request=call.request,
        origin=call.origin,
        effect_key=call.effect_key,
        filled=call.filled,
        status=status,
        response=response or call.response,
        failure=call.failure,
        attempts=attempts or call.attempts,
        started_at=started_at or call.started_at,
        completed_at=completed_at,
    )


def _saying_edited(call: ToolCall) -> ToolCall:
    """The call with a tool message that says to the model which arguments were used."""
    response = call.response
    if response is None or call.origin is not CallOrigin.MODEL:
        return call
    arguments = shortened(call.request.arguments)
    content = f"(A person edited the arguments to {arguments}.)\n{response.content}"
    return evolve(call, response=evolve(response, content=content))


def _refused_words(call: ToolCall, words_of: WordsOf) -> ToolFailure:
    return ToolFailure(
        code="untrusted-words",
        message=f"The tool '{call.name}' has an effect, and its arguments may hold words of: "
        f"{', '.join(words_of)}. The recipe refuses such calls (permissions: untrusted). It was "
        "not called.",
    )


def _told_failure(call: ToolCall) -> str:
    """What a conversation holds of a call that failed and has no words for the model."""
    return f"Error: {call.failure.message}" if call.failure is not None else ""


_CUT_OFF = ToolFailure(
    code="cut-off", message="The call was cut off before it ended; what it did is not known."
)


def _result(call: ToolCall) -> tuple[str | None, JsonValue | UnsetType]:
    """The words and the value, without words that are the value as text."""
    response = call.response
    if response is None:
        return None, UNSET
    if call.failure is not None or response.value == response.content:
        return response.content, UNSET
    text = (dumps_in_parts if is_large(response.value) else dumps)(response.value)
    words = None if text == response.content else response.content
    return words, response.value


def _outcome_class(call: ToolCall) -> type[ToolCallFinished | ToolCallFailed | ToolCallInterrupted]:
    if call.failure is _CUT_OFF:
        return ToolCallInterrupted
    return ToolCallFinished if call.status is CallStatus.COMPLETED else ToolCallFailed


# --- tool calls beyond the limits of an answer and of a step: they are not made ------------------


def surplus_calls(
    requests: Sequence[ToolCallRequest], trace: StepTrace, limits: Limits
) -> Mapping[int, ToolFailure]:
    """Index of each request that is not carried out to the words about it for the model.

    The first requests are carried out, in their order; they are taken off the step's budget. A
    call that ends the step is always carried out.
    """
    wanted = [index for index, each in enumerate(requests) if each.name != FINAL_ANSWER]
    given = trace.reserve_tool_calls(len(wanted))
    if given == len(wanted):
        return {}
    refusal = _refusal(limits, is_of_answer=given == limits.max_tool_calls_per_answer)
    return dict.fromkeys(wanted[given:], refusal)


def _refusal(limits: Limits, *, is_of_answer: bool) -> ToolFailure:
    if is_of_answer:
        most, name = limits.max_tool_calls_per_answer, "max_tool_calls_per_answer"
        words = f"At most {most} tool calls of one answer are made"
        remedy = "Ask for fewer at a time; this one is made if you ask for it again."
    else:
        most, name = limits.max_tool_calls_per_step, "max_tool_calls_per_step"
        words = f"At most {most} tool calls are made in this step, and they were"
        remedy = "Answer with what you know."
    return ToolFailure(
        code="too-many-tool-calls",
        message=f"{words} (limit {name}). This call was not made. {remedy}",
        is_mendable=True,
    )
