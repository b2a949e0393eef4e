"""`minions resume` and `minions retry`: what they refuse, what they say, where they go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Cli, Outcome, Write

OWN = """
from pathlib import Path
from minions import tool

@tool(effect="pure")
def look(n: int) -> int:
    '''Looks.'''
    return n + 1

@tool(effect="once")
def send(text: str) -> str:
    '''Fails as long as there is no file `calm`.'''
    if not Path("calm").exists():
        raise TypeError("not now")
    return "sent " + text
"""
ANSWERS = "answers: [one, two, three]\n"
RECIPE = """
id: chain
permissions: {allow_write: true}
tools: [{files: {root: .}}]
steps:
  - {id: ask, goal: "Ask"}
  - {id: mail, tool: send, params: {text: "{{ ask }}"}}
  - {id: note, tool: files__write, params: {path: out.txt, text: "{{ mail }}"}}
"""
FLAGS = ("--db", "j.sqlite", "--extensions", "own.py")


def only_run(cli: Cli) -> str:
    (listed,) = json.loads(cli("sessions", "list", "--db", "j.sqlite", "--json").out)
    return str(listed["run_id"])


@pytest.fixture
def failed(write: Write, cli: Cli) -> str:
    """A run whose second step failed."""
    write("own.py", OWN)
    write("answers.yaml", ANSWERS)
    write("chain.yaml", RECIPE)
    assert cli("run", "chain.yaml", "-m", "scripted/answers.yaml", *FLAGS).code == 1
    return only_run(cli)


def last_line(done: Outcome) -> str:
    return done.err.strip().splitlines()[-1]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["resume", "retry"])
def test_what_cannot_be_is_refused_in_words(cli: Cli, command: str, failed: str) -> None:
    both = cli(command, failed, "--json", "--events", *FLAGS)
    assert (both.code, "--json and --events exclude each other" in both.err) == (2, True)
    unstored = cli(command, failed, "--no-store")
    assert (unstored.code, "Without a journal there is no run" in unstored.err) == (2, True)
    elsewhere = cli(command, failed, "--db", "other.sqlite")
    assert elsewhere.code == 2
    place = Path("other.sqlite").resolve()
    assert f"The journal is {place}, which does not exist." in elsewhere.err


def test_two_decisions_about_one_call_are_refused(cli: Cli, failed: str) -> None:
    done = cli("resume", failed, "--decide", "x=redo", "--decide", "x=done", *FLAGS)
    assert (done.code, "two decisions about 'x'" in done.err) == (2, True)


def test_sessions_show_says_which_journal_it_looked_in(cli: Cli) -> None:
    done = cli("sessions", "show", "run_9", "--db", "j.sqlite")
    assert (done.code, str(Path("j.sqlite").resolve()) in done.err) == (2, True)


def test_code_that_a_run_began_with_and_that_is_not_named_now_is_named(
    cli: Cli, failed: str, here: Path
) -> None:
    done = cli("retry", failed, "--db", "j.sqlite")
    assert done.code == 2
    assert f"The run was started with --extensions {here / 'own.py'}" in done.err


# --- where it goes on -----------------------------------------------------------------------------


def test_a_run_goes_on_in_the_folder_where_it_began(
    cli: Cli, failed: str, here: Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    """A relative path of a tool must not mean another file because somebody stands elsewhere."""
    write("calm", "")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    done = cli("retry", failed, "--db", "../j.sqlite", "--extensions", "../own.py")
    assert done.code == 0, done.err
    assert f"in {here}, where it was started" in done.err
    assert (here / "out.txt").read_text() == "sent one"
    assert Path.cwd() == here / "elsewhere"


def test_a_run_whose_folder_is_gone_is_refused(
    cli: Cli, here: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("own.py", OWN)
    write("answers.yaml", ANSWERS)
    write("chain.yaml", RECIPE)
    place = here / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    flags = ("--db", "../j.sqlite", "--extensions", "../own.py")
    assert cli("run", "../chain.yaml", "-m", "scripted/../answers.yaml", *flags).code == 1
    monkeypatch.chdir(here)
    run_id = only_run(cli)
    place.rmdir()
    done = cli("retry", run_id, *FLAGS)
    assert (done.code, f"was started in {place}" in done.err) == (4, True)


def test_the_model_that_was_named_last_answers_next_time(
    cli: Cli, failed: str, write: Write
) -> None:
    write("other.yaml", "answers: [other one, other two]\n")
    assert cli("retry", failed, "-m", "scripted/other.yaml", *FLAGS).code == 1
    write("calm", "")
    done = cli("retry", failed, "--from", "ask", "--json", *FLAGS)
    assert (done.json["model"], done.json["status"]) == ("scripted/other.yaml", "completed")


# --- what is said ---------------------------------------------------------------------------------


def test_who_answers_is_said_when_a_run_goes_on(cli: Cli, failed: str, write: Write) -> None:
    write("calm", "")
    done = cli("retry", failed, *FLAGS)
    assert "model scripted/answers.yaml (scripted: no real model is asked)" in done.err


def test_a_retry_names_the_effects_that_may_come_again(cli: Cli, failed: str) -> None:
    assert "may have their effect a second time: send in mail" in cli("retry", failed, *FLAGS).err


def test_a_run_that_is_over_tells_its_end_as_an_event(cli: Cli, failed: str, write: Write) -> None:
    write("calm", "")
    assert cli("retry", failed, *FLAGS).code == 0
    done = cli("resume", failed, "--events", *FLAGS)
    assert f"run {failed} has its output; no step runs again" in done.err
    (event,) = [json.loads(line) for line in done.out.splitlines()]
    assert (event["type"], event["data"]["response"]["path"]) == ("run_completed", "out.txt")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("max_steps: 1", "raise the limit: minions retry {} --recipe EDITED.yaml"),
        ("timeout_s: 0.001", "resume: minions resume {}"),
    ],
)
def test_a_reached_limit_ends_with_the_command_that_helps(
    cli: Cli, write: Write, limit: str, words: str
) -> None:
    """To resume under the same number of steps would stop at the same place for ever."""
    write("own.py", OWN)
    write(
        "lim.yaml",
        f"id: lim\nlimits: {{{limit}}}\nsteps:\n"
        "  - {id: a, tool: look, params: {n: 1}}\n"
        "  - {id: b, tool: look, params: {n: '{{ a }}'}}\n",
    )
    done = cli("run", "lim.yaml", *FLAGS)
    assert done.code == 5
    rest = f"{only_run(cli)[:8]} --db j.sqlite --extensions own.py"
    assert last_line(done).endswith(words.format(rest))


def test_steps_that_an_edit_took_away_are_not_shown(cli: Cli, failed: str, write: Write) -> None:
    write("short.yaml", "id: chain\nsteps: [{id: ask, goal: Ask}, {id: new, set: {x: 1}}]\n")
    assert cli("retry", failed, "--recipe", "short.yaml", *FLAGS).code == 0
    shown = cli("sessions", "show", failed, "--db", "j.sqlite", "--json")
    assert [step["step_id"] for step in json.loads(shown.out)["steps"]] == ["ask", "new"]


def test_a_step_that_is_kept_is_not_shown_as_passed_over(
    cli: Cli, write: Write, here: Path
) -> None:
    """The leg in which it was passed over is not the last one."""
    write("own.py", OWN)
    recipe = (
        "id: kept\nlimits: {%s}\nsteps:\n  - {id: a, tool: look, params: {n: %s}}\n"
        "  - {id: b, tool: look, params: {n: 5}}\n"
    )
    write("kept.yaml", recipe % ("max_steps: 9", 1))
    assert cli("run", "kept.yaml", *FLAGS).code == 0
    run_id = only_run(cli)
    write("edited.yaml", recipe % ("timeout_s: 0.000001", 2))
    assert cli("retry", run_id, "--recipe", "edited.yaml", *FLAGS).code == 5
    write("edited.yaml", recipe % ("max_steps: 9", 2))
    assert cli("retry", run_id, "--recipe", "edited.yaml", *FLAGS).code == 0
    shown = cli("sessions", "show", run_id, "--db", "j.sqlite").out
    assert "a: completed" in shown
    assert "b: completed" in shown


def test_a_retry_takes_other_inputs(cli: Cli, write: Write) -> None:
    """Also of a run that completed; steps that do not read them are not run again."""
    write("own.py", OWN)
    write("calm", "")
    write(
        "two.yaml",
        "id: two\npermissions: {allow_write: true}\ninputs: {a: 1, b: x}\nsteps:\n"
        '  - {id: mail, tool: send, params: {text: "{{ inputs.b }}"}}\n'
        '  - {id: other, set: {n: "{{ inputs.a + 1 }}"}}\n'
        'output: "{{ mail }}, {{ other.n }}"\n',
    )
    assert cli("run", "two.yaml", *FLAGS).out == "sent x, 2\n"
    again = cli("retry", only_run(cli), "-p", "a=5", *FLAGS)
    assert (again.code, again.out) == (0, "sent x, 6\n"), again.err
    wrong = cli("retry", only_run(cli), "-p", "c=5", *FLAGS)
    assert (wrong.code, "There is no input 'c'" in wrong.err) == (2, True)


def test_an_unknown_input_of_a_retry_is_the_only_fault(cli: Cli, write: Write) -> None:
    """The others are those of the run, and none is missing."""
    write("own.py", OWN)
    write("must.yaml", "id: must\ninputs: {a: number}\nsteps: [{id: x, set: {n: 1}}]\n")
    assert cli("run", "must.yaml", "-p", "a=1", *FLAGS).code == 0
    wrong = cli("retry", only_run(cli), "-p", "aa=5", *FLAGS)
    assert (wrong.code, "Did you mean 'a'?" in wrong.err) == (2, True)
    assert "missing" not in wrong.err
