"""Entries that hold no fact: found before anything is made of a part of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, cast

from minions.contracts.errors import JournalError
from minions.contracts.executions import RunStatus
from minions.contracts.journal import JournalEntry
from minions.contracts.stored_sessions import unreadable_entry

__all__ = ["check_entries", "origin_of", "problem_of", "too_deep", "unreadable_among"]

_STATUSES: Final = tuple(each.value for each in RunStatus)
_DEEPEST: Final = 200
"""Levels of a body: further in, what reads or shows it comes to the end of the stack."""


def problem_of(entry: JournalEntry) -> str | None:
    """What was expected of it, and where; None: it holds a fact."""
    # Here: a run that begins anew reads no entry, and making the classes takes its time.
    from minions.contracts.facts import UnreadableFact, fact_of

    fact = fact_of(entry)
    return fact.problem if isinstance(fact, UnreadableFact) else None


def unreadable_among(rows: Iterable[JournalEntry]) -> JournalError | None:
    """Of the run and session entries of a list, the first that cannot be read.

    Looks only at what a list is made of: it is called for every run ever recorded.
    """
    for row in rows:
        body = row.body
        if row.damage is None:
            if row.state == "finished":
                if body.get("status") in _STATUSES and isinstance(body.get("usage"), dict | None):
                    continue
            elif row.kind != "run" or (
                isinstance(body.get("recipe"), str) and isinstance(body.get("model"), str | None)
            ):
                continue
        if (problem := problem_of(row)) is not None:
            return unreadable_entry(row, problem)
    return None


def check_entries(entries: Iterable[JournalEntry]) -> None:
    """Refuse a run that cannot be read, before anything is made of a part of it.

    Raises:
        JournalError: `corrupt-entry`, about the first entry that cannot be read.
    """
    for entry in entries:
        if (problem := problem_of(entry)) is not None:
            raise unreadable_entry(entry, problem)


def origin_of(
    rows: Sequence[JournalEntry], readers: Collection[str]
) -> tuple[str | None, int | None]:
    """The parent that a session was forked from, and the last position that is read of it.

    Args:
        rows: Of the session, from its first row on.
        readers: The session itself and its forks, from which the way led here.
    Raises:
        JournalError: `corrupt-entry`; the parent is one of `readers`, or nobody can read which.
    """
    if not rows or rows[0].state != "forked":
        return None, None
    check_entries(rows[:1])
    parent = cast(str, rows[0].body["parent"])
    if parent in readers:  # without this, whoever follows the parents would never end
        raise unreadable_entry(rows[0], f"session '{parent}' would be its own parent")
    return parent, cast(int, rows[0].body["position"])


def too_deep(body: object) -> str | None:
    """Why nobody can show that body; None: it is not nested too deep."""
    rest = [body]  # level by level: recursion would fail at just what is looked for
    for _ in range(_DEEPEST + 1):
        nested = [each for each in rest if isinstance(each, dict | list)]
        if not nested:
            return None
        rest = [one for each in nested for one in (each.values() if type(each) is dict else each)]
    return f"its body is nested deeper than {_DEEPEST} levels"
