"""The server as a Litestar app: endpoints, OpenAPI document, refusals.

Importing this loads Litestar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from re import Pattern
from typing import Final, TypeAlias, cast

from litestar import Litestar, route
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp

from minions.adapters.telemetry.prometheus import CONTENT_TYPE
from minions.data.errors import MinionsError
from minions.interfaces.http.http_answers import (
    Answer,
    AsgiApp,
    NoContent,
    Receive,
    RefusedError,
    RpcId,
    Scope,
    Send,
    a2a_answer,
    refusal,
)
from minions.interfaces.http.metrics_page import metrics_page
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.access import ROOT
from minions.interfaces.server.app_state import AppState
from minions.interfaces.server.endpoint_parts import (
    APP_STATE,
    RPC_ID,
    AnyRequest,
    ApiResponse,
    app_state_of,
    caller_in,
    check_scope,
)
from minions.interfaces.server.openapi import openapi_of
from minions.interfaces.server.routes.a2a_routes import A2A
from minions.interfaces.server.routes.api import API
from minions.interfaces.server.routes.openai_routes import OPENAI

Report: TypeAlias = Callable[[BaseException], MinionsError]

_REPORT: Final = "minions.report"
"""The key of the function that logs unexpected errors, in the scope of a request."""
_CODES: Final[Mapping[int, str]] = {
    404: "no-such-path",
    405: "method-not-allowed",
    413: "body-too-large",
}


def litestar_app(app_state: AppState, report: Report) -> AsgiApp:
    """The app behind the access middleware. All apps of a process share its endpoints.

    Args:
        report: Logs an unexpected error, and returns the error for the caller.
    """
    app = _endpoints(app_state.options.max_body_bytes)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, APP_STATE: app_state, _REPORT: report}, receive, send)

    return serve


@lru_cache
def _endpoints(max_body_bytes: int) -> AsgiApp:
    """What is the same for all apps; making it takes tens of milliseconds."""
    app = Litestar(
        [API, OPENAI, A2A, document, metrics],
        exception_handlers={Exception: _answer_to, HTTPException: _answer_to},
        request_max_body_size=max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    return AllowedMethods(cast("AsgiApp", app), _methods(app))


def _answer_to(request: AnyRequest, error: Exception) -> ApiResponse[object]:
    report: Report = request.scope[_REPORT]  # type: ignore[typeddict-item]  # of this app
    known = _refusal_of(error) if isinstance(error, HTTPException) else report(error)
    shown = refusal(known, request.scope["path"])
    if RPC_ID in request.scope:
        request_id: RpcId = request.scope[RPC_ID]  # type: ignore[typeddict-item]  # of this app
        shown = a2a_answer(known, request_id)
    return ApiResponse(
        shown.body, status_code=shown.status, media_type=shown.media_type, headers=shown.headers
    )


def _methods(app: Litestar) -> Mapping[str, Sequence[str]]:
    return {
        each.path_format: sorted(each.methods) for each in app.routes if isinstance(each, HTTPRoute)
    }


@route(
    "/openapi.json", http_method=["GET", "HEAD"], needs=TokenScope.READ, before_request=check_scope
)
async def document(request: AnyRequest) -> ASGIApp:
    """The OpenAPI document."""
    return cast("ASGIApp", Answer(HTTPStatus.OK, openapi_of(str(request.scope.get(ROOT, "")))))


@route("/metrics", http_method=["GET", "HEAD"], needs=TokenScope.READ, before_request=check_scope)
async def metrics(request: AnyRequest) -> ASGIApp:
    """What was counted since the process began, for Prometheus."""
    caller = caller_in(request)
    if caller.owner is not None:  # they count the work of all users
        caller.require(TokenScope.ALL, "metrics")
    state = app_state_of(request)
    page = await metrics_page(state.runtime.services, state.marks, state.work)
    return cast("ASGIApp", Answer(HTTPStatus.OK, page, CONTENT_TYPE))


def _refusal_of(error: HTTPException) -> RefusedError:
    status = HTTPStatus(error.status_code)
    headers = {name: str(text) for name, text in (error.headers or {}).items()}
    if "allow" in headers:
        headers["allow"] = ", ".join(sorted(headers["allow"].split(", ")))
    code = _CODES.get(error.status_code, "bad-request")
    return RefusedError(status, code, error.detail or status.phrase, headers=headers)


# --- answers to OPTIONS --------------------------------------------------------------------------


class AllowedMethods:
    """Answers OPTIONS for known paths, and passes all else to the app."""

    def __init__(self, app: AsgiApp, methods: Mapping[str, Sequence[str]]) -> None:
        """Answer instead of `app`.

        Args:
            methods: By path, with `{name}` for its variable parts.
        """
        self._app = app
        self._known = [(_pattern(path), sorted(allowed)) for path, allowed in methods.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        allowed = self._list_allowed(scope["path"]) if scope.get("method") == "OPTIONS" else None
        answer = self._app if allowed is None else NoContent({"allow": ", ".join(allowed)})
        await answer(scope, receive, send)

    def _list_allowed(self, path: str) -> Sequence[str] | None:
        fitting = (allowed for pattern, allowed in self._known if pattern.fullmatch(path))
        return next(fitting, None)


def _pattern(path: str) -> Pattern[str]:
    parts = re.split(r"\{\w+\}", path)
    return re.compile("[^/]+".join(map(re.escape, parts)) + "/?")
