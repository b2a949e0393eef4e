"""Events of a run, made from its stored facts and published to listeners after they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypeAlias, TypedDict, assert_never

from minions.contracts import run_events as events
from minions.contracts.executions import RunState, RunStatus, address_of
from minions.contracts.journal.facts import (
    BackEdge,
    BatchCallFact,
    ConversationStarted,
    DecisionTaken,
    DecisionWaiting,
    ExamplesPinned,
    FileChangeFact,
    FileRollbackFact,
    MarkFact,
    MessageRecorded,
    ModelCallFinished,
    ModelCallLoss,
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
    ScoreFact,
    SessionCut,
    SessionForked,
    SessionOpened,
    StepFailed,
    StepFinished,
    StepOutcome,
    StepSkipped,
    StepStarted,
    StepWithdrawn,
    StoredPrefixFact,
    ToolCallInDoubt,
    ToolCallOutcome,
    ToolCallStarted,
    UnreadableFact,
    WarningRecorded,
    body_of,
    given,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import MessageRole, TokenUsage
from minions.contracts.run_events import RunEvent
from minions.data.errors import words_of
from minions.data.json_values import JsonValue
from minions.engine.history.session_messages import session_step_of
from minions.recipe.model import MESSAGE_INPUT

Listener: TypeAlias = Callable[[RunEvent], None]
"""A function that is called with each event; it must return at once."""


class EventStream:
    """Hands each event to every listener, in order. A listener must return at once."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.is_watched = False
        """Whether there is a listener: only then are model answers streamed."""
        self.problems: list[str] = []
        """Why listeners were dropped, one line each."""

    def listen(self, listener: Listener) -> None:
        """Add a listener; it receives every event from the next one on."""
        self._listeners.append(listener)
        self.is_watched = True

    def publish(self, event: RunEvent) -> None:
        """Call every listener in the order in which they were added.

        A listener that raises is removed, so that it cannot fail the run.
        """
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  # a listener is a stranger's code
                self._listeners.remove(listener)
                self.is_watched = bool(self._listeners)
                self.problems.append(f"a listener was dropped at {event.type}: {words_of(error)}")


NOTED: Final = frozenset({"tool_call", "step"})
"""Kinds of facts that later events refer to, and of those that end this."""


class EventMaker:
    """Turns facts into events, in order; remembers tool results until their step ends."""

    def __init__(self) -> None:
        self._results: dict[str, ToolCallOutcome] = {}

    def note(self, entry: JournalEntry) -> None:
        """Read every fact in order, also while there is no listener: later events refer to it."""
        match fact := entry.fact:
            case ToolCallOutcome():
                self._results[entry.key] = fact
            case StepFinished() | StepFailed() if self._results:
                self._forget(f"{entry.key}/")

    def misses_call_of(self, entry: JournalEntry) -> bool:
        """Whether this entry answers a tool call whose end was not noted."""
        key = entry.fact.call if isinstance(entry.fact, MessageRecorded) else None
        return key is not None and key not in self._results

    def event_of(self, entry: JournalEntry) -> RunEvent | None:  # one case a kind
        """The event of a noted fact; None: the fact is for the engine only.

        Raises:
            JournalError: `corrupt-entry`; it answers a tool call whose end was not noted.
        """
        match fact := entry.fact:
            case RunBeginning():
                return _run_started(entry, fact)
            case RunFinished():
                return _run_finished(entry, fact)
            case RunLimitReached(limit=limit, message=message):
                return events.LimitReached(**_place(entry), limit=limit or "", message=message)
            case StepStarted(step_id=step_id, index=index, total=total):
                return events.StepStarted(**_step_place(entry, step_id), index=index, total=total)
            case StepOutcome():
                return _step_finished(entry, fact)
            case StepSkipped():
                return _step_skipped(entry, fact)
            case MessageRecorded(call=str(key)):
                return _step_completed(entry, fact, call=self._results.get(key))
            case MessageRecorded() | ModelCallFinished():
                return _message_recorded(entry, fact)
            case ToolCallStarted():
                return _tool_started(entry, fact)
            case ToolCallOutcome():
                return _tool_finished(entry, fact)
            case DecisionWaiting():
                return _waiting(entry, fact)
            case PlanLookup(step_id=step_id, text=text, run=run):
                return events.PlanLookup(**_step_place(entry, step_id), text=text, kept_run=run)
            case PlanReplaced(step_id=step_id, text=text, diff=diff):
                return events.PlanReplaced(**_step_place(entry, step_id), text=text, diff=diff)
            case (
                RunRejected() | StepWithdrawn() | ConversationStarted() | ModelCallLoss()
                | Rollback() | ToolCallInDoubt() | DecisionTaken() | BackEdge() | RouteFinished()
                | RouteFailed() | WarningRecorded() | FileChangeFact() | FileRollbackFact()
                | MarkFact() | ScoreFact() | ExamplesPinned() | SessionOpened() | SessionForked()
                | SessionCut() | RecipeFact() | BatchCallFact() | UnreadableFact()
                | StoredPrefixFact()
            ):  # fmt: skip
                return None
            case _:
                assert_never(fact)

    def _forget(self, prefix: str) -> None:
        for key in [key for key in self._results if key.startswith(prefix)]:
            del self._results[key]


class _Place(TypedDict):
    run_id: str
    session_id: str
    timestamp: datetime
    position: int


class _StepPlace(_Place):
    step_id: str
    address: str


def _place(entry: JournalEntry) -> _Place:
    return {
        "run_id": entry.run_id,
        "session_id": entry.session_id,
        "timestamp": entry.at,
        "position": entry.position,
    }


def _step_place(entry: JournalEntry, step_id: str | None) -> _StepPlace:
    """The place of a fact of a step; messages of a session outside of steps have no step."""
    return {
        **_place(entry),
        "step_id": step_id or "",
        "address": address_of(entry.key) if step_id else "",
    }


def _run_started(entry: JournalEntry, fact: RunBeginning) -> RunEvent:
    return events.RunStarted(
        **_place(entry),
        recipe=fact.recipe,
        status=(RunState.QUEUED if fact.queued else RunState.RUNNING).value,
        model_name=given(fact.model),
        data=_query(fact),
    )


def _query(fact: RunBeginning) -> Mapping[str, JsonValue]:
    """The inputs; of a turn the user's message, and nothing where it answers stored messages."""
    inputs, conversation = fact.inputs or {}, fact.thread
    if conversation is None or not isinstance(inputs.get(MESSAGE_INPUT), str):
        return {"query": inputs}
    return {} if conversation.continues else {"query": inputs[MESSAGE_INPUT]}


def _run_finished(entry: JournalEntry, fact: RunFinished) -> RunEvent:
    if fact.status in ("completed", "partial"):
        return events.RunCompleted(
            **_place(entry),
            status=fact.status,
            data={"response": given(fact.output), "metrics": fact.usage},
        )
    if fact.status == RunStatus.NEEDS_DECISION:
        waiting: list[JsonValue] = [dict(each) for each in fact.waiting or ()]
        return events.RunWaiting(
            **_place(entry),
            status=fact.status,
            data={"decisions": waiting, "metrics": fact.usage},
        )
    return events.RunFailed(
        **_place(entry),
        status=fact.status,
        data={"error": error_document(given(fact.error)), "metrics": fact.usage},
    )


def _step_finished(entry: JournalEntry, fact: StepOutcome) -> RunEvent:
    taken = fact if isinstance(fact, StepFinished) else None
    return events.StepFinished(
        **_step_place(entry, fact.step_id),
        status=fact.status,
        reason=fact.reason,
        error=error_document(fact.error),
        usage=fact.usage or TokenUsage().to_json(),
        duration_ms=fact.duration_ms or 0.0,
        model_calls=fact.model_calls or 0,
        tool_calls=fact.tool_calls or 0,
        attempts=1 if fact.attempts is None else fact.attempts,
        index=fact.index,
        cached_from=taken.cached_from if taken is not None else None,
        pinned_from=taken.pinned_from if taken is not None else None,
        partial=taken.partial if taken is not None else False,
    )


def _step_skipped(entry: JournalEntry, fact: StepSkipped) -> RunEvent:
    return events.StepFinished(
        **_step_place(entry, fact.step_id),
        status=fact.status,
        reason=fact.reason,
        usage=TokenUsage().to_json(),
    )


def _message_recorded(
    entry: JournalEntry, fact: MessageRecorded | ModelCallFinished
) -> RunEvent | None:
    """None for the user's message: listeners know it from `run_started`."""
    if isinstance(fact, ModelCallFinished) and fact.summarises is not None:
        return None  # it is no message of the conversation
    is_user = fact.message is not None and fact.message.role is MessageRole.USER
    if fact.sequence is not None and is_user:
        return None
    return _step_completed(entry, fact)


def _step_completed(
    entry: JournalEntry,
    fact: MessageRecorded | ModelCallFinished,
    call: ToolCallOutcome | None = None,
) -> RunEvent:
    snapshot = session_step_of(entry, call=call)
    return events.StepCompleted(**_step_place(entry, fact.step_id), snapshot=snapshot)


def _tool_started(entry: JournalEntry, fact: ToolCallStarted) -> RunEvent:
    return events.ToolStarted(
        **_step_place(entry, fact.step_id),
        call_id=fact.call_id or "",
        tool=fact.tool,
        arguments=fact.arguments,
    )


def _tool_finished(entry: JournalEntry, fact: ToolCallOutcome) -> RunEvent:
    return events.ToolFinished(
        **_step_place(entry, fact.step_id),
        call_id=fact.call_id or "",
        tool=fact.tool,
        duration_ms=fact.duration_ms or 0.0,
        error=error_document(fact.error),
    )


def _waiting(entry: JournalEntry, fact: DecisionWaiting) -> RunEvent:
    shown = ("tool", "arguments", "digest", "question", "form", "default", "timeout_s", "plan")
    body = body_of(fact)
    return events.StepWaiting(
        **_step_place(entry, fact.step_id),
        key=entry.key,
        what=fact.what,
        data={name: body[name] for name in shown if name in body},
    )


def error_document(error: Mapping[str, JsonValue] | None) -> Mapping[str, JsonValue] | None:
    """A recorded failure as events carry it: what is recorded, and its category."""
    if error is None:
        return None
    from minions.engine.history.recorded_calls import recorded_error

    return {**error, "category": recorded_error(error).category.value}
