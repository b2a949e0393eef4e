"""`/plans`: a task is planned on a folder that the operator offers, and carried out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from http import HTTPStatus

from litestar import Router, post

from minions.interfaces.http.problems import RefusedError
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.plans import PlanRequest
from minions.interfaces.server.documents.runs import RunAccepted
from minions.interfaces.server.endpoints import (
    ApiRequest,
    ApiResponse,
    Body,
    IdempotencyKey,
    refuses,
)
from minions.interfaces.server.live.run_starter import RequestedRun
from minions.interfaces.server.routes.runs import accepted
from minions.interfaces.server.routes.sessions import user_in
from minions.planning.plan_form import Sharing
from minions.planning.step_executor import PlanChoices, step_executor_document
from minions.recipe.reading.load import recipe_from_document


@post(status_code=202, responses=refuses(403, 404, 409, 429), needs=TokenScope.RUN)
async def start_plan(
    request: ApiRequest, data: Body[PlanRequest], idempotency_key: IdempotencyKey = None
) -> ApiResponse[RunAccepted]:
    """Plan a task and carry the plan out, as a run that continues in the background.

    It waits for the answer to its plan under `/approvals`, unless `approval` is `none`.
    """
    state = request.app_state
    if data.approval == "none" and data.execute:
        request.caller.require(TokenScope.DECIDE, "a plan that is carried out without approval")
    workspace = _workspace(data.workspace, state.options.plan_workspaces)
    choices = PlanChoices(
        needs_approval=data.approval == "required",
        is_run=data.execute,
        share=Sharing(data.share),
        form=data.form,
        opens_named=False,  # what configures tools is the operator's
    )
    recipe = recipe_from_document(step_executor_document(choices), state.runtime.catalog)
    wanted = RequestedRun(
        recipe=recipe.id,
        made=state.runtime.bounded(recipe),
        inputs={
            "requirements": data.requirements,
            "workspace": workspace,
            "context": data.context or "",
        },
        session=data.session,
        user=await user_in(request, data.session, data.user),
        key=idempotency_key,
        owner=request.owner,
    )
    return await accepted(request, await state.starter.begin(wanted))


def _workspace(asked: str | None, offered: Sequence[str]) -> str:
    """The folder without links: one that is offered, or below one.

    Raises:
        RefusedError: `plans-refused`: no folder is offered; `workspace-refused`: not this one.
    """
    if not offered:
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "plans-refused",
            "This server makes no plans. `minions serve --plan-workspace DIR` offers a folder.",
        )
    folders = [os.path.realpath(each) for each in offered]
    if asked is None:
        return folders[0]
    if "\0" not in asked:
        found = os.path.realpath(os.path.join(folders[0], asked))  # noqa: PTH118
        if any(os.path.commonpath([found, each]) == each for each in folders):
            return found
    raise RefusedError(
        HTTPStatus.FORBIDDEN,
        "workspace-refused",
        "The workspace is not below a folder that this server offers for plans.",
    )


PLANS = Router("/plans", route_handlers=[start_plan], tags=["plans"])
"""Everything under `/plans`."""
