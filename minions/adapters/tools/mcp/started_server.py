"""A server as its tools see it: started at the first call, shared, verified, started again.

A server that fails again and again rests for a while, so that a run does not spend its time on it.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from attrs import define, evolve, field, frozen

from minions.adapters.tools.mcp.connection import Connection, Logins, Reveal
from minions.adapters.tools.mcp.elicitation import CallInFlight, elicited
from minions.adapters.tools.mcp.listing import as_pinned, changes_of, listed_tools, repeated_names
from minions.adapters.tools.mcp.mcp_failures import (
    BAD_RESULT,
    CHANGED,
    ENDED,
    FAILED,
    NEEDS_HANDSHAKE,
    REFUSED,
    failed,
)
from minions.contracts.tool_servers import PinnedServer, PinnedTool, Protocol, ToolServer
from minions.contracts.tools import ReportProgress, ToolScope
from minions.data.errors import ToolError, ToolServerError, words_of
from minions.data.json_values import JsonValue
from minions.data.texts import printable_text, shown_text

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, InputRequest, InputResponses, RequestParamsMeta
    from mcp_types import Tool as ListedTool

    from minions.adapters.tools.mcp.program import ProgramCheck

_MOST_FAILURES: Final = 3
"""Connections in a row that failed or broke; then there is none for `_REST_S`."""
_REST_S: Final = 30.0
_MOST_WORDS: Final = 1_000
_PROGRESS_S: Final = 0.1
"""Seconds between two reports of progress of one call."""


@frozen(kw_only=True)
class ServerParts:
    """What servers need of the process."""

    reveal: Reveal
    client_version: str
    logins: Logins | None = None
    """How servers are logged in to; None: to none."""
    clock: Callable[[], float] = time.monotonic


@define(eq=False)
class _Slot:
    """The connection within one event loop."""

    calls: asyncio.Semaphore
    lock: asyncio.Lock = field(factory=asyncio.Lock)
    connection: Connection | None = None
    """Its tools were compared."""
    opening: Connection | None = None
    changes: Mapping[str, str] = field(factory=dict)
    """What changed in each tool that is not as it was, by its name."""
    protocol: Protocol = Protocol.AUTO
    """What the next connection speaks."""
    retired: list[Connection] = field(factory=list)
    """Connections that only serve the calls that are in flight on them."""
    failures: int = 0
    failed_at: float = 0.0
    failure: ToolServerError | None = None
    is_closed: bool = False
    """Whether no connection is opened any more."""


class McpServer:
    """One server. Its connection belongs to the event loop of whoever calls first."""

    def __init__(
        self,
        server: ToolServer,
        pinned: PinnedServer,
        parts: ServerParts,
        check: ProgramCheck | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            check: What its program has to be; None: anything.
        """
        self.server = server
        self._check = check
        self._pinned = {tool.name: tool for tool in pinned.tools}
        self._parts = parts
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Slot] = (
            weakref.WeakKeyDictionary()
        )

    async def list_tools(self) -> Sequence[ListedTool]:
        """All tools as the server lists them now; whether they changed is not looked at.

        Raises:
            ToolServerError: It cannot be asked.
        """
        connection = self._new_connection(self.server.protocol)
        try:
            await connection.open()
            return await self._list_tools(connection)
        finally:
            await connection.close()

    async def call(
        self, tool: PinnedTool, arguments: Mapping[str, JsonValue], scope: ToolScope
    ) -> CallToolResult:
        """Call the tool; cancelled, the server is told so.

        Raises:
            ToolError: The arguments are refused, or a person's answer is missing.
            ToolServerError: The server is gone, hangs, floods, or the tool is another one now.
        """
        slot = self._slot()
        async with slot.calls:
            connection = await self._open(slot)
            if (change := slot.changes.get(tool.name)) is not None:
                raise self._change_error(tool, change)
            try:
                with connection.calls.one_more(scope.questions, self.server, tool.name) as call:
                    result = await self._end(connection, call, tool, arguments, scope)
            finally:
                if connection in slot.retired and connection.calls.is_empty:
                    slot.retired.remove(connection)
                    await connection.close()
            slot.failures = 0
            return result

    async def aclose(self) -> None:
        """End the connection of this event loop, and its process. Further calls are refused."""
        slot = self._slot()
        slot.is_closed = True  # else a call that is repeated would start the server again
        for connection in (slot.opening, slot.connection, *slot.retired):
            if connection is not None:
                await connection.close()

    # --- connections -----------------------------------------------------------------------------

    def _slot(self) -> _Slot:
        loop = asyncio.get_running_loop()
        slot = self._slots.get(loop)
        if slot is None:
            calls = asyncio.Semaphore(self.server.max_calls)
            slot = self._slots[loop] = _Slot(calls, protocol=self.server.protocol)
        return slot

    async def _open(self, slot: _Slot) -> Connection:
        """The open connection whose tools were compared; opened now if there is none."""
        found = slot.connection
        if found is not None and found.is_open and not found.is_stale:
            return found
        async with slot.lock:
            found = slot.connection
            if found is not None and found.is_open:
                if found.is_stale:
                    found.is_stale = False
                    await self._compare(slot, found)
                return found
            self._refuse_while_closed(slot)
            self._refuse_while_resting(slot)
            slot.opening = connection = self._new_connection(slot.protocol)
            try:
                await connection.open()
                await self._compare(slot, connection)
            except ToolServerError as error:
                if slot.protocol is not self.server.protocol:
                    slot.protocol = Protocol.STATELESS  # the only one that it knows
                self._count(slot, error)
                await connection.close()
                raise
            except BaseException:
                await connection.close()
                raise
            finally:
                slot.opening = None
            slot.connection = connection  # not before its tools were compared
            return connection

    def _new_connection(self, protocol: Protocol) -> Connection:
        return Connection(
            server=evolve(self.server, protocol=protocol),
            reveal=self._parts.reveal,
            client_version=self._parts.client_version,
            logins=self._parts.logins,
            clock=self._parts.clock,
            check=self._check,
        )

    async def _compare(self, slot: _Slot, connection: Connection) -> None:
        listed = await self._list_tools(connection)
        now = {tool.name: as_pinned(tool) for tool in listed}
        found = ((name, changes_of(tool, now.get(name))) for name, tool in self._pinned.items())
        slot.changes = {
            **{name: change for name, change in found if change is not None},
            **{name: f"+ {n} tools have this name" for name, n in repeated_names(listed).items()},
        }

    async def _list_tools(self, connection: Connection) -> Sequence[ListedTool]:
        seconds = self.server.start_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await listed_tools(self.server, connection.client)
        except TimeoutError:
            connection.ending.note(FAILED, f"did not list its tools within {seconds:g} s")
            raise connection.failure() from None
        except ToolServerError:
            raise
        except Exception as error:
            raise await self._failure(connection, error) from error

    def _refuse_while_closed(self, slot: _Slot) -> None:
        if slot.is_closed:
            raise failed(self.server.name, "was closed, and is not started again", code=ENDED)

    def _refuse_while_resting(self, slot: _Slot) -> None:
        if slot.failure is None or slot.failures < _MOST_FAILURES:
            return
        if self._parts.clock() - slot.failed_at < _REST_S:
            raise ToolServerError(
                f"{slot.failure.message} That was the {slot.failures}th time in a row; it is tried "
                f"again after {_REST_S:g} s.",
                code=slot.failure.error_code,
            )

    def _count(self, slot: _Slot, failure: ToolServerError) -> None:
        slot.failures += 1
        slot.failed_at, slot.failure = self._parts.clock(), failure

    # --- calls -----------------------------------------------------------------------------------

    async def _end(
        self,
        connection: Connection,
        call: CallInFlight,
        tool: PinnedTool,
        arguments: Mapping[str, JsonValue],
        scope: ToolScope,
    ) -> CallToolResult:
        """The result of the request, or why there is none."""
        progress = _Progress(scope.report_progress) if scope.report_progress else None
        session, name = connection.client.session, self.server.name
        try:
            return await call_tool(
                session, name, tool.name, arguments, call, progress, scope.trace_headers
            )
        except asyncio.CancelledError:
            if call.why is None or not call.was_stopped():
                raise
            raise call.why from None
        except (ToolError, ToolServerError) as error:
            raise call.why or error from error
        except Exception as error:
            if _is_no_back_channel(connection, error):
                raise self._without_handshake(connection) from error
            failure = await self._failure(connection, error)
            if isinstance(failure, ToolServerError) and not connection.is_open:
                self._count(self._slot(), failure)
            raise failure from error
        finally:
            if progress is not None:
                progress.close()

    def _without_handshake(self, connection: Connection) -> ToolServerError:
        """The failure of a call whose server asks a person where it cannot. Where the protocol is
        chosen by itself, the next connection begins with the handshake: a tool that may be repeated
        is called there.
        """
        slot, name = self._slot(), self.server.name
        if slot.protocol is Protocol.AUTO:
            slot.protocol = Protocol.HANDSHAKE
        if connection is slot.connection and slot.protocol is Protocol.HANDSHAKE:
            slot.connection = None
            slot.retired.append(connection)
        return ToolServerError(
            f"The MCP server '{name}' asks a person during the call, which it can only do on a "
            f'connection that begins with `initialize`. Set `protocol = "handshake"` in '
            f"{self.server.place}, and look at its tools again: {self.server.lock_command}.",
            code=NEEDS_HANDSHAKE,
            is_transient=slot.protocol is Protocol.HANDSHAKE,
        )

    async def _failure(
        self, connection: Connection, error: Exception
    ) -> ToolServerError | ToolError:
        """What an error of the SDK means."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS

        name = self.server.name
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            await connection.settled()
        if connection.ending.what is not None:
            return connection.failure()
        if not isinstance(error, MCPError):
            if type(error).__name__ == "ValidationError":
                words = _shorten(wrong_parts(error))
                return failed(name, f"sent what is not the protocol's: {words}", code=BAD_RESULT)
            words = _shorten(words_of(error))
            connection.ending.note(ENDED, f"cannot be used any more: {words}")
            return connection.failure()
        if error.code == CONNECTION_CLOSED:
            connection.ending.note(ENDED, "ended its connection")
            return connection.failure()
        if error.code == INVALID_PARAMS:
            return ToolError(
                f"The MCP server '{name}' says: {_shorten(error.message)}", code=REFUSED
            )
        if error.message == "Session terminated":
            connection.ending.note(ENDED, "knows nothing of its session any more")
            return connection.failure()
        return failed(name, f"refused: {_shorten(error.message)} ({error.code})", code=REFUSED)

    def _change_error(self, tool: PinnedTool, change: str) -> ToolServerError:
        name = self.server.name
        return ToolServerError(
            f"The tool '{tool.name}' of the MCP server '{name}' is not as it was when it was "
            f"locked:\n{change}\nIt was not called. If you want it as it is now, say so: "
            f"{self.server.lock_command}.",
            code=CHANGED,
        )


@define(eq=False)
class _Progress:
    """Hands on the progress of a call, not more often than people can see; the newest is never
    left out.
    """

    report: ReportProgress
    _newest: tuple[float, float | None, str | None] | None = field(default=None, init=False)
    """What was not handed on yet."""
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    """Runs while nothing is handed on."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self._newest = progress, total, shown_text(message[:200]) if message else None
        if self._timer is None:
            self._tell()

    def _tell(self) -> None:
        newest, self._newest, self._timer = self._newest, None, None
        if newest is not None:
            self._timer = asyncio.get_running_loop().call_later(_PROGRESS_S, self._tell)
            self.report(*newest)

    def close(self) -> None:
        """Hand on what is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._newest is not None:
            self.report(*self._newest)


def _is_no_back_channel(connection: Connection, error: Exception) -> bool:
    """Whether the server could not send its question: the stateless protocol has no way for it."""
    if connection.server.protocol is Protocol.HANDSHAKE:
        return False
    from mcp import MCPError
    from mcp_types import INVALID_REQUEST

    is_refused = isinstance(error, MCPError) and error.code == INVALID_REQUEST
    return is_refused and "'elicitation/create'" in str(error)


def _shorten(text: str) -> str:
    return printable_text(text[:_MOST_WORDS])


# --- what is wrong with a message of a server, in our words --------------------------------------


_MOST: Final = 3
"""Parts that are told."""
_WORDS: Final = {
    "missing": "is missing",
    "dict_type": "is no object",
    "model_type": "is no object",
    "list_type": "is no list",
    "string_type": "is no text",
    "bool_type": "is neither true nor false",
    "int_type": "is no whole number",
}


def wrong_parts(error: Exception) -> str:
    """Each wrong part with its place, as in `tools[0] ('weather'): inputSchema is missing`."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return words_of(error)
    faults = [each for each in listed(include_url=False) if isinstance(each, Mapping)]
    lines = list(dict.fromkeys(_describe_fault(each) for each in faults))
    more = len(lines) - _MOST
    return "; ".join([*lines[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def _describe_fault(fault: Mapping[str, object]) -> str:
    place, kind = fault.get("loc"), f"{fault.get('type')}"
    parts = list(place) if isinstance(place, Sequence) else []
    what = _WORDS.get(kind)
    if what is None:
        context = fault.get("ctx")
        wanted = context.get("expected") if isinstance(context, Mapping) else None
        what = f"is not {wanted}" if wanted is not None else f"does not fit: {fault.get('msg')}"
    return f"{''.join(_path(parts)).lstrip('.') or 'the whole'} {what}"


def _path(parts: Sequence[object]) -> Iterator[str]:
    for part in parts:
        yield f"[{part}]" if isinstance(part, int) else f".{part}"


# --- requests of the protocol, as one call of a tool makes them ----------------------------------


_MOST_ROUNDS: Final = 10
"""How often one call may come back with questions."""
_PAUSE_S: Final = 0.1
"""Seconds before a call is sent again that came back without a question."""


async def call_tool(
    session: ClientSession,
    server: str,
    tool: str,
    arguments: Mapping[str, JsonValue],
    call: CallInFlight,
    progress: ProgressFnT | None = None,
    trace: Mapping[str, str] | None = None,
) -> CallToolResult:
    """Call the tool, and answer the questions with which a stateless server comes back.

    Args:
        trace: The W3C headers that join what the server does to the run's trace.
    Raises:
        ToolServerError: The server asks for what is not offered, or again and again.
        Exception: Whatever the SDK raises.
    """
    from mcp_types import CallToolResult, InputRequiredResult

    # It knows no bounds, and lists all tools first: `ResultReader` checks.
    session.validate_tool_result = _take_any_result  # type: ignore[assignment, method-assign]  # of this one
    answers: InputResponses | None = None
    state: str | None = None
    for _ in range(_MOST_ROUNDS):
        found = await session.call_tool(
            tool,
            dict(arguments),
            progress_callback=progress,
            input_responses=answers,
            request_state=state,
            meta=cast("RequestParamsMeta", dict(trace)) if trace else None,
            allow_input_required=True,
        )
        if not isinstance(found, InputRequiredResult):
            assert isinstance(found, CallToolResult)  # noqa: S101  # there is nothing else
            return found
        state, answers = found.request_state, None
        if found.input_requests:
            answers = await _answers(server, found.input_requests, call)
        else:
            await asyncio.sleep(_PAUSE_S)
    raise failed(server, f"asked for more input {_MOST_ROUNDS} times", code=BAD_RESULT)


async def _answers(
    server: str, asked: Mapping[str, InputRequest], call: CallInFlight
) -> InputResponses:
    """The answers of a person, one question after the other."""
    from mcp_types import ElicitRequest, ErrorData

    answers: InputResponses = {}
    for key, request in asked.items():
        if not isinstance(request, ElicitRequest):
            raise failed(server, f"asks for '{request.method}', which is not offered", code=REFUSED)
        answer = await elicited(call, request.params)
        if isinstance(answer, ErrorData):
            what = f"has no answer to its question: {answer.message}"
            raise failed(server, what, code=REFUSED)
        answers[key] = answer
    return answers


async def _take_any_result(_name: str, _result: CallToolResult) -> None:
    """Takes any result."""
