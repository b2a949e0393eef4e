"""Workers die, stand still and lose the database on a fake clock: what must hold, holds.

`MINIONS_SIMULATED=workers,runs,seed` plays one of another size and prints what became of it.
"""

from __future__ import annotations

import os

import pytest
from attrs import evolve

from minions.contracts.journal.journal import Lease
from minions.engine.services.memory_journal import MemoryJournal
from workers.simulation import Outcome, Plan, simulated

_SMALL = Plan(
    workers=5, runs=15, arrivals_s=1.0, work_s=(0.5, 8.0), death_s=8.0, still_s=(5.0, 150.0)
)
_DISTRIBUTED = evolve(_SMALL, runs=3, items=12, death_s=5.0)
_OWN = os.environ.get("MINIONS_SIMULATED")


@pytest.mark.parametrize("seed", range(3))
def test_every_run_ends_and_nothing_recorded_is_repeated(seed: int) -> None:
    """A-126, A-144."""
    outcome = simulated(_SMALL, seed)
    assert not outcome.faults
    assert outcome.done["deaths"] + outcome.done["standstills"] > 0
    assert outcome.executions >= _SMALL.runs


@pytest.mark.parametrize("seed", range(2))
def test_every_item_of_a_distributed_loop_is_executed_once(seed: int) -> None:
    """A-126, A-144."""
    outcome = simulated(_DISTRIBUTED, seed)
    assert not outcome.faults
    assert outcome.done["deaths"] + outcome.done["standstills"] > 0


def test_a_seed_plays_the_same_again() -> None:
    few = evolve(_SMALL, runs=5)
    assert simulated(few, 1) == simulated(few, 1)


def test_writers_that_nobody_stops_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that wake up write on, although others have their runs."""

    def owned(self: MemoryJournal, lease: Lease) -> object:
        self._positions.clear()  # nor is anything known to be written already
        session = self._sessions[lease.session_id]
        return session, session.holding

    monkeypatch.setattr(MemoryJournal, "_own_lease", owned)
    sleepy = evolve(
        _SMALL, runs=30, work_s=(5.0, 20.0), stands_still=1.0, still_s=(80.0, 150.0), outages=0
    )
    assert any(simulated(sleepy, seed).faults for seed in range(3))


@pytest.mark.skipif(_OWN is None, reason="MINIONS_SIMULATED=workers,runs,seed plays another size")
def test_a_fleet_of_another_size(capsys: pytest.CaptureFixture[str]) -> None:
    workers, runs, seed = map(int, (_OWN or "").split(","))
    plan = Plan(workers=workers, runs=runs, arrivals_s=10 / workers, death_s=200 / workers)
    outcome = simulated(plan, seed)
    with capsys.disabled():
        print(_told(plan, outcome))  # noqa: T201  # it is asked for
    assert not outcome.faults


def _told(plan: Plan, outcome: Outcome) -> str:
    happened = ", ".join(f"{count} {what}" for what, count in sorted(outcome.done.items()))
    return (
        f"\n{plan.workers} workers, {plan.runs} runs: {happened}; {outcome.facts} facts, "
        f"{outcome.executions} executions, {outcome.repeated_effects} effects repeated, "
        f"{outcome.seconds:.0f} s of the fake clock"
    )
