"""Facts and the rows that hold them: from a body to its fact, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from attrs import asdict
from msgspec import Struct

from minions.contracts.approvals import ApprovalRule, ApprovalStage, AskedRule
from minions.contracts.calls import StepCompletionInstruction
from minions.contracts.journal.facts.run_facts import (
    BackEdge,
    DecisionImported,
    DecisionRecorded,
    DecisionWaiting,
    ExamplesPinned,
    MarkImported,
    MarkRecorded,
    PinnedExample,
    PlanLookup,
    PlanReplaced,
    RecipeMoved,
    RecipeMovedBack,
    RecipePinned,
    RecordedClass,
    RecordedConversation,
    RecordedItem,
    RecordedPart,
    RecordedProposal,
    RecordedReview,
    RecordedVote,
    RouteFailed,
    RouteFinished,
    RunFinished,
    RunLimitReached,
    RunRejected,
    RunResumed,
    RunStarted,
    ScoreImported,
    ScoreRecorded,
    SessionCut,
    SessionForked,
    SessionOpened,
    StoredPrefixDeleted,
    StoredPrefixLost,
    StoredPrefixMade,
    StoredPrefixRenewed,
    WarningRecorded,
)
from minions.contracts.journal.facts.step_facts import (
    BatchCallExpired,
    BatchCallQueued,
    BatchCallSubmitted,
    ConversationStarted,
    FileChangeImported,
    FileChangeRecorded,
    FileRollbackFinished,
    FileRollbackStarted,
    MessageRecorded,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallInterrupted,
    Object,
    Rollback,
    SavedMessage,
    StepFailed,
    StepFinished,
    StepInterrupted,
    StepSkipped,
    StepStarted,
    StepWithdrawn,
    ToolCallFailed,
    ToolCallFinished,
    ToolCallInDoubt,
    ToolCallInterrupted,
    ToolCallStarted,
)
from minions.contracts.messages import Message, message_to_json
from minions.contracts.redaction import Redacted
from minions.data.errors import Fault
from minions.data.json_values import JsonValue

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
    | BatchCallQueued
    | BatchCallSubmitted
    | BatchCallExpired
    | MessageRecorded
    | Rollback
    | ToolCallStarted
    | ToolCallFinished
    | ToolCallFailed
    | ToolCallInterrupted
    | ToolCallInDoubt
    | FileChangeRecorded
    | FileChangeImported
    | FileRollbackStarted
    | FileRollbackFinished
    | DecisionWaiting
    | DecisionRecorded
    | DecisionImported
    | BackEdge
    | PlanLookup
    | PlanReplaced
    | RouteFinished
    | RouteFailed
    | WarningRecorded
    | StoredPrefixMade
    | StoredPrefixRenewed
    | StoredPrefixDeleted
    | StoredPrefixLost
    | ExamplesPinned
    | MarkRecorded
    | MarkImported
    | RecipeMoved
    | RecipeMovedBack
    | RecipePinned
    | ScoreRecorded
    | ScoreImported
    | SessionOpened
    | SessionForked
    | SessionCut
)
"""Every fact that a row may hold. Closed: a `match` over it ends in `assert_never`."""

FACTS: Final[tuple[type[Fact], ...]] = Fact.__args__
"""Every class of fact, in the order of the union."""

_CLASSES: Final[Mapping[tuple[str, str], type[Fact]]] = {
    (each.kind, each.state): each for each in FACTS
}


class UnreadableFact(Struct, frozen=True, kw_only=True, gc=False):
    """A body that is not the fact of its kind and state."""

    kind: str
    state: str
    problem: str
    """What was expected, and where in the body: "Expected `str`, got `int` - at `$.recipe`"."""
    body: Object | None = None
    """The body as it is stored; None: there is none that could be shown."""


def class_of(kind: str, state: str) -> type[Fact] | None:
    """The class of facts of that kind and state; None: there is none."""
    return _CLASSES.get((kind, state))


def fact_of(kind: str, state: str, body: Object) -> Fact | UnreadableFact:
    """The body as a fact of that kind and state, or as an `UnreadableFact` if it is not one."""
    found = _CLASSES.get((kind, state))
    if found is None:
        problem = _unknown(kind, state)
    else:
        try:
            return msgspec.convert(body, found)
        except (msgspec.ValidationError, RecursionError) as error:
            problem = str(error)
        except UnicodeEncodeError:
            problem = "a name in its body holds half a character (a lone surrogate)"
    return UnreadableFact(kind=kind, state=state, problem=problem, body=body)


def _unknown(kind: str, state: str) -> str:
    """The message about a kind or state that does not exist."""
    states = [known for each, known in _CLASSES if each == kind]
    if states:
        return f"{kind} has no state {state!r:.40}; its states are: {', '.join(states)}"
    kinds = ", ".join(dict.fromkeys(each for each, _ in _CLASSES))
    return f"the kind {kind!r:.40} is not known; known are: {kinds}"


class _Layout(NamedTuple):
    """What the row of a class of facts holds."""

    fields: tuple[tuple[str, object], ...]
    """The names of its fields, each with the default that the row leaves out."""
    values: Callable[..., tuple[object, ...]]  # it takes its own class
    """The values of these fields, at least, in this order."""


_LAYOUTS: Final[dict[type[Struct], _Layout]] = {}


def _layout(kind: type[Struct]) -> _Layout:
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    required = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    # With the first one twice: of one alone the value itself comes back.
    values = attrgetter(*names, names[0]) if names else _nothing
    layout = _LAYOUTS[kind] = _Layout(
        tuple(zip(names, (*required, *defaults), strict=True)), values
    )
    return layout


def _nothing(_part: Struct) -> tuple[object, ...]:
    return ()


def body_of(fact: Struct) -> dict[str, JsonValue]:
    """The fact as the body of its entry, without the fields that the row leaves out."""
    if isinstance(fact, UnreadableFact):
        return dict(fact.body or {})
    return _members(fact)


def _members(part: Struct) -> dict[str, JsonValue]:
    kind = type(part)
    layout = _LAYOUTS[kind] if kind in _LAYOUTS else _layout(kind)
    members: dict[str, Any] = {}  # Any: the encoder refuses what is no JSON
    for (name, default), value in zip(layout.fields, layout.values(part), strict=False):
        if value is not default:
            form = type(value)
            members[name] = _FORMS[form](value) if form in _FORMS else value
    return members


def _fault_members(fault: Fault) -> dict[str, JsonValue]:
    """The fault without the line of the recipe's text: rows hold no recipe text."""
    return {name: getattr(fault, name) for name in _FAULT_MEMBERS}


_FAULT_MEMBERS: Final = ("code", "message", "file", "line", "column", "label", "help")


def _listed(values: tuple[object, ...]) -> list[object]:
    return [value if (form := _FORMS.get(type(value))) is None else form(value) for value in values]


_FORMS: Final[Mapping[type, Callable[..., object]]] = {  # each takes its own class
    Message: message_to_json,
    StepCompletionInstruction: partial(asdict, recurse=False),
    Fault: _fault_members,
    PinnedExample: _members,
    RecordedConversation: _members,
    RecordedItem: _members,
    RecordedPart: _members,
    RecordedClass: _members,
    RecordedProposal: _members,
    RecordedReview: _members,
    RecordedVote: _members,
    AskedRule: _members,
    ApprovalRule: _members,
    ApprovalStage: _members,
    Redacted: _members,
    SavedMessage: _members,
    tuple: _listed,
}
"""How values that are not JSON are written into a row, by their class."""
