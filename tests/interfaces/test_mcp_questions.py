"""A server that asks a person in the middle of a call: the run waits, and is resumed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from command_line import Cli, Write
from mcp_servers import PROGRAM

RECIPE = """\
id: r
tools:
  - mcp: fake
permissions: {allow_write: true}
steps:
  - id: said
    tool: fake__asks
output: "{{ said }}"
"""


@pytest.fixture
def record(cli: Cli, write: Write, here: Path) -> Path:
    """What the server notes; it is configured and locked."""
    path = here / "record.txt"
    command = json.dumps([sys.executable, "-I", "-S", PROGRAM, "--record", str(path)])
    table = f'[mcp.fake]\ncommand = {command}\nprotocol = "handshake"\nmax_calls = 1\n'
    write("minions.toml", table)
    assert cli("mcp", "lock").code == 0
    write("r.yaml", RECIPE)
    return path


def test_a_question_of_a_server_waits_for_a_person_and_a_resumed_run_asks_the_server_again(
    cli: Cli, record: Path
) -> None:
    """A-135."""
    asked = cli("run", "r.yaml", "--db", "j.sqlite", "--json")
    assert asked.code == 3, asked.err
    run = str(asked.json["run_id"])
    for shown in (
        str(asked.json["error"]),
        cli("sessions", "show", run, "--db", "j.sqlite").out,
        cli("sessions", "show", run, "--db", "j.sqlite", "--json").out,
    ):
        assert "The MCP server 'fake' (python" in shown
        assert "in its tool 'asks'" in shown
        assert "> Whose account?" in shown
    answered = cli("answer", run, '{"name": "Eva"}', "--db", "j.sqlite", "--json")
    assert answered.code == 0, answered.err
    told = json.loads(str(answered.json["output"]))
    assert told == {"action": "accept", "content": {"name": "Eva"}}
    calls = [line for line in record.read_text().splitlines() if line == "call asks"]
    assert len(calls) == 2


def test_the_printed_commands_answer_and_decline_as_they_stand(cli: Cli, record: Path) -> None:
    """A-135."""
    asked = cli("run", "r.yaml", "--db", "j.sqlite")
    commands = [line.strip() for line in asked.err.splitlines() if line.startswith("  minions ")]
    assert [re.sub("run_[0-9a-f]+", "RUN", each) for each in commands] == [
        "minions answer RUN name=TEXT --db j.sqlite",
        "minions reject RUN --db j.sqlite  (declines to answer)",
    ]
    answered = cli(*shlex.split(commands[0])[1:])
    assert json.loads(answered.out) == {"action": "accept", "content": {"name": "TEXT"}}


def test_a_question_of_a_server_may_be_declined(cli: Cli, record: Path) -> None:
    """A-135."""
    run = str(cli("run", "r.yaml", "--db", "j.sqlite", "--json").json["run_id"])
    declined = cli("reject", run, "--db", "j.sqlite", "--json")
    assert declined.code == 0, declined.err
    assert json.loads(str(declined.json["output"])) == {"action": "decline"}


def test_an_answer_is_given_field_by_field(cli: Cli, record: Path) -> None:
    """A-135."""
    run = str(cli("run", "r.yaml", "--db", "j.sqlite", "--json").json["run_id"])
    wrong = cli("answer", run, "nom=Eva", "--db", "j.sqlite")
    assert (wrong.code, "fields as in `name=TEXT`: name (text)" in wrong.err) == (2, True), (
        wrong.err
    )
    answered = cli("answer", run, "said", "name=Eva Luna", "--db", "j.sqlite", "--json")
    assert json.loads(str(answered.json["output"]))["content"] == {"name": "Eva Luna"}


def test_a_call_that_writes_is_not_in_doubt_while_it_waits_for_a_person(
    cli: Cli, record: Path, here: Path
) -> None:
    """A-135."""
    (here / "r.yaml").write_text(RECIPE.replace("fake__asks", "fake__asks_and_writes"))
    asked = cli("run", "r.yaml", "--db", "j.sqlite", "--json")
    assert asked.code == 3, asked.err
    answered = cli("answer", str(asked.json["run_id"]), '{"name": "Eva"}', "--db", "j.sqlite")
    assert answered.code == 0, answered.err


LOOP = """\
id: both
tools:
  - mcp: fake
permissions: {allow_write: true}
max_parallel: 2
steps:
  - id: said
    loop: [x, y]
    tool: fake__asks_and_writes
    params: {what: "{{ loop.item }}"}
"""


def test_an_answer_repeats_the_call_that_asked_and_none_that_still_waits(
    cli: Cli, record: Path, write: Write
) -> None:
    """A-135."""
    write("both.yaml", LOOP)
    asked = cli("run", "both.yaml", "--db", "j.sqlite", "--json")
    assert asked.code == 3, asked.err
    run = str(asked.json["run_id"])
    for item, left in (("said[0]", 3), ("said[1]", 0)):
        done = cli("answer", run, item, '{"name": "Eva"}', "--db", "j.sqlite", "--json")
        assert done.code == left, done.err
    calls = [line for line in record.read_text().splitlines() if line.startswith("asks ")]
    assert sorted(calls) == ["asks x", "asks x", "asks y", "asks y"]


def test_an_answer_that_does_not_fit_the_servers_form_is_refused(cli: Cli, record: Path) -> None:
    asked = cli("run", "r.yaml", "--db", "j.sqlite", "--json")
    run = str(asked.json["run_id"])
    wrong = cli("answer", run, '{"nickname": "E"}', "--db", "j.sqlite")
    assert (wrong.code, "'name'" in wrong.err) == (2, True), wrong.err


ASKING = str(Path(PROGRAM).with_name("asking_mcp_server.py"))


def test_a_server_that_cannot_ask_without_a_handshake_is_asked_with_one_where_that_repeats_nothing(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-135: the protocol is chosen by itself, and the server is as the SDK makes it."""
    record = here / "record.txt"
    table = f"[mcp.lamps]\ncommand = {json.dumps([sys.executable, ASKING, str(record)])}\n"
    write("minions.toml", table)
    locked = cli("mcp", "lock")
    assert locked.code == 0, locked.err
    text = "id: r\ntools: [{mcp: lamps}]\npermissions: {allow_write: true}\nsteps:\n"
    write("once.yaml", f"{text}  - {{id: a, tool: lamps__order}}\n")
    refused = cli("run", "once.yaml", "--no-store")
    assert (refused.code, "mcp-needs-handshake" in refused.err) == (1, True), refused.err
    assert 'Set `protocol = "handshake"` in [mcp.lamps]' in refused.err
    assert "`minions mcp lock lamps`" in refused.err
    write("pure.yaml", f"{text}  - {{id: a, tool: lamps__price}}\noutput: '{{{{ a }}}}'\n")
    asked = cli("run", "pure.yaml", "--db", "j.sqlite")
    assert (asked.code, "colour=TEXT" in asked.err) == (3, True), asked.err
    assert record.read_text().splitlines() == ["order", "price", "price"]
