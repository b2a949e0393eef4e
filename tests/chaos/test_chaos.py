"""Runs of every shape against a server that fails in every way: typed, in budget, with no leak."""

from __future__ import annotations

import gc
import os

import pytest

from chaos.play import ChaosRun
from chaos.properties import faults_of, faults_of_seed
from chaos.shapes import ChaosShape

_FIRST = int(os.environ.get("MINIONS_CHAOS_FIRST", "0"))
_SEEDS = int(os.environ.get("MINIONS_CHAOS_SEEDS", "100"))
_EACH = 25


@pytest.fixture(autouse=True)
def few_objects() -> None:
    """Each run collects its garbage: what earlier tests left is not looked at each time."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("first", range(_FIRST, _FIRST + _SEEDS, _EACH))
def test_a_run_ends_typed_and_within_its_budget_whatever_its_server_does(first: int) -> None:
    """`MINIONS_CHAOS_FIRST` and `MINIONS_CHAOS_SEEDS` say which runs; 100 from 0 on by default."""
    last = min(first + _EACH, _FIRST + _SEEDS)
    found = [(seed, faults) for seed in range(first, last) if (faults := faults_of_seed(seed))]
    assert not found, "\n".join(_words(seed, faults) for seed, faults in found)


def test_among_these_runs_a_circuit_opens_and_closes_again() -> None:
    seeds = [seed for seed in range(_FIRST, _FIRST + 500) if ChaosShape(seed).has_outage]
    runs = map(ChaosRun.from_seed, seeds)
    assert any(_is_cut_off_for_a_while(run) for run in runs)


@pytest.mark.parametrize("seed", [158, 166, 664, 1524, 2393, 2645, 3213, 3837])
def test_a_run_that_once_showed_a_fault_shows_it_no_more(seed: int) -> None:
    """Each of them died and was resumed: what was recorded or paid for was lost or redone."""
    assert not (faults := faults_of_seed(seed)), _words(seed, faults)


def _is_cut_off_for_a_while(run: ChaosRun) -> bool:
    assert not (faults := faults_of(run)), _words(run.seed, faults)
    return run.has_opened_and_closed_a_circuit


def _words(seed: int, faults: list[str]) -> str:
    return (
        f"MINIONS_CHAOS_FIRST={seed} MINIONS_CHAOS_SEEDS=1 pytest tests/chaos: {'; '.join(faults)}"
    )
