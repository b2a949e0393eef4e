"""Decisions of a person about a waiting run, and their text form in rows and command lines."""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

from msgspec import Struct

from minions.data.json_values import JsonValue, dumps, parse_json


class Approve(Struct, frozen=True):
    """Approve the tool call. Text form: `approve:DIGEST` or `approve:DIGEST:JSON` with edited
    arguments; DIGEST may be empty.
    """

    digest: str | None = None
    """Fingerprint of the tool and arguments that were shown; None: those shown at present."""
    arguments: str | None = None
    """Edited arguments, as JSON text: the tool is called with these; None: with those shown."""

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
_CLASSES: Final = {name: kind for kind, name in _NAMES.items()}


def parse_decision(word: str) -> Decision:
    """The decision of a text form.

    Raises:
        ValueError: It is not a decision.
    """
    name, colon, text = word.partition(":")
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
        case Approve(digest, more) | Reject(digest, more) if more:
            return f"{name_of(decision)}:{digest or ''}:{more}"
        case Approve(about) | Reject(about) | Done(about) | Answer(about):
            name = name_of(decision)
            return name if about is None else f"{name}:{about}"
        case Redo() | Fail():
            return name_of(decision)
        case _:
            assert_never(decision)
