"""The endpoints as a Litestar app: it routes, reads bodies up to their limit, and no more.

Importing this loads Litestar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias, cast

from litestar import Litestar, Request, Response
from litestar.enums import HttpMethod
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from minions.contracts.codec import encode
from minions.contracts.errors import MinionsError
from minions.interfaces.server.app_state import AppState
from minions.interfaces.server.endpoints import Call, Endpoint, Nothing
from minions.interfaces.server.http.access import ROOT
from minions.interfaces.server.http.problems import RefusedError
from minions.interfaces.server.http.request_parsing import read_body, read_query
from minions.interfaces.server.http.responses import AsgiApp, json_bytes, refusal

__all__ = ["litestar_app"]

AnyRequest: TypeAlias = Request[Any, Any, Any]  # Any: no users, and no state in requests
Report: TypeAlias = Callable[[BaseException], MinionsError]

_PLACE: Final = re.compile(r"\{(\w+)\}")
_CODES: Final[Mapping[int, str]] = {
    404: "no-such-path",
    405: "method-not-allowed",
    413: "body-too-large",
}


def litestar_app(endpoints: Sequence[Endpoint], app_state: AppState, report: Report) -> AsgiApp:
    """The app behind the gate.

    Args:
        report: Of unexpected errors: writes them down, and gives what the caller may know.
    """

    def answer_to(request: AnyRequest, error: Exception) -> Response[bytes]:
        known = _refusal_of(error) if isinstance(error, HTTPException) else report(error)
        answer = refusal(known, request.scope["path"])
        return Response(
            json_bytes(encode(answer.body)),
            status_code=answer.status,
            media_type=answer.media_type,
            headers=dict(answer.headers),
        )

    app = Litestar(
        [_route(endpoint, app_state) for endpoint in endpoints],
        exception_handlers={Exception: answer_to, HTTPException: answer_to},
        request_max_body_size=app_state.options.max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    return cast("AsgiApp", app)


def _refusal_of(error: HTTPException) -> RefusedError:
    status = HTTPStatus(error.status_code)
    headers = {name: str(text) for name, text in (error.headers or {}).items()}
    code = _CODES.get(error.status_code, "bad-request")
    return RefusedError(status, code, error.detail or status.phrase, headers=headers)


def _route(endpoint: Endpoint, app_state: AppState) -> HTTPRouteHandler:
    async def answer(request: AnyRequest) -> ASGIApp:
        return cast("ASGIApp", await endpoint.handler(await _call(endpoint, app_state, request)))

    path = _PLACE.sub(r"{\1:str}", f"/api/v1{endpoint.path}")
    handler = HTTPRouteHandler(
        path, http_method=HttpMethod(endpoint.method), status_code=200, name=endpoint.name
    )
    return handler(answer)


async def _call(
    endpoint: Endpoint, app_state: AppState, request: AnyRequest
) -> Call[object, object]:
    """The request, read as the endpoint declares it.

    Raises:
        RefusedError, UsageError: It is something else.
    """
    body: object = None
    if endpoint.body is not None:
        media_type = request.headers.get("content-type", "")
        body = read_body(await request.body(), media_type, endpoint.body)
    else:
        read_body(await request.body(), "application/json", Nothing)
    headers = {
        name: text for name in endpoint.headers if (text := request.headers.get(name)) is not None
    }
    return Call(
        app_state=app_state,
        path=dict(request.path_params),
        query=read_query(request.scope["query_string"], endpoint.query),
        body=body,
        headers=headers,
        root=cast("str", request.scope.get(ROOT, "")),
    )
