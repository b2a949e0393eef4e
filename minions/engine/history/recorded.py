"""Recorded rows as the values they were: calls, executions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from attrs import evolve

from minions.contracts.calls import (
    CallStatus,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    Prompt,
    StepCompletionInstruction,
    ToolCall,
    ToolCallResponse,
    ToolFailure,
)
from minions.contracts.codec import decode
from minions.contracts.errors import FailureInfo
from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, TokenUsage, ToolCallRequest
from minions.contracts.verdicts import Completion, Verdict
from minions.engine.history.memory import ConversationMemory, apply_entry, tool_content
from minions.engine.history.replay import StepRows

__all__ = [
    "recorded_calls",
    "recorded_error",
    "recorded_execution",
    "recorded_model_call",
    "recorded_tool_call",
    "recorded_usage",
]


def recorded_model_call(call: ModelCall, entry: JournalEntry) -> ModelCall:
    """`call` as it ended: COMPLETED with its response, or FAILED."""
    body = entry.body
    done = evolve(
        call,
        attempts=cast(int, body.get("attempts", 1)),
        retried_usage=recorded_usage(body.get("retried_usage")),
        completed_at=entry.at,
    )
    if "message" not in body:
        error = recorded_error(body)
        failure = ModelFailure(
            code=error.code, message=error.message, usage=recorded_usage(body.get("usage"))
        )
        return evolve(done, status=CallStatus.FAILED, failure=failure)
    return evolve(done, status=CallStatus.COMPLETED, response=_response(body))


def _response(body: Mapping[str, JsonValue]) -> ModelCallResponse:
    metrics = cast("Mapping[str, JsonValue]", body.get("metrics") or {})
    instruction = body.get("instruction")
    return ModelCallResponse(
        message=decode(body["message"], Message),
        usage=recorded_usage(metrics),
        finish_reason=cast("str | None", body.get("finish_reason")),
        model_name=cast("str | None", metrics.get("model_name")),
        provider=cast("str | None", metrics.get("provider")),
        first_token_latency_ms=cast("float | None", metrics.get("first_token_latency_ms")),
        completion_instruction=(
            None if instruction is None else decode(instruction, StepCompletionInstruction)
        ),
    )


def recorded_tool_call(call: ToolCall, entry: JournalEntry) -> ToolCall:
    """`call` as it ended: COMPLETED with its response, or FAILED."""
    body = entry.body
    failure = None
    if body.get("error") is not None:
        error = recorded_error(body)
        failure = ToolFailure(code=error.code, message=error.message)
    return evolve(
        call,
        status=CallStatus.COMPLETED if entry.state == "finished" else CallStatus.FAILED,
        response=ToolCallResponse(
            content=tool_content(body),
            value=body.get("value", body.get("content")) if failure is None else None,
            is_error=failure is not None,
        ),
        failure=failure,
        attempts=cast(int, body.get("attempts", 1)),
        completed_at=entry.at,
    )


def recorded_error(body: Mapping[str, JsonValue]) -> FailureInfo:
    """The failure that a row tells."""
    error = cast("Mapping[str, str | None]", body.get("error") or {})
    return FailureInfo(
        code=error.get("code") or "failed",
        message=error.get("message") or "It failed.",
        where=error.get("where"),
    )


def recorded_usage(value: JsonValue) -> TokenUsage:
    """Counts of a row; none where it has none."""
    usage = cast("Mapping[str, int]", value or {})
    return TokenUsage(
        input_tokens=usage.get("input_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        cached_tokens=usage.get("cached_tokens", 0),
        cost_usd=cast("float | None", usage.get("cost_usd")),
    )


def recorded_calls(
    rows: Sequence[JournalEntry], *, history: Sequence[Message] = ()
) -> tuple[ModelCall | ToolCall, ...]:
    """The calls of an execution that ended, in the order of their ends, with their prompts."""
    memory, conversation = ConversationMemory(), ""
    contents: dict[str, str] = {}
    requests: dict[str, ToolCallRequest] = {}
    calls: list[ModelCall | ToolCall] = []
    newest = {(entry.kind, entry.key): entry for entry in rows}
    for entry in rows:
        if entry.state == "interrupted" and newest[entry.kind, entry.key] is not entry:
            continue  # the call was made again
        body = entry.body
        conversation = cast(str, body.get("conversation", conversation))
        if entry.kind == "model_call" and entry.state in ("finished", "failed", "interrupted"):
            prompt = Prompt(memory.prompt_messages(conversation.removesuffix("#aside")))
            phase = cast(str, body.get("phase", "model"))
            calls.append(
                recorded_model_call(ModelCall(key=entry.key, prompt=prompt, phase=phase), entry)
            )
        elif entry.kind == "tool_call" and entry.state == "started":
            requests[entry.key] = ToolCallRequest(
                id=cast(str, body["call_id"]),
                name=cast(str, body["tool"]),
                arguments=cast(str, body["arguments"]),
            )
        elif entry.kind == "tool_call" and entry.key in requests:
            call = ToolCall(key=entry.key, request=requests[entry.key])
            if entry.state in ("finished", "failed", "interrupted"):
                calls.append(recorded_tool_call(call, entry))
        apply_entry(memory, contents, entry, history=history)
    return tuple(calls)


def recorded_execution(
    blank: StepExecution[object],
    rows: StepRows,
    output: object,
    *,
    history: Sequence[Message] = (),
) -> StepExecution[object]:
    """An execution that ended, as its rows tell it.

    Args:
        blank: The step's, just begun.
        output: The recorded one, as the caller's type.
        history: What the session's conversation held when the run began.
    """
    assert rows.ended is not None  # noqa: S101  # asked only for what has ended
    ended, body = rows.ended, rows.ended.body
    calls = recorded_calls(rows.until_end, history=history)
    error = recorded_error(body) if body.get("error") is not None else None
    return evolve(
        blank,
        status=StepStatus(cast(str, body["status"])),
        reason=cast("str | None", body.get("reason")),
        output=output,
        error=error,
        model_calls=tuple(call for call in calls if isinstance(call, ModelCall)),
        tool_calls=tuple(call for call in calls if isinstance(call, ToolCall)),
        calls=calls,
        started_at=(rows.started or ended).at,
        completed_at=ended.at,
        duration_ms=cast(float, body.get("duration_ms", 0.0)),
        completion=_recorded_completion(body),
        cached_from=cast("str | None", body.get("cached_from")),
        pinned_from=cast("str | None", body.get("pinned_from")),
    )


def _recorded_completion(body: Mapping[str, JsonValue]) -> Completion | None:
    """The verdict as far as it is recorded: who decided, and the wish for the next step."""
    decided_by = cast("str | None", body.get("decided_by"))
    if decided_by is None:
        return None
    return Completion(
        Verdict.FAILED if body.get("error") is not None else Verdict.COMPLETE,
        decided_by=decided_by,
        next_step_id=cast("str | None", body.get("next_step_id")),
    )
