"""When the rows of new sessions are made: a few sessions at a time, not with each entry.

Whoever looks something up finds the sessions that have entries and no rows for them, by what a
trigger marked or by the ids of new entries, and makes these rows first. Most sessions hold one run
that is executed once: to make their rows by the dozen costs a fifth of making them one by one, and
a process that records many runs without a look-up makes them now and then, so that none has many
to make.
"""

from __future__ import annotations

from typing import Final

from minions.contracts.journal.facts import RunFinished, RunRejected
from minions.contracts.journal.journal import EntryDraft, Lease

_SOME: Final = 64
"""Runs that end before the rows of new sessions are made: some 5 ms of work."""


def folds_later(lease: Lease) -> bool:
    """Whether an entry under that lease leaves the rows of its session to a later fold.

    In the first execution of a session there is little to fold; in one that goes on, a fold of
    all its entries would cost more with each run.
    """
    return lease.epoch == 1


class PendingRows:
    """Counts the runs that ended in new sessions, for one journal object."""

    def __init__(self) -> None:
        self._ended = _SOME - 1  # the first one of a process also folds what others left

    def is_due(self, lease: Lease, draft: EntryDraft) -> bool:
        """Whether rows are to be made now; asked once for each entry that was stored."""
        if not (folds_later(lease) and isinstance(draft.fact, RunFinished | RunRejected)):
            return False
        self._ended = (self._ended + 1) % _SOME
        return self._ended == 0
