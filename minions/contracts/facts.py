"""The facts of the journal: for each kind and state of an entry, what its body holds.

A fact is a value of one of these classes, which is the schema of its row: a body that lacks a
field, or has one of another type, is no fact (`UnreadableFact`). Fields stand in the order of the
row. One that is left out of the row is None here, or UNSET where the row may also say `null`.

This module holds shapes only. What is made of facts (a run's state, a conversation, events) are
folds elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import msgspec
from attrs import asdict
from msgspec import UNSET, Struct, UnsetType

from minions.contracts.calls import StepCompletionInstruction
from minions.contracts.decision_words import Answer, Decision, Done, parse_decision
from minions.contracts.errors import Fault
from minions.contracts.executions import RunStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, message_to_json

__all__ = [
    "FACTS",
    "BackEdge",
    "ConversationStarted",
    "DecisionFact",
    "DecisionImported",
    "DecisionRecorded",
    "DecisionTaken",
    "DecisionWaiting",
    "Fact",
    "MessageRecorded",
    "ModelCallFact",
    "ModelCallFailed",
    "ModelCallFinished",
    "ModelCallInterrupted",
    "ModelCallLoss",
    "RecordedConversation",
    "RecordedPart",
    "Rollback",
    "RouteFailed",
    "RouteFinished",
    "RunBeginning",
    "RunFinished",
    "RunLimitReached",
    "RunRejected",
    "RunResumed",
    "RunStarted",
    "SavedMessage",
    "SessionCut",
    "SessionForked",
    "SessionOpened",
    "StepEnd",
    "StepFact",
    "StepFailed",
    "StepFinished",
    "StepInterrupted",
    "StepOmission",
    "StepOutcome",
    "StepSkipped",
    "StepStarted",
    "StepWithdrawn",
    "ToolCallFact",
    "ToolCallFailed",
    "ToolCallFinished",
    "ToolCallInDoubt",
    "ToolCallInterrupted",
    "ToolCallOutcome",
    "ToolCallStarted",
    "UnreadableFact",
    "WarningRecorded",
    "body_of",
    "class_of",
    "fact_of",
    "given",
]

Object: TypeAlias = Mapping[str, JsonValue]
"""A JSON object that is read elsewhere: usage, metrics, an error."""

T = TypeVar("T")


class _Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What all have in common."""

    kind: ClassVar[str]
    state: ClassVar[str]


class _OfStep(_Fact, frozen=True, kw_only=True):
    step_id: str
    """The step as the whole run knows it: `outer/inner` in a recipe that is a step."""


# --- runs ----------------------------------------------------------------------------------


_STATUSES: Final = tuple(each.value for each in RunStatus)


class RecordedConversation(Struct, frozen=True, kw_only=True, gc=False):
    """Where in the session's conversation a run begins."""

    keep: int | None
    """The messages that stay, from the first on; None: all."""
    continues: bool
    """Whether it goes on with what is there; else the input `message` comes first."""


class RecordedPart(Struct, frozen=True, kw_only=True, gc=False):
    """Which steps of the recipe were asked for, and what the others gave before."""

    runs: Sequence[str]
    passed_over: Sequence[str]
    pinned_from: str
    pinned: str
    """Blob: outputs by step."""


class RunBeginning(_Fact, frozen=True, kw_only=True):
    """An execution of a run begins."""

    recipe: str
    """The recipe's id."""
    version: str | None = None
    """The recipe's own version."""
    inputs: Object | None = None
    """Checked; secrets as references."""
    model: str | None | UnsetType = UNSET
    """Which models answer, as far as it was known."""
    note: Object | None = None
    """What the caller wants to find again: the command line's flags, the server's mark."""
    thread: RecordedConversation | None = None
    part: RecordedPart | None = None
    """None: all of the recipe runs."""
    document: str | None = None
    """Blob: the resolved recipe. A recipe made by code has `steps` instead."""
    directory: str | None | UnsetType = UNSET
    """The folder of the recipe's file: relative paths begin there."""
    recipes: str | None = None
    """Blob: the recipes that its steps are."""
    steps: Mapping[str, str] | None = None
    """Step ids to the versions of their code."""

    def __post_init__(self) -> None:
        if self.document is None and self.steps is None:
            raise ValueError("neither `document` nor `steps` says which steps the run has")


class RunStarted(RunBeginning, frozen=True, kw_only=True):
    """The first execution of a run begins."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "started"


class RunResumed(RunBeginning, frozen=True, kw_only=True):
    """A later execution of a run begins: by `resume`, `retry` or a decision."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "resumed"

    retries: bool | None = None
    """Whether failed steps run anew."""
    anew: Sequence[str] | None = None
    """Steps that run anew whatever they gave: `outer/inner`, or `outer/` with all within."""
    decisions: Mapping[str, str] | None = None
    """What was decided with it: words by the key of the decision or call."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in (self.decisions or {}).values():
            _stored_decision(word)

    @property
    def decided(self) -> Mapping[str, Decision]:
        """What was decided with it, by the key of the decision or call."""
        return {key: parse_decision(word) for key, word in (self.decisions or {}).items()}


class RunFinished(_Fact, frozen=True, kw_only=True):
    """An execution came to an end; its status says whether it can be resumed."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "finished"

    status: str
    output: JsonValue | UnsetType = UNSET
    usage: Object | None = None
    error: Object | None | UnsetType = UNSET
    sequence: int | None = None
    """The last message of the session that counts again, where a retry failed."""

    def __post_init__(self) -> None:
        if self.status not in _STATUSES:
            raise ValueError(f"`{self.status:.40}` is no status; expected: {', '.join(_STATUSES)}")


class RunLimitReached(_Fact, frozen=True, kw_only=True):
    """A limit kept the run from beginning anything more."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "limit_reached"

    limit: str | None
    message: str


class RunRejected(_Fact, frozen=True, kw_only=True):
    """The recipe has faults: the run never began."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "rejected"

    recipe: str
    note: Object | None = None
    error: Object | None = None
    faults: tuple[Fault, ...]


# --- steps ---------------------------------------------------------------------------------


class StepFact(_OfStep, frozen=True, kw_only=True):
    """Something about an execution of a step as a whole."""

    kind: ClassVar[str] = "step"


class StepStarted(StepFact, frozen=True, kw_only=True):
    """An execution of a step begins."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "started"

    version: str | None = None
    index: int | None = None
    """The item of a loop, or the attempt of a `while`."""
    total: int | None = None
    """The items of the loop that this row is about."""
    attempts: int | None = None
    """The most attempts that a `while` may make."""
    conversation: str | None = None
    messages: tuple[Message, ...] | None = None
    """The opening prompt, oldest first."""
    history: tuple[int, int] | None = None
    """Where the session's messages stand in it: position and count."""


class StepEnd(StepFact, frozen=True, kw_only=True):
    """An execution of a step is over, or needs no work."""

    status: str


class StepOutcome(StepEnd, frozen=True, kw_only=True):
    """It ended after it had begun."""

    duration_ms: float | None = None
    index: int | None = None
    total: int | None = None
    usage: Object | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    attempts: int | None = None
    error: Object | None = None
    reason: str | None = None
    output: JsonValue | UnsetType = UNSET
    """Left out where a `while` gave nothing; of a failed loop what its items gave all the same."""
    decided_by: str | None | UnsetType = UNSET
    """The completion link that decided."""
    next_step_id: str | None = None
    """Where the model wishes to go on."""


class StepFinished(StepOutcome, frozen=True, kw_only=True):
    """It completed, with its output."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "finished"

    cached_from: str | None = None
    """The run from which the output was taken."""
    cache_key: str | None = None
    pinned_from: str | None = None


class StepFailed(StepOutcome, frozen=True, kw_only=True):
    """It failed for good."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "failed"

    error: Object


class StepInterrupted(StepOutcome, frozen=True, kw_only=True):
    """It was cut off from outside, or waits for a person: a resumed run takes it up again."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "interrupted"

    error: Object


class StepOmission(StepEnd, frozen=True, kw_only=True):
    """Nothing of it runs."""

    reason: str | None = None


class StepSkipped(StepOmission, frozen=True, kw_only=True):
    """It did not run, and why."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "skipped"


class StepWithdrawn(StepOmission, frozen=True, kw_only=True):
    """It waited for a person when the run went back: nobody is asked any more."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "withdrawn"


# --- model calls, messages -----------------------------------------------------------------


class ConversationStarted(_OfStep, frozen=True, kw_only=True):
    """A question of a Python step or of parameter extraction begins."""

    kind: ClassVar[str] = "conversation"
    state: ClassVar[str] = "started"

    conversation: str
    messages: tuple[Message, ...]


class ModelCallFact(_OfStep, frozen=True, kw_only=True):
    """A model call is over, its attempts included."""

    phase: str | None = None
    """`model`, `final`, `repair` …"""
    attempts: int | None = None
    retried_usage: Object | None = None
    """What attempts took that were made again."""


class ModelCallFinished(ModelCallFact, frozen=True, kw_only=True):
    """A model answered."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "finished"

    conversation: str | None = None
    message: Message
    sequence: int | None = None
    """The number of the session's message; None: outside of its conversation."""
    metrics: Object | None = None
    finish_reason: str | None | UnsetType = UNSET
    instruction: StepCompletionInstruction | None = None
    """What the answer said of completion."""


class ModelCallLoss(ModelCallFact, frozen=True, kw_only=True):
    """No answer came."""

    error: Object | None = None
    usage: Object | None = None


class ModelCallFailed(ModelCallLoss, frozen=True, kw_only=True):
    """All of its attempts failed."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "failed"


class ModelCallInterrupted(ModelCallLoss, frozen=True, kw_only=True):
    """It was cut off from outside."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "interrupted"


class SavedMessage(Struct, frozen=True, kw_only=True, gc=False):
    """What an application that stored a message said of it."""

    id: str | None = None
    run_id: str | None = None
    created_at: str | None = None
    """ISO 8601."""

    def __post_init__(self) -> None:
        if self.created_at is not None:
            datetime.fromisoformat(self.created_at)


class MessageRecorded(_Fact, frozen=True, kw_only=True):
    """A message enters a conversation: in full, or as the result of a tool call."""

    kind: ClassVar[str] = "message"
    state: ClassVar[str] = "recorded"

    step_id: str | None = None
    conversation: str | None = None
    message: Message | None = None
    call: str | None = None
    """The key of the tool call whose result it is."""
    tool_call_id: str | None = None
    name: str | None = None
    """The tool's name."""
    sequence: int | None = None
    saved: SavedMessage | None = None
    metrics: Object | None = None
    replaces: int | None = None
    """The sequence in whose place it stands."""

    def __post_init__(self) -> None:
        if self.message is None and self.call is None:
            raise ValueError("neither `message` nor `call` says what the message is")


class Rollback(_Fact, frozen=True, kw_only=True):
    """A failed attempt's messages leave the conversation: it goes back to a position."""

    kind: ClassVar[str] = "rollback"
    state: ClassVar[str] = "recorded"

    step_id: str | None = None
    conversation: str
    position: int
    sequence: int | None = None


# --- tool calls ----------------------------------------------------------------------------


class ToolCallFact(_OfStep, frozen=True, kw_only=True):
    """Something about a tool call."""

    kind: ClassVar[str] = "tool_call"

    call_id: str | None = None
    """The provider's id of the call."""
    tool: str
    pending: str | None = None
    """The place in the session of the call that was left without an answer."""


class ToolCallStarted(ToolCallFact, frozen=True, kw_only=True):
    """Committed before the tool is called: from here on it may have had its effect."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "started"

    arguments: str
    """JSON text."""


class ToolCallOutcome(ToolCallFact, frozen=True, kw_only=True):
    """It is over, one way or another."""

    attempts: int | None = None
    duration_ms: float | None = None
    content: str | None = None
    """What a model reads, where that is not the value's own text."""
    value: JsonValue | UnsetType = UNSET
    error: Object | None = None
    arguments: str | None = None
    """JSON text, where no start holds it."""
    decided: str | None = None
    """The word of a person that settled it."""


class ToolCallFinished(ToolCallOutcome, frozen=True, kw_only=True):
    """The tool gave a result, or an error that the model reads."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "finished"


class ToolCallFailed(ToolCallOutcome, frozen=True, kw_only=True):
    """It failed for good."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "failed"


class ToolCallInterrupted(ToolCallOutcome, frozen=True, kw_only=True):
    """It was cut off from outside; its effect may be there."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "interrupted"


class ToolCallInDoubt(ToolCallFact, frozen=True, kw_only=True):
    """Started, its end unknown, and not declared safe to repeat: a person decides."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "in_doubt"

    arguments: str


# --- decisions, routes, what else happens --------------------------------------------------


class DecisionFact(_Fact, frozen=True, kw_only=True):
    """What a person has to say before a step goes on."""

    kind: ClassVar[str] = "decision"

    what: Literal["approval", "answer"]
    step_id: str
    path: str | None = None
    """The step as it is shown: `outer/step[2]`."""
    tool: str | None = None
    arguments: str | None = None
    digest: str | None = None
    """The fingerprint of tool and arguments: consent is to exactly these."""
    question: str | None = None
    form: Object | None = None
    """JSON Schema of the answer."""
    default: JsonValue | UnsetType = UNSET
    timeout_s: float | None = None


class DecisionWaiting(DecisionFact, frozen=True, kw_only=True):
    """Nobody has said it yet."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "waiting"


class DecisionTaken(DecisionFact, frozen=True, kw_only=True):
    """Somebody said it."""

    word: str
    """`approve:DIGEST`, `reject:DIGEST` or `answer:JSON`."""
    is_default: bool = False
    """Whether nobody answered in time."""

    def __post_init__(self) -> None:
        _stored_decision(self.word)

    @property
    def decision(self) -> Decision:
        """What was said."""
        return parse_decision(self.word)


class DecisionRecorded(DecisionTaken, frozen=True, kw_only=True):
    """Somebody said it in this journal."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "recorded"


class DecisionImported(DecisionTaken, frozen=True, kw_only=True):
    """Somebody said it in another journal: it is shown, and decides nothing here."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "imported"


class BackEdge(_Fact, frozen=True, kw_only=True):
    """The run goes back because a step failed."""

    kind: ClassVar[str] = "goto"
    state: ClassVar[str] = "recorded"

    step: str | None = None
    to: str
    code: str | None = None
    message: str | None = None
    attempt: int
    step_id: str


class RouteFinished(_OfStep, frozen=True, kw_only=True):
    """A model said which step comes next."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "finished"

    output: str
    reason: str | None = None


class RouteFailed(_OfStep, frozen=True, kw_only=True):
    """Nobody could say which step comes next."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "failed"

    error: Object | None = None
    reason: str | None = None


class WarningRecorded(_Fact, frozen=True, kw_only=True):
    """Something that a person should know and that stops nothing."""

    kind: ClassVar[str] = "warning"
    state: ClassVar[str] = "recorded"

    code: str
    message: str


# --- sessions ------------------------------------------------------------------------------


class SessionOpened(_Fact, frozen=True, kw_only=True):
    """A new session, without messages."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "opened"

    recipe: str | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    inputs: Object | None = None


class SessionForked(_Fact, frozen=True, kw_only=True):
    """A new session that begins with the messages of another one."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "forked"

    parent: str
    sequence: int
    """The last message that is read of the parent."""
    position: int
    """The last entry that is read of the parent."""
    recipe: str | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    inputs: Object | None = None


class SessionCut(_Fact, frozen=True, kw_only=True):
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


class UnreadableFact(Struct, frozen=True, kw_only=True, gc=False):
    """What stands where a fact is expected."""

    kind: str
    state: str
    problem: str
    """What was expected, and where in the body: "Expected `str`, got `int` - at `$.recipe`"."""
    body: Object | None = None
    """What is there; None: nothing that could be shown."""


def class_of(kind: str, state: str) -> type[Fact] | None:
    """The class of the facts of that kind and state; None: there are none."""
    return _CLASSES.get((kind, state))


def fact_of(kind: str, state: str, body: Object) -> Fact | UnreadableFact:
    """The fact that such a body tells."""
    found = _CLASSES.get((kind, state))
    if found is None:
        problem = _unknown(kind, state)
    else:
        try:
            return msgspec.convert(body, found)
        except (msgspec.ValidationError, RecursionError) as error:
            problem = str(error)
    return UnreadableFact(kind=kind, state=state, problem=problem, body=body)


def _unknown(kind: str, state: str) -> str:
    """Why there is no such fact."""
    states = [known for each, known in _CLASSES if each == kind]
    if states:
        return f"{kind} has no state {state!r:.40}; its states are: {', '.join(states)}"
    kinds = ", ".join(dict.fromkeys(each for each, _ in _CLASSES))
    return f"the kind {kind!r:.40} is not known; known are: {kinds}"


_LAYOUTS: Final[dict[type[Struct], tuple[tuple[str, object], ...]]] = {}
"""The names of a class's fields, with what they hold where the row leaves them out."""


def _layout(kind: type[Struct]) -> tuple[tuple[str, object], ...]:
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    required = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    layout = _LAYOUTS[kind] = tuple(zip(names, (*required, *defaults), strict=True))
    return layout


def body_of(fact: Struct) -> dict[str, JsonValue]:
    """The body of the entry that holds it, without what is to be left out of the row."""
    if isinstance(fact, UnreadableFact):
        return dict(fact.body or {})
    return _members(fact)


def _members(part: Struct) -> dict[str, JsonValue]:
    layout = _LAYOUTS.get(type(part)) or _layout(type(part))
    return {
        name: value if (form := _FORMS.get(type(value))) is None else form(value)
        for name, default in layout
        if (value := getattr(part, name)) is not default
    }


def _fault_members(fault: Fault) -> dict[str, JsonValue]:
    """What it says, without the line of the recipe's text."""
    return {name: getattr(fault, name) for name in _FAULT_MEMBERS}


_FAULT_MEMBERS: Final = ("code", "message", "file", "line", "column", "label", "help")


def _listed(values: tuple[object, ...]) -> list[object]:
    return [value if (form := _FORMS.get(type(value))) is None else form(value) for value in values]


_FORMS: Final[Mapping[type, Callable[[Any], Any]]] = {  # Any: each form takes its own class
    Message: message_to_json,
    StepCompletionInstruction: partial(asdict, recurse=False),
    Fault: _fault_members,
    RecordedConversation: _members,
    RecordedPart: _members,
    SavedMessage: _members,
    tuple: _listed,
}
"""What is no JSON in a fact, and how the row says it."""


def given(value: T | UnsetType) -> T | None:
    """What the row holds; None also where it says nothing."""
    return None if isinstance(value, UnsetType) else value


def _stored_decision(word: str) -> None:
    """Refuse a word that no decision can be read from.

    Raises:
        ValueError: It is none, or not JSON where it must be.
    """
    decision = parse_decision(word)
    if isinstance(decision, Answer | Done):
        try:
            _ = decision.value
        except ValueError as error:
            raise ValueError(f"`{word:.40}` holds no JSON: {error}") from error
