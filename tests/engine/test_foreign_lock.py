"""Another process locks the database in the middle of a run: the run says so in time."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from builders import deterministic_services, executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.tools import Effect
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe
from minions.testing.virtual_time import FakeClock

LIMIT_S = 30

RECIPE = AgentRecipe(
    id="recipe",
    steps=[
        ToolSpecStep(id="locked", tool="lock"),
        SetSpec(id="after", set={"x": "{{ locked }}"}, depends_on=("locked",)),
    ],
)


async def test_a_lock_in_mid_run_is_reported_within_the_busy_limit(tmp_path: Path) -> None:
    """A-124."""
    path, clock = tmp_path / "journal.db", FakeClock()
    journal = SqliteJournal(path, clock, busy_timeout_s=LIMIT_S, sleep=clock.sleep)
    services = deterministic_services(journal, clock)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        tool = fake_tool(
            "lock", lambda _: str(other.execute("BEGIN IMMEDIATE")), effect=Effect.PURE
        )
        result = await executor_of(ScriptedModel([]), services=services, tools=[tool]).execute(
            RECIPE
        )
        assert result.error is not None
        assert result.error.code == "database-busy"
        assert LIMIT_S - 1 < clock.monotonic() < LIMIT_S + 2
    await journal.aclose()
