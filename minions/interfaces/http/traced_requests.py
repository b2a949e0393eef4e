"""Joins what a request begins to the trace of its caller. Plain ASGI."""

from __future__ import annotations

from minions.contracts.tracing import Tracer
from minions.interfaces.http.responses import AsgiApp, Receive, Scope, Send


class TracedRequests:
    """Passes each request on; runs that it begins are in the trace that its headers name."""

    def __init__(self, app: AsgiApp, tracer: Tracer) -> None:
        """Wrap `app`."""
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if "traceparent" not in headers:
            await self._app(scope, receive, send)
            return
        with self._tracer.caller(headers):
            await self._app(scope, receive, send)
