"""Contexts made of session steps: the messages of a prompt, and a summary of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from minions.contracts.messages import Message, MessageRole, message_from_dict
from minions.contracts.session_views import SessionStep
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.sessions.store import StepRepository

MessageDict = dict[str, JsonValue]


async def build_context_from_steps(
    session_id: str, repository: StepRepository, system_prompt: str | None = None
) -> list[MessageDict]:
    """All steps of the session as messages for a provider, oldest first.

    Args:
        system_prompt: Becomes the first message, and is not stored. A conversation that begins with
            a stored system message keeps that one. None: no system message is added.
    """
    return _context(await repository.get_steps(session_id), system_prompt)


async def build_context_from_sequence_range(
    session_id: str,
    repository: StepRepository,
    start_seq: int | None = None,
    end_seq: int | None = None,
    system_prompt: str | None = None,
) -> list[MessageDict]:
    """The steps from `start_seq` to `end_seq`, both included, as messages for a provider.

    Args:
        start_seq: None: from the first step on.
        end_seq: None: up to the last step.
        system_prompt: As for `build_context_from_steps`.
    """
    return _context(await repository.get_steps(session_id, start_seq, end_seq), system_prompt)


def _context(steps: Sequence[SessionStep], system_prompt: str | None) -> list[MessageDict]:
    context = [step.to_message_dict() for step in steps]
    begins_with_system = bool(steps) and steps[0].role is MessageRole.SYSTEM
    if system_prompt is not None and not begins_with_system:
        context.insert(0, {"role": "system", "content": system_prompt})
    return context


def messages_from_context(context: Iterable[Mapping[str, JsonValue]]) -> tuple[Message, ...]:
    """The messages for a `Prompt`: `model.complete(Prompt(messages_from_context(…)))`.

    Raises:
        UsageError: `bad-message`; one is no chat message.
    """
    messages = []
    for at, each in enumerate(context):
        try:
            messages.append(message_from_dict(each))
        except ValueError as error:
            raise UsageError(f"Message {at} of the context: {error}", code="bad-message") from error
    return tuple(messages)


def validate_context(context: Sequence[Mapping[str, JsonValue]]) -> tuple[str, ...]:
    """Warnings about a context: answers without a call, and calls without an answer.

    Raises:
        UsageError: `bad-message`; a message has no role, or an unknown one, or answers no call.
    """
    messages = messages_from_context(context)
    open_calls: dict[str, str] = {}
    odd = []
    for at, message in enumerate(messages):
        if message.role is MessageRole.TOOL:
            if message.tool_call_id is None:
                raise UsageError(
                    f"Message {at} of the context is an answer of a tool without 'tool_call_id'.",
                    code="bad-message",
                )
            if open_calls.pop(message.tool_call_id, None) is None:
                odd.append(f"message {at} answers '{message.tool_call_id}', which nothing called")
        open_calls |= {call.id: call.name for call in message.tool_calls}
    odd += [
        f"the call '{call_id}' of '{name}' has no answer" for call_id, name in open_calls.items()
    ]
    return tuple(odd)


async def get_context_summary(session_id: str, repository: StepRepository) -> dict[str, JsonValue]:
    """`total_steps`, `user_steps`, `assistant_steps`, `tool_steps`, `total_tool_calls`,
    `sequence_range` and `time_range` with `min` and `max`; the ranges are None without steps.
    """
    steps = await repository.get_steps(session_id)
    times: list[datetime] = [step.created_at for step in steps if step.created_at is not None]
    return {
        "total_steps": len(steps),
        "user_steps": sum(step.is_user_step() for step in steps),
        "assistant_steps": sum(step.is_assistant_step() for step in steps),
        "tool_steps": sum(step.is_tool_step() for step in steps),
        "total_tool_calls": sum(len(step.tool_calls) for step in steps),
        "sequence_range": {"min": steps[0].sequence, "max": steps[-1].sequence} if steps else None,
        "time_range": (
            {"min": min(times).isoformat(), "max": max(times).isoformat()} if times else None
        ),
    }
