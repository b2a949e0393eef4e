"""`minions deploy` and `minions deployments`: versions by name, canaries, and decisions by hand."""

from __future__ import annotations

import json
from typing import Final

import pytest

from command_line import Cli, Write

OLD: Final = """
id: greet
inputs: {name: string}
schedule: "* * * * *"
steps: [{id: say, set: {text: "Hello {{ inputs.name }}"}}]
output: "{{ say.text }}"
"""
NEW: Final = OLD.replace("Hello", "Hi").replace("id: greet", 'id: greet\nversion: "2"')
DB: Final = ("--db", "j.db")


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("old.yaml", OLD)
    write("new.yaml", NEW)


def said(cli: Cli, name: str) -> str:
    done = cli("run", name, "-p", "name=Ada", *DB)
    assert done.code == 0, done.err
    return done.out.strip()


def test_new_runs_get_the_version_that_was_deployed_last(cli: Cli) -> None:
    first = cli("deploy", "old.yaml", "--as", "greet", *DB)
    assert (first.code, first.out.split()[:4]) == (0, ["greet", "recipe", "greet", "live"])
    assert "start a run: minions run greet@live --db j.db" in first.err
    assert said(cli, "greet@live") == "Hello Ada"
    assert cli("deploy", "new.yaml", "--as", "greet@2", *DB).code == 0
    assert [said(cli, f"greet@{each}") for each in ("live", "1", "2")] == [
        "Hi Ada",
        "Hello Ada",
        "Hi Ada",
    ]
    assert cli("deployments", "promote", "greet@1", *DB).code == 0
    assert said(cli, "greet@live") == "Hello Ada"


def test_a_canary_is_listed_with_what_was_measured_and_withdrawn_by_hand(cli: Cli) -> None:
    cli("deploy", "old.yaml", "--as", "greet", *DB)
    made = cli(
        *("deploy", "new.yaml", "--as", "greet@2", "--canary", "100%", "--until", "2", "runs"),
        *("--bar", "error_rate <= 0.1", *DB),
    )
    assert made.code == 0, made.err
    assert "canary @2 100% of new runs" in made.out
    assert said(cli, "greet@live") == "Hi Ada"
    listed = cli("deployments", "list", "greet", *DB)
    assert "1 of 2 runs" in listed.out
    assert "canary: runs 1, error_rate 0" in listed.out
    (document,) = json.loads(cli("deployments", "list", "--json", *DB).out)["deployments"]
    assert document["measured"]["canary"]["runs"] == 1
    assert [each["what"] for each in document["history"]] == ["deployed", "canary"]
    assert "document" not in document["versions"][0]
    assert cli("deployments", "withdraw", "greet", *DB).code == 0
    assert said(cli, "greet@live") == "Hello Ada"
    again = cli("deployments", "withdraw", "greet", *DB)
    assert (again.code, "no-canary" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--as", "greet", "--canary", "5%"), "has no live version"),
        (("--as", "Greet"), "bad-name"),
        (("--as", "greet@live"), "bad-name"),
        (("--as", "greet@2"), "become version 1"),
        (("--as", "greet", "--until", "5"), "add --canary"),
        (("--as", "greet", "--canary", "5%", "--bar", "error_rate < 1"), "--bar needs --until"),
        (("--as", "greet", "--canary", "5%", "--until", "5"), "--until needs --bar"),
        (("--as", "greet", "--canary", "0"), "--canary 0"),
        (
            ("--as", "greet", "--canary", "1%", "--until", "many", "--bar", "runs > 1"),
            "--until many",
        ),
        (
            ("--as", "greet", "--canary", "1%", "--until", "9", "--bar", "pass_rate > 0.9"),
            "nothing scores the runs",
        ),
        (("--as", "greet", "--no-store"), "no-store"),
    ],
)
def test_what_cannot_be_deployed_is_said(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    done = cli("deploy", "old.yaml", *arguments, *(() if "--no-store" in arguments else DB))
    assert done.code == 2
    assert words in done.err
    listed = cli("deployments", "list", *DB)
    assert listed.out == ""


def test_the_live_version_is_no_canary(cli: Cli) -> None:
    cli("deploy", "old.yaml", "--as", "greet", *DB)
    done = cli("deploy", "old.yaml", "--as", "greet", "--canary", "5%", *DB)
    assert (done.code, "is-live" in done.err) == (2, True)


def test_a_name_that_is_not_deployed_is_said(cli: Cli) -> None:
    cli("deploy", "old.yaml", "--as", "greet", *DB)
    for name, code in (("gret@live", "unknown-deployment"), ("greet@7", "unknown-version")):
        done = cli("run", name, "-p", "name=Ada", *DB)
        assert code in done.err
    done = cli("deployments", "promote", "greet", *DB)
    assert "names no version" in done.err
    assert "unknown-deployment" in cli("deployments", "remove", "gret", *DB).err


def test_a_removed_deployment_leaves_its_runs(cli: Cli) -> None:
    cli("deploy", "old.yaml", "--as", "greet", *DB)
    said(cli, "greet@live")
    assert cli("deployments", "remove", "greet", *DB).code == 0
    assert cli("run", "greet@live", "-p", "name=Ada", *DB).code != 0
    assert "greet" in cli("sessions", "list", *DB).out


def test_a_file_of_that_name_is_a_file(cli: Cli, write: Write) -> None:
    write("greet@live", OLD)
    done = cli("run", "greet@live", "-p", "name=Ada", *DB)
    assert done.out.strip() == "Hello Ada"


def test_a_schedule_may_run_what_a_deployment_gives(cli: Cli) -> None:
    cli("deploy", "old.yaml", "--as", "greet", *DB)
    added = cli("schedules", "add", "greet@live", "-p", "name=Ada", *DB)
    assert added.code == 0, added.err
    refused = cli("schedules", "add", "greet@1", "-p", "name=Ada", *DB)
    assert "greet@live" in refused.err
    (fate,) = json.loads(cli("upgrade", "new.yaml", "--move", "--json", *DB).out)
    assert (fate["fate"], "deployment 'greet'" in fate["reason"]) == ("goes_on", True)
