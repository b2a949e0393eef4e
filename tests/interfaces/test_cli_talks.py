"""Sessions at the terminal: chat, fork, resume and retry of messages, cancel, run --session."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from command_line import Cli, Write
from forked_commands import PROGRAM, ForkedCommand, run_forked
from patience import HANG_S

DB = ("--db", "j.sqlite")
TALK = """
id: talk
inputs: {message: {type: string}}
steps:
  - id: answer
    memory: conversation
    goal: Answer the user.
"""
ECHO = """
import asyncio
from pathlib import Path
from minions import ScriptedModel

async def answer(prompt):
    said = [each.content for each in prompt.messages if each.role == "user"]
    if said[-1] == "hang" and not Path("calm").exists():
        Path("hanging").touch()
        await asyncio.sleep(3600)
    return f"{len(said)}: {said[-1]}"

echo = ScriptedModel(answer, name="scripted/echo")
"""
ECHOED = ("--extensions", "echo.py", "-m", "scripted/echo", *DB)


@pytest.fixture
def talk(here: Path, write: Write) -> Path:
    write("talk.yaml", TALK)
    write("echo.py", ECHO)
    return here


def chat(here: Path, *lines: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PROGRAM, "chat", *(flags or ("talk.yaml", "--session", "s")), *ECHOED],
        cwd=here,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_talk_goes_on_in_another_process(talk: Path) -> None:
    first = chat(talk, "one", "two")
    assert (first.returncode, first.stdout) == (0, "1: one\n2: two\n"), first.stderr
    assert "continue: minions chat --session s" in first.stderr
    second = chat(talk, "three", flags=("-c",))
    assert (second.returncode, second.stdout) == (0, "3: three\n"), second.stderr


def test_commands_of_a_talk_act_on_its_messages(talk: Path) -> None:
    done = chat(
        talk, "one", "two", "/retry", "/history", "/cost", "/fork 2", "three", "/session", "/hlep"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1: one\n2: two\n2: two\n2: three\n"
    assert "regenerated: messages 4 to 4, which took " in done.stderr
    assert "   3 user  two" in done.stderr
    assert "4 messages, " in done.stderr
    assert "which starts with messages 1 to 2 of s" in done.stderr
    assert "There is no command /hlep. Did you mean '/help'?" in done.stderr


def test_a_recipe_that_nobody_can_talk_with_is_refused_before_a_word(
    here: Path, write: Write
) -> None:
    write("echo.py", ECHO)
    write("sum.yaml", "id: sum\nsteps: [{id: a, set: {n: 1}}]\n")
    write(
        "alone.yaml", "id: alone\ninputs: {message: {type: string}}\nsteps: [{id: a, goal: Go}]\n"
    )
    for name, words in (("sum", "takes no input 'message'"), ("alone", "`memory: conversation`")):
        done = chat(here, "hi", flags=(f"{name}.yaml",))
        assert (done.returncode, done.stdout) == (2, "")
        assert "error[not-a-conversation]" in done.stderr
        assert words in done.stderr


def test_runs_of_one_session_go_on_with_what_was_said(talk: Path, cli: Cli) -> None:
    for number, message in ((1, "one"), (2, "two")):
        done = cli("run", "talk.yaml", "-p", f"message={message}", "--session", "diary", *ECHOED)
        assert (done.code, done.out) == (0, f"{number}: {message}\n"), done.err
    last = cli("run", "talk.yaml", "-p", "message=three", "-c", *ECHOED)
    assert last.out == "3: three\n"
    wrong = cli("run", "talk.yaml", "-p", "message=x", "--session", "ses_nope", *ECHOED)
    assert (wrong.code, "No session starts with 'ses_nope'" in wrong.err) == (2, True)
    both = cli("run", "talk.yaml", "-p", "message=x", "--session", "a", "-c", *ECHOED)
    assert both.code == 2


def test_a_fork_is_made_and_gone_on_with(talk: Path, cli: Cli) -> None:
    chat(talk, "one", "two")
    forked = cli("fork", "s", "--at", "3", *DB)
    assert forked.code == 0, forked.err
    fork_id = forked.out.strip()
    assert f"{fork_id} starts with messages 1 to 3 of s, which has 4" in forked.err
    resumed = cli("resume", fork_id, *ECHOED)
    assert (resumed.code, resumed.out) == (0, "2: two\n"), resumed.err
    told = cli("resume", fork_id, *ECHOED)
    assert (told.code, told.out) == (0, "2: two\n")
    assert "nothing is done again" in told.err
    beyond = cli("fork", "s", "--at", "9", *DB)
    assert beyond.code == 2
    assert "its steps are 1 to 4" in beyond.err


def test_a_message_is_regenerated_and_told_what_it_took(talk: Path, cli: Cli) -> None:
    chat(talk, "one", "two")
    done = cli("retry", "s", "--from", "2", *ECHOED)
    assert (done.code, done.out) == (0, "1: one\n"), done.err
    assert "messages 1 to 1 of s stay" in done.err
    assert "regenerated: 2 to 4 (" in done.err
    nothing = cli("retry", "s", "--from", "1", *ECHOED)
    assert nothing.code == 2
    assert "would leave no question to answer. Nothing was stored." in nothing.err


def _start(here: Path, *arguments: str) -> subprocess.Popen[str]:
    return ForkedCommand(
        [*PROGRAM, *arguments, *ECHOED],
        cwd=here,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


def test_a_turn_that_was_killed_is_resumed_by_its_session(talk: Path, cli: Cli) -> None:
    """A-85: the question stays, and the answer comes."""
    chat(talk, "one")
    process = _start(talk, "run", "talk.yaml", "-p", "message=hang", "--session", "s")
    _wait_for(talk / "hanging")
    process.kill()
    process.communicate()
    (talk / "calm").touch()
    done = cli("resume", "s", *ECHOED)
    assert (done.code, done.out) == (0, "2: hang\n"), done.err
    assert chat(talk, "three").stdout == "3: three\n"


def test_a_run_is_cancelled_from_another_process(talk: Path, cli: Cli) -> None:
    process = _start(talk, "run", "talk.yaml", "-p", "message=hang", "--session", "s")
    _wait_for(talk / "hanging")
    done = cli("cancel", "s", "--json", *DB)
    assert done.code == 0, done.err
    assert done.json["status"] == "cancelled"
    again = cli("cancel", "s", *DB)
    assert (again.code, "has ended (cancelled)" in again.err) == (2, True)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode != 0
    (listed,) = json.loads(cli("sessions", "list", "--json", *DB).out)
    assert listed["status"] == "cancelled", err
    (talk / "calm").touch()
    resumed = cli("resume", str(listed["run_id"]), *ECHOED)
    assert (resumed.code, resumed.out) == (0, "1: hang\n"), resumed.err


def test_control_c_stops_the_turn_and_not_the_talk(talk: Path) -> None:
    leader, follower = pty.openpty()
    process = ForkedCommand(
        [*PROGRAM, "chat", "talk.yaml", "--session", "s", *ECHOED],
        cwd=talk,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(follower)
    seen = ""

    def read_until(words: str) -> None:
        nonlocal seen
        while words not in seen:
            seen += os.read(leader, 4096).decode("utf-8", "replace")

    def type_(line: str) -> None:
        os.write(leader, line.encode())

    try:
        read_until("> ")
        type_("one\n")
        read_until("1: one")
        type_("hang\n")
        _wait_for(talk / "hanging")
        process.send_signal(signal.SIGINT)
        read_until("stopping this turn")
        (talk / "calm").touch()
        type_("/resume\n")
        read_until("2: hang")
        type_("three\n")
        read_until("3: three")
        type_("/quit\n")
        read_until("continue: minions chat --session s")
        assert process.wait(timeout=HANG_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def test_without_a_model_a_talk_says_what_to_try(here: Path, cli: Cli) -> None:
    done = cli("chat", *DB)
    assert (done.code, done.out) == (4, "")
    assert "  minions chat -m ollama/llama3.2   (a local server, no key)\n" in done.err


ASKING = """
id: asking
inputs: {message: {type: string}}
permissions: {allow_write: true, requires_approval: [send]}
tools: [send]
steps:
  - {id: answer, memory: conversation, goal: Answer., tools: [send]}
  - {id: check, memory: conversation, goal: Is that polite?}
"""
SENDING = """
from minions import ScriptedModel, tool
from minions.testing import tool_request

@tool(effect="once")
def send() -> str:
    '''Send.'''
    return "sent"

def answer(prompt):
    last = prompt.messages[-1]
    return tool_request("send") if last.content == "send" else f"after {last.content}"

model = ScriptedModel(answer, name="scripted/sending")
"""


def test_nobody_talks_while_a_step_waits_for_a_person(here: Path, write: Write, cli: Cli) -> None:
    write("asking.yaml", ASKING)
    write("own.py", SENDING)
    own = ("--extensions", "own.py", "-m", "scripted/sending", *DB)
    waits = ("run", "asking.yaml", "-p", "message=send", "--session", "s", "--approve", "wait")
    done = cli(*waits, *own)
    assert done.code == 3, done.err
    (listed,) = json.loads(cli("sessions", "list", "--json", *DB).out)
    approved = cli("approve", str(listed["run_id"]), *own)
    assert (approved.code, approved.out) == (0, "after Is that polite?\n"), approved.err
    shown = cli("sessions", "show", str(listed["run_id"]), "--messages", *DB).out
    assert "after sent" in shown


def test_what_a_refused_call_says_is_what_the_session_holds(
    here: Path, write: Write, cli: Cli
) -> None:
    write("asking.yaml", ASKING)
    write("own.py", SENDING)
    done = run_forked(
        [*PROGRAM, "chat", "asking.yaml", "--extensions", "own.py", "-m", "scripted/sending", *DB],
        input="send\n/history\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr  # in a conversation the model reads it and continues
    assert "   3 tool send  Error: The tool 'send' needs approval" in done.stderr


def test_a_session_is_shown_with_its_messages_and_branches(talk: Path, cli: Cli) -> None:
    chat(talk, "one", "two")
    fork_id = cli("fork", "s", "--at", "2", "--name", "other", *DB).out.strip()
    shown = cli("sessions", "show", "other", *DB)
    lines = shown.out.splitlines()
    assert lines[0] == f"session {fork_id} (other) · recipe talk"
    assert lines[1].startswith("2 messages · ")
    assert lines[2:] == [
        "   1  user: one",
        "   2  assistant: 1: one",
        "branches:",
        "  s",
        f"    {fork_id} at 2  ← this one",
    ]
    told = cli("sessions", "show", "s", "--json", *DB).json
    assert [step["content"] for step in told["steps"]] == ["one", "1: one", "two", "2: two"]  # type: ignore[union-attr, call-overload, index]  # known by its form


def test_what_was_given_to_a_talk_holds_until_something_else_is_given(
    talk: Path, write: Write, cli: Cli
) -> None:
    write(
        "toned.yaml",
        "id: toned\ninputs: {message: {type: string}, tone: {type: string, default: kind}, "
        "most: {type: integer, default: 1}}\nsteps:\n"
        "  - {id: say, set: {text: '{{ inputs.tone }} {{ inputs.most + 1 }}'}}\n"
        "  - {id: answer, memory: conversation, goal: Answer.}\n"
        "output: '{{ say.text }}'\n",
    )
    began = ("run", "toned.yaml", "-p", "message=x", "-p", "tone=cool", "--session", "t")
    assert cli(*began, *ECHOED).out == "cool 2\n"
    on = chat(talk, "y", flags=("--session", "t"))
    assert on.stdout == "2: y\ncool 2\n"
    warm = chat(talk, "z", flags=("--session", "t", "-p", "tone=warm", "-p", "most=4"))
    assert warm.stdout == "3: z\nwarm 5\n"
    assert chat(talk, "z", flags=("-c",)).stdout.endswith("warm 5\n")
    fork = cli("fork", "t", "--at", "3", "-p", "tone=cold", *DB)
    assert fork.code == 0, fork.err
    assert cli("resume", fork.out.strip(), *ECHOED).out == "cold 5\n"
    wrong = cli("fork", "t", "-p", "tune=cold", *DB)
    assert (wrong.code, "There is no input 'tune'" in wrong.err) == (2, True)
