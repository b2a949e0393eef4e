"""Events: made from stored facts, published after they are stored, to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeAlias, TypedDict, cast

from minions.contracts.errors import words_of
from minions.contracts.events import (
    LimitReached,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    StepCompleted,
    StepFinished,
    StepStarted,
    StepWaiting,
    ToolFinished,
    ToolStarted,
)
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import MessageRole, TokenUsage
from minions.contracts.sessions import SessionStep
from minions.engine.history.conversation import MESSAGE_INPUT
from minions.engine.history.session_messages import session_step_of

__all__ = ["EventMaker", "EventStream", "Listener"]

Listener: TypeAlias = Callable[[RunEvent], None]


class EventStream:
    """Hands each event to every listener, in order. A listener must return at once."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.problems: list[str] = []
        """Listeners that raised, in words."""

    @property
    def is_watched(self) -> bool:
        """Whether anybody listens: decides if answers are streamed."""
        return bool(self._listeners)

    def listen(self, listener: Listener) -> None:
        """From the next event on."""
        self._listeners.append(listener)

    def publish(self, event: RunEvent) -> None:
        """To all, in the order they came. One that raises hears nothing more: the run goes on."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  # a listener is a stranger's code
                self._listeners.remove(listener)
                self.problems.append(f"a listener was dropped at {event.type}: {words_of(error)}")


class EventMaker:
    """Facts to events, in order; remembers tool results until their step ends."""

    def __init__(self) -> None:
        self._results: dict[str, Mapping[str, JsonValue]] = {}

    def note(self, entry: JournalEntry) -> None:
        """Every fact comes by here, in order, also while nobody watches."""
        if entry.kind == "tool_call" and entry.state != "started":
            self._results[entry.key] = entry.body
        elif self._results and entry.kind == "step" and entry.state in ("finished", "failed"):
            self._forget(f"{entry.key}/")

    def event_of(self, entry: JournalEntry) -> RunEvent | None:
        """What a noted fact shows; None for facts that are only for the engine."""
        if entry.kind == "message" and "call" in entry.body:
            call = self._results[_text(entry.body, "call")]
            return _step_completed(entry, session_step_of(entry, call=call))
        make = _MAKERS.get((entry.kind, entry.state))
        return make(entry) if make else None

    def _forget(self, prefix: str) -> None:
        for key in [key for key in self._results if key.startswith(prefix)]:
            del self._results[key]


class _Place(TypedDict):
    run_id: str
    session_id: str
    timestamp: datetime
    position: int


def _place(entry: JournalEntry) -> _Place:
    return {
        "run_id": entry.run_id,
        "session_id": entry.session_id,
        "timestamp": entry.at,
        "position": entry.position,
    }


def _text(body: Mapping[str, JsonValue], key: str) -> str:
    return cast(str, body[key])


def _maybe_text(body: Mapping[str, JsonValue], key: str) -> str | None:
    return cast("str | None", body.get(key))


def _mapping(body: Mapping[str, JsonValue], key: str) -> Mapping[str, JsonValue]:
    return cast("Mapping[str, JsonValue]", body.get(key) or {})


def _maybe_error(body: Mapping[str, JsonValue]) -> Mapping[str, JsonValue] | None:
    return cast("Mapping[str, JsonValue] | None", body.get("error"))


def _run_started(entry: JournalEntry) -> RunEvent:
    return RunStarted(
        **_place(entry),
        recipe=_text(entry.body, "recipe"),
        model_name=_maybe_text(entry.body, "model"),
        data=_query(entry.body),
    )


def _query(body: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The inputs; of a turn what the user says, and nothing where it goes on with what is there."""
    inputs = _mapping(body, "inputs")
    live_conversation = _mapping(body, "thread")
    if not live_conversation or not isinstance(inputs.get(MESSAGE_INPUT), str):
        return {"query": inputs}
    return {} if live_conversation["continues"] else {"query": inputs[MESSAGE_INPUT]}


def _run_finished(entry: JournalEntry) -> RunEvent:
    body = entry.body
    data = {"response": body.get("output"), "metrics": body.get("usage")}
    status = _text(body, "status")
    if status in ("completed", "partial"):
        return RunCompleted(
            **_place(entry),
            status=status,
            data=data,
        )
    return RunFailed(
        **_place(entry),
        status=status,
        data={"error": body.get("error"), "metrics": body.get("usage")},
    )


def _step_started(entry: JournalEntry) -> RunEvent:
    return StepStarted(
        **_place(entry),
        step_id=_text(entry.body, "step_id"),
        index=cast("int | None", entry.body.get("index")),
    )


def _step_finished(entry: JournalEntry) -> RunEvent:
    body = entry.body
    return StepFinished(
        **_place(entry),
        step_id=_text(body, "step_id"),
        status=_text(body, "status"),
        reason=_maybe_text(body, "reason"),
        error=_maybe_error(body),
        usage=_mapping(body, "usage") or TokenUsage().to_json(),
        duration_ms=cast(float, body.get("duration_ms", 0.0)),
        model_calls=cast(int, body.get("model_calls", 0)),
        tool_calls=cast(int, body.get("tool_calls", 0)),
        attempts=cast(int, body.get("attempts", 1)),
        index=cast("int | None", body.get("index")),
        cached_from=_maybe_text(body, "cached_from"),
        pinned_from=_maybe_text(body, "pinned_from"),
    )


def _message_recorded(entry: JournalEntry) -> RunEvent | None:
    """None for what the user says: whoever reads `run_started` knows it."""
    message = _mapping(entry.body, "message")
    if "sequence" in entry.body and message["role"] == MessageRole.USER.value:
        return None
    return _step_completed(entry, session_step_of(entry))


def _step_completed(entry: JournalEntry, snapshot: SessionStep) -> RunEvent:
    return StepCompleted(
        **_place(entry), step_id=_maybe_text(entry.body, "step_id") or "", snapshot=snapshot
    )


def _tool_started(entry: JournalEntry) -> RunEvent:
    body = entry.body
    return ToolStarted(
        **_place(entry),
        step_id=_text(body, "step_id"),
        call_id=_text(body, "call_id"),
        tool=_text(body, "tool"),
        arguments=body.get("arguments"),
    )


def _tool_finished(entry: JournalEntry) -> RunEvent:
    body = entry.body
    return ToolFinished(
        **_place(entry),
        step_id=_text(body, "step_id"),
        call_id=_text(body, "call_id"),
        tool=_text(body, "tool"),
        duration_ms=cast(float, body.get("duration_ms", 0.0)),
        error=_maybe_error(body),
    )


def _limit_reached(entry: JournalEntry) -> RunEvent:
    return LimitReached(
        **_place(entry),
        limit=_text(entry.body, "limit"),
        message=_text(entry.body, "message"),
    )


def _waiting(entry: JournalEntry) -> RunEvent:
    body = entry.body
    shown = ("tool", "arguments", "digest", "question", "form", "default", "timeout_s")
    return StepWaiting(
        **_place(entry),
        step_id=_text(body, "step_id"),
        key=entry.key,
        what=_text(body, "what"),
        data={name: body[name] for name in shown if name in body},
    )


_MAKERS: Mapping[tuple[str, str], Callable[[JournalEntry], RunEvent | None]] = {
    ("run", "started"): _run_started,
    ("run", "resumed"): _run_started,
    ("run", "finished"): _run_finished,
    ("run", "limit_reached"): _limit_reached,
    ("step", "started"): _step_started,
    ("step", "finished"): _step_finished,
    ("step", "failed"): _step_finished,
    ("step", "interrupted"): _step_finished,
    ("step", "skipped"): _step_finished,
    ("model_call", "finished"): _message_recorded,
    ("message", "recorded"): _message_recorded,
    ("tool_call", "started"): _tool_started,
    ("tool_call", "finished"): _tool_finished,
    ("tool_call", "failed"): _tool_finished,
    ("tool_call", "interrupted"): _tool_finished,
    ("decision", "waiting"): _waiting,
}
