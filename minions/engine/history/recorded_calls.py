"""Calls and executions restored from their recorded rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from attrs import evolve
from msgspec import UnsetType

from minions.contracts.calls import (
    CallStatus,
    Confidence,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    Prompt,
    ToolCall,
    ToolCallResponse,
    ToolFailure,
)
from minions.contracts.executions import Completion, StepExecution, StepStatus, Verdict
from minions.contracts.journal.facts import (
    ModelCallFact,
    ModelCallFinished,
    ModelCallLoss,
    RunBeginning,
    RunFinished,
    StepFailed,
    StepFinished,
    StepOutcome,
    ToolCallFinished,
    ToolCallOutcome,
    ToolCallStarted,
    given,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.run_rows import RunRow
from minions.contracts.messages import Message, TokenUsage, ToolCallRequest
from minions.contracts.session_views import StepMetrics
from minions.data.errors import FailureInfo
from minions.data.failure_categories import FailureCategory
from minions.data.json_values import JsonValue
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.memory import (
    ConversationMemory,
    apply_entry,
    conversation_of,
    tool_content,
)
from minions.engine.services.spending import EarlierUsage

if TYPE_CHECKING:
    from minions.engine.history.step_rows import StepRows


def recorded_model_call(call: ModelCall, fact: ModelCallFact, at: datetime) -> ModelCall:
    """The call with the end that was recorded at that time: COMPLETED or FAILED."""
    done = evolve(
        call,
        attempts=1 if fact.attempts is None else fact.attempts,
        retried_usage=recorded_usage(fact.retried_usage),
        completed_at=at,
    )
    if isinstance(fact, ModelCallFinished):
        return evolve(done, status=CallStatus.COMPLETED, response=_response(fact))
    lost = fact if isinstance(fact, ModelCallLoss) else None
    error = recorded_error(lost.error if lost is not None else None)
    usage = recorded_usage(lost.usage if lost is not None else None)
    failure = ModelFailure(code=error.code, message=error.message, usage=usage)
    return evolve(done, status=CallStatus.FAILED, failure=failure)


def _response(fact: ModelCallFinished) -> ModelCallResponse:
    metrics = fact.metrics or {}
    measured = StepMetrics.of(metrics)
    return ModelCallResponse(
        message=fact.message,
        usage=recorded_usage(metrics),
        finish_reason=given(fact.finish_reason),
        model_name=measured.model_name,
        provider=measured.provider,
        first_token_latency_ms=measured.first_token_latency_ms,
        completion_instruction=fact.instruction,
        cached_from=measured.cached_from,
        batch=measured.batch,
        confidence=None
        if measured.confidence is None
        else Confidence(measured.confidence, measured.least_sure_of or ""),
    )


def recorded_tool_call(call: ToolCall, fact: ToolCallOutcome, at: datetime) -> ToolCall:
    """The call with the end that was recorded at that time: COMPLETED or FAILED."""
    failure = None
    if fact.error is not None:
        error = recorded_error(fact.error)
        failure = ToolFailure(code=error.code, message=error.message)
    value = fact.content if isinstance(fact.value, UnsetType) else fact.value
    return evolve(
        call,
        status=(CallStatus.COMPLETED if isinstance(fact, ToolCallFinished) else CallStatus.FAILED),
        response=ToolCallResponse(
            content=tool_content(fact),
            value=value if failure is None else None,
            is_error=failure is not None,
        ),
        failure=failure,
        attempts=1 if fact.attempts is None else fact.attempts,
        completed_at=at,
    )


def recorded_error(error: Mapping[str, JsonValue] | None) -> FailureInfo:
    """The failure in a recorded body; a missing code or message gets a general one."""
    texts = {name: text for name, text in (error or {}).items() if isinstance(text, str)}
    return FailureInfo(
        code=texts.get("code") or "failed",
        message=texts.get("message") or "It failed.",
        where=texts.get("where"),
        category=_recorded_category(texts.get("category")),
    )


def _recorded_category(name: str | None) -> FailureCategory | None:
    """The category that a row names; None: its code says it, or a newer version wrote it."""
    return next((each for each in FailureCategory if each.value == name), None)


async def recorded_end(journal: Journal, row: RunRow) -> RunFinished | None:
    """How the run last ended; None: no end is recorded.

    Raises:
        JournalError: It could not be read.
    """
    entries = await journal.entries(
        row.session_id, run_id=row.run_id, kinds={"run"}, limit=1, newest_first=True
    )
    end = entries[0].fact if entries else None
    return end if isinstance(end, RunFinished) else None


async def recorded_step_failures(journal: Journal, row: RunRow) -> tuple[FailureInfo, ...]:
    """Why steps failed in the run's last execution, in the order in which they did.

    Raises:
        JournalError: They could not be read.
    """
    entries = await journal.entries(row.session_id, run_id=row.run_id, kinds={"run", "step"})
    failures: list[FailureInfo] = []
    for each in entries:
        if isinstance(each.fact, StepFailed):
            failures.append(recorded_error(each.fact.error))
        elif isinstance(each.fact, RunBeginning):
            failures.clear()
    return tuple(failures)


def recorded_usage(usage: Mapping[str, JsonValue] | None) -> TokenUsage:
    """The usage in a recorded body: tokens and US dollars; zero where none is recorded."""
    counts = usage or {}
    cost = counts.get("cost_usd")
    return TokenUsage(
        input_tokens=_count(counts.get("input_tokens")),
        output_tokens=_count(counts.get("output_tokens")),
        cached_tokens=_count(counts.get("cached_tokens")),
        cost_usd=cost if isinstance(cost, int | float) else None,
    )


def earlier_usage(entries: Iterable[JournalEntry]) -> EarlierUsage:
    """What the recorded model calls of a run used, until they are replayed."""
    return EarlierUsage(
        (entry.key, _usage_of(entry.fact))
        for entry in entries
        if isinstance(entry.fact, ModelCallFact)
    )


def _usage_of(fact: ModelCallFact) -> TokenUsage:
    """What all attempts at the call used."""
    last: Mapping[str, JsonValue] | None = None
    if isinstance(fact, ModelCallFinished):
        last = fact.metrics
    elif isinstance(fact, ModelCallLoss):
        last = fact.usage
    return recorded_usage(fact.retried_usage) + recorded_usage(last)


def _count(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0


def recorded_calls(
    rows: Sequence[JournalEntry], *, history: Sequence[Message] = ()
) -> tuple[ModelCall | ToolCall, ...]:
    """The calls of an execution, in the order of their ends, each with its prompt."""
    memory, conversation = ConversationMemory(), ""
    ended: dict[str, ToolCallOutcome] = {}
    requests: dict[str, ToolCallRequest] = {}
    calls: list[ModelCall | ToolCall] = []
    newest = {(entry.kind, entry.key): entry for entry in rows}
    for entry in rows:
        if entry.state == "interrupted" and newest[entry.kind, entry.key] is not entry:
            continue  # the call was repeated
        conversation = conversation_of(entry.fact) or conversation
        match fact := entry.fact:
            case ModelCallFact():
                prompt = Prompt(memory.prompt_messages(conversation.removesuffix("#aside")))
                call = ModelCall(
                    key=entry.key,
                    prompt=prompt,
                    phase=fact.phase or "model",
                    summarises=fact.summarises if isinstance(fact, ModelCallFinished) else None,
                )
                calls.append(recorded_model_call(call, fact, entry.at))
            case ToolCallStarted(call_id=call_id, tool=tool, arguments=arguments):
                request = ToolCallRequest(id=call_id or "", name=tool, arguments=arguments)
                requests[entry.key] = request
            case ToolCallOutcome() if entry.key in requests:
                made = ToolCall(key=entry.key, request=requests[entry.key])
                calls.append(recorded_tool_call(made, fact, entry.at))
        apply_entry(memory, ended, entry, history=history)
    return tuple(calls)


def recorded_execution(
    blank: StepExecution[object],
    rows: StepRows,
    output: object,
    *,
    history: Sequence[Message] = (),
) -> StepExecution[object]:
    """An execution that ended, restored from its rows.

    Args:
        blank: The step's execution as it begins.
        rows: Its recorded rows; they include the end.
        output: The recorded output, as the caller's type.
        history: The messages of the session when the run began.
    """
    assert rows.ended is not None  # noqa: S101  # asked only for what has ended
    ended = rows.ended
    fact = fact_in(ended, StepFinished, StepFailed)
    own = rows.until_end
    calls = recorded_calls(own, history=history) if len(own) > 1 else ()  # else only the end
    taken = fact if isinstance(fact, StepFinished) else None
    # Spelled out: `evolve` takes ten times as long.
    return StepExecution(
        id=blank.id,
        step_id=blank.step_id,
        iterations=blank.iterations,
        steps=blank.steps,
        warnings=blank.warnings,
        optional=blank.optional,
        model_call_limit=blank.model_call_limit,
        completion_mode=blank.completion_mode,
        completion_patterns=blank.completion_patterns,
        declares_output=blank.declares_output,
        plan=blank.plan,
        status=StepStatus(fact.status),
        reason=fact.reason,
        output=output,
        error=recorded_error(fact.error) if fact.error is not None else None,
        model_calls=tuple([call for call in calls if isinstance(call, ModelCall)]),
        tool_calls=tuple([call for call in calls if isinstance(call, ToolCall)]),
        calls=calls,
        started_at=(rows.started or ended).at,
        completed_at=ended.at,
        duration_ms=fact.duration_ms or 0.0,
        completion=_recorded_completion(fact),
        is_partial=taken.partial if taken is not None else False,
        cached_from=taken.cached_from if taken is not None else None,
        pinned_from=taken.pinned_from if taken is not None else None,
        sandbox=fact.sandbox,
    )


def _recorded_completion(fact: StepOutcome) -> Completion | None:
    """The verdict as far as it is recorded: who decided, and the wished next step."""
    decided_by = given(fact.decided_by)
    if decided_by is None:
        return None
    return Completion(
        Verdict.FAILED if fact.error is not None else Verdict.COMPLETE,
        decided_by=decided_by,
        next_step_id=fact.next_step_id,
    )
