"""All endpoints under `/api/v1`, as one Litestar router."""

from __future__ import annotations

from typing import Final

from litestar import Router
from litestar.di import Provide

from minions.interfaces.server.endpoint_parts import (
    ApiRequest,
    ApiResponse,
    check_request,
    read_asked,
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
from minions.interfaces.server.routes.project_routes import PROJECTS
from minions.interfaces.server.routes.recipe_routes import AGENTS, RECIPES
from minions.interfaces.server.routes.run_routes import MARKS, PLANS, RUN_EXPORTS, RUN_STEPS, RUNS
from minions.interfaces.server.routes.session_routes import SESSIONS, TURNS
from minions.interfaces.server.routes.work_routes import WORK

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
