"""When a run without an end is resumed unasked, and when no more: shared by servers and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from minions.contracts.errors import JournalError, MinionsError
from minions.contracts.facts import RunBeginning
from minions.contracts.journal import JournalEntry

__all__ = ["MOST_IDLE_EXECUTIONS", "idle_executions", "may_pass"]

MOST_IDLE_EXECUTIONS: Final = 5
"""After so many executions in a row that finished nothing, a run is not resumed any more: it may be
the run that ends the process."""

_BEGINNINGS: Final = frozenset({"started", "resumed", "in_doubt", "waiting"})
"""States that finish nothing: an execution with only these may have died of what it started."""


def idle_executions(entries: Sequence[JournalEntry]) -> int:
    """How many of the newest executions finished nothing; to be put in a queue is no execution."""
    at_work = {entry.generation for entry in entries if entry.state not in _BEGINNINGS}
    begun = {
        entry.generation
        for entry in entries
        if isinstance(entry.fact, RunBeginning) and not entry.fact.queued
    }
    return sum(generation > max(at_work, default=0) for generation in begun)


def may_pass(error: MinionsError) -> bool:
    """Whether the error may pass without a change on this machine."""
    if isinstance(error, JournalError):
        return error.error_code != "corrupt-entry"
    return error.error_code in ("stopping", "too-many-runs")
