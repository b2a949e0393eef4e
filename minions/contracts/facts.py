"""The facts of the journal: for each kind and state of an entry, what its body holds.

A fact is a value of one of these classes; `kind` and `state` of its entry say of which. The class
is the schema of the row: a body that lacks a field, or has one of another type, is no fact
(`UnreadableFact`). Fields that a fact need not have are left out of the row, so rows do not grow.

This module holds shapes only. What is made of facts (a run's state, a conversation, events) are
folds elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, TypeAlias, cast

import msgspec
from attrs import frozen
from msgspec import UNSET, Struct, UnsetType

from minions.contracts.executions import RunStatus
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue

__all__ = [
    "FACTS",
    "BackEdge",
    "ConversationStarted",
    "DecisionImported",
    "DecisionRecorded",
    "DecisionWaiting",
    "Fact",
    "MessageRecorded",
    "ModelCallFailed",
    "ModelCallFinished",
    "ModelCallInterrupted",
    "Rollback",
    "RouteFailed",
    "RouteFinished",
    "RunFinished",
    "RunLimitReached",
    "RunRejected",
    "RunResumed",
    "RunStarted",
    "SessionCut",
    "SessionForked",
    "SessionOpened",
    "StepFailed",
    "StepFinished",
    "StepInterrupted",
    "StepSkipped",
    "StepStarted",
    "StepWithdrawn",
    "ToolCallFailed",
    "ToolCallFinished",
    "ToolCallInDoubt",
    "ToolCallInterrupted",
    "ToolCallStarted",
    "UnreadableFact",
    "WarningRecorded",
    "body_of",
    "fact_of",
]

Object: TypeAlias = dict[str, object]
"""A JSON object that is read elsewhere: a message, usage, an error."""


class _Fact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all have in common."""

    kind: ClassVar[str]
    state: ClassVar[str]


# --- runs ------------------------------------------------------------------------------------


_STATUSES: Final = tuple(each.value for each in RunStatus)


class _RunBegun(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    recipe: str
    """Its id."""
    version: str | None = None
    """The recipe's own."""
    inputs: Object | None = None
    """Checked; secrets as references."""
    model: str | None = None
    """Which models answer, as far as it was known."""
    note: Object | None = None
    """What the caller wants to find again: the command line's flags, the server's mark."""
    thread: Object | None = None
    """Where in the session's conversation the run begins."""
    part: Object | None = None
    """Which steps were asked for, and what the others gave before."""
    document: str | None = None
    """Blob: the resolved recipe. A recipe made by code has `steps` instead."""
    directory: str | None = None
    """Of the recipe's file: relative paths begin there."""
    recipes: str | None = None
    """Blob: the recipes that its steps are."""
    steps: Object | None = None
    """Step ids to the versions of their code."""

    def __post_init__(self) -> None:
        if self.document is None and self.steps is None:
            raise ValueError("neither `document` nor `steps` says which steps the run has")


class RunStarted(_RunBegun, frozen=True, kw_only=True, omit_defaults=True):
    """The first execution of a run begins."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "started"


class RunResumed(_RunBegun, frozen=True, kw_only=True, omit_defaults=True):
    """A later execution of a run begins: by `resume`, `retry` or a decision."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "resumed"

    retries: bool = False
    """Whether failed steps run anew."""
    anew: list[str] = []  # msgspec copies it
    """Steps that run anew whatever they gave: `outer/inner`, or `outer/` with all within."""
    decisions: dict[str, str] = {}  # likewise
    """What was decided, by key."""


class RunFinished(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """An execution came to an end; its status says whether it can be resumed."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "finished"

    status: str
    output: object = None
    usage: Object | None = None
    error: Object | None = None
    sequence: int | None = None
    """The last message of the session that counts again, where a retry failed."""

    def __post_init__(self) -> None:
        if self.status not in _STATUSES:
            raise ValueError(f"`{self.status:.40}` is no status; expected: {', '.join(_STATUSES)}")


class RunLimitReached(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A limit kept the run from beginning anything more."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "limit_reached"

    limit: str | None
    message: str


class RunRejected(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The recipe has faults: the run never began."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "rejected"

    recipe: str
    faults: list[Object]
    note: Object | None = None
    error: Object | None = None


# --- steps -----------------------------------------------------------------------------------


class _OfStep(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    step_id: str
    """As the whole run knows it: `outer/inner` in a recipe that is a step."""


class StepStarted(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    """An execution of a step begins."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "started"

    version: str | None = None
    conversation: str | None = None
    messages: list[Object] | None = None
    """The opening prompt, oldest first."""
    history: list[int] | None = None
    """Where the session's messages stand in it: position and count."""
    index: int | None = None
    """Of the item of a loop, or the attempt of a `while`."""
    total: int | None = None
    """Items of the loop that this row is about."""
    attempts: int | None = None
    """The most that a `while` may make."""


class _StepEnd(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    reason: str | None = None


class _StepOver(_StepEnd, frozen=True, kw_only=True, omit_defaults=True):
    duration_ms: float | None = None
    usage: Object | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    attempts: int | None = None
    index: int | None = None
    total: int | None = None
    decided_by: str | None = None
    """The completion link that decided."""


class StepFinished(_StepOver, frozen=True, kw_only=True, omit_defaults=True):
    """It completed, with its output."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "finished"

    output: object | UnsetType = UNSET
    """Left out where a `while` gave nothing."""
    cache_key: str | None = None
    cached_from: str | None = None
    """The run from which the output was taken."""
    pinned_from: str | None = None
    next_step_id: str | None = None


class StepFailed(_StepOver, frozen=True, kw_only=True, omit_defaults=True):
    """It failed for good."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "failed"

    error: Object
    output: object | UnsetType = UNSET
    """Of a loop: what its items gave all the same."""


class StepInterrupted(_StepOver, frozen=True, kw_only=True, omit_defaults=True):
    """It was cut off from outside, or waits for a person: a resumed run takes it up again."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "interrupted"

    error: Object
    output: object | UnsetType = UNSET


class StepSkipped(_StepEnd, frozen=True, kw_only=True, omit_defaults=True):
    """It did not run, and why."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "skipped"


class StepWithdrawn(_StepEnd, frozen=True, kw_only=True, omit_defaults=True):
    """It waited for a person when the run went back: nobody is asked any more."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "withdrawn"


# --- model calls, messages -------------------------------------------------------------------


class ConversationStarted(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    """A question of a Python step or of parameter extraction begins."""

    kind: ClassVar[str] = "conversation"
    state: ClassVar[str] = "started"

    conversation: str
    messages: list[Object]


class _ModelCall(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    phase: str | None = None
    """`model`, `final`, `repair` …"""
    attempts: int | None = None
    retried_usage: Object | None = None
    """Of attempts that were made again."""


class ModelCallFinished(_ModelCall, frozen=True, kw_only=True, omit_defaults=True):
    """A model answered."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "finished"

    message: Object
    conversation: str | None = None
    metrics: Object | None = None
    finish_reason: str | None = None
    instruction: Object | None = None
    """What the answer said of completion."""
    sequence: int | None = None
    """Of the session's message; None: outside of its conversation."""


class _ModelCallLost(_ModelCall, frozen=True, kw_only=True, omit_defaults=True):
    error: Object | None = None
    usage: Object | None = None


class ModelCallFailed(_ModelCallLost, frozen=True, kw_only=True, omit_defaults=True):
    """No answer came, in all of its attempts."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "failed"


class ModelCallInterrupted(_ModelCallLost, frozen=True, kw_only=True, omit_defaults=True):
    """It was cut off from outside."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "interrupted"


class MessageRecorded(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A message enters a conversation: in full, or as the result of a tool call."""

    kind: ClassVar[str] = "message"
    state: ClassVar[str] = "recorded"

    step_id: str | None = None
    conversation: str | None = None
    message: Object | None = None
    call: str | None = None
    """The key of the tool call whose result it is."""
    tool_call_id: str | None = None
    name: str | None = None
    """The tool's."""
    sequence: int | None = None
    metrics: Object | None = None
    saved: Object | None = None
    """Of a message that an application stored: its id, run and time."""
    replaces: int | None = None
    """The sequence in whose place it stands."""

    def __post_init__(self) -> None:
        if self.message is None and self.call is None:
            raise ValueError("neither `message` nor `call` says what the message is")


class Rollback(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A failed attempt's messages leave the conversation: it goes back to a position."""

    kind: ClassVar[str] = "rollback"
    state: ClassVar[str] = "recorded"

    conversation: str
    position: int
    step_id: str | None = None
    sequence: int | None = None


# --- tool calls ------------------------------------------------------------------------------


class _ToolCall(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    tool: str


class ToolCallStarted(_ToolCall, frozen=True, kw_only=True, omit_defaults=True):
    """Committed before the tool is called: from here on it may have had its effect."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "started"

    arguments: str
    """JSON text."""
    call_id: str | None = None
    """The provider's."""
    pending: str | None = None
    """The place in the session of the call that was left without an answer."""


class _ToolCallOver(_ToolCall, frozen=True, kw_only=True, omit_defaults=True):
    call_id: str | None = None
    arguments: str | None = None
    """Where no start holds them."""
    attempts: int | None = None
    duration_ms: float | None = None
    content: str | None = None
    """What a model reads, where that is not the value's own text."""
    value: object | UnsetType = UNSET
    error: Object | None = None
    decided: str | None = None
    """The word of a person that settled it."""
    pending: str | None = None


class ToolCallFinished(_ToolCallOver, frozen=True, kw_only=True, omit_defaults=True):
    """The tool gave a result, or an error that the model reads."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "finished"


class ToolCallFailed(_ToolCallOver, frozen=True, kw_only=True, omit_defaults=True):
    """It failed for good."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "failed"


class ToolCallInterrupted(_ToolCallOver, frozen=True, kw_only=True, omit_defaults=True):
    """It was cut off from outside; its effect may be there."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "interrupted"


class ToolCallInDoubt(_ToolCall, frozen=True, kw_only=True, omit_defaults=True):
    """Started, its end unknown, and not declared safe to repeat: a person decides."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "in_doubt"

    arguments: str


# --- decisions, routes, what else happens ----------------------------------------------------


class DecisionWaiting(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    """A person has to say something before the step goes on."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "waiting"

    what: str
    """`approval` or `answer`."""
    path: str | None = None
    """The step as it is shown: `outer/step[2]`."""
    tool: str | None = None
    arguments: str | None = None
    digest: str | None = None
    """Of tool and arguments: consent is to exactly these."""
    question: str | None = None
    form: Object | None = None
    """JSON Schema of the answer."""
    default: object | UnsetType = UNSET
    timeout_s: float | None = None


class _DecisionMade(DecisionWaiting, frozen=True, kw_only=True, omit_defaults=True):
    word: str
    """`approve:DIGEST`, `reject:DIGEST` or `answer:JSON`."""
    is_default: bool = False
    """Whether nobody answered in time."""


class DecisionRecorded(_DecisionMade, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody said it."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "recorded"


class DecisionImported(_DecisionMade, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody said it in another journal: it is shown, and decides nothing here."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "imported"


class BackEdge(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    """The run goes back because a step failed."""

    kind: ClassVar[str] = "goto"
    state: ClassVar[str] = "recorded"

    to: str
    attempt: int
    step: str | None = None
    code: str | None = None
    message: str | None = None


class RouteFinished(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    """A model said which step comes next."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "finished"

    output: str
    reason: str | None = None


class RouteFailed(_OfStep, frozen=True, kw_only=True, omit_defaults=True):
    """Nobody could say which step comes next."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "failed"

    error: Object | None = None
    reason: str | None = None


class WarningRecorded(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a person should know and that stops nothing."""

    kind: ClassVar[str] = "warning"
    state: ClassVar[str] = "recorded"

    code: str
    message: str


# --- sessions --------------------------------------------------------------------------------


class _SessionBegun(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    recipe: str | None = None
    name: str | None = None
    inputs: Object | None = None


class SessionOpened(_SessionBegun, frozen=True, kw_only=True, omit_defaults=True):
    """A new session, without messages."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "opened"


class SessionForked(_SessionBegun, frozen=True, kw_only=True, omit_defaults=True):
    """A new session that begins with the messages of another one."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "forked"

    parent: str
    sequence: int
    """The last message that is read of the parent."""
    position: int
    """The last entry that is read of the parent."""


class SessionCut(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Messages behind that sequence leave the conversation."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "cut"

    sequence: int


Fact: TypeAlias = (
    RunStarted
    | RunResumed
    | RunFinished
    | RunLimitReached
    | RunRejected
    | StepStarted
    | StepFinished
    | StepFailed
    | StepInterrupted
    | StepSkipped
    | StepWithdrawn
    | ConversationStarted
    | ModelCallFinished
    | ModelCallFailed
    | ModelCallInterrupted
    | MessageRecorded
    | Rollback
    | ToolCallStarted
    | ToolCallFinished
    | ToolCallFailed
    | ToolCallInterrupted
    | ToolCallInDoubt
    | DecisionWaiting
    | DecisionRecorded
    | DecisionImported
    | BackEdge
    | RouteFinished
    | RouteFailed
    | WarningRecorded
    | SessionOpened
    | SessionForked
    | SessionCut
)
"""Closed: a `match` over it ends in `assert_never`."""

FACTS: Final[tuple[type[Fact], ...]] = Fact.__args__
"""Every class of fact, in the order of the union."""

_CLASSES: Final[Mapping[tuple[str, str], type[Fact]]] = {
    (each.kind, each.state): each for each in FACTS
}


@frozen(kw_only=True)
class UnreadableFact:
    """An entry that is no fact."""

    entry: JournalEntry
    problem: str
    """What was expected, and where in the body: "Expected `str`, got `int` - at `$.recipe`"."""


def fact_of(entry: JournalEntry) -> Fact | UnreadableFact:
    """The fact that an entry holds."""
    if entry.damage is not None:
        return UnreadableFact(entry=entry, problem=entry.damage)
    kind = _CLASSES.get((entry.kind, entry.state))
    if kind is None:
        return UnreadableFact(entry=entry, problem=_unknown(entry))
    try:
        return msgspec.convert(entry.body, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        return UnreadableFact(entry=entry, problem=str(error))


def _unknown(entry: JournalEntry) -> str:
    states = [state for kind, state in _CLASSES if kind == entry.kind]
    if states:
        return f"{entry.kind} has no state {entry.state!r:.40}; its states are: {', '.join(states)}"
    kinds = ", ".join(dict.fromkeys(kind for kind, _ in _CLASSES))
    return f"the kind {entry.kind!r:.40} is not known; known are: {kinds}"


def body_of(fact: Fact) -> dict[str, JsonValue]:
    """The body of the entry that holds it; what it need not have and has not is left out."""
    return cast("dict[str, JsonValue]", msgspec.to_builtins(fact))
