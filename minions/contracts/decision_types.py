"""What a run asks of a person, and the words of the answers: approvals and questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, assert_never

from attrs import frozen
from msgspec import MsgspecError, Struct, json

from minions.contracts.executions import address_of
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.schema import JsonSchema

if TYPE_CHECKING:
    from minions.contracts.plan_diffs import PlanProposal


class Verdict(StrEnum):
    """The decision about a tool call that needs approval."""

    APPROVED = "approved"
    REJECTED = "rejected"
    LATER = "later"
    """Nobody can decide now: the run ends as waiting, and is resumed after the decision."""


@frozen
class Rejection(FieldsRepr):
    """`Verdict.REJECTED` with its reason."""

    reason: str
    """Why, in words for people and for the model."""


@frozen(kw_only=True)
class ApprovalRequest(FieldsRepr):
    """A tool call that may be made only after approval."""

    key: str
    """The key of the pending decision in its run."""
    run_id: str
    step_id: str
    tool: str
    arguments: str
    """The call's arguments, as JSON text."""
    digest: str
    """Fingerprint of tool and arguments: an approval covers exactly these."""
    filled: tuple[str, ...] = ()
    """The parameters that a model filled in, of the call of a tool step."""
    words_of: tuple[str, ...] = ()
    """Whose words may be in the arguments, of those that strangers may have written."""

    @property
    def address(self) -> str:
        """The address of the execution that wants to make the call: `outer[1]/step[2]`."""
        return address_of(self.key)


@frozen(kw_only=True)
class Question(FieldsRepr):
    """The question of an `ask` step, or of a tool."""

    key: str
    """The key of the pending decision in its run."""
    run_id: str
    step_id: str
    text: str
    form: JsonSchema | None = None
    """JSON Schema that the answer has to fit; None: any text."""
    default: JsonValue = None
    has_default: bool = False
    timeout_s: float | None = None
    """Seconds after which the default counts as the answer; None: waits without limit."""
    plan: PlanProposal | None = None
    """The plan that the question is about; None: it is about something else."""
    can_decline: bool = False
    """Whether a person may decline to answer, of which the tool that asks is told."""
    tool: str | None = None
    """The tool of the run's caller whose result is asked for; None: a person is asked."""
    arguments: str | None = None
    """The arguments of that call, as JSON text."""

    @property
    def address(self) -> str:
        """The address of the execution that asks: `outer[1]/step[2]`."""
        return address_of(self.key)


class NoAnswer(StrEnum):
    """Says that a question has no answer."""

    LATER = "later"
    """Not yet: the run waits for it."""
    DECLINED = "declined"
    """A person declines to answer; only where `Question.can_decline`."""


class Decider(ABC):
    """Decides while a run is executed. Every decision is stored with
    the run, so each is asked for once.
    """

    stands_in: ClassVar[bool] = False
    """Whether it stands in for all persons, as in tests of recipes: then it also decides what a
    recipe reserves for some of them, where the journal is in memory, so that nothing is stored."""

    @abstractmethod
    async def approve(self, request: ApprovalRequest) -> Verdict | Rejection:
        """Decide whether the call may be made; a `Rejection` says why not."""

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        """The answer, which fits `question.form`; `NoAnswer` when there is none."""
        return NoAnswer.LATER


@frozen
class Deny(FieldsRepr, Decider):
    """Rejects every call and leaves questions pending: the default where nobody can be asked."""

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return Verdict.REJECTED


class ApprovalClass(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which later calls of the run an approval covers, beside the one that was shown: calls of the
    same tool in the same step.
    """

    same: tuple[str, ...] = ()
    """Places of arguments that are as in the call that was shown: `to`, `json.amount`."""
    when: str | None = None
    """A condition over `args` that is true; None: there is none."""
    count: int | None = None
    """How many later calls at the most; None: all of the run."""
    expires_s: float | None = None
    """Seconds after the decision in which it covers calls; None: until the run ends."""


class Approve(Struct, frozen=True):
    """Approve the tool call. Text form: `approve:DIGEST` or `approve:DIGEST:JSON` with edited
    arguments, `approve-like:DIGEST:JSON` with an `ApprovalClass`; DIGEST may be empty.
    """

    digest: str | None = None
    """Fingerprint of the tool and arguments that were shown; None: those shown at present."""
    arguments: str | None = None
    """Edited arguments, as JSON text: the tool is called with these; None: with those shown."""
    like: ApprovalClass | None = None
    """Which later calls it covers; None: this one alone."""

    @classmethod
    def with_arguments(cls, arguments: JsonValue) -> Approve:
        """The approval of the call that is shown at present, with edited arguments."""
        return cls(arguments=dumps(arguments))


class Reject(Struct, frozen=True):
    """Reject the tool call. Text form: `reject:DIGEST` or `reject:DIGEST:REASON`; DIGEST may be
    empty.
    """

    digest: str | None = None
    """Fingerprint of the rejected tool and arguments; None: those that are shown at present."""
    reason: str | None = None
    """Why, in words for people and for the model; None: no reason was given."""


class Answer(Struct, frozen=True):
    """Answer a question. Text form: `answer:JSON`; people may enter a bare text."""

    text: str

    @classmethod
    def of(cls, value: JsonValue) -> Answer:
        """The answer `value` in its stored form."""
        return cls(dumps(value))

    @property
    def value(self) -> JsonValue:
        """The answer as JSON.

        Raises:
            ValueError: It is a text as a person entered it, and not JSON.
        """
        return parse_json(self.text)


class Redo(Struct, frozen=True):
    """Repeat the tool call in doubt. Text form: `redo`."""


class Done(Struct, frozen=True):
    """Count the tool call in doubt as made. Text form: `done`, or `done:JSON` with its result."""

    text: str | None = None

    @classmethod
    def of(cls, value: JsonValue) -> Done:
        """The decision that the call was made and returned `value`."""
        return cls(dumps(value))

    @property
    def value(self) -> JsonValue:
        """The call's result; None where none was entered.

        Raises:
            ValueError: The text is not JSON.
        """
        return None if self.text is None else parse_json(self.text)


class Fail(Struct, frozen=True):
    """Count the tool call in doubt as failed. Text form: `fail`."""


Decision: TypeAlias = Approve | Reject | Answer | Redo | Done | Fail
"""Closed: a `match` over it ends in `assert_never`."""

_NAMES: Final[dict[type[Decision], str]] = {
    Approve: "approve",
    Reject: "reject",
    Answer: "answer",
    Redo: "redo",
    Done: "done",
    Fail: "fail",
}
_LIKE: Final = "approve-like"
_CLASSES: Final = {name: kind for kind, name in _NAMES.items()}


def parse_decision(word: str) -> Decision:
    """The decision of a text form.

    Raises:
        ValueError: It is not a decision.
    """
    name, colon, text = word.partition(":")
    if name == _LIKE and colon:
        digest, like = _digest_and_more(text)
        return Approve(digest, like=_class_of(like or ""))
    kind = _CLASSES.get(name)
    if kind is Approve or kind is Reject:
        return kind(*_digest_and_more(text)) if colon else kind()
    if kind is Answer and colon:
        return Answer(text)
    if kind is Done:
        return Done(text if colon else None)
    if (kind is Redo or kind is Fail) and not colon:
        return kind()
    raise ValueError(f"`{word:.40}` is not a decision; expected: {', '.join(_CLASSES)}")


def _class_of(text: str) -> ApprovalClass:
    try:
        return json.decode(text, type=ApprovalClass)
    except (MsgspecError, RecursionError) as error:
        raise ValueError(f"`{text:.40}` says not which calls are alike: {error}") from error


def _digest_and_more(text: str) -> tuple[str | None, str | None]:
    """The digest and what follows it: `DIGEST:MORE`; `:MORE` has no digest."""
    digest, colon, more = text.partition(":")
    return (digest or None, more or None) if colon else (digest, None)


def said_decision(word: str) -> Decision | None:
    """The decision of a text that a person entered; None: it is not a decision."""
    try:
        return parse_decision(word)
    except ValueError:
        return None


def name_of(decision: Decision) -> str:
    """The decision's keyword alone: `approve`."""
    return _NAMES[type(decision)]


def word_of(decision: Decision) -> str:
    """The decision's text form, as rows hold it."""
    match decision:
        case Approve(digest, like=ApprovalClass() as like):
            return f"{_LIKE}:{digest or ''}:{json.encode(like).decode()}"
        case Approve(digest, more) | Reject(digest, more) if more:
            return f"{name_of(decision)}:{digest or ''}:{more}"
        case Approve(about) | Reject(about) | Done(about) | Answer(about):
            name = name_of(decision)
            return name if about is None else f"{name}:{about}"
        case Redo() | Fail():
            return name_of(decision)
        case _:
            assert_never(decision)
