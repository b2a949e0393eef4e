"""Which runs nobody executes: lists, servers and workers have one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from builders import draft_of
from minions.app.runs.unexecuted_runs import UnexecutedRuns
from minions.contracts.journal.run_rows import RunFilter
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.views.lookup import count_runs, list_runs
from minions.engine.views.run_states import executed_runs, read_leases
from minions.testing.clock import FakeClock

BEGUN: Final[Mapping[str, JsonValue]] = {"recipe": "some", "inputs": {}}
HELD, EXPIRED, DEAD, RELEASED, EXPIRED_AND_DEAD = "held", "expired", "dead", "released", "both"
NOBODY: Final = frozenset({EXPIRED, DEAD, RELEASED, EXPIRED_AND_DEAD})


def is_gone(worker_id: str) -> bool:
    return worker_id in (DEAD, EXPIRED_AND_DEAD)


async def journal_with(*names: str, ended: bool = False) -> MemoryJournal:
    """A run for each state of a lease, named after it, begun in that order."""
    clock = FakeClock()
    journal = MemoryJournal(clock)
    for name in names:
        lease = await journal.acquire(f"ses_{name}", name, name, ttl_s=60)
        await journal.append(lease, draft_of("run", "started", dict(BEGUN), key="run"))
        if ended:
            over: dict[str, JsonValue] = {"status": "completed"}
            await journal.append(lease, draft_of("run", "finished", over, key="run"))
        if name == RELEASED:
            await journal.release(lease)
        clock.advance(1)
    clock.advance(70)
    for row in await journal.runs():
        if row.run_id in (HELD, DEAD):
            await journal.acquire(row.session_id, row.run_id, row.run_id, ttl_s=60)
    return journal


ALL: Final = (EXPIRED, HELD, DEAD, RELEASED, EXPIRED_AND_DEAD)


async def test_lists_servers_and_workers_agree() -> None:
    """A run is executed while its lease is held by a worker that is not known to be dead."""
    journal = await journal_with(*ALL)
    unexecuted = UnexecutedRuns(journal, is_gone)
    rows = await journal.runs()
    listed = await list_runs(journal, is_worker_gone=is_gone)
    among = {row.run_id for row in await unexecuted.among(rows)}
    assert {
        "listed": {run.run_id for run in listed if run.status == "interrupted"},
        "found by servers": {run.run_id for run in await unexecuted.interrupted()},
        "found by workers": among,
        "not executed": set(ALL) - await executed_runs(journal, is_gone),
        "counted": await count_runs(
            journal, RunFilter(statuses={"interrupted"}), is_worker_gone=is_gone
        ),
    } == {
        "listed": NOBODY,
        "found by servers": NOBODY,
        "found by workers": NOBODY,
        "not executed": NOBODY,
        "counted": len(NOBODY),
    }


async def test_an_abandoned_lease_is_one_that_was_not_released() -> None:
    journal = await journal_with(*ALL)
    leases = await read_leases(journal, is_gone)
    assert {each.run_id for each in leases.executed} == {HELD}
    assert {each.run_id for each in leases.abandoned} == NOBODY - {RELEASED}
    abandoned = await UnexecutedRuns(journal, is_gone).abandoned()
    assert tuple(abandoned) == leases.abandoned


async def test_the_oldest_come_first_where_all_are_resumed() -> None:
    journal = await journal_with(*ALL)
    found = await UnexecutedRuns(journal, is_gone).interrupted()
    assert [run.run_id for run in found] == [each for each in ALL if each in NOBODY]


async def test_runs_that_ended_are_none_whatever_their_lease() -> None:
    journal = await journal_with(*ALL, ended=True)
    assert await UnexecutedRuns(journal, is_gone).interrupted() == []


async def test_rows_keep_their_order_and_no_lease_is_read_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = await journal_with(*ALL)
    unexecuted = UnexecutedRuns(journal, is_gone)
    rows = (await journal.runs())[::-1]
    assert [row.run_id for row in await unexecuted.among(rows)] == [
        each for each in ALL if each in NOBODY
    ]
    monkeypatch.delattr(MemoryJournal, "held_leases")
    assert await unexecuted.among([]) == []
