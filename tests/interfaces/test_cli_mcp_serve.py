"""Recipes as an MCP server, called by our own client: over streams and HTTP, with and without
`initialize`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import evolve
from mcp import Client

from forked_commands import PROGRAM, ForkedCommand, run_forked
from mcp_servers import Called, called, scope
from minions.contracts.tool_servers import Protocol, ToolServer
from minions.data.errors import ToolError, ToolServerError
from minions.data.json_values import JsonValue
from minions.interfaces.http.tokens import Caller
from minions.interfaces.server.mcp_endpoint import mcp_server
from minions.interfaces.server.recipe_tools import (
    RecipeTool,
    RecipeTools,
    RunProgress,
    ToolOutcome,
)
from patience import HANG_S

ROOT = Path(__file__).parents[2]
GREET = """\
id: greet
description: Greets somebody.
inputs:
  name: {type: string, description: Whom.}
  polite: {type: boolean, default: true}
steps:
  - {id: first, set: {word: hello}}
  - {id: last, depends_on: [first], set: {text: "{{ first.word }} {{ inputs.name }}"}}
"""
WAITS = """\
id: waits
steps:
  - {id: a, set: {n: 1}}
  - {id: b, tool: waits}
"""
EXTENSIONS = """\
import asyncio
import sys

from minions import tool


@tool(effect="pure")
async def waits() -> None:
    '''Waits.'''
    await asyncio.sleep(3600)


@tool(effect="pure")
def shouts() -> str:
    '''Prints.'''
    print("noise")
    sys.stdout.flush()
    return "quiet"
"""
ASKS = "id: asks\nsteps: [{id: q, ask: Really?}]\n"
READS = """\
id: reads
inputs:
  where: {type: string, format: path, default: .}
tools: [{files: {root: "{{ inputs.where }}"}}]
steps: [{id: a, tool: files__list}]
"""
SHOUTS = "id: shouts\nsteps: [{id: a, tool: shouts}]\n"
OPTIONS = ("--db", "j.sqlite", "--extensions", "tools.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    for text in (GREET, WAITS, ASKS, READS, SHOUTS):
        name = text.partition("\n")[0].removeprefix("id: ")
        (tmp_path / "recipes" / f"{name}.yaml").write_text(text)
    (tmp_path / "recipes" / "broken.yaml").write_text("id: broken\nsteps: 5\n")
    (tmp_path / "tools.py").write_text(EXTENSIONS)
    (tmp_path / ".git").mkdir()
    return tmp_path


def environment() -> Mapping[str, str]:
    return {"PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/")}


def over_streams(folder: Path) -> ToolServer:
    return ToolServer(
        name="own",
        command=(sys.executable, "-m", "minions", "mcp", "serve", *OPTIONS),
        folder=str(folder),
        variables=environment(),
        start_timeout_s=HANG_S,
    )


@pytest.fixture
def over_http(folder: Path) -> Iterator[ToolServer]:
    process = ForkedCommand[str](
        [*PROGRAM, "mcp", "serve", "--http", "--port", "0", *OPTIONS],
        cwd=folder,
        env={**os.environ, **environment()},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    found = re.search(r"MCP at (\S+) · token (\S+)", said)
    assert found is not None, said + process.stderr.read()
    headers = {"Authorization": f"Bearer {found[2]}"}
    yield ToolServer(name="own", url=found[1], headers=headers, start_timeout_s=HANG_S)
    process.terminate()
    process.stderr.close()
    assert process.wait(HANG_S) == 0


@asynccontextmanager
async def own(server: ToolServer) -> AsyncIterator[Called]:
    async with called(server, as_of=server) as call:
        yield call


async def check_all(server: ToolServer) -> None:
    """Schemas, results, wrong inputs, failures, progress and cancellation."""
    told: list[str | None] = []

    def listen(done: float, total: float | None, text: str | None) -> None:
        assert total is not None
        assert done <= total
        told.append(text)

    listening = evolve(scope(), report_progress=listen)
    async with own(server) as call:
        assert sorted(call.tools) == ["asks", "greet", "reads", "shouts", "waits"]
        properties = call.tools["greet"].parameters["properties"]
        assert json.loads(json.dumps(properties)) == {
            "name": {"type": "string", "description": "Whom."},
            "polite": {"type": "boolean", "default": True},
        }
        assert call.tools["greet"].parameters["required"] == ["name"]
        assert call.tools["greet"].description == "Greets somebody."
        assert await call("greet", None, name="Eva") == {"text": "hello Eva"}
        with pytest.raises((ToolError, ToolServerError), match="name"):
            await call("greet", None, nom="Eva")
        with pytest.raises((ToolError, ToolServerError), match="'name' is missing") as missing:
            await call("greet", None)
        assert "-p " not in str(missing.value)  # the caller has no command line
        with pytest.raises(ToolError, match="`minions mcp serve --allow-folder DIR`"):
            await call("reads", None, where="/etc")
        with pytest.raises(ToolError, match=r"minions answer run_\w+ VALUE --db j.sqlite --ext"):
            await call("asks", None)
        waiting = asyncio.ensure_future(call("waits", listening))
        while "b" not in told:
            assert not waiting.done(), waiting.result()
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, HANG_S)
        assert told[0] == "a"
        assert await call("greet", listening, name="Ada") == {"text": "hello Ada"}
        assert await call("greet", None, name="Urs") == {"text": "hello Urs"}


def cancelled_runs(folder: Path) -> int:
    """How many runs were recorded as cancelled."""
    command = (*PROGRAM, "sessions", "list", "--json", "--db", "j.sqlite")
    environ = {**os.environ, **environment()}
    done = run_forked(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.count('"cancelled"')


async def test_recipes_are_tools_for_whoever_starts_the_server(folder: Path) -> None:
    """A-135."""
    await check_all(over_streams(folder))
    assert cancelled_runs(folder) == 1


@pytest.mark.parametrize("protocol", [Protocol.HANDSHAKE, Protocol.STATELESS])
async def test_recipes_are_tools_over_http_with_and_without_a_handshake(
    over_http: ToolServer, folder: Path, protocol: Protocol
) -> None:
    """A-135."""
    await check_all(evolve(over_http, protocol=protocol))
    assert cancelled_runs(folder) == 1


async def test_over_http_nobody_calls_without_the_token(over_http: ToolServer) -> None:
    """A-135."""
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(ToolServerError):
            async with own(evolve(over_http, headers=headers)):
                pass


async def test_standard_output_holds_the_protocol_and_nothing_else(folder: Path) -> None:
    """A-135."""
    server = over_streams(folder)
    async with own(evolve(server, command=(*server.command, "--debug"))) as call:
        assert await call("shouts", None) == "quiet"


def highest_kib(process: subprocess.Popen[bytes]) -> int:
    """The most memory that it has had so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]  # it is there


def test_a_message_that_is_too_large_is_answered_and_not_kept(folder: Path) -> None:
    command = (*PROGRAM, "mcp", "serve", *OPTIONS)
    environ = {**os.environ, **environment()}
    with ForkedCommand[bytes](
        command, cwd=folder, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def answer(*pieces: bytes) -> Mapping[str, JsonValue]:
            assert process.stdin is not None
            assert process.stdout is not None
            for piece in pieces:
                process.stdin.write(piece)
            process.stdin.write(b"\n")
            process.stdin.flush()
            found: Mapping[str, JsonValue] = json.loads(process.stdout.readline())
            return found

        ping = b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}'
        first = answer(ping % 1)
        before = highest_kib(process)
        large = answer(*[b"x" * 1_048_576] * 80)
        many = answer(b'{"jsonrpc": "2.0", "id": 2, "params": [' + b"1," * 100_000 + b"1]}")
        after = highest_kib(process)
        second = answer(ping % 3)
        process.stdin.close()
        assert process.wait(HANG_S) == 0
    assert (first["id"], large["id"], many["id"], second["id"]) == (1, None, None, 3)
    assert "more than 4 MiB" in str(large["error"])
    assert "more than 100,000 values" in str(many["error"])
    assert after - before < 30 * 1_024


async def test_over_http_a_message_with_too_many_values_is_refused(over_http: ToolServer) -> None:
    assert over_http.url is not None
    body = b'{"jsonrpc": "2.0", "id": 2, "method": "ping", "params": [' + b"1," * 100_000 + b"1]}"
    request = urllib.request.Request(
        over_http.url, body, {**over_http.headers, "content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(urllib.request.urlopen, request)
    assert (refused.value.code, json.load(refused.value)["code"]) == (413, "too-many-values")


def test_a_recipe_that_is_no_tool_is_named_with_the_reason(folder: Path) -> None:
    """A-135."""
    (folder / "recipes" / "a.b.yaml").write_text(ASKS.replace("asks", "a.b"))
    (folder / "recipes" / "a_b.yaml").write_text(ASKS.replace("asks", "a_b"))
    done = run_forked(
        [*PROGRAM, "mcp", "serve", *OPTIONS],
        cwd=folder,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=HANG_S,
        check=True,
    )
    assert done.stdout == ""
    assert "note: the recipe 'broken' is left out: recipes/broken.yaml:2:" in done.stderr
    assert "note: the recipe 'a_b' is left out: 'a.b' has its name as a tool" in done.stderr


class _Repeats(RecipeTools):
    """Runs a step again after all of them have ended, as a recipe with a back edge does."""

    def __init__(self) -> None:
        """There are no recipes."""

    async def list(self) -> Sequence[RecipeTool]:
        return ()

    async def run(
        self,
        name: str,
        inputs: Mapping[str, JsonValue],
        progress: RunProgress | None = None,
        caller: Caller | None = None,
    ) -> ToolOutcome:
        assert progress is not None
        for done, words in ((0.0, "a"), (1.0, "a"), (1.0, "a again"), (1.0, "a again")):
            progress(done, 1.0, words)
        return ToolOutcome(output="done", error=None, run_id="run_1")


async def test_progress_never_exceeds_its_total() -> None:
    """A-135."""
    told: list[tuple[float, float | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        assert message is not None
        told.append((progress, total))

    async with Client(mcp_server(_Repeats(), "1")) as client:
        await client.call_tool("any", {}, progress_callback=listen)
    assert told == [(0.0, 1.0), (1.0, 1.0)]
