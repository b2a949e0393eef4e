"""Marks: what people say of the outputs of a run, good or bad, folded from its rows."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from minions.contracts.addresses import is_within
from minions.contracts.journal.facts import MarkRecorded
from minions.contracts.journal.journal import JournalEntry

__all__ = ["Mark", "mark_of", "marks_in"]


@frozen(kw_only=True)
class Mark:
    """One mark that was set in this journal."""

    position: int
    """The position of its row in the session: it is about what was recorded before."""
    fact: MarkRecorded

    @property
    def is_good(self) -> bool:
        """Whether it says that the work is good."""
        return self.fact.verdict == "good"

    def covers(self, address: str) -> bool:
        """Whether it is about the step or item with that address: of the whole run, all are."""
        return self.fact.address is None or is_within(address, self.fact.address)


def marks_in(rows: Sequence[JournalEntry]) -> tuple[Mark, ...]:
    """The marks of a run that count, oldest first: a mark of an imported file is none of them."""
    return tuple(
        Mark(position=row.position, fact=row.fact)
        for row in rows
        if isinstance(row.fact, MarkRecorded)
    )


def mark_of(marks: Sequence[Mark], address: str, ended_at: int) -> Mark | None:
    """The mark that counts for an output: the last one that covers it; None: there is none.

    Args:
        address: Of the step or item that gave the output.
        ended_at: The position of the row with the output. A mark before it is of another output,
            which a retry replaced.
    """
    found = (each for each in marks if each.position > ended_at and each.covers(address))
    return max(found, key=lambda each: each.position, default=None)
