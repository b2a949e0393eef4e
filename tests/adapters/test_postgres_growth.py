"""What is done all the time costs the same in a database of many runs as in one of few.

`python -m benchmarks.postgres_growth` does it with a million, in six minutes.
"""

from __future__ import annotations

import pytest

from benchmarks.postgres_growth import FEW, fill, measure
from postgres import PostgresServer

_MORE_LEVELS = 12
"""Blocks: an index of a hundred times as many rows has a level more, and an operation looks into
several."""


@pytest.mark.parametrize("many", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_operations_touch_no_more_blocks_where_more_runs_are_stored(
    postgres: PostgresServer, many: int
) -> None:
    """A-184: lists, filters, counts, resume, a new run and a removed one."""
    counts = []
    for runs in (FEW, many):
        with postgres.database() as url:
            await fill(url, runs)
            counts.append(await measure(url))
    few, more = counts
    grown = {
        name: (few[name], more[name]) for name in few if more[name] > 1.2 * few[name] + _MORE_LEVELS
    }
    assert grown == {}
