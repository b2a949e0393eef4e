"""Each journal of ours does what every journal does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import Journal
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.journal_suite import *  # noqa: F403  # the tests are its names
from minions.testing.virtual_time import FakeClock


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def journal(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Journal]:
    made: Journal
    if request.param == "memory":
        made = MemoryJournal(clock)
    elif request.param == "sqlite":
        made = SqliteJournal(tmp_path / "journal.db", clock)
    else:
        made = PostgresJournal(request.getfixturevalue("postgres_url"), clock, lease_clock=clock)
    yield made
    await made.aclose()
