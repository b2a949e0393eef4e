"""Recipes as an MCP server, over standard streams or HTTP. Loads the SDK when it is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from minions.contracts.errors import FailureInfo, MinionsError
from minions.contracts.json_values import JsonValue, dumps
from minions.interfaces.server.http.access import AccessMiddleware
from minions.interfaces.server.http.callers import CALLER, Caller
from minions.interfaces.server.http.responses import AsgiApp, Receive, Scope, Send, refusal
from minions.interfaces.server.options import ServerOptions
from minions.interfaces.server.recipe_tools import RecipeTool, RecipeTools, ToolOutcome
from minions.interfaces.server.tokens import TokenScope

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server

__all__ = ["PATH", "http_app", "mcp_server", "serve_streams"]

PATH: Final = "/mcp"
"""Where the server is over HTTP."""
_MOST_BODY: Final = 4 * 1_048_576


def mcp_server(tools: RecipeTools, version: str) -> Server[Any]:  # Any: it has no state of its own
    """A server whose tools are the recipes."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    async def list_tools(
        _context: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_listed(tool) for tool in await tools.list()])

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        reports = _Reports(context)
        inputs = cast("Mapping[str, JsonValue]", params.arguments or {})
        try:
            async with reports.sent():
                outcome = await tools.run(params.name, inputs, reports.add, _user_of(context))
        except MinionsError as error:
            return _failed(error.info())
        return _result(outcome)

    return Server("minions", version=version, on_list_tools=list_tools, on_call_tool=call_tool)


def _user_of(context: ServerRequestContext[Any]) -> str | None:
    """The user that the caller's token is bound to; None: none, or there is no token."""
    scope: Scope | None = getattr(context.request, "scope", None)
    caller: Caller | None = (scope or {}).get(CALLER)
    return caller.user if caller is not None else None


def _listed(tool: RecipeTool) -> types.Tool:
    import mcp_types as types

    schema = tool.output_schema
    return types.Tool(
        name=tool.name,
        title=tool.recipe.name or None,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=dict(schema) if schema is not None else None,
    )


def _result(outcome: ToolOutcome) -> types.CallToolResult:
    import mcp_types as types

    if outcome.error is not None:
        return _failed(outcome.error, outcome.run_id)
    output = outcome.output
    text = output if isinstance(output, str) else dumps(output)
    structured = dict(output) if isinstance(output, Mapping) else None
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=structured
    )


def _failed(failure: FailureInfo, run_id: str | None = None) -> types.CallToolResult:
    """The failure in words: the caller is a model, which may be able to correct its call."""
    import mcp_types as types

    run = f" (run {run_id})" if run_id is not None else ""
    text = f"{failure.message}\n[{failure.code}]{run}"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


class _Reports:
    """The progress of one call, sent one after the other beside the run."""

    def __init__(self, context: ServerRequestContext[Any]) -> None:
        self._context = context
        self._queue: asyncio.Queue[tuple[float, float, str] | None] = asyncio.Queue(1_000)

    def add(self, done: float, total: float, words: str) -> None:
        """Have a report sent; where the caller is too slow, some are left out."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait((done, total, words))

    @contextlib.asynccontextmanager
    async def sent(self) -> AsyncIterator[None]:
        """Send what is added within the block, all of it before the block is left."""
        sending = asyncio.create_task(self._send())
        try:
            yield
            await self._queue.put(None)
            await sending
        finally:
            sending.cancel()

    async def _send(self) -> None:
        last = -1.0
        while (report := await self._queue.get()) is not None:
            done, total, words = report
            # The protocol wants a number that grows: a step that begins counts for a little.
            last = max(done, last + 0.001)
            if last > total:
                continue  # all steps have ended; more than all is no progress
            try:
                await self._context.session.report_progress(last, total, words)
            except Exception:  # noqa: BLE001  # whoever asked is gone: the run does not depend on it
                return


async def serve_streams(tools: RecipeTools, version: str) -> None:
    """Serve over standard input and output until the input ends. Nothing else is printed there."""
    from mcp.server.stdio import stdio_server

    server = mcp_server(tools, version)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


@contextlib.asynccontextmanager
async def http_app(
    tools: RecipeTools,
    version: str,
    options: ServerOptions,
    report: Callable[[Exception], MinionsError],
) -> AsyncIterator[AsgiApp]:
    """The ASGI app that serves at `/mcp`, behind the checks of host, origin and token.

    Args:
        report: Logs an unexpected error, and returns the error for the caller.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    server = mcp_server(tools, version)
    inner = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=_MOST_BODY,
        # `AccessMiddleware` checks both, by the operator's list.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    async with server.session_manager.run():
        yield AccessMiddleware(_running(cast("AsgiApp", inner)), options, {}, report)


def _running(app: AsgiApp) -> AsgiApp:
    """The app for callers whose token may run recipes."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope[CALLER]
        try:
            caller.require(TokenScope.RUN, "MCP")
        except MinionsError as error:
            await refusal(error, scope["path"])(scope, receive, send)
            return
        await app(scope, receive, send)

    return checked
