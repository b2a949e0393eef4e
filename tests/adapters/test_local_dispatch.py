"""What holds of the queues within a process beyond the conformance suite."""

from __future__ import annotations

import asyncio

import pytest

from minions.adapters.dispatch import local_dispatch
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.contracts.dispatch import JobState, QueueLimits, RateLimit
from minions.testing.clock import FakeClock
from minions.testing.dispatch_suite import Worked, job, opened, serve, serving, until


@pytest.fixture
def engine() -> LocalDispatch:
    return LocalDispatch(FakeClock())


async def test_two_runs_of_a_session_are_executed_one_after_the_other(
    engine: LocalDispatch,
) -> None:
    """At whichever worker; the next job of another session goes first meanwhile."""
    for number, session in enumerate(("ses_a", "ses_a", "ses_b")):
        await engine.submit(job(f"run_{number}", session_id=session))
    first, second = Worked(), Worked()
    async with serving(engine, first, slots=3):
        await until(lambda: first.runs == ["run_0", "run_2"])
        async with serving(engine, second, slots=3, name="host:2:2+w2"):
            await asyncio.sleep(0.05)
            assert second.runs == []
            first.opened.set()
            second.opened.set()
            await until(lambda: len(first.runs) + len(second.runs) == 3)
    assert sorted(first.runs + second.runs) == ["run_0", "run_1", "run_2"]
    assert first.most_at_once == 2
