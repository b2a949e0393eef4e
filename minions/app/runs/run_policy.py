"""What whoever acts decided about a run, apart from its recipe and inputs: the policy of the run.

It comes from flags and configuration alone, and is stored as the note of the run's start so that a
resume continues with it (`contracts.journal.start_note`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from attrs import frozen

from minions.contracts.journal.child_run_links import ChildLink
from minions.contracts.journal.start_note import QueuePlace, StartNote
from minions.data.json_values import JsonValue

QUEUE: Final = "queue"
"""The key of a note that says where the run is queued; the row of the run bears it as its mark."""


@frozen(kw_only=True)
class RunPolicy:
    """The policy of a run; what is None was not decided when it began."""

    approve: str | None = None
    """Who consents to calls that need approval, as it was given by flag. It holds for resumes on
    the command line, whose user it is; a server asks by its own configuration.
    """
    model: str | None = None
    """The argument of `-m`, or the model that a caller chose among the operator's."""
    folder: Path = Path()
    """Where a relative path in `model` starts."""
    cwd: str | None = None
    """The folder where the run began: relative paths of its tools start there."""
    max_cost_usd: float | None = None
    """The most that it may cost, as it was given by flag."""
    no_cache: bool = False
    by: datetime | None = None
    """When it is to be done; until then its model calls may wait for batches."""
    queue: QueuePlace | None = None
    """The queue whose workers execute it; None: no worker does."""
    child: ChildLink | None = None
    """Whose child run it is, and its part of that run's limits; None: it is none."""

    @classmethod
    def recorded(cls, note: Mapping[str, JsonValue]) -> RunPolicy:
        """The policy with which a run began here.

        A note that is not of such a form decides nothing, nor does that of a run which was imported
        and not yet resumed.
        """
        noted = StartNote.of(note)
        if noted.is_imported:
            return cls()
        return cls(
            approve=noted.approve,
            model=noted.model,
            folder=Path(noted.folder or "."),
            cwd=noted.cwd,
            max_cost_usd=noted.max_cost_usd,
            no_cache=noted.no_cache,
            by=noted.by,
            queue=noted.queue,
            child=noted.child,
        )
