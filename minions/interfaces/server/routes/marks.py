"""`/runs/{run_id}/marks`: says that an output of a run is good or bad."""

from __future__ import annotations

from http import HTTPStatus

from litestar import Router, post

from minions.data.errors import NotFoundError, UsageError
from minions.engine.sessions.marking import mark_run
from minions.interfaces.http.problems import RefusedError
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.runs import MarkRequest, MarkView
from minions.interfaces.server.endpoints import ApiRequest, Body, InPath, refuses
from minions.interfaces.server.routes.run_views import find_exact


@post("/marks", status_code=201, responses=refuses(404, 409), needs=TokenScope.DECIDE)
async def mark_output(request: ApiRequest, run_id: InPath, data: Body[MarkRequest]) -> MarkView:
    """Mark the outputs of the run, or of one of its steps, as good or bad; the last mark counts."""
    app_state = request.app_state
    run = await find_exact(request, run_id)
    if app_state.run_manager.find(run.run_id) is not None:
        raise RefusedError(
            HTTPStatus.CONFLICT, "run-active", f"Run '{run.run_id}' is being executed."
        )
    by = request.caller.decides_as(data.by)
    try:
        entry = await mark_run(
            app_state.runtime.services,
            run.run_id,
            data.verdict,
            address=data.address,
            note=data.note,
            by=by,
        )
    except NotFoundError as error:  # of the body, not of the path
        raise UsageError(
            error.message, code=error.error_code, suggestions=error.suggestions
        ) from error
    return MarkView(
        run_id=run.run_id,
        verdict=data.verdict,
        address=data.address,
        note=data.note,
        by=by,
        at=entry.at,
        position=entry.position,
    )


MARKS = Router("/runs/{run_id:str}", route_handlers=[mark_output])
