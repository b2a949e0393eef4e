"""What a person decides while a run waits, and the words that rows and command lines hold of it."""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

from msgspec import Struct

from minions.contracts.json_values import JsonValue, dumps, parse_json

__all__ = [
    "Answer",
    "Approve",
    "Decision",
    "Done",
    "Fail",
    "Redo",
    "Reject",
    "name_of",
    "parse_decision",
    "said_decision",
    "word_of",
]


class Approve(Struct, frozen=True):
    """The call may be made. `approve:DIGEST`."""

    digest: str | None = None
    """The tool and arguments that were consented to; None: those that are shown just now."""


class Reject(Struct, frozen=True):
    """The call must not be made. `reject:DIGEST`."""

    digest: str | None = None
    """As of `Approve`."""


class Answer(Struct, frozen=True):
    """The answer to a question. `answer:JSON`; a person may give a bare text."""

    text: str

    @classmethod
    def of(cls, value: JsonValue) -> Answer:
        """The answer as rows hold it."""
        return cls(dumps(value))

    @property
    def value(self) -> JsonValue:
        """The answer itself.

        Raises:
            ValueError: It is still a person's text, and no JSON.
        """
        return parse_json(self.text)


class Redo(Struct, frozen=True):
    """The call in doubt is made again. `redo`."""


class Done(Struct, frozen=True):
    """The call in doubt was made. `done`, or `done:JSON` with what it gave."""

    text: str | None = None

    @classmethod
    def of(cls, value: JsonValue) -> Done:
        """It was made, and gave that."""
        return cls(dumps(value))

    @property
    def value(self) -> JsonValue:
        """What it gave; None where nobody said.

        Raises:
            ValueError: The text is no JSON.
        """
        return None if self.text is None else parse_json(self.text)


class Fail(Struct, frozen=True):
    """The call in doubt counts as failed. `fail`."""


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
    """The decision that a word says.

    Raises:
        ValueError: It is none.
    """
    name, colon, text = word.partition(":")
    kind = _CLASSES.get(name)
    if kind is Approve or kind is Reject:
        return kind(text if colon else None)
    if kind is Answer and colon:
        return Answer(text)
    if kind is Done:
        return Done(text if colon else None)
    if (kind is Redo or kind is Fail) and not colon:
        return kind()
    raise ValueError(f"`{word:.40}` is no decision; expected: {', '.join(_CLASSES)}")


def said_decision(word: str) -> Decision | None:
    """What a person's word says; None: no decision."""
    try:
        return parse_decision(word)
    except ValueError:
        return None


def name_of(decision: Decision) -> str:
    """The word without what it is about: `approve`."""
    return _NAMES[type(decision)]


def word_of(decision: Decision) -> str:
    """The word that rows hold."""
    match decision:
        case Approve(about) | Reject(about) | Done(about) | Answer(about):
            name = name_of(decision)
            return name if about is None else f"{name}:{about}"
        case Redo() | Fail():
            return name_of(decision)
        case _:
            assert_never(decision)
