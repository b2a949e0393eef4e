"""Processes killed with SIGKILL, at random and at every failpoint: each run ends as it should."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from crash.journeys import PLACES, Deck, Figures, Journey, Kennel

_LANES = 2
"""Kennels at a time."""


async def test_runs_that_are_killed_again_and_again_come_to_the_end_they_would_have_had(
    tmp_path: Path,
) -> None:
    """No acknowledged fact lost, no recorded work repeated, no effect doubled, no child left."""
    wanted = int(os.environ.get("MINIONS_CRASH_KILLS", "200"))
    first = int(os.environ.get("MINIONS_CRASH_SEED", "0"))
    figures, begin = Figures(), time.monotonic()
    seeds = itertools.count(first)
    await asyncio.gather(
        *[_lane(tmp_path, seeds, figures, wanted, random.Random(lane)) for lane in range(_LANES)]
    )
    print(f"\n{figures} in {time.monotonic() - begin:.0f} s\n{dict(figures.kills)}")
    assert figures.kills.total() >= wanted
    assert set(figures.kills) == set(PLACES)
    if page := os.environ.get("MINIONS_CRASH_PAGE"):
        Path(page).write_text(figures.page(seconds=time.monotonic() - begin), "utf-8")


async def _lane(
    folder: Path, seeds: Iterator[int], figures: Figures, wanted: int, rng: random.Random
) -> None:
    deck = Deck(rng)
    async with Kennel() as kennel:
        while figures.kills.total() < wanted or set(figures.kills) != set(PLACES):
            seed = next(seeds)
            journey = Journey(
                seed=seed,
                kennel=kennel,
                folder=folder / str(seed),
                deck=deck,
                figures=figures,
                most_kills=10,
            )
            await journey.travel()
