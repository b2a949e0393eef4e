"""Processes killed with SIGKILL, at random and at every failpoint: each run ends as it should."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from attrs import field, frozen

from crash.journeys import PLACES, Deck, Figures, Journey, Kennel
from postgres import PostgresServer

_LANES: Final = 2
"""Kennels at a time."""
_MOST_KILLS_OF_A_RUN: Final = 8


@pytest.mark.long
def test_runs_that_are_killed_again_and_again_come_to_the_end_they_would_have_had(
    tmp_path: Path,
) -> None:
    """No acknowledged fact lost, no recorded work repeated, no effect doubled, no child left.

    `MINIONS_CRASH_KILLS` says how many kills, `MINIONS_CRASH_SEED` the first run's seed,
    `MINIONS_CRASH_PAGE` where a page with the figures goes.
    """
    wanted = int(os.environ.get("MINIONS_CRASH_KILLS", "30"))
    first = int(os.environ.get("MINIONS_CRASH_SEED", "0"))
    begin = time.monotonic()
    hunt = Hunt(tmp_path, wanted, itertools.count(first))
    asyncio.run(hunt.run())
    seconds, figures = time.monotonic() - begin, hunt.figures
    sys.stdout.write(f"\n{figures} in {seconds:.0f} s\n{dict(figures.kills)}\n")
    assert figures.kills.total() >= wanted
    assert set(figures.kills) <= set(PLACES)
    missed = set(PLACES) - set(figures.kills)  # which a few kills come to depends on the machine
    assert len(missed) <= (2 if wanted < 200 else 0), missed
    if page := os.environ.get("MINIONS_CRASH_PAGE"):
        Path(page).write_text(figures.page(seconds=seconds), "utf-8")


def test_runs_with_their_journal_on_a_server_come_to_the_same_ends(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """The same, with fewer kills: `MINIONS_CRASH_POSTGRES_KILLS`."""
    wanted = int(os.environ.get("MINIONS_CRASH_POSTGRES_KILLS", "8"))
    first = int(os.environ.get("MINIONS_CRASH_SEED", "0"))
    hunt = Hunt(tmp_path, wanted, itertools.count(first), postgres=postgres, lanes=1)
    asyncio.run(hunt.run())
    sys.stdout.write(f"\non PostgreSQL: {hunt.figures}\n{dict(hunt.figures.kills)}\n")
    assert hunt.figures.kills.total() >= wanted


@frozen
class Hunt:
    """Runs until there were enough kills, on files those of every kind."""

    folder: Path
    wanted: int
    seeds: Iterator[int]
    figures: Figures = field(factory=Figures)
    postgres: PostgresServer | None = None
    lanes: int = _LANES

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in range(self.lanes):
                group.create_task(self._lane(Deck(random.Random(lane))))

    async def _lane(self, deck: Deck) -> None:
        async with Kennel() as kennel:
            while self._is_on:
                seed = next(self.seeds)
                with contextlib.ExitStack() as lent:
                    journey = Journey(
                        seed=seed,
                        kennel=kennel,
                        folder=self.folder / str(seed),
                        deck=deck,
                        figures=self.figures,
                        most_kills=_MOST_KILLS_OF_A_RUN,
                        urls=(self._url(lent), self._url(lent)),
                    )
                    await journey.travel()
                shutil.rmtree(journey.folder)  # of a failed one everything is kept

    def _url(self, lent: contextlib.ExitStack) -> str | None:
        return None if self.postgres is None else lent.enter_context(self.postgres.journal())

    @property
    def _is_on(self) -> bool:
        kills = self.figures.kills
        if self.postgres is not None:
            return kills.total() < self.wanted
        is_missing_one = set(kills) != set(PLACES) and kills.total() < 4 * self.wanted
        return kills.total() < self.wanted or is_missing_one
