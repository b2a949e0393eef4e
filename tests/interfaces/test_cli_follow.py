"""`minions sessions follow`: a run that another process executes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from command_line import Cli, Write
from forked_commands import PROGRAM, ForkedCommand
from patience import HANG_S

PARCEL = """
id: parcel
inputs: {name: string}
steps:
  - {id: price, set: {francs: 8}}
  - {id: sure, ask: "Send {{ inputs.name }}?", form: {type: boolean}}
output: {francs: "{{ price.francs }}"}
"""
FAILS = "id: parcel\ninputs: {name: string}\nsteps:\n  - {id: no, assert: [inputs.name == 'x']}\n"


@pytest.fixture
def cli(cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch) -> Cli:
    write("parcel.yaml", PARCEL)
    monkeypatch.setenv("MINIONS_DB", "journal.sqlite")
    return cli


def queued(cli: Cli) -> str:
    done = cli("run", "parcel.yaml", "-p", "name=lamp", "--detach", "--json")
    assert done.code == 0, done.err
    return str(done.json["run_id"])


def test_what_was_stored_is_shown_up_to_the_last_end(cli: Cli) -> None:
    run_id = queued(cli)
    assert cli("worker", "--once").code == 0
    waits = cli("sessions", "follow", run_id)
    assert (waits.code, waits.out) == (3, "")
    assert "price" in waits.err
    assert cli("answer", run_id, "true").code == 0
    assert cli("worker", "--once").code == 0
    ended = cli("sessions", "follow", run_id)
    assert (ended.code, json.loads(ended.out)) == (0, {"francs": 8})
    lines = cli("sessions", "follow", run_id, "--events").out.splitlines()
    types = [json.loads(line)["type"] for line in lines]
    assert types.count("run_waiting") == 1  # the end that was followed by an answer is no end
    assert types[-1] == "run_completed"


def test_the_exit_code_is_that_of_the_run(cli: Cli, write: Write) -> None:
    write("parcel.yaml", FAILS)
    run_id = queued(cli)
    assert cli("worker", "--once").code == 0
    assert cli("sessions", "follow", run_id).code == 1
    unknown = cli("sessions", "follow", "run_none")
    assert (unknown.code, "run_none" in unknown.err) == (2, True)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_run_is_followed_while_a_worker_executes_it(
    cli: Cli, here: Path, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "postgres":
        monkeypatch.setenv("MINIONS_DB", request.getfixturevalue("postgres_url"))
    run_id = queued(cli)
    command = [*PROGRAM, "sessions", "follow", run_id, "--events"]
    following = ForkedCommand[bytes](command, cwd=here, stdout=subprocess.PIPE)
    assert following.stdout is not None
    first = json.loads(following.stdout.readline())  # it has begun to follow
    assert first["type"] == "run_started"
    assert cli("worker", "--once").code == 0
    rest, _ = following.communicate(timeout=HANG_S)
    types = [json.loads(line)["type"] for line in rest.decode().splitlines()]
    assert types[-1] == "run_waiting"
    assert "step_finished" in types
    assert following.returncode == 3
