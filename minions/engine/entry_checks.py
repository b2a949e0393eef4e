"""Entries that hold no fact: found before anything is made of a part of a run."""

from __future__ import annotations

from collections.abc import Iterable

from minions.contracts.errors import JournalError
from minions.contracts.journal import JournalEntry
from minions.contracts.stored_sessions import unreadable_entry

__all__ = ["check_entries", "problem_of", "unreadable_among"]


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
                if isinstance(body.get("status"), str):
                    continue
            elif row.kind != "run" or isinstance(body.get("recipe"), str):
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
