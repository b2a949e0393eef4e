"""Facts of sessions."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from minions.contracts.journal.facts.shape import FactShape, MessageCount, Object


class SessionOpened(FactShape, frozen=True, kw_only=True):
    """A new session, without messages."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "opened"

    recipe: str | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    inputs: Object | None = None
    user: str | None = None
    """The label of the user to whom the session belongs; None: it is the operator's."""
    project: str | None = None
    """The folder of the project in which it was made; None: of none."""


class SessionForked(FactShape, frozen=True, kw_only=True):
    """A new session that starts with the messages of another one."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "forked"

    parent: str
    sequence: MessageCount
    """Sequence of the last message that is taken from the parent."""
    position: int
    """Position of the last entry that is read from the parent."""
    recipe: str | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    inputs: Object | None = None
    user: str | None = None
    """The label of the user to whom the session belongs; None: it is the operator's."""
    project: str | None = None
    """The folder of the project in which it was made; None: of none."""


class SessionCut(FactShape, frozen=True, kw_only=True):
    """Messages after `sequence` leave the conversation."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "cut"

    sequence: MessageCount
