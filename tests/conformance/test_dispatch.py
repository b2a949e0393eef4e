"""What every dispatch engine does: the one in the process, and the one on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from minions.adapters.dispatch.dbos_dispatch import DbosDispatch
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.contracts.dispatch import DispatchEngine
from minions.contracts.runtime import SystemClock
from minions.engine.services.run_services import NullLog
from minions.testing.dispatch_suite import *  # noqa: F403  # the tests


@pytest.fixture(params=["local", "dbos"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[DispatchEngine]:
    made: DispatchEngine = LocalDispatch(SystemClock())
    if request.param == "dbos":
        pytest.importorskip("dbos", reason="dbos is not installed: minions-engine[dbos]")
        made = DbosDispatch(request.getfixturevalue("postgres_url"), NullLog(), poll_s=0.05)
    yield made
    await made.aclose()
