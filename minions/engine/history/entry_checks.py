"""Checks of entries: the expected kind of fact, readable bodies, and the origin of a fork."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from minions.contracts.journal.facts import SessionForked, UnreadableFact
from minions.contracts.journal.journal import JournalEntry, refuse_damaged, unreadable_entry
from minions.data.errors import JournalError

F = TypeVar("F", bound=Struct)

_DEEPEST: Final = 200
"""Levels of nesting in a body: code that reads or shows a deeper one overflows the stack."""


def unreadable_among(rows: Iterable[JournalEntry]) -> JournalError | None:
    """The error of the first entry that cannot be read; None: all can be read."""
    try:
        refuse_damaged(rows)
    except JournalError as error:
        return error
    return None


def fact_in(entry: JournalEntry, *kinds: type[F]) -> F:
    """The fact of an entry, checked to be one of these kinds.

    Raises:
        JournalError: `corrupt-entry`; it is another kind, or cannot be read.
    """
    fact = entry.fact
    if isinstance(fact, kinds):
        return fact
    expected = " or ".join(each.__name__ for each in kinds)
    problem = fact.problem if isinstance(fact, UnreadableFact) else f"expected {expected}"
    raise unreadable_entry(entry, problem)


def origin_of(
    rows: Sequence[JournalEntry], readers: Collection[str]
) -> tuple[str | None, int | None]:
    """The parent that a session was forked from, and the last position that the fork has of it.

    Args:
        rows: Rows of the session, from its first on.
        readers: The sessions whose conversation is being read: the first one and its parents so
            far.
    Raises:
        JournalError: `corrupt-entry`; the parent is one of `readers`, or cannot be read.
    """
    if not rows or rows[0].state != SessionForked.state:
        return None, None
    fact = fact_in(rows[0], SessionForked)
    if fact.parent in readers:  # else following the parents would never end
        raise unreadable_entry(rows[0], f"session '{fact.parent}' would be its own parent")
    return fact.parent, fact.position


def too_deep(body: object) -> str | None:
    """Why a body cannot be shown; None: it is not nested too deep."""
    rest = [body]  # level by level: recursion would fail at just what is looked for
    for _ in range(_DEEPEST + 1):
        nested = [each for each in rest if isinstance(each, dict | list)]
        if not nested:
            return None
        rest = [one for each in nested for one in (each.values() if type(each) is dict else each)]
    return f"its body is nested deeper than {_DEEPEST} levels"
