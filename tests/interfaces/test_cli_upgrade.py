"""`minions upgrade`: what a recipe's new version means for its runs, and moving them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from command_line import Cli, Write
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.app.runs.schedule_store import ScheduleStore

RECIPE: Final = """
id: triage
version: "1"
schedule: "0 8 * * *"
steps:
  - {id: look, set: {price: 20}}
  - {id: sure, ask: "Buy for {{ look.price }}?", form: {type: boolean}}
  - {id: report, set: {said: "{{ look.price }} {{ sure }}"}}
output: "{{ report.said }}"
"""
EDITED: Final = (
    RECIPE.replace('"1"', '"2"').replace("said: ", "said: total ").replace('total "{{', '"total {{')
)
BROKEN: Final = EDITED.replace("Buy for", "Pay").replace('"2"', '"3"')
DB: Final = ("--db", "j.db")


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("triage.yaml", RECIPE)


def fates(cli: Cli, *arguments: str) -> Sequence[Mapping[str, Any]]:  # Any: of JSON
    found: list[Mapping[str, Any]] = json.loads(cli("upgrade", *arguments, "--json", *DB).out)
    return found


def waiting(cli: Cli) -> str:
    done = cli("run", "triage.yaml", "--approve", "wait", "--json", *DB)
    assert done.code == 3
    return str(json.loads(done.out)["run_id"])


def test_each_run_is_named_with_its_fate_and_moved_and_moved_back(cli: Cli, write: Write) -> None:
    """A-182."""
    waits = waiting(cli)
    queued = cli("run", "triage.yaml", "--detach", *DB).out.strip()
    assert {each["fate"] for each in fates(cli, "triage.yaml")} == {"goes_on"}
    write("triage.yaml", EDITED)
    told = cli("upgrade", "triage.yaml", *DB)
    assert told.code == 0
    assert "2 can be moved" in told.out
    assert "move them: minions upgrade triage.yaml --move --db j.db" in told.err
    moved = fates(cli, "triage.yaml", "--move", "--only", waits)
    assert [(each["run_id"], each["done"]) for each in moved] == [(waits, "moved")]
    found = {each["run_id"]: each for each in fates(cli, "triage.yaml")}
    assert (found[waits]["version"], found[waits]["fate"]) == ("2", "goes_on")
    assert (found[queued]["version"], found[queued]["fate"]) == ("1", "moves")
    assert found[waits]["digest"] != found[queued]["digest"]
    assert "moved to version 2 of its recipe" in cli("sessions", "show", waits, *DB).out
    back = cli("upgrade", "triage.yaml", "--undo", *DB)
    assert (back.code, "1 moved back" in back.out) == (0, True)
    assert cli("upgrade", "triage.yaml", "--move", *DB).code == 0
    assert cli("answer", waits, "true", *DB).out == "total 20 true\n"
    late = cli("upgrade", "triage.yaml", "--undo", "--only", queued, *DB)
    assert late.code == 0


def test_nothing_to_undo_is_said_and_no_success(cli: Cli) -> None:
    words = "nothing to undo: no run of 'triage' that is not over, and no schedule, was moved\n"
    none = cli("upgrade", "triage.yaml", "--undo", *DB)
    assert (none.code, words in none.err) == (1, True)
    assert fates(cli, "triage.yaml", "--undo") == []
    assert cli("schedules", "add", "triage.yaml", *DB).code == 0
    assert [each["schedule"] for each in fates(cli, "triage.yaml", "--undo")] == ["triage"]
    assert cli("schedules", "remove", "triage", *DB).code == 0
    run_id = waiting(cli)
    told = cli("upgrade", "triage.yaml", "--undo", *DB)
    assert (told.code, words in told.err) == (1, True)
    assert f"{run_id}  needs_decision" in told.out
    assert "nothing was done: it was not moved" in told.out
    [document] = fates(cli, "triage.yaml", "--undo")
    assert (document["done"], document["problem"]) == (None, "it was not moved")
    assert cli("upgrade", "triage.yaml", "--undo", "--json", *DB).code == 1


def test_a_queued_run_that_was_moved_is_executed_as_the_new_version_says(
    cli: Cli, write: Write
) -> None:
    run_id = cli("run", "triage.yaml", "--detach", *DB).out.strip()
    write("triage.yaml", EDITED)
    cli("upgrade", "triage.yaml", "--move", *DB)
    assert cli("worker", "--once", *DB).code == 0
    cli("answer", run_id, "true", *DB)
    assert cli("worker", "--once", *DB).code == 0
    assert cli("resume", run_id, *DB).out == "total 20 true\n"
    undone = cli("upgrade", "triage.yaml", "--undo", "--only", run_id, *DB)
    assert (undone.code, "no such run that is not over" in undone.err) == (2, True)


def test_a_queued_run_that_was_moved_needs_what_its_new_version_names(
    cli: Cli, write: Write
) -> None:
    head = "from minions import tool\n@tool(effect='pure')\n"
    write("own.py", f"{head}def price() -> int:\n    'P.'\n    return 7\n")
    write("work.yaml", "id: work\nsteps: [{id: a, set: {x: 1}}]\n")
    run_id = cli("run", "work.yaml", "--detach", *DB).out.strip()
    write("work.yaml", "id: work\nversion: '2'\nsteps: [{id: a, tool: price, params: {}}]\n")
    own = ("--extensions", "own.py", *DB)
    assert cli("upgrade", "work.yaml", "--move", *own).code == 0
    assert "work@2" in cli("sessions", "list", *DB).out
    left = cli("worker", "--once", *DB)
    assert "lacks=\"the tool 'price'\"" in left.err
    assert cli("upgrade", "work.yaml", "--undo", "--only", run_id, *own).code == 0
    assert cli("worker", "--once", *DB).code == 0
    assert cli("resume", run_id, "--json", *DB).code == 0


def test_a_run_that_breaks_is_told_with_step_and_decision_and_may_be_pinned(
    cli: Cli, write: Write
) -> None:
    """A-182."""
    run_id = waiting(cli)
    write("triage.yaml", BROKEN)
    told = cli("upgrade", "triage.yaml", "--move", *DB)
    assert told.code == 1
    assert "1 breaks" in told.out
    (found,) = fates(cli, "triage.yaml")
    assert (found["run_id"], found["fate"], found["step"]) == (run_id, "breaks", "sure")
    assert found["reason"] == "it waits for a decision (answer sure/1/0/ask), and it differs"
    assert cli("upgrade", "triage.yaml", "--pin", *DB).code == 0
    pinned = fates(cli, "triage.yaml")[0]
    assert (pinned["fate"], pinned["reason"]) == ("goes_on", "it was pinned to its version")
    assert "it stays with the version of its recipe" in cli("sessions", "show", run_id, *DB).out
    write("triage.yaml", EDITED)
    assert fates(cli, "triage.yaml", "--move")[0]["fate"] == "goes_on"
    assert fates(cli, "triage.yaml", "--move", "--only", run_id)[0]["done"] == "moved"


def test_pinned_runs_are_not_offered_to_be_moved(cli: Cli, write: Write) -> None:
    waiting(cli)
    write("triage.yaml", EDITED)
    assert "move them: " in cli("upgrade", "triage.yaml", *DB).err
    assert "move them: " not in cli("upgrade", "triage.yaml", "--pin", *DB).err


def test_runs_of_one_version_are_meant_by_its_name_or_fingerprint(cli: Cli, write: Write) -> None:
    first = waiting(cli)
    write("triage.yaml", EDITED)
    second = waiting(cli)
    ones = {each["run_id"]: each for each in fates(cli, "triage.yaml")}
    assert set(ones) == {first, second}
    for old in ("1", ones[first]["digest"][:6]):
        assert [each["run_id"] for each in fates(cli, "triage.yaml", "--from", old)] == [first]
    assert fates(cli, "triage.yaml", "--from", "none") == []
    # Else `--from 2` would mean each sixteenth text of any other version, too.
    assert fates(cli, "triage.yaml", "--from", ones[first]["digest"][:5]) == []
    none = cli("upgrade", "triage.yaml", "--from", "9", *DB)
    assert "no run of version or fingerprint '9' waits, is queued or is executed\n" in none.out


def test_a_schedule_gets_the_new_version(cli: Cli, write: Write) -> None:
    cli("schedules", "add", "triage.yaml", *DB)
    write("triage.yaml", EDITED)
    (found,) = fates(cli, "triage.yaml", "--move")
    assert (found["run_id"], found["schedule"], found["done"]) == (None, "triage", "moved")
    assert fates(cli, "triage.yaml")[0]["fate"] == "goes_on"
    write("triage.yaml", EDITED.replace("steps:", "inputs: {n: integer}\nsteps:"))
    assert fates(cli, "triage.yaml")[0]["fate"] == "breaks"


def test_a_schedule_that_was_moved_is_moved_back_until_it_starts_a_run(
    cli: Cli, write: Write, here: Path
) -> None:
    cli("schedules", "add", "triage.yaml", *DB)
    write("triage.yaml", EDITED)
    told = cli("upgrade", "triage.yaml", "--move", *DB)
    assert "until the schedule starts a run: minions upgrade triage.yaml --undo" in told.err
    write("third.yaml", EDITED.replace('"2"', '"3"'))
    assert fates(cli, "third.yaml", "--move")[0]["done"] == "moved"
    for version in ("3", "2"):  # the newest move first
        (back,) = fates(cli, "triage.yaml", "--undo")
        assert (back["version"], back["done"]) == (version, "moved back")
    assert fates(cli, "triage.yaml")[0]["version"] == "1"
    (none,) = fates(cli, "triage.yaml", "--undo", "--only", "triage")
    assert "The schedule 'triage' was not moved" in none["problem"]
    assert fates(cli, "triage.yaml", "--move")[0]["done"] == "moved"
    asyncio.run(_made_due(here))
    assert cli("worker", "--once", *DB).code == 0
    assert cli("upgrade", "triage.yaml", "--undo", *DB).code == 1
    (late,) = fates(cli, "triage.yaml", "--undo", "--only", "triage")
    assert "has started a run since it was moved" in late["problem"]
    assert (late["version"], late["done"]) == ("2", None)
    assert fates(cli, "third.yaml", "--move", "--only", "triage")[0]["done"] == "moved"
    (back,) = fates(cli, "third.yaml", "--undo", "--only", "triage")
    assert (back["done"], fates(cli, "triage.yaml", "--only", "triage")[0]["fate"]) == (
        "moved back",
        "goes_on",
    )


def test_a_schedule_that_is_to_be_pinned_by_its_name_says_that_it_cannot(
    cli: Cli, write: Write
) -> None:
    cli("schedules", "add", "triage.yaml", *DB)
    write("triage.yaml", EDITED)
    told = cli("upgrade", "triage.yaml", "--pin", "--only", "triage", *DB)
    words = "nothing was done: A schedule cannot be pinned: it has its version until it is moved"
    assert (told.code, words in told.out.replace("\n   ", "")) == (1, True), told.out
    assert cli("upgrade", "triage.yaml", "--pin", *DB).code == 0  # all runs, of which there is none
    both = fates(cli, "triage.yaml", "--move", "--pin", "--only", "triage")
    assert [(each["done"], each["problem"]) for each in both] == [("moved", None)]


async def _made_due(here: Path) -> None:
    """Added two days ago."""
    store = ScheduleStore(SqliteState(here / "j.db"))
    try:
        known = await store.get("triage")
        await store.put(evolve(known, since=datetime.now(UTC) - timedelta(days=2)))
    finally:
        await store.aclose()


def test_only_the_first_ten_are_shown(cli: Cli, write: Write) -> None:
    write("items.jsonl", "{}\n" * 12)
    cli("batch", "triage.yaml", "items.jsonl", "--detach", "--name", "b", "-o", "out", *DB)
    told = cli("upgrade", "triage.yaml", *DB).out
    assert told.count("run_") == 10
    assert "… and 2 more (--json lists all)" in told


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--undo", "--move"), "--undo goes without --move and --pin"),
        (("--only", "run_none"), "has no such run that is not over"),
        (("--only", ""), "The id is empty"),
        (("--only", "run_"), "'run_' is not unique: run_"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    cli: Cli, write: Write, words: tuple[str, ...], expected: str
) -> None:
    names = {waiting(cli), waiting(cli)}
    write("triage.yaml", EDITED)
    refused = cli("upgrade", "triage.yaml", "--move", "--only", min(names), *words, *DB)
    assert (refused.code, expected in refused.err) == (2, True)
    assert {each["version"] for each in fates(cli, "triage.yaml")} == {"1"}


def test_a_schedule_is_meant_by_its_whole_name(cli: Cli, write: Write) -> None:
    for name in ("report", "report-2"):
        assert cli("schedules", "add", "triage.yaml", "--name", name, *DB).code == 0
    write("triage.yaml", EDITED)
    moved = fates(cli, "triage.yaml", "--move", "--only", "report")
    assert [each["schedule"] for each in moved] == ["report"]
    refused = cli("upgrade", "triage.yaml", "--move", "--only", "repo", *DB)
    assert (refused.code, "no such schedule" in refused.err) == (2, True)


def test_a_database_that_is_not_there_is_not_made(cli: Cli, here: Path) -> None:
    told = cli("upgrade", "triage.yaml", "--db", "none.db")
    assert (told.code, "no run of it waits" in told.out) == (0, True)
    assert not (here / "none.db").exists()
