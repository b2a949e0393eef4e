"""One connection to a server. A single task of its own enters and leaves what the SDK opens.

The SDK's contexts have to be left by the task that entered them, and calls come from many tasks;
so the owner task opens the connection, waits for its end, and closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from attrs import define, evolve, field, frozen

from minions.adapters.daemon_thread import import_in_daemon_thread, run_in_daemon_thread
from minions.adapters.tools.mcp.bounds import Inflow
from minions.adapters.tools.mcp.elicitation import CallsInFlight
from minions.adapters.tools.mcp.ending import Ending
from minions.adapters.tools.mcp.failures import ENDED, FAILED, LOGIN, REPLACED, failed
from minions.adapters.tools.mcp.http import http_streams
from minions.adapters.tools.mcp.login_store import LoginStore
from minions.adapters.tools.mcp.program import ProgramCheck, ServerProgram, find_program
from minions.adapters.tools.mcp.stdio import ServerProcess, process_streams
from minions.contracts.tool_servers import Grant, Protocol, ToolServer
from minions.data.errors import ToolServerError, words_of
from minions.data.words import shell_word

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp.client._transport import TransportStreams

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
        await import_in_daemon_thread(import_module, "minions.adapters.tools.mcp.requests")
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
        return self._owner is not None and not self.ending.seen.is_set() and self._ready.done()

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
                await self.ending.seen.wait()
        except BaseException as error:  # the SDK raises nested groups of anything
            self._note(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.ending.seen.set()
            if not self._ready.done():
                self._ready.set_exception(self.failure())
                self._ready.exception()  # looked at: the one who waited may be gone

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        from mcp import Client, Implementation

        client = Client(
            _Entered(self._streams()),
            mode=_MODES[self.server.protocol],
            cache=None,
            elicitation_callback=self.calls.elicit,
            message_handler=self._heard,
            client_info=Implementation(name="minions", version=self.client_version),
        )
        entering = asyncio.ensure_future(self.ending.seen.wait())
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
            self.ending.note(FAILED, f"cannot be used: {_shortened(words_of(leading))}")


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


class _Entered(AbstractAsyncContextManager["TransportStreams"]):
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


def _shortened(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
