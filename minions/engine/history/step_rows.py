"""The rows of one execution of a step."""

from __future__ import annotations

from typing import Final

from attrs import field, mutable

from minions.contracts.journal.facts import (
    StepEnd,
    StepFailed,
    StepFinished,
    StepOutcome,
    StepStarted,
    given,
)
from minions.contracts.journal.journal import JournalEntry
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

EXHAUSTED: Final = "while-exhausted"
STUCK: Final = "while-stuck"
"""Failure codes of a `while` whose iterations succeeded without reaching its condition."""


@mutable
class StepRows(FieldsRepr):
    """The rows of one execution of a step."""

    key: str
    """`step/visit/iteration`, with `@generation` where the execution was begun again."""
    started: JournalEntry | None = None
    ended: JournalEntry | None = None
    """The row of its end; None: it was cut off or waits."""
    rows: list[JournalEntry] = field(factory=list)
    """All its rows, oldest first."""
    was_cut_off: bool = False
    """Whether it failed while work within it was cut off: that is not continued."""
    is_answered: bool = False
    """Whether a back edge followed its failure: the failure then stays, also in a retry."""

    @property
    def start(self) -> StepStarted | None:
        """The fact of its start; None: not started."""
        fact = self.started.fact if self.started is not None else None
        return fact if isinstance(fact, StepStarted) else None

    @property
    def end(self) -> StepEnd | None:
        """The fact of its end; None: not ended."""
        fact = self.ended.fact if self.ended is not None else None
        return fact if isinstance(fact, StepEnd) else None

    @property
    def output(self) -> JsonValue:
        """Its output; None: it has none, or has not ended."""
        fact = self.ended.fact if self.ended is not None else None
        return given(fact.output) if isinstance(fact, StepOutcome) else None

    @property
    def computed(self) -> StepFinished | None:
        """The fact of its end, where it came to an output of its own, of no cache; else None."""
        fact = self.ended.fact if self.ended is not None else None
        if type(fact) is not StepFinished:
            return None
        return fact if fact.cache_key is None else None

    @property
    def cache_key(self) -> str | None:
        """The key under which its output is cached; None: it is not cached."""
        fact = self.ended.fact if self.ended is not None else None
        return fact.cache_key if isinstance(fact, StepFinished) else None

    @property
    def has_failed(self) -> bool:
        """Whether it ended with a failure that no back edge followed."""
        return self.ended is not None and self.ended.state == "failed" and not self.is_answered

    @property
    def is_partial(self) -> bool:
        """Whether it completed although a part of it failed: a retry runs that part again."""
        return isinstance(self.end, StepFinished) and self.end.partial

    @property
    def is_withdrawn(self) -> bool:
        """Whether a back edge withdrew it while it waited for a decision, which then is not
        needed.
        """
        return self.ended is not None and self.ended.state == "withdrawn"

    @property
    def was_not_enough(self) -> bool:
        """Whether a `while` failed although its iterations succeeded: a retry begins all again."""
        if not self.has_failed or self.ended is None:
            return False
        end = self.ended.fact
        return isinstance(end, StepFailed) and end.error.get("code") in (EXHAUSTED, STUCK)

    @property
    def until_end(self) -> list[JournalEntry]:
        """The rows of the execution itself: the choice of the next step comes after its end."""
        end = self.ended
        return self.rows if end is None else [e for e in self.rows if e.position <= end.position]

    @property
    def unsettled(self) -> list[JournalEntry]:
        """The rows that may hold unfinished work: all of an open execution, else those after the
        end.
        """
        end = self.ended
        return self.rows if end is None else [e for e in self.rows if e.position > end.position]
