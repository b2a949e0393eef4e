"""`minions resume` and `minions retry`: killed, stopped and failed runs from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from command_line import Cli, Write
from forked_commands import PROGRAM, ForkedCommand, run_forked
from minions.adapters.stores.sqlite_journal import SqliteJournal
from patience import HANG_S

OWN = """
import asyncio, os, signal, time
from pathlib import Path
from minions import tool

EFFECTS = Path(__file__).with_name("effects.txt")

def count(name):
    with EFFECTS.open("a") as file:
        file.write(name + "\\n")
    return EFFECTS.read_text().split().count(name)

@tool(effect="pure")
def look(n: int) -> int:
    '''Looks.'''
    count("look")
    return n + 1

@tool(effect="idempotent")
async def note(text: str) -> str:
    '''Dies the first time, after its effect.'''
    if count("note") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "noted " + text

@tool(effect="once")
def send(text: str) -> str:
    '''Likewise.'''
    if count("send") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "sent"

@tool(effect="pure")
async def blocks_the_loop() -> int:
    '''Lets nobody else work.'''
    count("blocks")
    print("hanging", flush=True)
    time.sleep(0 if Path("calm").exists() else 3600)
    return 1

@tool(effect="pure")
async def clings() -> int:
    '''Does not let itself be cancelled.'''
    count("clings")
    print("hanging", flush=True)
    while not Path("calm").exists():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
    return 1
"""
RECIPE = """
id: chain
permissions: {allow_write: true}
tools: [look, note, send]
inputs: {n: {type: integer, default: 1}}
steps:
  - {id: first, tool: look, params: {n: "{{ inputs.n }}"}}
  - {id: second, tool: %s, params: {text: "t{{ first }}"}}
  - {id: third, set: {said: "{{ second }}", n: "{{ first }}"}}
"""


FLAGS = ("--db", "j.sqlite", "--extensions", "own.py")


def run(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PROGRAM, *arguments, *FLAGS],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def only_run(cli: Cli) -> str:
    (listed,) = json.loads(cli("sessions", "list", "--db", "j.sqlite", "--json").out)
    return str(listed["run_id"])


def test_a_killed_run_goes_on_with_the_recipe_it_began_with(
    here: Path, write: Write, cli: Cli
) -> None:
    """A-106: neither an edit nor the loss of the file matters."""
    write("own.py", OWN)
    write("chain.yaml", RECIPE % "note")
    assert run(here, "run", "chain.yaml", "-p", "n=4").returncode == -signal.SIGKILL
    run_id = only_run(cli)
    assert "interrupted" in cli("sessions", "list", "--db", "j.sqlite").out
    write("chain.yaml", "id: chain\nsteps: [{id: other, set: {n: 1}}]\n")
    (here / "chain.yaml").unlink()
    done = run(here, "resume", run_id)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"said": "noted t5", "n": 5}
    assert "replayed: first" in done.stderr
    assert "begun: second" in done.stderr
    assert (here / "effects.txt").read_text().split() == ["look", "note", "note"]
    again = run(here, "resume", run_id[:8], "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["output"] == {"said": "noted t5", "n": 5}
    assert (here / "effects.txt").read_text().split() == ["look", "note", "note"]


def test_a_call_in_doubt_ends_with_exit_3_and_a_command_that_decides(
    here: Path, write: Write, cli: Cli
) -> None:
    write("own.py", OWN)
    write("chain.yaml", RECIPE % "send")
    assert run(here, "run", "chain.yaml").returncode == -signal.SIGKILL
    run_id = only_run(cli)
    waiting = run(here, "resume", run_id)
    assert waiting.returncode == 3
    assert "error[in-doubt]" in waiting.stderr
    assert 'send({"text":"t2"}) in step' in waiting.stderr
    assert "=done --db j.sqlite --extensions own.py`" in waiting.stderr  # to paste it
    last = waiting.stderr.strip().splitlines()[-1]
    assert (
        f"resume: minions resume {run_id[:8]} --db j.sqlite --extensions own.py --decide " in last
    )
    assert last.endswith("=…")  # for a person to fill in
    wrong = run(here, "resume", run_id, "--decide", "send")
    assert (wrong.returncode, "write it as CALL=redo" in wrong.stderr) == (2, True)
    done = run(here, "resume", run_id, "--decide", 'send=done:"by hand"')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"said": "by hand", "n": 2}
    assert (here / "effects.txt").read_text().split() == ["look", "send"]


@pytest.mark.parametrize("tool", ["blocks_the_loop", "clings"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_code_that_does_not_let_go_is_left_after_two_seconds_and_the_run_goes_on_later(
    here: Path, write: Write, tool: str, number: signal.Signals
) -> None:
    write("own.py", OWN)
    write(
        "hang.yaml",
        f"id: hang\nsteps: [{{id: a, set: {{n: 1}}}}, {{id: b, tool: {tool}, depends_on: [a]}}]\n",
    )
    process = ForkedCommand(
        [*PROGRAM, "run", "hang.yaml", *FLAGS],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any("hanging" in line for line in process.stderr)
    process.send_signal(number)
    _, err = process.communicate(timeout=HANG_S)  # the tool itself would hang for much longer
    assert process.returncode == 128 + number
    last = err.strip().splitlines()[-1]
    assert last.startswith("resume: minions resume run_")
    assert "Traceback" not in err
    write("calm", "")
    words = last.removeprefix("resume: minions ").split()
    done = run_forked(
        [*PROGRAM, *words],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == 1


def test_two_processes_cannot_go_on_with_one_run(here: Path, write: Write, cli: Cli) -> None:
    """One wins, the other says who has it."""
    write("own.py", OWN)
    write("hang.yaml", "id: hang\nsteps: [{id: b, tool: clings}]\n")
    first = ForkedCommand(
        [*PROGRAM, "run", "hang.yaml", *FLAGS], cwd=here, stderr=subprocess.PIPE, text=True
    )
    try:
        assert first.stderr is not None
        assert any("hanging" in line for line in first.stderr)
        run_id = only_run(cli)
        second = run(here, "resume", run_id)
        assert second.returncode == 4
        assert f"run '{run_id}' is active on worker" in second.stderr
        assert f":{first.pid}:" in second.stderr
    finally:
        first.kill()
        first.wait()
        assert first.stderr is not None
        first.stderr.close()
    write("calm", "")
    assert run(here, "resume", run_id).returncode == 0


def test_the_run_goes_on_with_the_model_it_was_told(here: Path, write: Write, cli: Cli) -> None:
    """`-m` travels with the run, and its script goes on where it was."""
    write("own.py", OWN)
    write("answers.yaml", "answers: [one, two, three]\n")
    write(
        "ask.yaml",
        "id: ask\npermissions: {allow_write: true}\ntools: [note]\nsteps:\n"
        "  - {id: a, goal: A}\n  - {id: b, tool: note, params: {text: '{{ a }}'}}\n"
        "  - {id: c, goal: 'C {{ b }}'}\n",
    )
    killed = run(here, "run", "ask.yaml", "-m", "scripted/answers.yaml")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (here / "elsewhere").mkdir()
    flags = ("--db", "../j.sqlite", "--extensions", "../own.py")
    done = run_forked(
        [*PROGRAM, "resume", only_run(cli), "--json", *flags],
        cwd=here / "elsewhere",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == "two"


def test_what_failed_is_tried_again_with_an_edited_recipe(
    here: Path, write: Write, cli: Cli
) -> None:
    """Only the failed and the changed steps run: the others are kept."""
    write("own.py", OWN)
    recipe = """
id: mend
tools: [look]
steps:
  - {id: a, tool: look, params: {n: 1}}
  - {id: b, tool: look, params: {n: "{{ a }}"}}
  - {id: c, tool: look, params: {n: "{{ %s }}"}}
  - {id: d, tool: look, params: {n: "{{ b + c }}"}}
"""
    write("mend.yaml", recipe % "'none'")
    failed = run(here, "run", "mend.yaml")
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    run_id = only_run(cli)
    assert f"minions retry {run_id[:8]}" in last
    refused = run(here, "resume", run_id)
    assert refused.returncode == 2
    assert f"`minions retry {run_id}` runs what failed again" in refused.stderr
    same = run(here, "retry", run_id)
    assert same.returncode == 1
    write("edited.yaml", recipe % "5")
    done = run(here, "retry", run_id, "--recipe", "edited.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == 10
    assert (here / "effects.txt").read_text().split() == ["look"] * 4  # a, b, then c and d
    nothing = run(here, "retry", run_id)
    assert (nothing.returncode, "nothing failed" in nothing.stderr) == (2, True)
    later = run(here, "retry", run_id, "--from", "b")
    assert later.returncode == 0
    assert (here / "effects.txt").read_text().split() == ["look"] * 6  # b and d
    unknown = run(here, "retry", run_id, "--from", "bb")
    assert "has no step 'bb'" in unknown.stderr


def test_the_journal_is_closed_where_there_is_no_such_run(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "j.sqlite").touch()
    closed: list[SqliteJournal] = []
    close = SqliteJournal.aclose

    async def aclose(journal: SqliteJournal) -> None:
        closed.append(journal)
        await close(journal)

    monkeypatch.setattr(SqliteJournal, "aclose", aclose)
    assert cli("retry", "run_none", "--db", "j.sqlite").code == 2
    assert len(closed) == 1
