"""A recipe with faults: told, recorded by `run`, and not by `validate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Cli, Write

WRONG = """\
id: news
inputs:
  token: {type: string, secret: true, default: hunter2hunter2}
steps:
  - id: fetch
    set: {n: 1}
    optional: hunter3hunter3
  - id: tell
    set: {n: "{{ fetsh.n }}"}
"""
DB = ("--db", "j.sqlite")


@pytest.fixture
def news(write: Write) -> None:
    write("news.yaml", WRONG)


@pytest.mark.usefixtures("news")
def test_a_rejected_run_is_told_and_recorded_and_validate_writes_nothing(
    cli: Cli, here: Path
) -> None:
    """A-72."""
    checked = cli("validate", "news.yaml")
    assert checked.code == 2
    assert checked.err.endswith("3 errors\n")
    assert sorted(path.name for path in here.parent.rglob("*.sqlite*")) == []

    done = cli("run", "news.yaml", *DB)
    assert (done.code, done.out, done.err) == (2, "", checked.err)
    [run] = json.loads(cli("sessions", "list", *DB, "--json").out)
    assert (run["recipe"], run["status"], run["model"]) == ("news", "rejected", None)
    assert run["started_at"] == run["finished_at"]

    listed = cli("sessions", "list", *DB)
    assert f"{run['run_id']}  {run['session_id']}  " in listed.out
    assert " rejected " in listed.out
    assert listed.out.endswith("  news\n")


@pytest.mark.usefixtures("news")
def test_its_faults_are_shown_without_the_text_of_the_recipe(cli: Cli, here: Path) -> None:
    """A-72."""
    assert cli("run", "news.yaml", *DB).code == 2
    shown = cli("sessions", "show", "run_", *DB)
    assert shown.code == 0, shown.err
    head, _, faults = shown.out.partition("Z\n")
    assert "recipe news · model none · rejected\n" in head
    assert faults == (
        "error[literal-secret]: the default of a secret input is a reference, not the value "
        "itself\n"
        "  --> news.yaml:3:48\n"
        "help: write env:NAME for an environment variable, or file:/absolute/path\n"
        "error[wrong-type]: 'optional' takes true or false, but this is text\n"
        "  --> news.yaml:7:15\n"
        "error[unknown-reference]: unknown name 'fetsh'\n"
        "  --> news.yaml:9:18\n"
        "  did you mean 'fetch'?\n"
        "help: names are: inputs, steps, run, fetch, tell\n"
        "3 errors\n"
    )
    detail = json.loads(cli("sessions", "show", "run_", *DB, "--json").out)
    assert detail["error"]["code"] == "invalid-recipe"
    assert [fault["code"] for fault in detail["faults"]] == [
        "literal-secret",
        "wrong-type",
        "unknown-reference",
    ]
    stored = b"".join(path.read_bytes() for path in here.glob("j.sqlite*"))
    assert b"invalid-recipe" in stored
    assert b"hunter" not in stored


@pytest.mark.usefixtures("news")
@pytest.mark.parametrize("flag", ["--no-store", "--dry-run"])
def test_where_nothing_shall_be_written_nothing_is(cli: Cli, here: Path, flag: str) -> None:
    done = cli("run", "news.yaml", *DB, flag)
    assert done.code == 2
    assert done.err == cli("validate", "news.yaml").err
    assert list(here.glob("j.sqlite*")) == []


@pytest.mark.usefixtures("news")
@pytest.mark.parametrize("place", ["notes.txt", "news.yaml/j.sqlite"])
def test_a_database_that_cannot_be_used_hides_no_fault(cli: Cli, write: Write, place: str) -> None:
    write("notes.txt", "my diary " * 1000)
    done = cli("run", "news.yaml", "--db", place)
    first, _, rest = done.err.partition("\n")
    assert first.startswith("This run was not recorded: ")
    assert (done.code, rest) == (2, cli("validate", "news.yaml").err)


@pytest.mark.usefixtures("news")
def test_a_rejected_run_is_neither_resumed_nor_retried(cli: Cli) -> None:
    cli("run", "news.yaml", *DB)
    for command in ("resume", "retry"):
        done = cli(command, "run_", *DB)
        assert done.code == 2
        assert done.err.startswith("error[run-rejected]: Run 'run_")
        assert "never began: its recipe 'news' has faults" in done.err


@pytest.mark.usefixtures("news")
def test_an_address_in_a_rejected_run_names_nothing(cli: Cli) -> None:
    cli("run", "news.yaml", *DB)
    done = cli("sessions", "show", "run_", "each[1]", *DB)
    assert done.code == 2
    assert "Nothing was executed in it." in done.err


def test_a_file_that_is_no_yaml_is_recorded_under_its_own_name(cli: Cli, write: Write) -> None:
    write("broken.yaml", "steps: [\n")
    assert cli("run", "broken.yaml", *DB).code == 2
    [run] = json.loads(cli("sessions", "list", *DB, "--json").out)
    assert (run["recipe"], run["status"]) == ("broken", "rejected")


def test_the_mended_recipe_runs_beside_it(cli: Cli, write: Write) -> None:
    write("news.yaml", "id: news\nsteps:\n  - {id: a, seet: {n: 1}}\n")
    assert cli("run", "news.yaml", *DB).code == 2
    write("news.yaml", "id: news\nsteps:\n  - {id: a, set: {n: 1}}\n")
    assert cli("run", "news.yaml", *DB).code == 0
    runs = json.loads(cli("sessions", "list", *DB, "--json").out)
    assert [run["status"] for run in runs] == ["completed", "rejected"]
