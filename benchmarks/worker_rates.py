"""Runs and steps per second of worker processes, and of DBOS with the same work as its own steps.

`python -m benchmarks.worker_rates [RUNS]` prints the table of docs/scale.md. Runs of ten steps that
take no time of their own are queued first; then 1, 2 and 4 workers with 64 slots each execute them.
It counts from the first start of a run to the last end, by the clock of the machine. A second table
has steps that wait: model calls of 300 ms, by workers with 8 slots each, which the machine's
processors do not bound.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.endpoint import Endpoint
from benchmarks.side_by_side import STEPS

_RUNS: Final = 400
_WORKERS: Final = (1, 2, 4)
_SLOTS: Final = 64
_WAITING_RUNS: Final = 160
_WAITING_SLOTS: Final = 8
_WAITS_MS: Final = 300
_QUEUE: Final = "work"
_WORKFLOW: Final = "ten"
_SMALL_POOL: Final = 4
"""Connections of a process of DBOS; its own default is the other column."""
_POLL_S: Final = 0.2
"""Seconds between two looks of either engine for what is queued."""
_PATIENCE_S: Final = 300.0
_TESTS: Final = Path(__file__).parents[1] / "tests"
_RECIPE: Final = "id: ten\ninputs: {n: integer}\nsteps:\n" + "".join(
    f"  - {{id: s{at}, set: {{n: 1}}{f', depends_on: [s{at - 1}]' if at else ''}}}\n"
    for at in range(STEPS)
)
_WAITING: Final = (
    "id: ten\ninputs: {{n: integer}}\nmodel: {{name: ollama/fake, base_url: '{}'}}\nsteps:\n"
    + "".join(
        f"  - {{{{id: s{at}, goal: Say something.{f', depends_on: [s{at - 1}]' if at else ''}}}}}\n"
        for at in range(STEPS)
    )
)
_OWN_TIMES: Final = (
    "SELECT extract(epoch FROM max(at) FILTER (WHERE kind = 'run') - min(at) FILTER (WHERE kind = "
    "'step')) FROM minions.entries"
)
_OWN_ENDED: Final = "SELECT count(*) FROM minions.entries WHERE kind = 'run' AND state = 'finished'"
_PEER_TIMES: Final = (
    "SELECT (max(completed_at) - min(started_at_epoch_ms)) / 1000.0 FROM dbos.workflow_status"
)
_PEER_ENDED: Final = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"


def main() -> None:
    """Print the table."""
    sys.path.insert(0, str(_TESTS))
    from postgres import postgres_server, reason_without_postgres

    if (reason := reason_without_postgres()) is not None:
        sys.exit(reason)
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else _RUNS
    print("| workers | runs/s | steps/s | steps/s of DBOS | ratio | with a small pool | ratio |")
    print("|---|---|---|---|---|---|---|")
    with postgres_server(syncs=True, most=200) as server:
        for workers in _WORKERS:
            own_s = _own(server.url(server.new_database()), workers, runs, _RECIPE, _SLOTS)
            peers_s = [
                _peer(server.url(server.new_database()), workers, runs, pool)
                for pool in (None, _SMALL_POOL)
            ]
            peers = (f"{runs * STEPS / each:,.0f} | {each / own_s:.1f} ×" for each in peers_s)
            print(
                f"| {workers} | {runs / own_s:,.0f} | {runs * STEPS / own_s:,.0f} "
                f"| {' | '.join(peers)} |",
                flush=True,
            )
        print("\n| workers | runs/s | steps/s | of one worker |")
        print("|---|---|---|---|")
        first_s = 0.0
        with Endpoint() as endpoint:
            recipe = _WAITING.format(endpoint.base_url(f"delay-{_WAITS_MS}"))
            for workers in _WORKERS:
                url = server.url(server.new_database())
                own_s = _own(url, workers, _WAITING_RUNS, recipe, _WAITING_SLOTS)
                first_s = first_s or own_s
                print(
                    f"| {workers} | {_WAITING_RUNS / own_s:,.1f} "
                    f"| {_WAITING_RUNS * STEPS / own_s:,.0f} | {first_s / own_s:.2f} × |",
                    flush=True,
                )


# --- workers of Minions --------------------------------------------------------------------------


def _own(url: str, workers: int, runs: int, recipe: str, slots: int) -> float:
    """Seconds from the first step to the last end."""
    minions = (sys.executable, "-m", "minions")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ten.yaml").write_text(recipe, "utf-8")
        lines = "".join(f"{json.dumps({'n': number})}\n" for number in range(runs))
        (folder / "items.jsonl").write_text(lines, "utf-8")
        batch = ("batch", "ten.yaml", "items.jsonl", "--detach", "--queue", _QUEUE, "--db", url)
        subprocess.run([*minions, *batch], cwd=folder, check=True, capture_output=True)
        worker = ("worker", "--queues", _QUEUE, "--slots", str(slots), "--db", url)
        with _processes([[*minions, *worker]] * workers, folder):
            _until(lambda: _asked(url, _OWN_ENDED) == runs)
        return float(_asked(url, _OWN_TIMES))


# --- workers of DBOS -----------------------------------------------------------------------------


def _peer(url: str, workers: int, runs: int, pool: int | None) -> float:
    """Seconds from the first start of a workflow to the last end.

    Args:
        pool: Connections of a process; None: as DBOS comes.
    """
    from dbos import DBOS, DBOSClient

    logging.getLogger("dbos").addHandler(logging.NullHandler())
    DBOS.migrate(url)
    client = DBOSClient(system_database_url=url)
    client.register_queue(_QUEUE, worker_concurrency=_SLOTS, polling_interval_sec=_POLL_S)
    for _ in range(runs):
        client.enqueue({"workflow_name": _WORKFLOW, "queue_name": _QUEUE})
    peer = [sys.executable, "-m", "benchmarks.worker_rates", "--peer", url, str(pool or "")]
    with _processes([[*peer, str(number)] for number in range(workers)], _TESTS.parent):
        _until(lambda: _asked(url, _PEER_ENDED) == runs)
    client.destroy()
    return float(_asked(url, _PEER_TIMES))


def peer_worker(url: str, pool: str, number: str) -> None:
    """One process of DBOS, until its input ends."""
    from dbos import DBOS, DBOSConfig

    logging.getLogger("dbos").addHandler(logging.NullHandler())
    config: DBOSConfig = {
        "name": "benchmark",
        "system_database_url": url,
        "executor_id": f"worker-{number}",
        "application_version": "1",
        "enable_otlp": False,
    }
    if pool:
        config["sys_db_pool_size"] = int(pool)
    DBOS(config=config)

    @DBOS.step()
    async def add_one() -> int:
        return 1

    @DBOS.workflow(name=_WORKFLOW)
    async def ten() -> int:
        return sum([await add_one() for _ in range(STEPS)])

    DBOS.listen_queues([_QUEUE])
    DBOS.launch()
    sys.stdin.read()
    DBOS.destroy()


# --- either --------------------------------------------------------------------------------------


@contextmanager
def _processes(commands: list[list[str]], folder: Path) -> Iterator[None]:
    started = [
        subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    try:
        yield
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.communicate()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("The workers do not come to an end.")
        pause.wait(0.5)


def _asked(url: str, sql: str) -> Any:  # Any: one value of a row
    import psycopg

    with closing(psycopg.connect(url, autocommit=True)) as db:
        row = db.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer_worker(*sys.argv[2:])
    else:
        main()
