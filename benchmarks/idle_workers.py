"""What workers cost that have nothing to do, and how soon one begins what is submitted.

`python -m benchmarks.idle_workers [SECONDS] [WORKERS …]` prints figures of docs/scale.md: by the
server's own counters over so many seconds, and by the processor time of the processes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_SECONDS: Final = 60.0
_WORKERS: Final = (1, 4)
_SETTLE_S: Final = 12.0
"""Seconds after their start in which workers look at what was left by others."""
_LATENCIES: Final = 30
_QUEUE: Final = "work"
_PATIENCE_S: Final = 60.0
_TESTS: Final = Path(__file__).parents[1] / "tests"
_RECIPE: Final = "id: one\ninputs: {n: integer}\nsteps:\n  - {id: s, set: {n: 1}}\n"
_TRANSACTIONS: Final = """
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
"""
_CONNECTIONS: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
    AND pid <> pg_backend_pid()
"""
_LATENCY: Final = """
SELECT started_at_epoch_ms - created_at FROM minions_dispatch.workflow_status
WHERE started_at_epoch_ms IS NOT NULL
"""
"""Milliseconds from the submission of a job to its claim, by the server's clock."""
_STEPS: Final = "SELECT count(DISTINCT run_id) FROM minions.entries WHERE kind = 'step'"


def main() -> None:
    """Print the table."""
    sys.path.insert(0, str(_TESTS))
    from postgres import postgres_server, reason_without_postgres

    if (reason := reason_without_postgres()) is not None:
        sys.exit(reason)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else _SECONDS
    numbers = [int(each) for each in sys.argv[2:]] or list(_WORKERS)
    print("| workers | transactions/s | connections | processor | taken after (median; 95 %) |")
    print("|---|---|---|---|---|")
    with postgres_server(syncs=True) as server:
        for number in numbers:
            print(_row(server.url(server.new_database()), number, seconds), flush=True)


def _row(url: str, number: int, seconds: float) -> str:
    import psycopg

    worker = (sys.executable, "-m", "minions", "worker", "--queues", _QUEUE, "--slots", "4")
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        pids = opened.enter_context(_processes([[*worker, "--db", url]] * number, folder))
        db = opened.enter_context(closing(psycopg.connect(url, autocommit=True)))
        threading.Event().wait(_SETTLE_S + number)
        before, cpu, at = _asked(db, _TRANSACTIONS), _cpu_s(pids), time.monotonic()
        threading.Event().wait(seconds)
        passed = time.monotonic() - at
        used = (_cpu_s(pids) - cpu) / passed / number
        # The server counts what a connection did with a delay of ten seconds, if it does nothing.
        rate = (_asked(db, _TRANSACTIONS) - before) / passed
        connections = _asked(db, _CONNECTIONS)
        begins = _latencies(db, url, folder)
    return (
        f"| {number} | {rate:.2f} | {connections:.0f} | {used * 100:.2f} % each "
        f"| {statistics.median(begins):.0f} ms; {statistics.quantiles(begins, n=20)[18]:.0f} ms |"
    )


def _latencies(db: psycopg.Connection[TupleRow], url: str, folder: Path) -> Sequence[float]:
    (folder / "one.yaml").write_text(_RECIPE, "utf-8")
    (folder / "submit.py").write_text(_SUBMIT, "utf-8")
    subprocess.run([sys.executable, "submit.py", url, str(_LATENCIES)], cwd=folder, check=True)
    deadline = time.monotonic() + _PATIENCE_S
    while _asked(db, _STEPS) < _LATENCIES:
        if time.monotonic() > deadline:
            sys.exit("The workers do not begin what was submitted.")
        threading.Event().wait(0.2)
    return [float(row[0]) for row in db.execute(_LATENCY.encode())]


_SUBMIT: Final = f"""
import subprocess, sys, random, time
url, number = sys.argv[1:]
for n in range(int(number)):
    subprocess.run([sys.executable, "-m", "minions", "run", "one.yaml", "-p", f"n={{n}}",
        "--detach", "--queue", {_QUEUE!r}, "--db", url], check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(random.uniform(0, 0.5))
"""


@contextmanager
def _processes(commands: list[list[str]], folder: Path) -> Iterator[list[int]]:
    started = [
        subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait()


def _cpu_s(pids: Sequence[int]) -> float:
    """Seconds of a processor that these processes used."""
    fields = [Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(") ")[2] for pid in pids]
    ticks = sum(int(each.split()[at]) for each in fields for at in (11, 12))
    return ticks / os.sysconf("SC_CLK_TCK")


def _asked(db: psycopg.Connection[TupleRow], sql: str) -> float:
    row = db.execute(sql.encode()).fetchone()
    assert row is not None
    return float(row[0])


if __name__ == "__main__":
    main()
