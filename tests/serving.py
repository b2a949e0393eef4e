"""`minions serve` as a process of its own, asked over a real socket."""

from __future__ import annotations

import copy
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asgi_client import Event, event_of
from forked_commands import PROGRAM, ForkedCommand
from patience import HANG_S

EXTENSIONS = '''
import asyncio, time
from pathlib import Path
from minions import ScriptedModel, tool

@tool(effect="pure")
async def gate() -> str:
    """Waits until there is a file called `open`."""
    Path("reached").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.02)
    return "through"

@tool(effect="pure")
def blocks() -> str:
    """Holds the whole process up."""
    Path("reached").touch()
    time.sleep(3600)
    return "never"

@tool(effect="pure")
def look(text: str = "") -> str:
    """Looks."""
    return "looked"

@tool(effect="once")
def sign(text: str) -> str:
    """Signs."""
    return f"sign: {text}"

answers = ScriptedModel(lambda prompt: "said", name="scripted/answers")
'''


class Serving:
    """A server that runs; it is killed at the end, if it is still there."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._start(folder, [*PROGRAM, "serve", "--port", "0", *arguments])

    @classmethod
    def of(cls, folder: Path, *command: str) -> Serving:
        """The server that this command starts."""
        server = cls.__new__(cls)
        server._start(folder, command)
        return server

    def _start(self, folder: Path, command: Sequence[str]) -> None:
        start = ForkedCommand if tuple(command[:3]) == PROGRAM else subprocess.Popen
        self.process = start(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MINIONS_MODEL": "scripted/answers"},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        words = self.line.split()
        assert words[:2] == ["minions", "serves"], self.line + self.end()[1]
        self.url, self.token = words[2], words[-1]
        self.port = int(self.url.rpartition(":")[2])
        self.prefix = ""

    def of_project(self, name: str) -> Serving:
        """The same server, asked for what is that project's."""
        server = copy.copy(self)
        server.prefix = f"/projects/{name}"
        return server

    def connection(self) -> http.client.HTTPConnection:
        """A new one."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Any:  # Any: JSON, compared by the test
        """The body of the answer, which is JSON."""
        connection = self.connection()
        try:
            self._send(connection, method, path, body, headers)
            with connection.getresponse() as response:
                return json.loads(response.read())
        finally:
            connection.close()

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: object,
        headers: Mapping[str, str] | None,
    ) -> None:
        named = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        data = None
        if body is not None:
            data = json.dumps(body)
            named["Content-Type"] = "application/json"
        connection.request(
            method,
            self.prefix + (path if path == "/openapi.json" else f"/api/v1{path}"),
            data,
            named,
        )

    @contextmanager
    def follow(self, path: str, last: int | None = None) -> Iterator[Iterator[Event]]:
        """Events as they come, until the stream ends."""
        connection = self.connection()
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        try:
            self._send(connection, "GET", path, None, headers)
            with connection.getresponse() as response:
                assert response.status == 200
                yield _events(response)
        finally:
            connection.close()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and what it told."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, err

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=HANG_S)


def _events(response: http.client.HTTPResponse) -> Iterator[Event]:
    lines: list[str] = []
    while line := response.readline().decode():
        if line.strip():
            lines.append(line.rstrip("\n"))
        elif lines and not lines[0].startswith(":"):
            yield event_of("\n".join(lines))
            lines = []
        else:
            lines = []
