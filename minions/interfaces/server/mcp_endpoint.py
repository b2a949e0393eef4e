"""Recipes as an MCP server, over standard streams or HTTP. Loads the SDK when it is made."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, cast

from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.data.errors import FailureInfo, MinionsError
from minions.data.json_values import as_object, dumps, most_values
from minions.interfaces.http.http_answers import (
    AsgiApp,
    Message,
    Receive,
    RefusedError,
    Scope,
    Send,
    refusal,
)
from minions.interfaces.http.tokens import CALLER, Caller, TokenScope
from minions.interfaces.server.access import AccessMiddleware
from minions.interfaces.server.recipe_tools import RecipeTool, RecipeTools, ToolOutcome
from minions.interfaces.server.server_options import ServerOptions

if TYPE_CHECKING:
    import mcp_types as types
    from anyio import AsyncFile
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.shared.message import SessionMessage


PATH: Final = "/mcp"
"""Where the server is over HTTP."""
_MOST_BODY: Final = 4 * 1_048_576
"""Bytes of a message."""
_MOST_VALUES: Final = 100_000
"""Values in a message: the SDK checks it in one piece."""


def mcp_server(tools: RecipeTools, version: str) -> Server[object]:
    """A server whose tools are the recipes."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    async def list_tools(
        _context: ServerRequestContext[object], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_make_tool(tool) for tool in await tools.list()])

    async def call_tool(
        context: ServerRequestContext[object], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        reports = _Reports(context)
        inputs = as_object(params.arguments or {})
        try:
            async with reports.sent():
                outcome = await tools.run(params.name, inputs, reports.add, _caller_of(context))
        except MinionsError as error:
            return _describe_failure(error.info())
        return _result(outcome)

    return Server("minions", version=version, on_list_tools=list_tools, on_call_tool=call_tool)


def _caller_of(context: ServerRequestContext[object]) -> Caller | None:
    """Who calls; None: there is no token."""
    scope: Scope | None = getattr(context.request, "scope", None)
    caller: Caller | None = (scope or {}).get(CALLER)
    return caller


def _make_tool(tool: RecipeTool) -> types.Tool:
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
        return _describe_failure(outcome.error, outcome.run_id)
    output = outcome.output
    text = output if isinstance(output, str) else dumps(output)
    structured = dict(output) if isinstance(output, Mapping) else None
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=structured
    )


def _describe_failure(failure: FailureInfo, run_id: str | None = None) -> types.CallToolResult:
    """The failure in words: the caller is a model, which may be able to correct its call."""
    import mcp_types as types

    run = f" (run {run_id})" if run_id is not None else ""
    text = f"{failure.message}\n[{failure.code}]{run}"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


class _Reports:
    """The progress of one call, sent one after the other beside the run."""

    def __init__(self, context: ServerRequestContext[object]) -> None:
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
                session = self._context.session
                await session.report_progress(last, total, words)
            except Exception:  # noqa: BLE001  # whoever asked is gone: the run does not depend on it
                return


async def serve_streams(tools: RecipeTools, version: str) -> None:
    """Serve over standard input and output until the input ends. Nothing else is printed there."""
    from mcp.server.stdio import stdio_server

    server = mcp_server(tools, version)
    with _own_input() as source:
        lines = _Lines(source)
        async with stdio_server(stdin=cast("AsyncFile[str]", lines)) as (incoming, outgoing):
            lines.outgoing = outgoing
            await server.run(incoming, outgoing, server.create_initialization_options())


@contextlib.contextmanager
def _own_input() -> Iterator[BinaryIO]:
    """Standard input for us alone: programs that a run starts find none."""
    import fcntl

    # The SDK does the same for an input of its own, whose lines have no bound.
    kept = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        # Not closed: a thread may still wait for a line, and the number must not become another's.
        yield os.fdopen(kept, "rb", closefd=False)
    finally:
        os.dup2(kept, 0)


class _Outgoing(Protocol):
    """A stream of the SDK, which has no public name for it."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""


class _Lines:
    """The messages on an input, one a line; one that is too large is answered, not kept."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.outgoing: _Outgoing | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        """The lines, until the input ends."""
        while True:
            line, problem = await run_in_daemon_thread(self._next)
            if problem is not None:
                await self._refuse(problem)
            elif line:
                yield line.decode("utf-8", "replace")
            else:
                return

    def _next(self) -> tuple[bytes, str | None]:
        """The next line, or why it is refused; neither: the input has ended."""
        line = self._source.readline(_MOST_BODY + 1)
        if len(line) > _MOST_BODY and not line.endswith(b"\n"):
            while (rest := self._source.readline(65_536)) and not rest.endswith(b"\n"):
                pass
            return b"", f"The message has more than {_MOST_BODY // 1_048_576} MiB."
        if most_values(line) > _MOST_VALUES:
            return b"", f"The message has more than {_MOST_VALUES:,} values."
        return line, None

    async def _refuse(self, problem: str) -> None:
        import mcp_types as types
        from mcp.shared.message import SessionMessage

        error = types.ErrorData(code=types.INVALID_REQUEST, message=problem)
        answer = types.JSONRPCError(jsonrpc="2.0", id=None, error=error)
        assert self.outgoing is not None  # noqa: S101  # there is one before the first line
        await self.outgoing.send(SessionMessage(answer))


@contextlib.asynccontextmanager
async def http_app(
    tools: RecipeTools,
    version: str,
    options: ServerOptions,
    report: Callable[[Exception], MinionsError],
    now: Callable[[], datetime],
) -> AsyncIterator[AsgiApp]:
    """The ASGI app that serves at `/mcp`, behind the checks of host, origin and token.

    Args:
        report: Logs an unexpected error, and returns the error for the caller.
        now: The time of day, by which tokens expire.
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
        app = _running(cast("AsgiApp", inner))
        yield AccessMiddleware(app, options, {}, report, now, ends_calls=False)


def _running(app: AsgiApp) -> AsgiApp:
    """The app for callers whose token may run recipes."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope[CALLER]
        try:
            caller.require(TokenScope.RUN, "MCP")
            messages = await _receive(receive) if scope["method"] == "POST" else []
        except MinionsError as error:
            await refusal(error, scope["path"])(scope, receive, send)
            return

        async def again() -> Message:
            return messages.pop(0) if messages else await receive()

        await app(scope, again, send)

    return checked


async def _receive(receive: Receive) -> list[Message]:
    """The messages of the body; of one that is too large, which the app refuses, some.

    Raises:
        RefusedError: It has too many values.
    """
    messages: list[Message] = []
    values = size = 0
    while size <= _MOST_BODY:
        messages.append(message := await receive())
        body: bytes = message.get("body", b"")
        size, values = size + len(body), values + most_values(body)
        if values > _MOST_VALUES:
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too-many-values",
                f"The message has more than {_MOST_VALUES:,} values.",
            )
        if not message.get("more_body", False):
            break
    return messages
