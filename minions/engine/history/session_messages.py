"""Rows that carry a message, as the steps of a conversation that they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Final, assert_never

from attrs import evolve

from minions.contracts.facts import (
    BackEdge,
    ConversationStarted,
    DecisionFact,
    Fact,
    MessageRecorded,
    ModelCallFact,
    ModelCallFinished,
    Rollback,
    RouteFailed,
    RouteFinished,
    RunBeginning,
    RunFinished,
    RunLimitReached,
    RunRejected,
    SavedMessage,
    SessionCut,
    SessionForked,
    SessionOpened,
    StepFact,
    ToolCallFact,
    ToolCallFailed,
    ToolCallFinished,
    ToolCallOutcome,
    UnreadableFact,
    WarningRecorded,
)
from minions.contracts.journal import JournalEntry
from minions.contracts.sessions import SessionStep, StepMetrics
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.memory import recorded_message

__all__ = ["CONVERSATION_KINDS", "SessionConversation", "sequence_of", "session_step_of"]

CONVERSATION_KINDS: Final = frozenset(
    {"run", "session", "message", "model_call", "tool_call", "rollback"}
)
"""Kinds of rows that a session's conversation is folded from."""


def session_step_of(
    entry: JournalEntry, *, call: ToolCallOutcome | None = None, session_id: str = ""
) -> SessionStep:
    """The step that a row with a message stands for.

    Args:
        call: The tool call that it answers, where it is an answer.
        session_id: Through which session it is seen: a fork has ids of its own.
    """
    fact, message = _message_fact(entry), recorded_message(entry, call)
    session_id = session_id or entry.session_id
    saved = fact.saved if isinstance(fact, MessageRecorded) else None
    saved = saved or SavedMessage()
    metrics = fact.metrics or {} if call is None else {"tool_exec_time_ms": call.duration_ms}
    own_id = saved.id if session_id == entry.session_id else None
    return SessionStep(
        id=own_id or _step_id(session_id, entry),
        session_id=session_id,
        run_id=entry.run_id if saved.run_id is None else saved.run_id,
        sequence=fact.sequence or 0,
        role=message.role,
        content=message.content,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
        metrics=StepMetrics.of(metrics),
        created_at=_time_of(saved) or entry.at,
    )


def _message_fact(entry: JournalEntry) -> MessageRecorded | ModelCallFinished:
    """The fact of a row that carries a message.

    Raises:
        JournalError: `corrupt-entry`; it carries none.
    """
    if isinstance(entry.fact, ModelCallFinished):
        return entry.fact
    return fact_in(entry, MessageRecorded)


def sequence_of(fact: Fact | UnreadableFact) -> int | None:
    """Where in the session's conversation it stands, or cuts it; None: it is no part of it."""
    match fact:
        case (
            MessageRecorded(sequence=sequence) | ModelCallFinished(sequence=sequence)
            | RunFinished(sequence=sequence) | Rollback(sequence=sequence)
            | SessionForked(sequence=sequence) | SessionCut(sequence=sequence)
        ):  # fmt: skip
            return sequence
        case _:
            return None


def _time_of(saved: SavedMessage) -> datetime | None:
    """As a step that was saved brought it along."""
    return datetime.fromisoformat(saved.created_at) if saved.created_at else None


def _step_id(session_id: str, entry: JournalEntry) -> str:
    """The same at every look, another in every session that it is seen through."""
    source = f"{session_id}/{entry.session_id}/{entry.position}"
    return f"step_{hashlib.blake2b(source.encode(), digest_size=8).hexdigest()}"


class SessionConversation:
    """The conversation of one session, as its rows amount to it.

    A row that carries `sequence` n stands at n and takes the place of all from n on. What a run
    took the place of is there again when the run's end says so: it failed.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.steps: list[SessionStep] = []
        self.origins: list[JournalEntry] = []
        """The row behind each."""
        self._replaced: dict[str, tuple[list[SessionStep], list[JournalEntry]]] = {}
        """By run, what others had said where it went on."""
        self._calls: dict[tuple[str, str], ToolCallOutcome] = {}

    def apply_all(self, entries: Iterable[JournalEntry]) -> None:
        """What these rows add, oldest first."""
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: JournalEntry) -> None:
        """What one row adds."""
        match fact := entry.fact:
            case ToolCallFinished() | ToolCallFailed():
                self._calls[entry.run_id, entry.key] = fact
            case RunFinished(sequence=int(sequence)):
                self._restore(entry.run_id, sequence)
            case SessionForked(sequence=sequence) | SessionCut(sequence=sequence):
                self.cut(sequence)
            case Rollback(sequence=int(sequence)):
                self.cut(sequence)
            case MessageRecorded(sequence=int(sequence), replaces=int()):
                self._put(sequence, entry, fact)
            case (
                MessageRecorded(sequence=int(sequence)) | ModelCallFinished(sequence=int(sequence))
            ):
                self._keep(sequence, entry.run_id)
                self.cut(sequence - 1)
                self._put(sequence, entry, fact)
            case (
                RunBeginning() | RunFinished() | RunLimitReached() | RunRejected()
                | SessionOpened() | StepFact() | ConversationStarted() | ModelCallFact()
                | MessageRecorded() | Rollback() | ToolCallFact() | DecisionFact() | BackEdge()
                | RouteFinished() | RouteFailed() | WarningRecorded() | UnreadableFact()
            ):  # fmt: skip
                pass  # no part of the session's conversation
            case _:
                assert_never(fact)

    def _keep(self, sequence: int, run_id: str) -> None:
        """What the run takes the place of, when it does so first."""
        if sequence <= len(self.steps) and self.origins[sequence - 1].run_id != run_id:
            first = sequence - 1
            self._replaced[run_id] = (self.steps[first:], self.origins[first:])

    def _restore(self, run_id: str, count: int) -> None:
        """As it was before that run, which failed."""
        steps, origins = self._replaced.pop(run_id, ([], []))
        self.cut(count - len(steps))
        self.steps += steps
        self.origins += origins

    def _put(
        self, sequence: int, entry: JournalEntry, fact: MessageRecorded | ModelCallFinished
    ) -> None:
        key = fact.call if isinstance(fact, MessageRecorded) else None
        call = self._calls.get((entry.run_id, key)) if key is not None else None
        step = session_step_of(entry, call=call, session_id=self.session_id)
        if sequence <= len(self.steps):
            self.steps[sequence - 1] = evolve(step, created_at=self.steps[sequence - 1].created_at)
            self.origins[sequence - 1] = entry
        else:
            self.steps.append(step)
            self.origins.append(entry)

    def cut(self, sequence: int) -> None:
        """Keep the steps up to that sequence."""
        if sequence < len(self.steps):
            del self.steps[sequence:]
            del self.origins[sequence:]
