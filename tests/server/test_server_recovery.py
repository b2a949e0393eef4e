"""Runs whose process died or whose database was away, resumed by a server without being asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from asgi_client import Client
from builders import draft_of
from journals import JournalInFront
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import SystemClock
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue
from minions.engine.services.run_services import NullLog
from minions.engine.sessions.archive import load_archive, store_archive
from minions.interfaces.server.app import Recovery
from served import Door, MakeApp

T = TypeVar("T")

SOON = 0.01
"""Seconds between two looks of a server under test."""


class Outage(JournalInFront):
    """A database that is away while `is_away`."""

    is_away = False
    is_brief = False
    """Whether it is back after one refusal."""

    async def through(self, operation: str, work: Callable[[], Awaitable[T]]) -> T:
        if self.is_away:
            self.is_away = not self.is_brief
            raise JournalError("nobody answers", code="database-unreachable")
        return await work()


@pytest.fixture
def journal(tmp_path: Path) -> Outage:
    return Outage(SqliteJournal(tmp_path / "j.sqlite", SystemClock()))


async def lost(client: Client, run_id: str) -> None:
    """Wait until the execution has ended without a recorded end."""
    execution = client.app.app_state.run_manager.find(run_id)
    if execution is not None:
        await asyncio.wait((execution.task,))


async def states(journal: Journal, run_id: str) -> list[str]:
    rows = await journal.entries(run_id=run_id, kinds={"run"})
    return [row.state for row in rows]


async def test_a_run_goes_to_its_end_after_an_outage_of_the_database(
    make_app: MakeApp, door: Door, journal: Outage
) -> None:
    """A-126: the loss of the database is never a run's end; nothing recorded is repeated."""
    client = Client(make_app(journal=journal, recover_s=SOON))
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    journal.is_away = True
    door.opened.set()
    await lost(client, run_id)
    journal.is_away = False
    ended = await client.ended(run_id)
    assert (ended["status"], ended["output"]) == ("completed", "through")
    assert await states(journal, run_id) == ["started", "resumed", "finished"]
    first = [row for row in await journal.entries(run_id=run_id) if row.key == "first/1/0"]
    assert len(first) == 1


async def test_a_server_is_ready_while_its_database_answers(
    make_app: MakeApp, journal: Outage
) -> None:
    """`/health` says that the process is there, whatever its database does. Both need no token."""
    app = make_app(journal=journal)
    client = Client(app)
    ready = await client.get("/ready", authorization=None)
    assert (ready.status, ready.json) == (200, {"status": "ready"})
    journal.is_away = True
    away = await client.get("/ready", authorization=None)
    assert (away.status, away.json["code"]) == (503, "database-unreachable")
    assert "nobody answers" not in away.json["detail"]
    assert int(away.headers["retry-after"]) > 0
    assert (await client.get("/health", authorization=None)).status == 200
    journal.is_away = False
    assert (await client.get("/ready", authorization=None)).status == 200
    await app.stop()
    assert (await client.get("/ready", authorization=None)).json["code"] == "stopping"


async def test_a_database_that_is_back_before_the_run_is_done_with_does_not_make_it_failed(
    make_app: MakeApp, door: Door, journal: Outage
) -> None:
    """A-126: only one fact cannot be stored; the next one, the run's end, could be."""
    client = Client(make_app(journal=journal))
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    journal.is_brief = True
    journal.is_away = True
    door.opened.set()
    await lost(client, run_id)
    assert await states(journal, run_id) == ["started"]
    resumed = await client.post(f"/runs/{run_id}/resume", {})
    assert resumed.status == 202, resumed.json
    assert (await client.ended(run_id))["output"] == "through"


async def test_runs_of_a_server_that_died_are_taken_up_by_another(
    make_app: MakeApp, door: Door, tmp_path: Path
) -> None:
    """A-126: as soon as the lease ran out; here the clock of the second one is a day ahead."""
    dead = Client(make_app(journal=tmp_path / "j.sqlite"))
    run_id = (await dead.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()

    class Tomorrow(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(days=1)

    alive = Client(make_app(journal=SqliteJournal(tmp_path / "j.sqlite", Tomorrow())))
    door.opened.set()
    await alive.get("/health")
    ended = await alive.ended(run_id)
    assert (ended["status"], ended["output"]) == ("completed", "through")


async def test_what_came_in_a_file_is_not_resumed_unasked(
    make_app: MakeApp, door: Door, journal: Outage, tmp_path: Path
) -> None:
    """A-120: also where the operator asked for runs of the command line to be resumed."""
    client = Client(make_app(journal=journal))
    view = (await client.post("/runs", {"recipe": "waits"})).json
    await door.reached.wait()
    elsewhere = SqliteJournal(tmp_path / "elsewhere.sqlite", SystemClock())
    await store_archive(elsewhere, await load_archive(journal, view["session_id"]))
    other = make_app(journal=elsewhere)
    await other.recovery.resume_all()
    await other.recovery.look()
    assert other.app_state.run_manager.count == 0
    assert await states(elsewhere, view["run_id"]) == ["started"]


async def test_a_run_that_ends_each_process_is_left_in_the_end(
    make_app: MakeApp, journal: Outage
) -> None:
    """A server must not die of one run again and again."""
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    body: dict[str, JsonValue] = {"recipe": "adds", "steps": {}, "note": {"server": True}}
    await journal.append(lease, draft_of("run", "started", body, key="run"))
    call: dict[str, JsonValue] = {"step_id": "a", "tool": "t", "arguments": "{}"}
    for _ in range(5):
        lease = await journal.acquire("ses_1", "run_1", "w", 60, next_generation=True)
        await journal.append(lease, draft_of("run", "resumed", body, key="run"))
        begun = draft_of("tool_call", "started", call, key="a/1/0/call")
        await journal.append(lease, begun)
    await journal.release(lease)
    lease = await journal.acquire("ses_1", "run_1", "w", 0)
    app = make_app(journal=journal)
    await app.recovery.look()
    assert app.app_state.run_manager.count == 0
    assert len(await states(journal, "run_1")) == 6


class Told(NullLog):
    """Keeps what whoever runs the server is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def warning(self, event: str, /, **facts: object) -> None:
        self.lines.append((event, str(facts["run_id"])))


@pytest.mark.parametrize(
    "odd",
    [
        {"note": {"server": True, "folder": 5, "model": "x/y"}},
        {"note": {"server": True, "approve": ["all"]}},
        {"note": {"server": True}, "part": {"runs": 5}},
        {"note": {"server": True}, "document": "0" * 64},
    ],
)
async def test_one_odd_run_does_not_keep_others_from_being_resumed(
    make_app: MakeApp, door: Door, journal: Outage, odd: dict[str, JsonValue]
) -> None:
    """A-123, A-126: it is named once, however often is looked."""
    body: dict[str, JsonValue] = {"recipe": "adds", "steps": {}, **odd}
    lease = await journal.acquire("ses_0", "run_0", "w", 60)
    await journal.append(lease, draft_of("run", "started", body, key="run"))
    await journal.acquire("ses_0", "run_0", "w", 0)
    client = Client(make_app(journal=journal))
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    journal.is_away = True
    door.opened.set()
    await lost(client, run_id)
    journal.is_away = False
    told = Told()
    app_state = client.app.app_state
    recovery = Recovery(app_state.runtime, app_state.run_manager, told, every_s=1)
    for _ in range(3):
        await recovery.look()
    assert (await client.ended(run_id))["status"] == "completed"
    assert told.lines == [("run_not_resumed", "run_0")]
