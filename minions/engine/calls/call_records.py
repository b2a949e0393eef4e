"""What journal, metrics, log and events say of a model call; where its attachments are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve

from minions.contracts.calls import ChatModel, ModelCall, ModelCallResponse, ModelFailure, Prompt
from minions.contracts.journal.facts import (
    ModelCallFact,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallInterrupted,
)
from minions.contracts.journal.journal import Journal
from minions.contracts.messages import NO_USAGE, Message, TokenUsage, attachments_of
from minions.contracts.run_events import AttemptFailed
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
    prefix: Mapping[str, JsonValue] | None = None,
) -> ModelCallFinished:
    """The fact of a call with an answer.

    Args:
        waited_s: How long its attempts waited for their turn.
        is_remembered: Whether the answer joins the step's conversation.
        sequence: The number of the answer among the session's messages; None: it is none of them.
        prefix: What was to be expected of the server's cache, as `CallPrefix.facts`.
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
        metrics=_metrics(response, duration_ms, waited_s, prefix),
        finish_reason=response.finish_reason,
        instruction=response.completion_instruction,
        sections=sections or None,
        summarises=call.summarises,
        of_session=call.is_of_session,
        redacted=response.redacted,
    )


def _retried(call: ModelCall) -> Mapping[str, JsonValue] | None:
    """The usage of failed attempts, in tokens and US dollars; None: there were none."""
    usage = call.retried_usage
    return None if usage is NO_USAGE or not usage.total_tokens else usage.to_json()


def _metrics(
    response: ModelCallResponse,
    duration_ms: float,
    waited_s: float,
    prefix: Mapping[str, JsonValue] | None,
) -> Mapping[str, JsonValue]:
    metrics: dict[str, JsonValue] = {
        "duration_ms": duration_ms,
        "input_tokens": response.usage.input_tokens,
        "output_tokens": response.usage.output_tokens,
        "total_tokens": response.usage.total_tokens,
        "cached_tokens": response.usage.cached_tokens,
    }
    if prefix:
        metrics["prefix"] = prefix
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
    if response.batch is not None:
        metrics["batch"] = response.batch
    if response.confidence is not None:
        metrics["confidence"] = response.confidence.probability
        metrics["least_sure_of"] = response.confidence.at
    if response.first_token_latency_ms is not None:
        metrics["first_token_latency_ms"] = response.first_token_latency_ms
    return metrics


async def record_call(
    view: StepView,
    call: ModelCall,
    duration_ms: float,
    *,
    remember: bool,
    waited_s: float = 0.0,
    is_cut_off: bool = False,
    may_wait: bool = False,
    prefix: Mapping[str, JsonValue] | None = None,
) -> None:
    """Write the end of a call to the journal.

    Args:
        remember: Whether the answer joins the step's conversation.
        waited_s: How long its attempts waited for their turn.
        is_cut_off: Whether a resumed run makes the call again.
        may_wait: Whether nothing acts upon the answer before the next fact is stored.
        prefix: As for `answered`.
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
            prefix=prefix,
        )
    if may_wait:
        await view.context.scope.recorder.record_later(call.key, fact)
    else:
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


def count_tokens(
    view: StepView,
    model: ChatModel | None,
    usage: TokenUsage,
    prefix: Mapping[str, JsonValue] | None,
) -> None:
    """Add the usage to the metrics, under the name of the model.

    Args:
        prefix: As for `answered`.
    """
    name = model.name if model is not None else "own"
    metrics = view.context.scope.services.metrics
    metrics.model_tokens(name, usage.input_tokens, usage.output_tokens, usage.cost_usd)
    if usage.cached_tokens and model is not None:
        metrics.model_cache(name, "read", usage.cached_tokens)
        _note_cache(view, model)
    if not prefix:
        return
    for kind in ("expected", "written", "lost"):
        count = prefix.get(f"{kind}_tokens")
        if isinstance(count, int):
            metrics.model_cache(name, kind, count)


def model_place(model: ChatModel) -> tuple[str, str | None]:
    """Under which name and address what its server has seen is known."""
    return model.name, model.base_url


def _note_cache(view: StepView, model: ChatModel) -> None:
    """Note that the server of a model has a cache: from now on its prompts are compared."""
    services = view.context.scope.services
    if model.prompt_cache is not None and model_place(model) not in services.prefixes:
        from minions.engine.services.prompt_prefixes import PromptPrefixes

        services.prefixes[model_place(model)] = PromptPrefixes(services.clock, services.sleep)


def _next_sequence(view: StepView) -> int | None:
    """The number of the next message of the session; None: the step has no part in one."""
    live_conversation = view.live_conversation
    if live_conversation is None:
        return None
    live_conversation.count += 1
    return live_conversation.count


async def store_attachments(journal: Journal, messages: Iterable[Message]) -> None:
    """Store the contents as blobs, before the row that names them."""
    for attachment in attachments_of(messages):
        if attachment.data is not None:
            await journal.put_blob(attachment.data)


async def with_attachments(journal: Journal, prompt: Prompt) -> Prompt:
    """The prompt with the contents of what is attached; the same one where nothing is missing.

    Raises:
        NotFoundError: `unknown-blob`: the journal does not hold one of them.
    """
    attached = attachments_of(prompt.messages)
    if not attached or all(each.data is not None for each in attached):
        return prompt
    return evolve(prompt, messages=[await _loaded(journal, each) for each in prompt.messages])


async def _loaded(journal: Journal, message: Message) -> Message:
    if all(each.data is not None for each in message.attachments):
        return message
    loaded = [
        each if each.data is not None else evolve(each, data=await journal.get_blob(each.digest))
        for each in message.attachments
    ]
    return evolve(message, attachments=tuple(loaded))
