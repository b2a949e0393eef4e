"""A server as a child process: its messages are lines, and it never outlives us.

The process runs under a keeper (`sandboxes/supervisor/keeper.py`), which ends all of its processes
with the connection, or with this process. What it writes is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, field

from minions.adapters.tools.mcp.bounds import (
    MOST_MESSAGE_BYTES,
    Inflow,
    count_signs,
    too_many_parts,
    too_many_values,
)
from minions.adapters.tools.mcp.ending import Ending
from minions.adapters.tools.mcp.failures import ENDED, FAILED, FLOODED
from minions.data.texts import printable_text

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage


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
        assert self._process is not None and self._process.stderr is not None  # noqa: PT018, S101
        rest = b""
        while chunk := await self._process.stderr.read(65_536):
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
            await _ended(server, tasks)
        finally:
            for stream in (incoming, outgoing, to_session, from_session):
                stream.close()


async def _ended(server: ServerProcess, tasks: Sequence[asyncio.Task[None]]) -> None:
    """End the process, also where the one who waits is cancelled."""
    stopping = asyncio.ensure_future(server.stop())
    while not stopping.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(stopping)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.drain()
