"""A server whose disk is full, and one that stands still while another takes over its run."""

from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from builders import executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.runtime import SystemClock
from minions.contracts.tools import Effect
from minions.engine.services.run_services import Services
from minions.testing.virtual_time import FakeClock
from served import RECIPES
from serving import EXTENSIONS, Serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project whose tool `gate` waits for a file."""
    here = tmp_path / "here"
    (here / "recipes").mkdir(parents=True)
    (here / ".git").mkdir()
    (here / "own.py").write_text(EXTENSIONS)
    for name in ("waits", "adds"):
        (here / "recipes" / f"{name}.yaml").write_text(RECIPES[name])
    return here


def serving(folder: Path) -> Serving:
    return Serving(folder, "--extensions", "own.py", "--db", "j.sqlite")


def waiting_run(server: Serving, folder: Path) -> str:
    """A run that waits at the gate."""
    run_id: str = server.ask("POST", "/runs", {"recipe": "waits"})["run_id"]
    while not (folder / "reached").exists():
        time.sleep(0.01)
    return run_id


def rows(folder: Path) -> list[tuple[object, ...]]:
    """All entries as they are stored."""
    with closing(sqlite3.connect(folder / "j.sqlite")) as db:
        return db.execute("SELECT * FROM entries ORDER BY session_id, position").fetchall()


@contextmanager
def no_room(server: Serving) -> Iterator[None]:
    """No file of the process grows: as under a quota."""
    before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)


def test_a_server_without_room_refuses_runs_and_goes_on_when_there_is_some(folder: Path) -> None:
    """A-126: what was acknowledged is not lost, what cannot be stored is not acknowledged."""
    with serving(folder) as server:
        run_id = waiting_run(server, folder)
        before = rows(folder)
        with server.follow(f"/runs/{run_id}/events") as events:
            assert next(events).type == "run_started"
            with no_room(server):
                refusal = server.ask("POST", "/runs", {"recipe": "adds", "inputs": {"a": 1}})
                assert refusal["status"] == 503
                assert refusal["code"] in ("disk-full", "io-error")
                (folder / "open").touch()
                seen = list(events)
                assert server.ask("GET", f"/runs/{run_id}")["status"] == "running"
                assert server.ask("GET", "/runs")["total"] == 1
                assert rows(folder) == before
        last = seen[-1]  # told by the server itself: no entry has it
        assert (last.type, last.id) == ("run_failed", None)
        assert last.data["data"]["error"]["code"] == refusal["code"]
        assert sum_of(server) == 2
        with server.follow(f"/runs/{run_id}/events") as events:
            assert list(events)[-1].type == "run_completed"
        assert server.ask("GET", f"/runs/{run_id}")["output"] == "through"
        assert server.ask("GET", "/runs")["total"] == 2  # nothing of the refused one


def test_a_server_that_stood_still_writes_nothing_to_the_run_that_another_took_over(
    folder: Path,
) -> None:
    """A-126: its lease ran out, another one's did not; its clients hear how the run ended."""
    with serving(folder) as still:
        run_id = waiting_run(still, folder)
        with still.follow(f"/runs/{run_id}/events") as events:
            assert next(events).type == "run_started"
            still.process.send_signal(signal.SIGSTOP)
            with closing(sqlite3.connect(folder / "j.sqlite")) as db:
                db.execute("UPDATE leases SET deadline = 1")
                db.commit()
            (folder / "open").touch()
            assert resumed(folder, run_id) == "through"
            after = rows(folder)
            still.process.send_signal(signal.SIGCONT)
            last = list(events)[-1]
        assert last.type == "run_completed"
        shown = still.ask("GET", f"/runs/{run_id}")
        assert (shown["status"], shown["output"]) == ("completed", "through")
        assert rows(folder) == after
        assert sum_of(still) == 2


def sum_of(server: Serving) -> object:
    """The output of another run."""
    begun = server.ask("POST", "/runs", {"recipe": "adds", "inputs": {"a": 1}})
    with server.follow(f"/runs/{begun['run_id']}/events") as events:
        assert list(events)[-1].type == "run_completed"
    return server.ask("GET", f"/runs/{begun['run_id']}")["output"]


def resumed(folder: Path, run_id: str) -> object:
    """The output that another worker comes to, who sees by a played clock that nobody renews."""

    async def resume() -> object:
        clock = FakeClock()
        journal = SqliteJournal(folder / "j.sqlite", SystemClock())
        services = Services(journal=journal, sleep=clock.sleep)
        gate = fake_tool("gate", lambda _: "through", effect=Effect.PURE)
        executor = executor_of(ScriptedModel([]), tools=[gate], services=services)
        try:
            output = (await executor.resume(run_id)).output
        finally:
            await journal.aclose()
        assert clock.monotonic() > services.lease_ttl_s / 3
        return output

    return asyncio.run(resume())
