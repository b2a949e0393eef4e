"""Workers on one PostgreSQL that are killed, stopped and cut off: every run ends as it should."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from forked_commands import PROGRAM, run_forked
from patience import HANG_S
from postgres import PostgresServer
from workers.fleet import (
    DEAD_AFTER_S,
    RECIPE,
    TOOLS,
    Chaos,
    Fleet,
    Proxy,
    Stable,
    faults_of,
    journal_of,
    pauses_of,
    until_ended,
    until_taken,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("dbos") is None,
    reason="dbos is not installed: pip install 'minions-engine[dbos]'",
)

_RUNS: Final = int(os.environ.get("MINIONS_WORKER_RUNS", "8"))
_CHAOS: Final = Chaos(
    workers=int(os.environ.get("MINIONS_WORKERS", "3")),
    kills=int(os.environ.get("MINIONS_WORKER_KILLS", "4")),
    restarts=int(os.environ.get("MINIONS_WORKER_RESTARTS", "1")),
)
_ITEMS: Final = 10
_PAUSE_S: Final = float(os.environ.get("MINIONS_WORKER_PAUSE_S", "0.05"))
"""How long one effect takes."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    effects = f"EFFECTS = {str(tmp_path / 'effects')!r}\nPAUSE = {_PAUSE_S}\n"
    (tmp_path / "tools.py").write_text(effects + TOOLS, "utf-8")
    (tmp_path / "parts.yaml").write_text(RECIPE, "utf-8")
    (tmp_path / ".git").mkdir()
    return tmp_path


def minions(folder: Path, *arguments: str) -> str:
    """A command in a process of its own; what it printed."""
    done = run_forked(
        [*PROGRAM, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=10 * HANG_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
async def test_runs_outlive_their_workers_and_a_restart_of_the_database(
    folder: Path, postgres: PostgresServer, postgres_url: str
) -> None:
    """A-144. All end, no acknowledged fact is lost, no recorded work repeated.

    `MINIONS_WORKER_RUNS`, `MINIONS_WORKER_KILLS`, `MINIONS_WORKER_RESTARTS` and `MINIONS_WORKERS`
    say how many; `MINIONS_WORKER_PAGE` where a page with the figures goes.
    """
    items = "".join(f"{json.dumps({'n': n})}\n" for n in range(_RUNS))
    (folder / "items.jsonl").write_text(items, "utf-8")
    common = ("--db", postgres_url, "--extensions", "tools.py")
    queueing = ("batch", "parts.yaml", "items.jsonl", "--detach", "--name", "chaos", "-o", "out")
    async with Stable(folder, postgres_url) as stable:
        await asyncio.to_thread(minions, folder, *queueing, *common)
        rng = random.Random(int(os.environ.get("MINIONS_WORKER_SEED", "7")))
        fleet = Fleet(folder, postgres_url, postgres, stable, rng, _CHAOS)
        begin = time.monotonic()
        await fleet.start()
        await fleet.harass()
        await until_ended(postgres_url, _RUNS, within_s=HANG_S / 2 + _RUNS)
        seconds = time.monotonic() - begin
        await fleet.end()
    sys.stdout.write(f"\n{_RUNS} runs in {seconds:.0f} s, {dict(fleet.done)}\n")
    assert await faults_of(folder, postgres_url, _RUNS) == []
    collected = minions(folder, *queueing, *common)
    assert collected == ""
    lines = (folder / "out").read_text("utf-8").splitlines()
    assert [json.loads(line)["output"]["n"] for line in lines] == list(range(_RUNS))
    if page := os.environ.get("MINIONS_WORKER_PAGE"):
        text = _page(seconds, fleet, await pauses_of(postgres_url))
        await asyncio.to_thread(Path(page).write_text, text, "utf-8")


async def test_a_worker_that_is_cut_off_from_the_database_does_no_harm(
    folder: Path, postgres: PostgresServer, postgres_url: str
) -> None:
    """Its runs are executed by another one, and it can store nothing when it is back."""
    items = "".join(f"{json.dumps({'n': n})}\n" for n in range(8))
    (folder / "items.jsonl").write_text(items, "utf-8")
    slow = (folder / "tools.py").read_text("utf-8").replace(f"PAUSE = {_PAUSE_S}", "PAUSE = 0.25")
    (folder / "tools.py").write_text(slow, "utf-8")
    with tempfile.TemporaryDirectory(prefix="pg-") as place:
        proxy = Proxy(postgres.folder, Path(place))
        await proxy.open()
        way = postgres_url.replace(str(postgres.folder), place)
        common = ("--db", postgres_url, "--extensions", "tools.py")
        async with Stable(folder, postgres_url) as stable:
            await asyncio.to_thread(
                minions, folder, "batch", "parts.yaml", "items.jsonl", "--detach", *common
            )
            await stable.worker(url=way)
            await until_taken(postgres_url)
            await proxy.cut()
            await stable.worker()
            await until_ended(postgres_url, 8)
            await proxy.open()
            await asyncio.sleep(1)  # it may write now, if it could
        await proxy.cut()
    assert await faults_of(folder, postgres_url, 8) == []


async def test_a_distributed_loop_outlives_a_worker(folder: Path, postgres_url: str) -> None:
    """A-144. Each item is recorded once, on one of two workers."""
    items = list(range(_ITEMS))
    loop = f"{items}, distribute: true, max_parallel: 6"
    (folder / "parts.yaml").write_text(RECIPE.replace("[1, 2, 3]", loop), "utf-8")
    common = ("--db", postgres_url, "--extensions", "tools.py")
    async with Stable(folder, postgres_url) as stable:
        queueing = ("run", "parts.yaml", "-p", "n=7", "--detach", *common)
        await asyncio.to_thread(minions, folder, *queueing)
        first = await stable.worker("--slots", "1")
        await until_effects(folder, 3)
        os.kill(first, signal.SIGKILL)
        await stable.worker("--slots", "1")
        await stable.worker("--slots", "1")
        await until_ended(postgres_url, 1 + _ITEMS)
    assert await faults_of(folder, postgres_url, 1 + _ITEMS, effects=1 + _ITEMS) == []


@pytest.mark.long
async def test_a_distributed_loop_outlives_five_workers_that_held_the_run_around_it(
    folder: Path, postgres_url: str
) -> None:
    """A-181. Each dies with the parent in its hands, one after the other: what got on in between
    counts, and not how many died.
    """
    items = list(range(_ITEMS))
    loop = f"{items}, distribute: true, max_parallel: 2"
    (folder / "parts.yaml").write_text(RECIPE.replace("[1, 2, 3]", loop), "utf-8")
    common = ("--db", postgres_url, "--extensions", "tools.py")
    async with Stable(folder, postgres_url) as stable:
        queueing = ("run", "parts.yaml", "-p", "n=7", "--detach", *common)
        parent = (await asyncio.to_thread(minions, folder, *queueing)).strip()
        for kill in range(5):
            worker = await stable.worker("--slots", "2", "--heartbeat", "0.5s")
            await until_effects(folder, 1 + kill)
            await until_held(postgres_url, parent, worker)
            os.kill(worker, signal.SIGKILL)
        await stable.worker("--slots", "2", "--heartbeat", "0.5s")
        await until_ended(postgres_url, 1 + _ITEMS)
    assert await faults_of(folder, postgres_url, 1 + _ITEMS, effects=1 + _ITEMS) == []


async def until_held(url: str, run_id: str, pid: int) -> None:
    """Until the worker with that process executes the run."""
    async with asyncio.timeout(HANG_S), journal_of(url) as journal:
        while not any(  # noqa: ASYNC110  # of another process
            each.lease.run_id == run_id and f":{pid}:" in each.lease.worker_id
            for each in await journal.held_leases()
        ):
            await asyncio.sleep(0.001)


async def until_effects(folder: Path, count: int) -> None:
    async with asyncio.timeout(HANG_S):
        while len(await asyncio.to_thread(_effects, folder)) < count:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.05)


def _effects(folder: Path) -> Sequence[str]:
    place = folder / "effects"
    return place.read_text("utf-8").splitlines() if place.exists() else ()


def _page(seconds: float, fleet: Fleet, pauses: Sequence[float]) -> str:
    done = "\n".join(f"| {what} | {count} |" for what, count in sorted(fleet.done.items()))
    median, late = pauses[len(pauses) // 2], pauses[len(pauses) * 95 // 100]
    return f"""# Runs that outlive their workers

Made by `make workers`: {_RUNS:,} runs of some twenty facts and four effects each were queued by
`minions batch --detach` and executed by {_CHAOS.workers} processes of {_CHAOS.slots} slots, of
which one after the other was killed or stopped, and replaced.

| what | times |
|---|---|
{done}

All {_RUNS:,} runs completed after {seconds:.0f} s. No acknowledged fact was lost, nothing recorded
was done again, each effect had one idempotency key, and no living worker held a lease.

{len(pauses)} executions were cut off. From their last fact to the first of the next one it took
{median:.1f} s in the median and {late:.1f} s at the 95th percentile. A worker counted as dead here
after {DEAD_AFTER_S:g} s without a heartbeat; by default that is 15 s. Clocks of workers were right,
an hour ahead, or an hour behind, in turn.
"""
