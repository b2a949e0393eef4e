"""A served run that a thousand follow, one with a large output, and small requests: how soon each
has its answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import field, frozen

from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row, ratio_row
from benchmarks.ticking import PIECES

RECIPE = "id: ticking\nsteps: [{id: ask, goal: Tell the time.}]\n"
FAN_OUT_MS, FOLLOWER_KIB, FIRST_MS = 200.0, 40.0, 2.0
LARGE_RECIPE = "id: large\nsteps: [{id: all, tool: large}]\noutput: '{{ all }}'\n"
WHOLE_MS, CUT_MS, CUT_AT = 30.0, 20.0, 8_000
LEAST_PER_S = 2_000.0
KEPT_TIMES = 1.0
"""A kept connection saves the handshake: it is never slower than a new one."""
_UNTIMED, _FEWEST = 5, 20
"""Requests before the first timed one, and timed ones at least: the median of one says nothing."""


@frozen
class Served:
    """A server of its own."""

    process: Process
    port: int
    token: str
    go: Path
    writers: list[asyncio.StreamWriter] = field(factory=list)
    """A connection is closed with its writer."""

    def resident_kib(self) -> int:
        """Memory that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found[1]) if found else 0

    async def open(self, method: str, path: str, body: str = "") -> asyncio.StreamReader:
        """The answer, behind its head."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        await self.ask(reader, writer, method, path, body)
        return reader

    async def ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: str = "",
    ) -> bytes:
        """The head of the answer."""
        writer.write(
            f"{method} /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        return await reader.readuntil(b"\r\n\r\n")


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """Small requests; one run alone with one follower, one with all."""
    async with _served() as served:
        kept, own = await _small_requests(effort, served)
        whole, cut = await _large_run(effort, served)
    many = max(5, effort.count(1_000))
    first, _memory = await _followed(1)
    fan_out, memory = await _followed(many)
    return [
        Row(
            key="kept-per-second",
            work="requests in a second, one after another on a kept connection",
            goal=f"≥ {LEAST_PER_S:,.0f}",
            measured=f"{1e3 / kept:,.0f}",
            absolute=f"{1e3 / kept:,.0f}/s",
            is_met=1e3 / kept >= LEAST_PER_S,
        ),
        absolute_row(
            "large-run",
            "`GET /runs/{id}` of a run with 1 MB of output",
            value=whole,
            most=WHOLE_MS,
            unit="ms",
        ),
        absolute_row(
            "large-run-cut",
            "the same as the page asks for it, with its values cut",
            value=cut,
            most=CUT_MS,
            unit="ms",
        ),
        ratio_row(
            "kept-connection",
            "a request on a kept connection",
            ratio=kept / own,
            most=KEPT_TIMES,
            of="a request on a connection of its own",
            absolute=f"{kept:.2f} ms; new connection {own:.2f} ms",
        ),
        absolute_row(
            "first-token",
            "a piece of an answer, from the model to a follower",
            value=sorted(first)[len(first) // 2],
            most=FIRST_MS,
            unit="ms",
        ),
        absolute_row(
            "followers",
            f"a piece of an answer, until the last of {many:,} followers has it",
            value=sorted(fan_out)[len(fan_out) // 2],
            most=FAN_OUT_MS,
            unit="ms",
        ),
        absolute_row(
            "follower-memory",
            f"memory of one of {many:,} followers",
            value=memory / many,
            most=FOLLOWER_KIB,
            unit="KiB",
        ),
    ]


async def _small_requests(effort: Effort, served: Served) -> tuple[float, float]:
    """Milliseconds until an answer is there: on a kept connection, and each on a new one."""
    kept: list[float] = []
    own: list[float] = []
    same = await asyncio.open_connection("127.0.0.1", served.port)
    served.writers.append(same[1])
    for _ in range(_UNTIMED):  # the first answers of a server load what they need
        await _one_request(served, same)
        await _one_request(served)
    for _ in range(effort.rounds * _many(effort, 100)):  # in turns
        kept.append(await _one_request(served, same))
        own.append(await _one_request(served))
    return sorted(kept)[len(kept) // 2], sorted(own)[len(own) // 2]


def _many(effort: Effort, full: int) -> int:
    """How many requests are timed; for a look at whether it works a few will do."""
    return max(_FEWEST, effort.count(full)) if effort.warms_up else effort.count(full)


async def _large_run(effort: Effort, served: Served) -> tuple[float, float]:
    """Milliseconds until a run with a large output is there: in whole, and cut."""
    whole: list[float] = []
    cut: list[float] = []
    same = await asyncio.open_connection("127.0.0.1", served.port)
    served.writers.append(same[1])
    begun = await served.open("POST", "/runs", '{"recipe": "large"}')
    run_id = json.loads(await begun.readuntil(b"}}"))["run_id"]
    events = await served.open("GET", f"/runs/{run_id}/events")
    await events.readuntil(b"event: run_completed")
    for _ in range(effort.rounds * _many(effort, 50)):  # in turns
        whole.append(await _one_request(served, same, f"/runs/{run_id}"))
        cut.append(await _one_request(served, same, f"/runs/{run_id}?parts=steps&cut={CUT_AT}"))
    return sorted(whole)[len(whole) // 2], sorted(cut)[len(cut) // 2]


async def _one_request(
    served: Served,
    kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None,
    path: str = "/health",
) -> float:
    """Milliseconds from the question, or the connection before it, to the whole answer."""
    began = time.monotonic()
    reader, writer = kept or await asyncio.open_connection("127.0.0.1", served.port)
    head = await served.ask(reader, writer, "GET", path)
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None, head
    await reader.readexactly(int(length[1]))
    took = (time.monotonic() - began) * 1e3
    if kept is None:
        writer.close()
    return took


async def _followed(count: int) -> tuple[list[float], float]:
    """Milliseconds until the last one had each piece; KiB for all of them."""
    async with _served() as served:
        answer = await served.open("POST", "/runs", '{"recipe": "ticking"}')
        head = json.loads(await answer.readuntil(b"}}"))
        path = f"/runs/{head['run_id']}/events"
        before = served.resident_kib()
        readers = [await served.open("GET", path) for _ in range(count)]
        await asyncio.gather(*(reader.readuntil(b"step_started") for reader in readers))
        memory = served.resident_kib() - before
        served.go.touch()
        late = await asyncio.gather(*(_lateness(reader) for reader in readers))
    return [max(each[piece] for each in late) for piece in range(PIECES)], memory


async def _lateness(reader: asyncio.StreamReader) -> list[float]:
    """Milliseconds from a piece's time to its arrival, for each."""
    late = []
    for _ in range(PIECES):
        await reader.readuntil(b'"content":"')
        told = await reader.readuntil(b" ")
        late.append((time.monotonic() - float(told)) * 1e3)
    return late


@asynccontextmanager
async def _served() -> AsyncIterator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "recipes").mkdir()
        (home / "recipes" / "ticking.yaml").write_text(RECIPE, "utf-8")
        (home / "recipes" / "large.yaml").write_text(LARGE_RECIPE, "utf-8")
        go = home / "go"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "minions", "serve", "--port", "0", "--db", "j.sqlite"),
            *("--extensions", str(Path(__file__).with_name("ticking.py"))),
            cwd=home,
            env={
                **os.environ,
                "MINIONS_MODEL": "scripted/ticking",
                "MINIONS_BENCHMARK_GO": str(go),
            },
            stdout=PIPE,
        )
        assert process.stdout is not None
        served = None
        try:
            line = ""
            while "token" not in line:
                line = (await process.stdout.readline()).decode()
                assert line, "the server ended"
            found = re.search(r":(\d+) · token (\S+)", line)
            assert found is not None, line
            served = Served(process, int(found[1]), found[2], go)
            yield served
        finally:
            for writer in served.writers if served is not None else ():
                writer.close()
            process.kill()
            await process.wait()
