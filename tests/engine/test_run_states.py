"""What the state of a run without a recorded end is, while others begin and end runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from builders import draft_of
from minions.contracts.executions import RUN_STATES, RunState, RunStatus
from minions.contracts.journal.journal import HeldLease, Lease
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.store import StepRepository
from minions.engine.views.lookup import list_runs
from minions.testing.virtual_time import FakeClock


class Journal(MemoryJournal):
    """Something happens between looking for leases and reading rows, or behind both."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.happens: list[str] = []
        self.lease = Lease(session_id="s", run_id="r", worker_id="w", epoch=0)

    async def held_leases(self) -> Sequence[HeldLease]:
        found = await super().held_leases()
        if self.happens:
            await getattr(self, self.happens.pop(0))()
        return found

    async def begin(self) -> None:
        self.lease = await self.acquire("s", "r", "w", ttl_s=60)
        body: dict[str, JsonValue] = {"recipe": "some", "inputs": {}}
        await self.append(self.lease, draft_of("run", "started", body, key="run"))

    async def end(self) -> None:
        body = {"status": "completed"}
        draft = draft_of("run", "finished", body, key="run")
        await self.append(self.lease, draft)
        await self.release(self.lease)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(clock: FakeClock) -> Journal:
    return Journal(clock)


async def _state(journal: Journal) -> str:
    (run,) = await list_runs(journal)
    return run.status


async def test_a_run_is_running_while_its_lease_is_held(journal: Journal, clock: FakeClock) -> None:
    await journal.begin()
    assert await _state(journal) == "running"
    clock.advance(61)
    assert await _state(journal) == "interrupted"


async def test_a_run_whose_worker_is_known_to_be_dead_is_interrupted(journal: Journal) -> None:
    await journal.begin()
    (run,) = await list_runs(journal, is_worker_gone=lambda worker: worker == "w")
    assert (run.status, run.has_ended) == ("interrupted", False)
    services = Services(journal=journal, is_worker_gone=lambda worker: worker == "w")
    assert (await StepRepository(services).get_session("s")).status == "interrupted"


async def test_a_run_that_begins_while_the_list_is_read_is_running(journal: Journal) -> None:
    journal.happens = ["begin"]
    assert await _state(journal) == "running"


async def test_a_run_that_ends_while_the_list_is_read_is_not_interrupted(journal: Journal) -> None:
    await journal.begin()
    journal.happens = ["end"]
    assert await _state(journal) == "completed"


def test_every_way_to_end_is_a_state_and_every_state_is_explained() -> None:
    assert {status.value for status in RunStatus} < {state.value for state in RunState}
    assert list(RUN_STATES) == list(RunState)
