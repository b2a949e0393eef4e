"""A process that forks a worker per order: imports are paid once, a worker costs a fork.

`python -m workers.stable`: one order as JSON per line in, the worker's process id per line out. It
has one thread and nothing open, so that forking it is safe. With its input, its workers end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Final

import dbos  # noqa: F401  # once, for all workers
import psycopg  # noqa: F401
import sqlalchemy  # noqa: F401

import minions.interfaces.cli.commands.worker_commands as worker_command
from crash.legs import acknowledgement
from minions.adapters.dispatch import dbos_dispatch
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.app.settings.settings import Settings
from minions.app.wiring import databases as dispatch
from minions.app.wiring.databases import postgres_of
from minions.contracts.dispatch import DispatchEngine
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.runtime import Log, SystemClock
from minions.data.json_values import dumps
from minions.engine.compile import extensions  # noqa: F401
from minions.interfaces.cli.main import run_command_line
from minions.interfaces.server.live import waiting_notices  # noqa: F401
from minions.interfaces.worker import health, worker  # noqa: F401
from workers.fleet import DEAD_AFTER_S, HEARTBEAT_S

POLL_S: Final = 0.2


def main() -> None:
    """Until there are no more orders; then no worker is left."""
    assert worker_command.worker_command is not None
    _watch_appends()
    dispatch.make_dispatch = _engine
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    workers: list[int] = []
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _set_clock(order["ahead_s"])
            _work(order["arguments"], order["log"])
        workers.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _engine(settings: Settings, log: Log) -> DispatchEngine:
    """That of the command, which notices sooner that a worker has died."""
    url = postgres_of(settings)
    assert url is not None
    return dbos_dispatch.DbosDispatch(
        url, log, heartbeat_s=HEARTBEAT_S, dead_after_s=DEAD_AFTER_S, poll_s=POLL_S
    )


def _work(arguments: list[str], log: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number, target in ((null, 0), (file, 1), (file, 2)):
        os.dup2(number, target)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115  # for its whole life
    code = 70
    try:
        code = run_command_line(arguments)
    except BaseException:  # noqa: BLE001  # the rim of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _set_clock(ahead_s: float) -> None:
    """Let the process's clock be ahead of the server's, or behind."""
    now, seconds = SystemClock.now, time.time
    SystemClock.now = lambda _: now() + timedelta(seconds=ahead_s)  # type: ignore[assignment]  # of this process
    time.time = lambda: seconds() + ahead_s


def _watch_appends() -> None:
    """Note each fact that a journal acknowledged, in a file that outlives the process."""
    append = PostgresJournal.append
    path = Path(os.environ["MINIONS_TEST_ACKNOWLEDGED"])

    async def watched(journal: PostgresJournal, lease: Lease, draft: EntryDraft) -> JournalEntry:
        entry = await append(journal, lease, draft)
        line = f"{dumps(acknowledgement(entry))}\n".encode()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line)
        os.close(file)
        return entry

    PostgresJournal.append = watched  # type: ignore[method-assign,assignment]  # of the workers


if __name__ == "__main__":
    main()
