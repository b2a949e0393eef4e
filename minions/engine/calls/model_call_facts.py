"""What the journal says of a model call that has ended: answered, failed, or cut off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.contracts.calls import ModelCall, ModelCallResponse, ModelFailure
from minions.contracts.journal.facts import ModelCallFailed, ModelCallFinished, ModelCallInterrupted
from minions.contracts.messages import NO_USAGE
from minions.data.json_values import JsonValue
from minions.engine.compile.prompt_sections import apportioned, tokens_of_call
from minions.engine.context.step_view import StepView

CUT_OFF: Final = ModelFailure(
    code="cut-off",
    message="The call was cut off before its answer came; it may have been paid for.",
)
"""The failure of a call that was cancelled on its way."""


def lost(
    view: StepView, call: ModelCall, failure: ModelFailure, *, is_cut_off: bool
) -> ModelCallFailed | ModelCallInterrupted:
    """The fact of a call without an answer.

    Args:
        is_cut_off: Whether a resumed run makes the call again; else it has failed for good.
    """
    kind = ModelCallInterrupted if is_cut_off else ModelCallFailed
    return kind(
        step_id=view.step_id,
        phase=call.phase,
        attempts=call.attempts,
        retried_usage=_retried(call),
        output_mode=call.output_mode,
        tier=call.tier,
        error=failure.info().to_json(),
        usage=failure.usage.to_json(),
    )


def answered(
    view: StepView,
    call: ModelCall,
    response: ModelCallResponse,
    *,
    duration_ms: float,
    waited_s: float,
    is_remembered: bool,
    sequence: int | None,
) -> ModelCallFinished:
    """The fact of a call with an answer.

    Args:
        waited_s: How long its attempts waited for their turn.
        is_remembered: Whether the answer joins the step's conversation.
        sequence: The number of the answer among the session's messages; None: it is none of them.
    """
    conversation = view.conversation_id
    sections = apportioned(response.usage.input_tokens, tokens_of_call(call))
    return ModelCallFinished(
        step_id=view.step_id,
        phase=call.phase,
        attempts=call.attempts,
        retried_usage=_retried(call),
        output_mode=call.output_mode,
        tier=call.tier,
        conversation=conversation if is_remembered else f"{conversation}#aside",
        message=response.message,
        sequence=sequence,
        metrics=_metrics(response, duration_ms, waited_s),
        finish_reason=response.finish_reason,
        instruction=response.completion_instruction,
        sections=sections or None,
        summarises=call.summarises,
        of_session=call.is_of_session,
    )


def _retried(call: ModelCall) -> Mapping[str, JsonValue] | None:
    """The usage of failed attempts, in tokens and US dollars; None: there were none."""
    usage = call.retried_usage
    return None if usage is NO_USAGE or not usage.total_tokens else usage.to_json()


def _metrics(
    response: ModelCallResponse, duration_ms: float, waited_s: float
) -> Mapping[str, JsonValue]:
    metrics: dict[str, JsonValue] = {
        "duration_ms": duration_ms,
        "input_tokens": response.usage.input_tokens,
        "output_tokens": response.usage.output_tokens,
        "total_tokens": response.usage.total_tokens,
        "cached_tokens": response.usage.cached_tokens,
    }
    if waited_s:
        metrics["waited_ms"] = round(waited_s * 1000, 3)
    if response.usage.cost_usd is not None:
        metrics["cost_usd"] = response.usage.cost_usd
    if response.model_name is not None:
        metrics["model_name"] = response.model_name
    if response.provider is not None:
        metrics["provider"] = response.provider
    if response.cached_from is not None:
        metrics["cached_from"] = response.cached_from
    if response.first_token_latency_ms is not None:
        metrics["first_token_latency_ms"] = response.first_token_latency_ms
    return metrics
