"""Several workers on one PostgreSQL, killed and stopped at random, and what must hold then."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from attrs import define, field, frozen

from crash.inspection import repeated_work
from crash.legs import acknowledgement
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.executions import RunState
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import SystemClock
from minions.data.json_values import JsonValue, dumps
from minions.engine.services.run_services import is_worker_gone
from patience import HANG_S
from postgres import PostgresServer

__all__ = [
    "DEAD_AFTER_S",
    "HEARTBEAT_S",
    "Chaos",
    "Fleet",
    "Proxy",
    "Stable",
    "faults_of",
    "pauses_of",
    "until_ended",
    "until_taken",
]

HEARTBEAT_S: Final = 0.5
DEAD_AFTER_S: Final = 3.0
_SOCKET: Final = ".s.PGSQL.5432"
_TESTS: Final = Path(__file__).parent.parent

TOOLS: Final = '''
import asyncio, os
from minions import ToolScope, tool

@tool(effect="idempotent")
async def work(n: int, scope: ToolScope) -> int:
    """Takes a moment and leaves a line."""
    await asyncio.sleep(PAUSE)
    file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{scope.idempotency_key} {n}\\n".encode())
    os.close(file)
    return n * 2

@tool(effect="pure")
def deadly(n: int) -> int:
    """Ends the process."""
    os.kill(os.getpid(), 9)
    return n
'''
RECIPE: Final = """
id: parts
inputs: {n: integer}
permissions: {allow_write: true}
steps:
  - {id: first, tool: work, params: {n: "{{ inputs.n }}"}}
  - {id: all, loop: [1, 2, 3], tool: work, params: {n: "{{ loop.item + inputs.n }}"}}
  - {id: sum, set: {total: "{{ first + inputs.n }}"}}
output: {n: "{{ inputs.n }}", total: "{{ sum.total }}"}
"""
EFFECTS_OF_A_RUN: Final = 4


class Stable:
    """The process that has the workers as children."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{_TESTS}{os.pathsep}{_TESTS.parent}",
            "MINIONS_TEST_ACKNOWLEDGED": str(self._folder / "acknowledged"),
            "MINIONS_TRUST": "1",
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "workers.stable",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            cwd=self._folder,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()

    async def worker(self, *arguments: str, url: str | None = None, ahead_s: float = 0.0) -> int:
        """Start a worker; its process id.

        Args:
            url: Another way to the database; None: the direct one.
            ahead_s: How much its clock is ahead.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        words = ["worker", "--db", url or self._url, "--extensions", "tools.py", *arguments]
        log = str(self._folder / "workers.log")
        order = {"arguments": words, "log": log, "ahead_s": ahead_s}
        process.stdin.write(f"{json.dumps(order)}\n".encode())
        await process.stdin.drain()
        async with asyncio.timeout(HANG_S):
            return int(await process.stdout.readline())


@frozen(kw_only=True)
class Chaos:
    """What is done to the workers."""

    workers: int = 3
    slots: int = 4
    kills: int = 6
    restarts: int = 1
    pause_s: tuple[float, float] = (0.3, 0.9)
    """Between two kills."""
    stopped_s: float = 5.0
    """How long a worker stands still that is stopped instead of killed."""


_CLOCKS: Final = itertools.cycle((0.0, 3_600.0, -3_600.0))
"""By how much the clocks of workers are ahead of the server's, in seconds."""


class Proxy:
    """A way to the server's socket that can be cut."""

    def __init__(self, server: Path, folder: Path) -> None:
        self._target = str(server / _SOCKET)
        self._place = str(folder / _SOCKET)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._forward, self._place)

    async def cut(self) -> None:
        """No connection stays, and none is made."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(os.unlink, self._place)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_unix_connection(self._target)
        both = {writer, forth}
        self._writers |= both
        try:
            pumps = [
                asyncio.ensure_future(_pump(reader, forth)),
                asyncio.ensure_future(_pump(back, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            for each in both:
                each.close()
            self._writers -= both


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


@define
class Fleet:
    """Some workers of one database."""

    folder: Path
    url: str
    server: PostgresServer
    stable: Stable
    rng: random.Random
    chaos: Chaos
    pids: list[int] = field(factory=list)
    done: Counter[str] = field(factory=Counter)
    taken_again_s: list[float] = field(factory=list)
    _stopped: set[asyncio.Task[None]] = field(factory=set)

    async def start(self) -> None:
        for _ in range(self.chaos.workers):
            await self._add()

    async def _add(self) -> None:
        arguments = ("--queues", "default", "--slots", str(self.chaos.slots), "--drain", "5")
        ahead_s = next(_CLOCKS)
        self.pids.append(await self.stable.worker(*arguments, ahead_s=ahead_s))

    async def harass(self) -> None:
        """Kill workers at random, one after the other, and let others take their places."""
        restarts = set(
            self.rng.sample(range(1, self.chaos.kills), k=self.chaos.restarts)
            if self.chaos.restarts
            else ()
        )
        for number in range(self.chaos.kills):
            await asyncio.sleep(self.rng.uniform(*self.chaos.pause_s))
            if number in restarts:
                await asyncio.to_thread(self.server.stop)
                await asyncio.to_thread(self.server.start)
                self.done["restart of the database"] += 1
            await self._hit(number)
        if self._stopped:
            await asyncio.wait(self._stopped)

    async def _hit(self, number: int) -> None:
        pid = self.pids.pop(self.rng.randrange(len(self.pids)))
        if number % 4 == 3:
            self._signal(pid, signal.SIGSTOP)
            task = asyncio.ensure_future(self._wake_later(pid))
            self._stopped.add(task)
            self.done["SIGSTOP"] += 1
        else:
            self._signal(pid, signal.SIGKILL)
            self.done["SIGKILL"] += 1
        await self._add()

    async def _wake_later(self, pid: int) -> None:
        await asyncio.sleep(self.chaos.stopped_s)
        self._signal(pid, signal.SIGCONT)  # it finds that its runs are somebody else's
        await asyncio.sleep(1)
        self._signal(pid, signal.SIGKILL)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    async def end(self) -> None:
        for pid in self.pids:
            self._signal(pid, signal.SIGTERM)


@contextlib.asynccontextmanager
async def journal_of(place: str) -> AsyncIterator[PostgresJournal | SqliteJournal]:
    """The journal at a URL, or in a file."""
    kind = PostgresJournal if place.startswith("postgresql://") else SqliteJournal
    journal = kind(place, SystemClock())
    try:
        yield journal
    finally:
        await journal.aclose()


async def until_ended(url: str, count: int, *, within_s: float = HANG_S) -> float:
    """Wait until so many runs have ended; the seconds that it took."""
    begin = time.monotonic()
    async with journal_of(url) as journal, asyncio.timeout(within_s):
        while True:
            with contextlib.suppress(Exception):  # the database is being restarted
                open_ones = RunFilter(statuses={RunState.QUEUED, RunState.INTERRUPTED})
                left = await journal.count_runs(open_ones)
                if not left and await journal.count_runs() >= count:
                    return time.monotonic() - begin
            await asyncio.sleep(0.1)


async def until_taken(url: str) -> None:
    """Wait until a worker executes a run."""
    async with journal_of(url) as journal, asyncio.timeout(HANG_S):
        while not await journal.held_leases():  # noqa: ASYNC110  # of other processes
            await asyncio.sleep(0.05)


# --- what must hold -------------------------------------------------------------------------------


async def faults_of(folder: Path, url: str, count: int, *, effects: int | None = None) -> list[str]:
    """All that does not hold of these runs.

    Args:
        effects: How many their tools have; None: as many as usual for each run.
    """
    async with journal_of(url) as journal:
        rows = await journal.runs(limit=count + 1)
        entries = await journal.entries()
        held = await journal.held_leases()
    by_session: dict[str, list[JournalEntry]] = {}
    for entry in entries:
        by_session.setdefault(entry.session_id, []).append(entry)
    return [
        *([] if len(rows) == count else [f"{len(rows)} runs instead of {count}"]),
        *(f"{row.run_id} is {row.status}" for row in rows if row.status != RunState.COMPLETED),
        *(fault for each in by_session.values() for fault in repeated_work(each)),
        *_lost(entries, _lines(folder / "acknowledged")),
        *_wrong_effects(folder / "effects", effects or count * EFFECTS_OF_A_RUN),
        *(
            f"{each.lease.worker_id} lives and holds a lease of {each.lease.run_id}"
            for each in held  # others are of the dead, who were killed after the end of the run
            if not (each.has_expired or is_worker_gone(each.lease.worker_id))
        ),
    ]


async def pauses_of(url: str) -> list[float]:
    """Seconds from the last fact of an execution that ended without an end to the next one's first,
    in order."""
    async with journal_of(url) as journal:
        entries = await journal.entries()
    newest: dict[str, JournalEntry] = {}
    pauses = []
    for entry in entries:
        before = newest.get(entry.run_id)
        is_next = before is not None and entry.generation > max(before.generation, 1)
        if before is not None and is_next and before.kind != "run":
            # The clocks differ by whole hours.
            pauses.append((entry.at - before.at).total_seconds() % 3_600)
        newest[entry.run_id] = entry
    return sorted(pauses)


def _lines(path: Path) -> Sequence[Mapping[str, JsonValue]]:
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def _lost(
    entries: Iterable[JournalEntry], acknowledged: Iterable[Mapping[str, JsonValue]]
) -> Iterable[str]:
    stored = {
        (entry.session_id, entry.position): json.loads(dumps(acknowledgement(entry)))
        for entry in entries
    }
    for fact in acknowledged:
        if stored.get((str(fact["session"]), int(str(fact["position"])))) != fact:
            yield f"an acknowledged fact is not in the journal: {str(fact)[:300]}"


def _wrong_effects(path: Path, count: int) -> Iterable[str]:
    """A key is the same for all attempts of one call, so that a receiver can tell repetitions."""
    by_key: dict[str, set[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        key, _, argument = line.rpartition(" ")
        by_key.setdefault(key, set()).add(argument)
    if len(by_key) != count:
        yield f"{len(by_key)} effects by their keys instead of {count}"
    yield from (f"{key} stands for {sorted(each)}" for key, each in by_key.items() if len(each) > 1)
