"""What a unit of work costs, in calls and statements: the table of `docs/design/costs.md` (A-161).

`make update-expected` stores the figures of now; a change that raises one shows in its diff.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from benchmarks.endpoint import Endpoint
from costs.units import ONE, UNITS, seen_statements, units_measured
from minions import AgentExecutor, ScriptedModel, Services, SqliteJournal
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import SystemClock

FIGURES: Final = Path(__file__).with_name("figures.json")
PAGE: Final = Path(__file__).parents[2] / "docs" / "design" / "costs.md"
VERSION: Final = "3.11"
"""The Python whose figures are stored; later ones make fewer calls for the same."""
BAND: Final = 0.03
WIDER: Final = 0.25
"""How much fewer calls another Python may make."""


HEAD: Final = """# Costs

What one unit of work costs, counted and not timed: calls of Python and C functions
(`sys.setprofile`), SQL statements (SQLite's trace, those of triggers included, without `BEGIN` and
`COMMIT`), transactions, rows and bytes. No
machine and no load changes the counts, so `tests/costs` compares them with the stored ones like any
expected output, within 3 %; `make update-expected` writes them and this page. A change that raises
one shows here, and its commit says why.

| one unit of work | now | goal | others |
|---|--:|--:|---|
"""

TAIL: Final = """
## What is above its goal

- **Modules.** 37 of them are folders, and 44 the recipe language: a key of one kind of step is
  foreign to the others, so each kind and each check is there before the first step is read. What a
  plain run does not use is loaded with what does (approvals, tests, toolsets of recipes, examples,
  registered steps, caches, strangers' words, schedules, local models), and a module of one user is
  part of it. What stays and is not used: the vocabulary that settings, facts and services name in
  their types, and stores and parsers that are made before anybody knows whether they are needed.
  Put together and taken apart again were what prints lines and what prints faults, and the
  declaration of outputs and their parsing: `--help` and `validate` would load attrs and returns.
- **Modules of the frames.** The folders meet on this way: command, run, step, model call,
  provider. Ten would make one module of the step's executor, its loop and its answers, and one of
  the model call and its attempts, of 1,600 and 1,000 lines.
"""


def page_of(figures: Mapping[str, float]) -> str:
    """The table, with each unit in its row."""
    rows = [
        f"| {unit.words} | {figures[name]:,.0f} | ≤ {unit.goal:,.0f} | {unit.others} |"
        for name, unit in UNITS.items()
    ]
    return HEAD + "\n".join(rows) + "\n" + TAIL


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    with Endpoint() as endpoint:
        return asyncio.run(units_measured(endpoint))


def test_each_unit_of_work_costs_what_is_stored(measured: dict[str, float]) -> None:
    """A-161."""
    is_other = f"{sys.version_info.major}.{sys.version_info.minor}" != VERSION
    if os.environ.get("MINIONS_UPDATE_EXPECTED") and not is_other:
        FIGURES.write_text(json.dumps(measured, indent=2) + "\n")
        PAGE.write_text(page_of(measured))
    stored = json.loads(FIGURES.read_text())
    assert set(measured) == set(stored) == set(UNITS)
    least = WIDER if is_other else BAND
    wrong = {
        name: f"{stored[name]} before, {cost} now"
        for name, cost in measured.items()
        if not stored[name] * (1 - least) - 1 <= cost <= stored[name] * (1 + BAND) + 1
    }
    assert not wrong, (
        "`make update-expected` stores the new figures, if that is what they should be"
    )


GROWING: Final = re.compile(r"SCAN (entries|e|sessions|s|runs|r|leases|blobs)\b")
"""The plan of a statement that reads a whole table which grows with the runs."""


async def test_no_statement_of_a_run_reads_a_whole_table(tmp_path: Path) -> None:
    file = tmp_path / "j.sqlite"
    with seen_statements() as statements:
        journal = SqliteJournal(file, SystemClock())
        executor = AgentExecutor(ScriptedModel(["a"] * 4), services=Services(journal=journal))
        await executor.execute(ONE)  # opens the file
        statements.clear()
        done = await executor.execute(ONE)
        await executor.retry(done.run_id, from_step="ask")
        await journal.runs(RunFilter(session_id=done.session_id), limit=1)
        await journal.aclose()
    kept = [
        each for each in statements if each.split()[0] in ("SELECT", "INSERT", "UPDATE", "WITH")
    ]
    with closing(sqlite3.connect(file)) as db:
        plans = {each: db.execute(f"EXPLAIN QUERY PLAN {each}").fetchall() for each in kept}
    assert len(plans) > 8
    growing = {
        each: line[3] for each, plan in plans.items() for line in plan if GROWING.search(line[3])
    }
    assert not growing


def test_the_page_shows_the_stored_figures() -> None:
    assert PAGE.read_text() == page_of(json.loads(FIGURES.read_text()))
