"""Each journal of ours does what every journal does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from builders import body_cipher
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import Journal
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.journal_suite import *  # noqa: F403  # the tests are its names
from minions.testing.virtual_time import FakeClock


@pytest.fixture(params=["memory", "sqlite", "postgres", "sealed sqlite", "sealed postgres"])
async def journal(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Journal]:
    cipher = body_cipher() if request.param.startswith("sealed") else None
    made: Journal
    if (kind := request.param.removeprefix("sealed ")) == "memory":
        made = MemoryJournal(clock)
    elif kind == "sqlite":
        made = SqliteJournal(tmp_path / "journal.db", clock, cipher=cipher)
    else:
        made = PostgresJournal(
            request.getfixturevalue("postgres_url"), clock, lease_clock=clock, cipher=cipher
        )
    yield made
    await made.aclose()
