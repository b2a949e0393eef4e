"""Rows that carry a message, as the steps of a conversation that they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, cast

from attrs import evolve

from minions.contracts.codec import decode
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, MessageRole
from minions.contracts.sessions import SessionStep, StepMetrics
from minions.engine.history.memory import tool_content

__all__ = ["CONVERSATION_KINDS", "SessionConversation", "session_step_of"]

CONVERSATION_KINDS: Final = frozenset(
    {"run", "session", "message", "model_call", "tool_call", "rollback"}
)
"""Kinds of rows that a session's conversation is folded from."""


def session_step_of(
    entry: JournalEntry, *, call: Mapping[str, JsonValue] | None = None, session_id: str = ""
) -> SessionStep:
    """The step that a row with a message stands for.

    Args:
        call: The body of the tool call that it answers, where it is an answer.
        session_id: Through which session it is seen: a fork has ids of its own.
    """
    body = entry.body
    session_id = session_id or entry.session_id
    kept = cast("Mapping[str, JsonValue]", body.get("saved") or {})
    metrics = cast("Mapping[str, JsonValue]", body.get("metrics") or {})
    if call is None:
        message = decode(body["message"], Message)
    else:
        message = Message(
            role=MessageRole.TOOL,
            content=tool_content(call),
            tool_call_id=cast(str, body["tool_call_id"]),
            name=cast("str | None", body.get("name")),
        )
        metrics = {"tool_exec_time_ms": call.get("duration_ms")}
    own_id = cast(str, kept.get("id", "")) if session_id == entry.session_id else ""
    return SessionStep(
        id=own_id or _step_id(session_id, entry),
        session_id=session_id,
        run_id=cast(str, kept.get("run_id", entry.run_id)),
        sequence=cast(int, body.get("sequence", 0)),
        role=message.role,
        content=message.content,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
        metrics=StepMetrics.of(metrics),
        created_at=_time_of(kept) or entry.at,
    )


def _time_of(kept: Mapping[str, JsonValue]) -> datetime | None:
    """As a step that was saved brought it along."""
    text = cast("str | None", kept.get("created_at"))
    return datetime.fromisoformat(text) if text else None


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
        self._calls: dict[tuple[str, str], Mapping[str, JsonValue]] = {}

    def apply_all(self, entries: Iterable[JournalEntry]) -> None:
        """What these rows add, oldest first."""
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: JournalEntry) -> None:
        """What one row adds."""
        body = entry.body
        if entry.kind == "tool_call":
            if entry.state in ("finished", "failed"):
                self._calls[entry.run_id, entry.key] = body
            return
        sequence = cast("int | None", body.get("sequence"))
        if sequence is None:
            return
        if entry.kind == "run":
            self._restore(entry.run_id, sequence)
        elif entry.kind in ("session", "rollback"):
            self.cut(sequence)
        elif "replaces" in body:
            self._put(sequence, entry)
        elif (entry.kind, entry.state) == ("model_call", "finished") or entry.kind == "message":
            self._keep(sequence, entry.run_id)
            self.cut(sequence - 1)
            self._put(sequence, entry)

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

    def _put(self, sequence: int, entry: JournalEntry) -> None:
        key = cast("str | None", entry.body.get("call"))
        call = self._calls[entry.run_id, key] if key is not None else None
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
