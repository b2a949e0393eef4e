"""One connection to a server. A single task of its own enters and leaves what the SDK opens.

The SDK's contexts have to be left by the task that entered them, and calls come from many tasks;
so the owner task opens the connection, waits for its end, and closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from attrs import define, evolve, field, frozen

from minions.adapters.daemon_thread import import_in_daemon_thread, run_in_daemon_thread
from minions.adapters.tools.mcp.elicitation import CallsInFlight
from minions.adapters.tools.mcp.http_streams import http_streams
from minions.adapters.tools.mcp.login_store import LoginStore
from minions.adapters.tools.mcp.mcp_failures import (
    ENDED,
    FAILED,
    FLOODED,
    LOGIN,
    MOST_MESSAGE_BYTES,
    REPLACED,
    Ending,
    Inflow,
    count_signs,
    failed,
    too_many_parts,
    too_many_values,
)
from minions.adapters.tools.mcp.program import ProgramCheck, ServerProgram, find_program
from minions.contracts.tool_servers import Grant, Protocol, ToolServer
from minions.data.errors import ToolServerError, words_of
from minions.data.texts import printable_text, shell_word

if TYPE_CHECKING:
    import httpx2
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

    from minions.adapters.tools.mcp.login import Visitor

Reveal: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Puts the values of secrets in place of the references to them.

Raises:
    EnvironmentRefusedError: One is missing.
"""
_SETTLE_S: Final = 1.0
_CLOSE_S: Final = 15.0
"""Seconds for an orderly end; then the owner task is cancelled, which kills the process."""


@frozen(kw_only=True)
class Logins:
    """How servers are logged in to."""

    folder: Path
    """Where tokens are kept."""
    visitor: Visitor | None = None
    """A person with a browser; None: nobody is there."""

    def store(self, url: str, client_id: str | None) -> LoginStore:
        """Where the tokens for a server are kept."""
        return LoginStore.of(self.folder, url, client_id)


@define(eq=False, kw_only=True)
class Connection:
    """A connection from its opening to its end; it is opened once."""

    server: ToolServer
    reveal: Reveal = field(repr=False)
    client_version: str
    logins: Logins | None = None
    clock: Callable[[], float] = time.monotonic
    check: ProgramCheck | None = None
    """What its program has to be; None: anything."""
    calls: CallsInFlight = field(factory=CallsInFlight, init=False)
    ending: Ending = field(factory=Ending, init=False)
    """Why it ended, or what it has to end for."""
    is_stale: bool = field(default=False, init=False)
    """Whether the server said that its tools are others now."""
    _process: ServerProcess | None = field(default=None, init=False, repr=False)
    """None: an address is asked, or it was not started yet."""
    _ready: asyncio.Future[Client] = field(init=False, repr=False)
    _owner: asyncio.Task[None] | None = field(default=None, init=False, repr=False)

    async def open(self) -> Client:
        """Start the owner task, and wait until the server is ready.

        Raises:
            ToolServerError: It cannot be started or reached, does not speak the protocol, or took
                too long.
        """
        logging.getLogger("mcp").addHandler(logging.NullHandler())  # errors are told by ours
        # The SDK takes half a second to load, which must not hold the event loop.
        await import_in_daemon_thread(import_module, "mcp")
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._owner = loop.create_task(self._own(), name=f"mcp-{self.server.name}")
        seconds = self.server.start_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            said = self._process.quoted_output() if self._process is not None else ""
            self.ending.note(FAILED, f"was not ready within {seconds:g} s{said}")
            await self.close()
            raise self.failure() from None
        except asyncio.CancelledError:
            await self.close()
            raise

    @property
    def client(self) -> Client:
        """The SDK's client, once the connection is open."""
        return self._ready.result()

    @property
    def is_open(self) -> bool:
        """Whether calls can be sent."""
        return self._owner is not None and not self.ending.is_over and self._ready.done()

    def failure(self) -> ToolServerError:
        """What ended it, as an error; a later call may succeed if it was open before."""
        what = self.ending.what or "ended its connection"
        code = self.ending.code or ENDED
        if self.ending.status is not None:
            what = f"{what} (HTTP {self.ending.status})"
        login = self.server.login
        if login is not None and (code == LOGIN or self.ending.status == 401):
            is_person_there = self.logins is not None and self.logins.visitor is not None
            hint = "" if is_person_there else _how_to_log_in(self.server, login.grant)
            code, what = LOGIN, f"{what}{hint}"
        return failed(self.server.name, what, code=code, transient=code == ENDED)

    async def settled(self) -> None:
        """Wait a moment for the owner task to see why the connection ended."""
        if self._owner is not None:
            await asyncio.wait([self._owner], timeout=_SETTLE_S)

    async def close(self) -> None:
        """End the connection and wait until nothing of it is left."""
        self.ending.want()
        owner = self._owner
        if owner is None or owner.done():
            return
        _, late = await asyncio.wait([owner], timeout=_CLOSE_S)
        if late:
            owner.cancel()
            await asyncio.wait([owner])

    async def _own(self) -> None:
        """Open, wait for the end, close: all of it in this task."""
        try:
            async with self._client() as client:
                self._ready.set_result(client)
                await self.ending.wait()
        except BaseException as error:  # the SDK raises nested groups of anything
            self._note(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.ending.finish()
            if not self._ready.done():
                self._ready.set_exception(self.failure())
                self._ready.exception()  # looked at: the one who waited may be gone

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        from mcp import Client, Implementation

        client = Client(
            _ContextTransport(self._streams()),
            mode=_MODES[self.server.protocol],
            cache=None,
            elicitation_callback=self.calls.elicit,
            message_handler=self._heard,
            client_info=Implementation(name="minions", version=self.client_version),
        )
        entering = asyncio.ensure_future(self.ending.wait())
        entering.add_done_callback(self._give_up_entering)
        try:
            async with client:
                entering.cancel()
                yield client
        finally:
            entering.cancel()

    def _give_up_entering(self, seen: asyncio.Future[Literal[True]]) -> None:
        """The end came while the handshake still waits for an answer."""
        if not seen.cancelled() and self._owner is not None:
            self._owner.cancel()

    @contextlib.asynccontextmanager
    async def _streams(self) -> AsyncIterator[TransportStreams]:
        server, inflow = self.server, Inflow(self.clock)
        if server.command:
            variables = self.reveal(server.variables)
            program = await run_in_daemon_thread(self._program, variables.get("PATH"))
            process = self._process = ServerProcess(
                (program.path, *server.command[1:]),
                server.folder,
                {**variables, "PATH": program.folders},
                self.ending,
                inflow,
            )
            async with process_streams(process) as streams:
                yield streams
            return
        headers = self.reveal(server.headers)
        auth = self._auth()
        async with http_streams(f"{server.url}", headers, self.ending, inflow, auth) as streams:
            yield streams

    def _program(self, path: str | None) -> ServerProgram:
        """The program that is started now.

        Raises:
            OSError: It is not there, or is not the one that somebody looked at.
        """
        server = self.server
        program = find_program(server.command, server.folder, server.variables, path)
        if self.check is not None and (changes := self.check.changes(program)):
            told = "; ".join(each.words for each in changes)
            self.ending.note(
                REPLACED,
                f"was not started, since its program is not the one that somebody looked at: {told}"
                f". If you want it as it is now, say so: {server.lock_command}",
            )
            raise OSError("its program was replaced")
        return program

    def _auth(self) -> httpx2.Auth | None:
        server, login = self.server, self.server.login
        if login is None or self.logins is None:
            return None
        url = f"{server.url}"
        store = self.logins.store(url, login.client_id)
        if login.grant is Grant.BROWSER and self.logins.visitor is None and not store.path.exists():
            return None  # without loading what most connections never need
        from minions.adapters.tools.mcp.login import login_of

        secrets = {"secret": login.client_secret, "key": login.private_key}
        told = self.reveal({name: each for name, each in secrets.items() if each is not None})
        login = evolve(login, client_secret=told.get("secret"), private_key=told.get("key"))
        try:
            return login_of(url, login, store, self.ending, self.logins.visitor)
        except ValueError as error:
            raise failed(server.name, f"cannot be logged in to: {error}", code=LOGIN) from None

    async def _heard(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.is_stale = True

    def _note(self, error: BaseException) -> None:
        leading = _leading(error)
        if self.ending.is_wanted or isinstance(leading, asyncio.CancelledError):
            return
        if isinstance(leading, ToolServerError):
            self.ending.note(leading.error_code, leading.message)
        elif isinstance(leading, OSError) and self.server.command:
            self.ending.note(FAILED, f"cannot be started: {leading.strerror or leading}")
        else:
            self.ending.note(FAILED, f"cannot be used: {_shorten(words_of(leading))}")


_MODES: Final = {
    Protocol.AUTO: "auto",
    Protocol.STATELESS: Protocol.STATELESS.value,
    Protocol.HANDSHAKE: "legacy",
}


def _proof(server: ToolServer) -> str:
    has_key = server.login is not None and server.login.private_key is not None
    return "private_key" if has_key else "client_secret"


def _how_to_log_in(server: ToolServer, grant: Grant) -> str:
    if grant is Grant.CLIENT_CREDENTIALS:
        return f"; look at client_id, {_proof(server)} and issuer of {server.place}"
    if server.is_of_program:
        return (
            "; log in with `minions mcp login NAME` where minions.toml has the same address as "
            "[mcp.NAME], or let the program log in: oauth=Grant.CLIENT_CREDENTIALS"
        )
    return f"; log in: `minions mcp login {shell_word(server.name)}`"


class _ContextTransport(AbstractAsyncContextManager["TransportStreams"]):
    """A transport of the SDK, made of a context manager."""

    def __init__(self, context: AbstractAsyncContextManager[TransportStreams]) -> None:
        self._context = context

    async def __aenter__(self) -> TransportStreams:
        return await self._context.__aenter__()

    async def __aexit__(self, *raised: object) -> bool | None:
        return await self._context.__aexit__(*raised)  # type: ignore[arg-type]  # as it is given


def _leading(error: BaseException) -> BaseException:
    """The error that a nest of groups is about: the first that is no cancellation."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    found = [_leading(each) for each in error.exceptions]
    return next((each for each in found if not isinstance(each, asyncio.CancelledError)), found[0])


def _shorten(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


# --- a server as a child process -----------------------------------------------------------------


_ROOT: Final = str(Path(__file__).parents[4])
_PROGRAM: Final = (
    f"import sys; sys.path.append({_ROOT!r}); "
    "from minions.adapters.sandboxes.supervisor.keeper import main; main()"
)
_INHERITED: Final = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "USER")
"""Variables that a program needs to find itself; none of them is a secret."""
_GRACE_S: Final = 2.0
"""Seconds that a server has for its own end, once its input is closed."""
_KILL_S: Final = 5.0
"""Seconds that the keeper has to end all processes; then it is killed itself."""
_WRITE_S: Final = 10.0
"""Seconds within which a server reads what is sent to it."""
_AT_ONCE: Final = 65_536
"""Bytes of a message whose values need not be counted."""
_UNREAD: Final = 65_536
"""Bytes that may wait for a server to read them; beyond that we wait."""
_AHEAD: Final = 64
"""Messages that may wait to be handled."""
_MOST_LOG_LINES: Final = 20
_MOST_QUOTED: Final = 5
_MOST_LINE: Final = 500


@define(eq=False)
class ServerProcess:
    """The process of a server, from its start to its end."""

    command: Sequence[str]
    folder: str | None
    variables: Mapping[str, str] = field(repr=False)
    """What is added to the few variables that are inherited; values of secrets stand here."""
    ending: Ending
    inflow: Inflow
    _log: deque[str] = field(factory=lambda: deque(maxlen=_MOST_LOG_LINES), init=False, repr=False)
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    async def start(self) -> asyncio.subprocess.Process:
        """Start the keeper, which starts the server.

        Raises:
            OSError: The keeper, or the folder, is not there.
        """
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), *self.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self._environment(),
            start_new_session=True,  # a signal to the terminal's group is not meant for it
            limit=MOST_MESSAGE_BYTES,
        )
        return self._process

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {**kept, **self.variables}

    def quoted_output(self) -> str:
        """What it wrote that is no message, and its log, for messages; empty: nothing."""
        told = self.inflow.told_garbage()
        return f"{f'; it {told}' if told is not None else ''}{self.quoted_log()}"

    def quoted_log(self) -> str:
        """The end of what it wrote to its standard error, for messages; empty: nothing."""
        lines = list(self._log)[-_MOST_QUOTED:]
        return "".join((". It said last:", *(f"\n  {line}" for line in lines))) if lines else ""

    async def read(self, messages: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hand on each message, until the server ends or sends too much."""
        assert self._process is not None and self._process.stdout is not None  # noqa: PT018, S101
        stdout = self._process.stdout
        async with messages:
            while True:
                try:
                    line = await stdout.readuntil(b"\n")
                except asyncio.IncompleteReadError:
                    await self._note_end()
                    return
                except asyncio.LimitOverrunError:
                    most = MOST_MESSAGE_BYTES // 1_048_576
                    self.ending.note(FLOODED, f"sent a message of more than {most} MiB")
                    return
                if not await self._handed_on(line, messages):
                    return

    async def _handed_on(
        self, line: bytes, messages: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> bool:
        """Whether more is read after that line."""
        from anyio import BrokenResourceError, ClosedResourceError, WouldBlock
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCResponse, jsonrpc_message_adapter

        if not line.strip():
            return True
        if (flood := self._flood_of(line)) is not None:
            self.ending.note(FLOODED, flood)
            return False
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            if (what := self.inflow.garbage(self._readable(line))) is None:
                return True
            self.ending.note(FAILED, what)
            return False
        if isinstance(message, JSONRPCResponse) and (flood := too_many_parts(message.result)):
            self.ending.note(FLOODED, flood)
            return False
        try:
            try:
                messages.send_nowait(SessionMessage(message))
            except WouldBlock:
                await messages.send(SessionMessage(message))
        except (BrokenResourceError, ClosedResourceError):
            return False  # the session is over
        return True

    def _flood_of(self, line: bytes) -> str | None:
        """Why that line ends the connection; None: it does not."""
        small = len(line) < _AT_ONCE
        return self.inflow.message() or (
            None if small else too_many_values(len(line), count_signs(line))
        )

    async def write(self, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send each message; a server that does not read has failed."""
        assert self._process is not None and self._process.stdin is not None  # noqa: PT018, S101
        stdin = self._process.stdin
        async with messages:
            async for message in messages:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self.inflow.asked()
                stdin.write(text.encode("utf-8", "surrogatepass") + b"\n")
                if stdin.transport.get_write_buffer_size() < _UNREAD:
                    continue
                try:
                    async with asyncio.timeout(_WRITE_S):
                        await stdin.drain()
                except TimeoutError:
                    self.ending.note(FAILED, f"did not read its input for {_WRITE_S:g} s")
                    return
                except ConnectionError:
                    return  # it has ended, which its output tells

    async def log(self) -> None:
        """Keep the last lines of its standard error."""
        stderr = self._process.stderr if self._process is not None else None
        assert stderr is not None  # noqa: S101
        rest = b""
        while chunk := await stderr.read(65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_MOST_LINE:]
            self._keep(lines)
        self._keep([rest])

    def _keep(self, lines: Sequence[bytes]) -> None:
        for line in lines[-_MOST_LOG_LINES:]:
            if text := self._readable(line):
                self._log.append(text)

    def _readable(self, line: bytes) -> str:
        """The beginning of a line that it wrote, for messages: without its secrets."""
        text = line[:_MOST_LINE].decode("utf-8", "replace").strip()
        for value in self.variables.values():
            text = text.replace(value, "***") if len(value) > 3 else text
        return printable_text(text)

    async def _note_end(self) -> None:
        assert self._process is not None  # noqa: S101
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await self._process.wait()
        code = self._process.returncode
        ended = "closed its output" if code is None else f"ended with code {code}"
        self.ending.note(ENDED, f"{ended}{self.quoted_log()}")

    async def drain(self) -> None:
        """Read what a server that has ended left in its output: else the pipe stays open."""
        process = self._process
        if process is None or process.stdout is None or process.returncode is None:
            return
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(_GRACE_S):
                while await process.stdout.read(65_536):
                    pass

    async def stop(self) -> None:
        """Close its input, wait for its end, and kill all of its processes otherwise."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        grace = _GRACE_S if self.ending.is_wanted else 0.0
        for seconds, end in ((grace, process.terminate), (_KILL_S, process.kill)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await process.wait()
            if process.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                end()
        await process.wait()


@contextlib.asynccontextmanager
async def process_streams(server: ServerProcess) -> AsyncIterator[TransportStreams]:
    """Start the server, and give the streams of its messages.

    Raises:
        OSError: It cannot be started.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_AHEAD)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_AHEAD)
    tasks: list[asyncio.Task[None]] = []
    try:
        await server.start()
        tasks += [
            asyncio.create_task(server.read(to_session)),
            asyncio.create_task(server.write(from_session)),
            asyncio.create_task(server.log()),
        ]
        yield incoming, outgoing
    finally:
        try:
            await _end_process(server, tasks)
        finally:
            for stream in (incoming, outgoing, to_session, from_session):
                stream.close()


async def _end_process(server: ServerProcess, tasks: Sequence[asyncio.Task[None]]) -> None:
    """End the process, also where the one who waits is cancelled."""
    stopping = asyncio.ensure_future(server.stop())
    while not stopping.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(stopping)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.drain()
