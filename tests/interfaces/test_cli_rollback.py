"""`minions rollback`: what it restores, what it says, and how the run tells of it afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

import minions as m
from command_line import Cli, Write
from minions.data.errors import UsageError
from minions.services import FileOutcome

RECIPE = """
id: change
permissions: {allow_write: true}
tools: [{files: {root: work, undo: true}}]
steps:
  - {id: one, tool: files__write, params: {path: a, text: new}}
  - {id: two, tool: files__write, params: {path: made/b, text: b}}
  - {id: three, tool: files__edit, params: {path: a, old: none, new: x}}
"""
DB = ("--db", "j.sqlite")


@pytest.fixture
def work(here: Path) -> Path:
    folder = here / "work"
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "other").write_text("not touched")
    return folder


@pytest.fixture
def failed(write: Write, work: Path, cli: Cli) -> str:
    """A run that wrote two files and then failed."""
    write("change.yaml", RECIPE)
    assert cli("run", "change.yaml", *DB).code == 1
    assert (work / "a").read_text() == "new"
    (listed,) = json.loads(cli("sessions", "list", *DB, "--json").out)
    return str(listed["run_id"])


def files(work: Path) -> dict[str, str]:
    return {
        str(each.relative_to(work)): each.read_text() for each in work.rglob("*") if each.is_file()
    }


BEFORE = {"a": "old", "other": "not touched"}


def test_a_failed_run_is_taken_back_and_says_so(cli: Cli, failed: str, work: Path) -> None:
    shown = " ".join(cli("sessions", "show", failed, *DB).out.split())
    assert f"changed {work}/a, {work}/made/b · undo: minions rollback {failed}" in shown
    done = cli("rollback", failed, *DB)
    assert done.code == 0
    assert done.out.splitlines() == [
        f"in {work}:",
        "  removed made/b",
        "  restored a",
        "  removed made/",
        "2 removed, 1 restored",
    ]
    assert files(work) == BEFORE
    assert not (work / "made").exists()
    assert "this run was rolled back" in cli("sessions", "show", failed, *DB).out


def test_a_dry_run_and_json_say_the_same_as_the_rollback(cli: Cli, failed: str, work: Path) -> None:
    before = files(work)
    told = cli("rollback", failed, "--dry-run", "--json", *DB).json
    assert files(work) == before
    done = cli("rollback", failed, "--json", *DB).json
    assert {**told, "dry_run": False} == done
    assert done["complete"] is True


def test_a_file_that_somebody_changed_is_left_with_exit_code_1(
    cli: Cli, failed: str, work: Path
) -> None:
    (work / "a").write_text("theirs")
    done = cli("rollback", failed, *DB)
    assert done.code == 1
    assert "  left a: somebody else changed it after the run; it is left as it is" in done.out
    assert files(work) == {**BEFORE, "a": "theirs"}


def test_a_rolled_back_run_is_retried_from_its_start(cli: Cli, failed: str, work: Path) -> None:
    cli("rollback", failed, *DB)
    refused = cli("retry", failed, *DB)
    assert refused.code == 2
    assert "error[rolled-back]" in refused.err
    assert f"minions retry {failed} --from one" in refused.err
    assert cli("resume", failed, *DB).code == 2
    assert cli("retry", failed, "--from", "one", *DB).code == 1  # it fails as before
    assert files(work) == {**BEFORE, "a": "new", "made/b": "b"}


@pytest.mark.usefixtures("failed")
def test_an_id_that_is_empty_is_refused(cli: Cli, work: Path) -> None:
    """As of a variable of a shell that is not set: the newest run is not meant."""
    before = sorted(work.rglob("*"))
    for command in ("rollback", "resume", "cancel"):
        done = cli(command, "", *DB)
        assert (done.code, "The id is empty." in done.err) == (2, True), done.err
    assert sorted(work.rglob("*")) == before


def test_what_cannot_be_rolled_back_is_refused(cli: Cli, write: Write) -> None:
    write("plain.yaml", "id: plain\nsteps:\n  - {id: a, set: {x: 1}}\n")
    run_id = cli("run", "plain.yaml", "--json", *DB).json["run_id"]
    refused = cli("rollback", str(run_id), *DB)
    assert refused.code == 2
    assert "error[nothing-recorded]" in refused.err
    assert "No run or session starts with 'run_zzz'" in cli("rollback", "run_zzz", *DB).err
    assert cli("rollback", str(run_id), "--no-store").code == 2


async def test_an_application_rolls_back_a_run(work: Path) -> None:
    text = RECIPE.replace("root: work", f"root: {work}")
    async with m.Minions() as app:
        result = await app.prepare(text).execute()
        report = await app.rollback(result.run_id, dry_run=True)
        assert files(work)["a"] == "new"
        done = await app.rollback(result.run_id)
        assert report == evolve(done, is_dry_run=True)
        assert files(work) == BEFORE
        assert {each.outcome for each in report.files} == {
            FileOutcome.RESTORED,
            FileOutcome.REMOVED,
        }
        with pytest.raises(UsageError):
            await app.retry(result.run_id)
