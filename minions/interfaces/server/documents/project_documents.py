"""Bodies about all projects of a server, as classes."""

from __future__ import annotations

from datetime import datetime

from attrs import field, frozen

from minions.contracts.executions import RunState
from minions.interfaces.server.documents.shared_documents import (
    MAYBE_TEXT,
    STATE,
    number_schema,
)


@frozen(kw_only=True)
class ProjectRow:
    """A project of the server."""

    name: str
    is_default: bool
    """Whether requests that name no project are its."""
    database: str
    """Its place, without a password."""
    is_reachable: bool
    problem: str | None
    """Why its database is not reached; null: it is."""
    url: str
    """Where its page is."""


@frozen(kw_only=True)
class Projects:
    """The projects that the caller may look at."""

    projects: tuple[ProjectRow, ...]


@frozen(kw_only=True)
class ProjectRunsQuery:
    """Which part of the runs of all projects to return."""

    id: str | None = field(default=None, metadata=MAYBE_TEXT)
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
    recipe: str | None = field(default=None, metadata=MAYBE_TEXT)
    status: RunState | None = field(default=None)
    user: str | None = field(default=None, metadata=MAYBE_TEXT)
    text: str | None = field(default=None, metadata=MAYBE_TEXT)
    limit: int = field(default=50, metadata=number_schema(0, 1_000))
    offset: int = field(default=0, metadata=number_schema(0, 1_000))


@frozen(kw_only=True)
class ProjectRunRow:
    """A run of one of the projects."""

    project: str
    run_id: str
    session_id: str
    recipe: str
    status: str = field(metadata=STATE)
    user: str | None
    started_at: datetime
    url: str
    """Its address in the project."""


@frozen(kw_only=True)
class UnreachableProject:
    """A project whose runs are not in the list."""

    project: str
    problem: str


@frozen(kw_only=True)
class ProjectRuns:
    """A part of the runs of all projects, the newest first."""

    runs: tuple[ProjectRunRow, ...]
    limit: int
    offset: int
    has_more: bool
    unreachable: tuple[UnreachableProject, ...]
