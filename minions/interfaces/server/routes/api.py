"""All endpoints under `/api/v1`, as one Litestar router."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NoReturn

from litestar import Router, get
from litestar.di import Provide

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
from minions.interfaces.server.endpoint_parts import (
    ApiRequest,
    ApiResponse,
    Asked,
    check_request,
    read_asked,
    refuses,
)
from minions.interfaces.server.routes.agui_routes import AG_UI
from minions.interfaces.server.routes.decision_routes import (
    APPROVALS,
    RESUMPTIONS,
    decide_run,
    follow_changes,
    get_health,
    get_ready,
    get_system,
)
from minions.interfaces.server.routes.recipe_routes import AGENTS, RECIPES
from minions.interfaces.server.routes.run_routes import MARKS, PLANS, RUN_EXPORTS, RUN_STEPS, RUNS
from minions.interfaces.server.routes.session_routes import SESSIONS, TURNS
from minions.interfaces.server.routes.work_routes import WORK

# --- `/projects`, of a server that has none ------------------------------------------------------
# `ProjectServer` answers them where there are projects; these describe both.


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


# --- the whole -----------------------------------------------------------------------------------


API: Final = Router(
    "/api/v1",
    route_handlers=[
        get_health,
        get_ready,
        RECIPES,
        AGENTS,
        AG_UI,
        PLANS,
        RUNS,
        RUN_STEPS,
        RUN_EXPORTS,
        RESUMPTIONS,
        MARKS,
        SESSIONS,
        TURNS,
        APPROVALS,
        decide_run,
        WORK,
        PROJECTS,
        get_system,
        follow_changes,
    ],
    request_class=ApiRequest,
    response_class=ApiResponse,
    before_request=check_request,
    dependencies={"asked": Provide(read_asked, sync_to_thread=False)},
)
"""The scopes of requests need an `AppState`; see `litestar_app`."""
