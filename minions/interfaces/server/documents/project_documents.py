"""Bodies about all projects of a server, as classes."""

from __future__ import annotations

from datetime import datetime

from attrs import field, frozen

from minions.contracts.executions import RunState
from minions.engine.calls.inbox import ItemKind
from minions.interfaces.server.documents.run_documents import ApprovalView
from minions.interfaces.server.documents.shared_documents import MAYBE_TEXT, STATE, number_schema


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
    after: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The `next` of the page before: what comes behind it, however many runs began meanwhile."""


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
    """A project of which nothing is in the list."""

    project: str
    problem: str


@frozen(kw_only=True)
class ProjectRuns:
    """A part of the runs of all projects, the newest first. A run that is in several projects, as
    one of a session that was imported, is on one page in all of them.
    """

    runs: tuple[ProjectRunRow, ...]
    limit: int
    offset: int
    has_more: bool
    next: str | None
    """What to send as `after` for the next page; null: there is none."""
    unreachable: tuple[UnreachableProject, ...]


@frozen(kw_only=True)
class ProjectSessionsQuery:
    """Which part of the sessions of all projects to return."""

    user: str | None = field(default=None, metadata=MAYBE_TEXT)
    text: str | None = field(default=None, metadata=MAYBE_TEXT)
    limit: int = field(default=50, metadata=number_schema(0, 1_000))
    offset: int = field(default=0, metadata=number_schema(0, 1_000))


@frozen(kw_only=True)
class ProjectSessionRow:
    """A session of one of the projects."""

    project: str
    session_id: str
    name: str | None
    recipe: str | None
    """That of the session, else that of its last run; null: it has none."""
    user: str | None
    updated_at: datetime
    """When a run of it last started or ended, else when it was made."""
    url: str
    """Its address in the project."""


@frozen(kw_only=True)
class ProjectSessions:
    """A part of the sessions of all projects, those first in which a run started or ended last."""

    sessions: tuple[ProjectSessionRow, ...]
    limit: int
    offset: int
    has_more: bool
    unreachable: tuple[UnreachableProject, ...]


@frozen(kw_only=True)
class ProjectApprovalsQuery:
    """Which part of the pending decisions of all projects to return."""

    recipe: str | None = field(default=None, metadata=MAYBE_TEXT)
    kind: str | None = field(
        default=None,
        metadata={"schema": {"type": "string", "enum": [each.value for each in ItemKind]}},
    )
    """One of the kinds of `ApprovalView`."""
    limit: int = field(default=50, metadata=number_schema(0, 1_000))
    after: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The `next` of the page before."""


@frozen(kw_only=True)
class ProjectApproval:
    """A pending decision of a run of one of the projects."""

    project: str
    approval: ApprovalView
    url: str
    """Where it is decided, in the project."""


@frozen(kw_only=True)
class ProjectApprovals:
    """A part of the pending decisions of all projects, those that were asked first before."""

    approvals: tuple[ProjectApproval, ...]
    total: int
    """How many there are in the projects that are reached."""
    limit: int
    next: str | None
    """What to send as `after` for the next page; null: there is none."""
    unreachable: tuple[UnreachableProject, ...]
