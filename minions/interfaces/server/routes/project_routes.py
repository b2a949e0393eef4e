"""`/projects`: what is said of all projects of a server. `ProjectServer` answers it; these are the
endpoints of a server that has none, and the description of both.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NoReturn

from litestar import Router, get

from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.project_documents import (
    ProjectApprovals,
    ProjectApprovalsQuery,
    ProjectRuns,
    ProjectRunsQuery,
    Projects,
    ProjectSessions,
    ProjectSessionsQuery,
)
from minions.interfaces.server.endpoint_parts import ApiRequest, Asked, refuses


@get("/projects", responses=refuses(404), needs=TokenScope.READ)
async def list_projects(request: ApiRequest) -> Projects:
    """List the projects of a server that has several."""
    _refuse(request)


@get("/projects/runs", responses=refuses(404), needs=TokenScope.READ)
async def list_project_runs(request: ApiRequest, asked: Asked[ProjectRunsQuery]) -> ProjectRuns:
    """List the runs of all projects of a server that has several, the newest first."""
    del asked  # it was checked
    _refuse(request)


@get("/projects/sessions", responses=refuses(404), needs=TokenScope.READ)
async def list_project_sessions(
    request: ApiRequest, asked: Asked[ProjectSessionsQuery]
) -> ProjectSessions:
    """List the sessions of all projects of a server that has several, the newest first."""
    del asked  # it was checked
    _refuse(request)


@get("/projects/approvals", responses=refuses(404), needs=TokenScope.READ)
async def list_project_approvals(
    request: ApiRequest, asked: Asked[ProjectApprovalsQuery]
) -> ProjectApprovals:
    """List the pending decisions of all projects of a server that has several."""
    del asked  # it was checked
    _refuse(request)


def _refuse(request: ApiRequest) -> NoReturn:
    if request.owner is not None:  # as a server with projects does
        request.caller.require(TokenScope.ALL, "projects")
    raise RefusedError(
        HTTPStatus.NOT_FOUND,
        "unknown-project",
        "This server has no projects: `minions serve --projects FILE` has.",
    )


PROJECTS: Final = Router(
    "/",
    route_handlers=[
        list_projects,
        list_project_runs,
        list_project_sessions,
        list_project_approvals,
    ],
)
