"""A resume whose clock is ahead sees leases as expired that their workers renew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from attrs import evolve

from builders import deterministic_services
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import Lease
from minions.data.errors import LeaseHeldError
from minions.engine.history.recorder import acquire_lease
from minions.engine.services.run_services import (
    Services,
    is_worker_alive,
    is_worker_gone,
    worker_name,
)
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock

HOUR = timedelta(hours=1)


class World:
    """Two workers of one machine with a journal each on the same file; one clock is ahead."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        ahead = FakeClock()
        ahead.advance(HOUR.total_seconds())
        self.first = SqliteJournal(path, self.clock, sleep=self.clock.sleep)
        self.second = SqliteJournal(path, ahead, sleep=ahead.sleep)
        self.slept_s = 0.0
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

        async def sleep(seconds: float) -> None:
            self.slept_s += seconds
            if self.meanwhile is not None and self.slept_s >= 10:
                await self.meanwhile()

        self.services: Services = evolve(
            deterministic_services(self.second, ahead),
            worker_id="second",
            sleep=sleep,
            is_worker_alive=lambda worker: worker == "first",
            is_worker_gone=lambda worker: worker == "dead",
        )

    async def lease_of(self, worker: str) -> Lease:
        return await self.first.acquire("s", "r", worker, 60.0)

    async def resume(self) -> Lease:
        return await acquire_lease(self.services, "s", "r", next_generation=True)


async def test_a_resume_whose_clock_is_ahead_refuses_itself_and_the_worker_goes_on(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "j.db")
    lease = await world.lease_of("first")

    async def renew() -> None:
        world.clock.advance(20)
        await world.first.renew(lease, 60.0)

    world.meanwhile = renew
    with pytest.raises(LeaseHeldError, match="This clock is ahead"):
        await world.resume()
    assert (await world.first.append(lease, holding({}, kind="run", key="run"))).position == 1
    await world.first.aclose()
    await world.second.aclose()


async def test_a_lease_that_nobody_renews_is_taken_over_after_a_renewals_time(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "j.db")
    await world.lease_of("first")
    assert (await world.resume()).worker_id == "second"
    assert 20 <= world.slept_s <= 22
    await world.first.aclose()
    await world.second.aclose()


@pytest.mark.parametrize("worker", ["dead", "of another machine"])
async def test_the_expired_lease_of_a_worker_not_known_to_live_is_taken_at_once(
    tmp_path: Path, worker: str
) -> None:
    world = World(tmp_path / "j.db")
    await world.lease_of(worker)
    assert (await world.resume()).worker_id == "second"
    assert world.slept_s == 0
    await world.first.aclose()
    await world.second.aclose()


def test_a_worker_of_another_process_is_known_to_live_until_it_ends() -> None:
    code = (
        "from minions.engine.services.run_services import worker_name\n"
        "print(worker_name('part'), flush=True)\ninput()\n"
    )
    other = subprocess.Popen(  # our own interpreter
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert other.stdout is not None
    name = other.stdout.readline().strip()
    assert (is_worker_alive(name), is_worker_gone(name)) == (True, False)
    other.communicate("\n")
    assert (is_worker_alive(name), is_worker_gone(name)) == (False, True)


def test_of_any_other_name_it_is_not_known() -> None:
    for name in ("", "worker", "host:1:2", "host:²:", worker_name(), worker_name("part")):
        assert not is_worker_alive(name)
        assert not is_worker_gone(name)
