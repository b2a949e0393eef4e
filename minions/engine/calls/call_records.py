"""What journal, metrics, log and events say of a model call; `model_call_facts` has its words."""

from __future__ import annotations

from minions.contracts.calls import ChatModel, ModelCall, ModelFailure
from minions.contracts.events import AttemptFailed
from minions.contracts.journal.facts import ModelCallFact
from minions.contracts.messages import TokenUsage
from minions.engine.calls.model_call_facts import answered, lost
from minions.engine.context.step_view import StepView


async def record_call(
    view: StepView,
    call: ModelCall,
    duration_ms: float,
    *,
    remember: bool,
    waited_s: float = 0.0,
    is_cut_off: bool = False,
) -> None:
    """Write the end of a call to the journal.

    Args:
        remember: Whether the answer joins the step's conversation.
        waited_s: How long its attempts waited for their turn.
        is_cut_off: Whether a resumed run makes the call again.
    """
    fact: ModelCallFact
    if call.failure is not None:
        fact = lost(view, call, call.failure, is_cut_off=is_cut_off)
    else:
        assert call.response is not None  # noqa: S101  # a call without failure has a response
        fact = answered(
            view,
            call,
            call.response,
            duration_ms=duration_ms,
            waited_s=waited_s,
            is_remembered=remember,
            sequence=_next_sequence(view) if remember else None,
        )
    await view.context.scope.recorder.record(call.key, fact)


def publish_retry(view: StepView, attempt: int, delay_s: float, failure: ModelFailure) -> None:
    """Say to the log and whoever watches the run that an attempt failed and another follows."""
    context = view.context
    view.log.warning("model_call_retried", attempt=attempt, code=failure.code)
    if not context.scope.events.is_watched:
        return
    context.scope.events.publish(
        AttemptFailed(
            run_id=context.run_id,
            session_id=context.session_id,
            timestamp=context.scope.services.clock.now(),
            step_id=view.step_id,
            address=view.address,
            what="model",
            attempt=attempt,
            delay_s=delay_s,
            error=dict(failure.info().to_json()),
        )
    )


def count_tokens(view: StepView, model: ChatModel | None, usage: TokenUsage) -> None:
    """Add the usage to the metrics, under the name of the model."""
    name = model.name if model is not None else "own"
    view.context.scope.services.metrics.model_tokens(
        name, usage.input_tokens, usage.output_tokens, usage.cost_usd
    )


def _next_sequence(view: StepView) -> int | None:
    """The number of the next message of the session; None: the step has no part in one."""
    live_conversation = view.live_conversation
    if live_conversation is None:
        return None
    live_conversation.count += 1
    return live_conversation.count
