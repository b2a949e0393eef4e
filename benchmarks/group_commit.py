"""Runs side by side with their journal on PostgreSQL, and the same work as steps of DBOS."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, ratio_row
from benchmarks.side_by_side import STEPS, StepCost, step_cost
from minions import AgentExecutor, AgentRecipe, ScriptedModel, Services, step
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.runtime import SystemClock

Work = Callable[[int, int], Awaitable[StepCost]]
"""Carries out so many runs side by side, so many times."""

_TESTS: Final = Path(__file__).parents[1] / "tests"
_WIDTHS: Final = (1, 8, 64)
_PEER_WIDTHS: Final = (8, 64)
_FEW: Final = 4
_SETTLES_S: Final = 0.2
"""For what a work leaves to be done later, so that it is not counted as the next one's."""
_MOST: Final[Mapping[int, float]] = {1: 1.1, 8: 0.5, 64: 0.4}
"""Time of a step by the number of runs side by side, relative to a commit for each fact."""

# The server of the tests, but one that syncs each commit, unless only a look at whether it works is
# wanted: it says where it is and ends with us.
_SERVER: Final = """
import sys
from postgres import postgres_server, reason_without_postgres

if (reason := reason_without_postgres()) is not None:
    sys.exit(print(reason))
with postgres_server(syncs=sys.argv[1:] == ['syncs']) as server:
    print(server.url(server.new_database()), server.url(server.new_database()), flush=True)
    sys.stdin.read()
"""


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """1, 8 and 64 runs of ten functions."""
    with _server(syncs=effort.warms_up) as answer:
        if len(urls := answer.split()) != 2:
            return [
                _missing(key, answer)
                for key in (*map(_key, _WIDTHS), *map(_peer_key, _PEER_WIDTHS))
            ]
        return await _rows(effort, *urls)


@contextmanager
def _server(*, syncs: bool) -> Iterator[str]:
    """The URLs of two of its databases, or why there is no server."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, *(("syncs",) if syncs else ())],
        cwd=_TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.communicate()


async def _rows(effort: Effort, own_url: str, peer_url: str) -> list[Row]:
    grouped = _runs(PostgresJournal(own_url, SystemClock()))
    works = {"grouped": grouped, "single": _runs(OneAtATime(own_url))}
    rows = [_grouping_row(width, await _costs(effort, works, width)) for width in _WIDTHS]
    with _peer(peer_url) as peer:
        for width in _PEER_WIDTHS:
            if peer is None:
                rows.append(_missing(_peer_key(width), "no DBOS here"))
                continue
            taken = await _costs(effort, {"grouped": grouped, "peer": peer}, width)
            rows.append(_peer_row(width, taken))
    return rows


class OneAtATime(PostgresJournal):
    """What it was before: one connection, and a commit for each fact."""

    groups_appends = False

    def __init__(self, url: str) -> None:
        super().__init__(url, SystemClock())
        self._lock = asyncio.Lock()

    async def acquire(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> Lease:
        async with self._lock:
            return await super().acquire(
                session_id,
                run_id,
                worker_id,
                ttl_s,
                next_generation=next_generation,
                takes_over=takes_over,
            )

    async def release(self, lease: Lease) -> None:
        async with self._lock:
            await super().release(lease)

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        async with self._lock:
            return await super().append(lease, draft)

    async def put_blob(self, data: bytes) -> str:
        async with self._lock:
            return await super().put_blob(data)


# --- the work -------------------------------------------------------------------------------------


@step
async def add() -> int:
    """Nothing that takes time: what is measured is what is stored."""
    return 1


_RECIPE: Final = AgentRecipe(id="ten", steps=[add.named(f"s{at}") for at in range(STEPS)])


def _runs(journal: PostgresJournal) -> Work:
    executor = AgentExecutor(ScriptedModel([]), services=Services(journal=journal))

    async def one() -> None:
        result = await executor.execute(_RECIPE)
        assert result.error is None, result.error

    return partial(step_cost, one)


@contextmanager
def _peer(url: str) -> Iterator[Work | None]:
    """The same functions as steps of DBOS on the same server; None: DBOS is not installed."""
    if importlib.util.find_spec("dbos") is None:
        yield None
        return
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.dbos_steps", url],
        cwd=_TESTS.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield partial(_asked, process)
        process.communicate()


async def _asked(process: subprocess.Popen[str], width: int, rounds: int) -> StepCost:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{width} {rounds}\n")
    process.stdin.flush()
    line = await asyncio.to_thread(process.stdout.readline)
    wall_s, cpu_s = map(float, line.split())
    return StepCost(wall_s, cpu_s)


# --- figures --------------------------------------------------------------------------------------


async def _costs(effort: Effort, works: Mapping[str, Work], width: int) -> dict[str, StepCost]:
    """The least of several rounds, taken in turns; a look at whether it works takes few runs."""
    width = width if effort.warms_up else min(width, _FEW)
    least = dict.fromkeys(works, StepCost())
    rounds = max(1, effort.count(32) // width)
    for work in works.values() if effort.warms_up else ():
        await work(width, 1)
    for _ in range(effort.rounds):
        for name, work in works.items():
            await asyncio.sleep(_SETTLES_S if effort.warms_up else 0)
            cost, best = await work(width, rounds), least[name]
            wall_s, cpu_s = min(best.wall_s, cost.wall_s), min(best.cpu_s, cost.cpu_s)
            least[name] = StepCost(wall_s, cpu_s)
    return least


def _grouping_row(width: int, taken: Mapping[str, StepCost]) -> Row:
    runs = "one run" if width == 1 else f"{width} runs side by side"
    return ratio_row(
        _key(width),
        f"a step of {runs} on PostgreSQL, against a commit for each fact",
        ratio=taken["grouped"].wall_s / taken["single"].wall_s,
        most=_MOST[width],
        of="a commit for each fact",
        absolute=f"{taken['grouped']}; {taken['single']}",
    )


def _peer_row(width: int, taken: Mapping[str, StepCost]) -> Row:
    return ratio_row(
        _peer_key(width),
        f"a step of {width} runs side by side on PostgreSQL, against the same steps of DBOS",
        ratio=taken["grouped"].wall_s / taken["peer"].wall_s,
        most=0.33,
        of="a step of DBOS",
        absolute=f"{taken['grouped']}; DBOS {taken['peer']}",
    )


def _key(width: int) -> str:
    return f"group-commit-{width}"


def _peer_key(width: int) -> str:
    return f"group-commit-peer-{width}"


def _missing(key: str, reason: str) -> Row:
    return Row(
        key=key,
        work="a step of runs side by side on PostgreSQL",
        goal="measured",
        measured="not measured",
        absolute=reason.strip(),
        is_met=False,
    )
