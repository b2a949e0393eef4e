"""Messages of a session, folded from the rows that carry them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Final, assert_never

from attrs import evolve

from minions.contracts.journal.facts import (
    BackEdge,
    BatchCallFact,
    ConversationStarted,
    DecisionFact,
    ExamplesPinned,
    Fact,
    FileChangeFact,
    FileRollbackFact,
    MarkFact,
    MessageRecorded,
    ModelCallFact,
    ModelCallFinished,
    PlanLookup,
    PlanReplaced,
    RecipeFact,
    Rollback,
    RouteFailed,
    RouteFinished,
    RunBeginning,
    RunFinished,
    RunLimitReached,
    RunRejected,
    SavedMessage,
    ScoreFact,
    SessionCut,
    SessionForked,
    SessionOpened,
    StepFact,
    StoredPrefixFact,
    ToolCallFact,
    ToolCallFailed,
    ToolCallFinished,
    ToolCallOutcome,
    UnreadableFact,
    WarningRecorded,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import CUT_AT_LIMIT
from minions.contracts.session_views import SessionStep, StepMetrics
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.memory import recorded_message

CONVERSATION_KINDS: Final = frozenset(
    {"run", "session", "message", "model_call", "tool_call", "rollback"}
)
"""The kinds of rows that a session's conversation is folded from."""


def session_step_of(
    entry: JournalEntry, *, call: ToolCallOutcome | None = None, session_id: str = ""
) -> SessionStep:
    """The message of a row, as a step of the session.

    Args:
        call: The tool call that the message answers; None: it is no answer.
        session_id: The session through which the row is read: a fork has its own ids. Empty: the
            session of the row.
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
        reasoning=message.reasoning,
        provider_data=message.provider_data,
        attachments=message.attachments,
        metrics=StepMetrics.of(metrics),
        created_at=_time_of(saved) or entry.at,
        is_truncated=isinstance(fact, ModelCallFinished) and fact.finish_reason == CUT_AT_LIMIT,
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
    """The number of the message in the session, or the number at which it is cut; None: neither."""
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
    """The time that a saved message brought with it; None: it had none."""
    return datetime.fromisoformat(saved.created_at) if saved.created_at else None


def _step_id(session_id: str, entry: JournalEntry) -> str:
    """An id that is the same for every reader, and differs between a session and its forks."""
    source = f"{session_id}/{entry.session_id}/{entry.position}"
    return f"step_{hashlib.blake2b(source.encode(), digest_size=8).hexdigest()}"


class SessionConversation:
    """The conversation of one session, folded from its rows.

    A row with `sequence` n becomes message n and replaces all from n on. What a run replaced comes
    back when the run's end carries a `sequence`: the run failed.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.steps: list[SessionStep] = []
        self.origins: list[JournalEntry] = []
        """The row of each message, at the same index as in `steps`."""
        self._summaries: list[tuple[int, str]] = []
        """Number of messages and text of each summary of the oldest ones, in order of time."""
        self._replaced: dict[str, tuple[list[SessionStep], list[JournalEntry]]] = {}
        """By run the messages and rows that the run replaced."""
        self._calls: dict[tuple[str, str], ToolCallOutcome] = {}

    def copy(self) -> SessionConversation:
        """One that can be cut without changing this one; no row is applied to it."""
        copied = SessionConversation(self.session_id)
        copied.steps, copied.origins = [*self.steps], [*self.origins]
        copied._summaries = [*self._summaries]  # of the same class
        return copied

    def apply_all(self, entries: Iterable[JournalEntry]) -> None:
        """Fold these rows, oldest first."""
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: JournalEntry) -> None:
        """Fold one row."""
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
            case ModelCallFinished(summarises=int(count), of_session=True, message=message):
                self._summaries.append((count, message.content or ""))
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
                | PlanLookup() | PlanReplaced() | RouteFinished() | RouteFailed()
                | WarningRecorded() | FileChangeFact() | FileRollbackFact() | MarkFact()
                | ScoreFact() | ExamplesPinned() | RecipeFact() | BatchCallFact() | UnreadableFact()
                | StoredPrefixFact()
            ):  # fmt: skip
                pass  # no part of the session's conversation
            case _:
                assert_never(fact)

    def _keep(self, sequence: int, run_id: str) -> None:
        """Remember what the run replaces, when it does so for the first time."""
        if sequence <= len(self.steps) and self.origins[sequence - 1].run_id != run_id:
            first = sequence - 1
            self._replaced[run_id] = (self.steps[first:], self.origins[first:])

    def _restore(self, run_id: str, count: int) -> None:
        """Restore the messages that a failed run had replaced."""
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
        """Keep the first `sequence` messages."""
        if sequence < len(self.steps):
            del self.steps[sequence:]
            del self.origins[sequence:]
            self._summaries = [each for each in self._summaries if each[0] <= sequence]

    @property
    def summary(self) -> tuple[int, str] | None:
        """The newest summary: how many of the oldest messages it is of, and its text."""
        return self._summaries[-1] if self._summaries else None
