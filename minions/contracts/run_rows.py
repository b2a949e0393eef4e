"""What lists need of each run and each session: one row, made of entries one after the other.

The rows are derived. A journal keeps them beside its entries, so that looking something up costs
what is looked up; entries stay the truth, and folding them anew gives the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import field, frozen

from minions.contracts.executions import RunState
from minions.contracts.words import has_words

if TYPE_CHECKING:
    pass

__all__ = [
    "LISTED",
    "RunFilter",
    "RunRow",
    "SessionFilter",
    "SessionRow",
]

LISTED: Final = frozenset(("run", "session"))
"""Kinds of entries that rows are made of."""

Number: TypeAlias = int | float | None


# --- rows ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RunRow:
    """One run, as lists show it."""

    run_id: str
    session_id: str
    position: int
    """Of the entry with which it began."""
    recipe: str
    """`?` where nobody can read it."""
    status: str = RunState.INTERRUPTED.value
    """One of `RunState`, but `running`: whether a worker executes it, only leases tell."""
    model: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
    """None: no end is recorded, or it goes on since."""
    usage: Mapping[str, Number] = field(factory=dict)
    """Tokens and cost, of its last end."""
    error_code: str | None = None
    error_message: str | None = None
    """At most 200 characters of it."""
    mark: str | None = None
    """`server`: a server began it; `imported`: it came in a file. Of its last beginning."""
    problem: str | None = None
    """Of an unreadable run: which entry cannot be read, and why."""


@frozen(kw_only=True)
class SessionRow:
    """One session in which something ran, or that was opened or forked."""

    session_id: str
    created_at: datetime
    updated_at: datetime
    """When a run of it began or ended last, or when it was made."""
    last_at: datetime
    """When anything of that kind happened, also a cut."""
    last_position: int
    """Of the entry that it was made of last."""
    name: str | None = None
    parent: str | None = None
    """From which it was forked."""
    forked_at: int | None = None
    """The sequence of the parent's last message that it begins with."""
    has_inputs: bool = False
    """Whether its first entry has inputs for its turns."""
    own_recipe: str | None = None
    """The one that it was opened with."""
    ran_recipe: str | None = None
    """That of its last run."""
    is_mixed: bool = False
    """Whether its runs were of several recipes."""
    last_run_id: str | None = None
    status: str | None = None
    """That of its last run, as in `RunRow`; None: there was none."""

    @property
    def recipe(self) -> str | None:
        """Which one a turn runs; None: none was named, or its runs were of several."""
        return self.own_recipe or (None if self.is_mixed else self.ran_recipe)


# --- filters ---------------------------------------------------------------------------------


@frozen(kw_only=True)
class RunFilter:
    """Which runs are wanted: those that fit all of it. None: whatever it is."""

    run_ids: Collection[str] | None = None
    id_start: str | None = None
    """What their ids begin with."""
    session_id: str | None = None
    statuses: Collection[str] | None = None
    """Of `RunState`."""
    recipe: str | None = None
    text: str | None = None
    """Words, each of which is in the recipe, the model, the status or an id, in any case."""
    since: datetime | None = None
    """Begun then or later."""
    running: Collection[str] = ()
    """Runs that a worker executes: where no end is recorded, they are `running`."""

    def status_of(self, row: RunRow) -> str:
        """The status, where one that is not over may be `running`."""
        is_running = row.status == RunState.INTERRUPTED and row.run_id in self.running
        return RunState.RUNNING.value if is_running else row.status

    def fits(self, row: RunRow) -> bool:
        """Whether the run is wanted."""
        return (
            (self.run_ids is None or row.run_id in self.run_ids)
            and (self.id_start is None or row.run_id.startswith(self.id_start))
            and (self.session_id is None or row.session_id == self.session_id)
            and (self.statuses is None or self.status_of(row) in self.statuses)
            and (self.recipe is None or row.recipe == self.recipe)
            and (self.since is None or row.started_at >= self.since)
            and self.has_text(row)
        )

    def has_text(self, row: RunRow) -> bool:
        """Whether the words are there."""
        if not self.text:
            return True
        places = (row.recipe, row.model, self.status_of(row), row.run_id, row.session_id)
        return has_words(self.text, *places)


@frozen(kw_only=True)
class SessionFilter:
    """Which sessions are wanted: those that fit all of it. None: whatever it is."""

    session_ids: Collection[str] | None = None
    id_start: str | None = None
    """What their ids begin with."""
    name: str | None = None
    parent: str | None = None
    """The session from which they were forked."""
    text: str | None = None
    """Words, each of which is in the name, the recipe or the id, in any case."""

    def fits(self, row: SessionRow) -> bool:
        """Whether the session is wanted."""
        return (
            (self.session_ids is None or row.session_id in self.session_ids)
            and (self.id_start is None or row.session_id.startswith(self.id_start))
            and (self.name is None or row.name == self.name)
            and (self.parent is None or row.parent == self.parent)
            and self.has_text(row)
        )

    def has_text(self, row: SessionRow) -> bool:
        """Whether the words are there."""
        return not self.text or has_words(self.text, row.name, row.recipe, row.session_id)
