"""`minions sessions mark`: what is said of an output, and what an imported mark is worth."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from command_line import Cli, Write
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import JournalEntry
from minions.engine.views.judgements import marks_in
from minions.services import SystemClock

RECIPE = "id: two\nsteps:\n  - {id: a, set: {x: 1}}\n  - {id: b, set: {y: 2}}\n"
DB = ("--db", "j.sqlite")


@pytest.fixture
def run(cli: Cli, write: Write) -> str:
    write("two.yaml", RECIPE)
    assert cli("run", "two.yaml", *DB).code == 0
    (listed,) = json.loads(cli("sessions", "list", *DB, "--json").out)
    return str(listed["run_id"])


def test_a_mark_is_told_where_the_run_is_shown(cli: Cli, run: str) -> None:
    done = cli("sessions", "mark", run, "good", "--step", "b", "--note", "As it\nshould be.", *DB)
    assert done.code == 0
    assert f"b of {run} is marked good" in done.err
    marked = cli("sessions", "mark", run, "bad", *DB, "--json")
    assert json.loads(marked.out)["mark"] == {"verdict": "bad"}
    shown = cli("sessions", "show", run, *DB).out
    assert "- b is marked good · As it should be." in shown
    assert "- the run is marked bad" in shown


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("good", "--step", "c"), 2, "error[unknown-step]"),
        (("fine",), 2, "'fine' is not one of 'good', 'bad'"),
        (("good", "--note", ""), 2, "error[bad-note]"),
    ],
)
def test_what_cannot_be_marked_is_said(
    cli: Cli, run: str, words: tuple[str, ...], code: int, said: str
) -> None:
    refused = cli("sessions", "mark", run, *words, *DB)
    assert (refused.code, said in refused.err) == (code, True), refused.err


async def _marks(file: Path) -> Sequence[JournalEntry]:
    journal = SqliteJournal(file, SystemClock())
    try:
        return await journal.entries(kinds={"mark"})
    finally:
        await journal.aclose()


def test_an_imported_mark_is_the_claim_of_its_file(cli: Cli, run: str, write: Write) -> None:
    cli("sessions", "mark", run, "good", *DB)
    write("s.jsonl", cli("sessions", "export", run, *DB).out)
    assert cli("sessions", "import", "s.jsonl", "--db", "elsewhere.sqlite").code == 0
    shown = cli("sessions", "show", run, "--db", "elsewhere.sqlite").out
    assert "the run is marked good where it was exported from" in shown
    cli("sessions", "mark", run, "bad", "--step", "a", "--db", "elsewhere.sqlite")
    rows = asyncio.run(_marks(Path("elsewhere.sqlite")))
    assert [(row.state, row.body["verdict"]) for row in rows] == [
        ("imported", "good"),
        ("recorded", "bad"),
    ]
    assert [mark.fact.verdict for mark in marks_in(rows)] == ["bad"]


SORT = """
id: sort
inputs: {text: {type: string}}
steps:
  - id: sort
    goal: "Sort: {{ inputs.text }}"
    output: {category: {enum: [bill, other]}}
    examples: {from: journal}
"""


def test_a_run_tells_which_recorded_runs_its_examples_are_from(cli: Cli, write: Write) -> None:
    """A-147: from marked runs, pinned and recorded with the run."""
    write("sort.yaml", SORT)
    write("answers.yaml", "answers: [{json: {category: bill}}, {json: {category: bill}}]\n")
    run = ("run", "sort.yaml", "-m", "scripted/answers.yaml", *DB)
    assert cli(*run, "-p", "text=Pay!", "--session", "one").code == 0
    shown = cli("sessions", "show", "one", *DB).out
    assert "sort: no recorded run gives an example yet" in shown
    assert cli("sessions", "mark", "one", "good", *DB).code == 0
    assert cli(*run, "-p", "text=What?", "--session", "two").code == 0
    shown = cli("sessions", "show", "two", *DB).out
    assert "- sort: shown 1 example from run_" in shown
    assert "examples " in shown.partition("prompts:")[2]
