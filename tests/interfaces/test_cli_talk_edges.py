"""Sessions at the terminal where it gets narrow: names, hints, numbers, doubts, foreign text."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from command_line import Cli, Outcome, Write
from forked_commands import PROGRAM, ForkedCommand, run_forked
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.runtime import SystemClock
from minions.data.errors import NotFoundError
from minions.engine.services.run_services import Services
from minions.engine.sessions.store import StepRepository
from minions.engine.views.lookup import find_run
from minions.interfaces.cli.console.console import (
    say,
    tell,
)
from minions.interfaces.cli.console.render import (
    painter,
    plain,
)

DB = ("--db", "j.sqlite")
TALK = """
id: talk
inputs: {message: {type: string}}
steps:
  - id: answer
    memory: conversation
    goal: Answer the user.
"""
OWN = r"""
import os
import signal
from minions import ScriptedModel, tool
from minions.testing import tool_request

def answer(prompt):
    said = [each.content for each in prompt.messages if each.role == "user"]
    if said[-1] == "evil":
        return "\x1b]0;owned\x07\x1b[2J\x9bdone\n\tok"
    if said[-1] == "call" and prompt.messages[-1].role == "user":
        return tool_request("die")
    return f"{len(said)}: {said[-1]}"

own = ScriptedModel(answer, name="scripted/own")

@tool(effect="once")
def die() -> str:
    '''Die.'''
    os.kill(os.getpid(), signal.SIGKILL)
"""
CODE = ("--extensions", "own.py")
OWNED = (*CODE, "-m", "scripted/own", *DB)
Chat: TypeAlias = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("talk.yaml", TALK)
    write("own.py", OWN)


@pytest.fixture
def chat(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """The command with lines on standard input."""

    def talk(*arguments: str, says: tuple[str, ...] = ()) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in says)))
        return cli("chat", *arguments)

    return talk


def ask(cli: Cli, message: str, session: str) -> Outcome:
    return cli("run", "talk.yaml", "-p", f"message={message}", "--session", session, *OWNED)


# --- names --------------------------------------------------------------------------------------


def test_a_name_is_not_the_start_of_another_name(cli: Cli, chat: Chat) -> None:
    assert ask(cli, "one", "diary2").out == "1: one\n"
    assert ask(cli, "two", "diary").out == "1: two\n"
    assert ask(cli, "three", "diary").out == "2: three\n"
    talked = chat("talk.yaml", "--session", "dia", *OWNED, says=("four",))
    assert (talked.code, talked.out) == (0, "1: four\n"), talked.err


def test_a_start_will_do_of_what_begins_as_ids_do(cli: Cli, chat: Chat) -> None:
    assert chat("talk.yaml", *OWNED, says=("one",)).out == "1: one\n"
    (run,) = json.loads(cli("sessions", "list", "--json", *DB).out)
    assert ask(cli, "two", run["session_id"][:-1]).out == "2: two\n"
    assert ask(cli, "three", run["run_id"][:-1]).out == "3: three\n"


def test_an_id_wins_over_a_name_and_a_name_over_starts(cli: Cli) -> None:
    for name in ("a", "a-longer-one", "b-longer-one"):
        ask(cli, "one", name)
    for name in ("a", "b"):
        assert cli("fork", "a-longer-one", "--name", name, *DB).code == 0
    assert cli("sessions", "show", "a", *DB).out.startswith("session a · ")
    assert " (b) · recipe" in cli("sessions", "show", "b", *DB).out


def test_a_whole_id_means_that_session_for_every_command(cli: Cli) -> None:
    for name in ("diary", "diary2"):
        ask(cli, "one", name)
    differs = cli("sessions", "diff", "diary", "diary2", *DB)
    assert differs.code == 0, differs.err
    again = cli("retry", "diary", "--from", "answer", *OWNED)
    assert (again.code, again.out) == (0, "1: one\n"), again.err
    ended = cli("cancel", "diary", *DB)
    assert (ended.code, "has ended (completed)" in ended.err) == (2, True)
    decided = cli("resume", "diary", "--decide", "x=done", *OWNED)
    assert "is not unique" not in decided.err
    vague = cli("cancel", "diar", *DB)
    assert (vague.code, "'diar' is not unique" in vague.err) == (2, True)


def test_a_session_in_which_nothing_ran_is_not_another_one(cli: Cli) -> None:
    ask(cli, "one", "diary2")

    async def look() -> None:
        journal = SqliteJournal("j.sqlite", SystemClock())
        try:
            await StepRepository(Services(journal=journal)).create_session(session_id="diary")
            with pytest.raises(NotFoundError, match="Nothing ran yet in session 'diary'"):
                await find_run(journal, "diary")
            assert (await find_run(journal, "diary2")).session_id == "diary2"
            assert (await find_run(journal, "dia")).session_id == "diary2"
        finally:
            await journal.aclose()

    asyncio.run(look())


# --- hints --------------------------------------------------------------------------------------


def hints(told: str) -> Iterator[list[str]]:
    """The commands in the last line, without the program's name."""
    for part in told.strip().splitlines()[-1].split(" · "):
        yield shlex.split(part.partition(": minions ")[2])


def test_what_is_said_at_the_end_can_be_pasted(cli: Cli, chat: Chat) -> None:
    flags = ("--db", "my journal.sqlite", *CODE)
    first = chat("talk.yaml", *flags, "-m", "scripted/own", "--session", "s", says=("one",))
    (talk_on,) = hints(first.err)
    assert talk_on == ["chat", "--session", "s", *flags]
    assert chat(*talk_on[1:], says=("two",)).out == "2: two\n"
    forked = cli("fork", "s", *flags)
    talk_on, go_on = hints(forked.err)
    fork_id = forked.out.strip()
    assert talk_on == ["chat", "--session", fork_id, *flags]
    assert go_on == ["resume", fork_id, *flags]
    assert cli(*go_on).out == "2: two\n"
    assert chat(*talk_on[1:], says=("three",)).out == "3: three\n"


def test_after_a_cancellation_the_way_on_can_be_pasted(cli: Cli, write: Write) -> None:
    write("ask.yaml", "id: ask\nsteps: [{id: fine, ask: Fine?}]\n")
    assert cli("run", "ask.yaml", "--approve", "wait", "--session", "s", *DB).code == 3
    done = cli("cancel", "s", *DB)
    (go_on,) = (each for each in hints(done.err) if each)
    assert (go_on[0], go_on[2:]) == ("resume", list(DB))
    assert cli(*go_on, "--approve", "wait").code == 3


def test_configuration_is_not_repeated_in_what_is_pasted(
    cli: Cli, chat: Chat, write: Write
) -> None:
    write("minions.toml", 'db = "other.sqlite"\nextensions = ["own.py"]\n')
    done = chat("talk.yaml", "-m", "scripted/own", "--session", "s", says=("one",))
    assert list(hints(done.err)) == [["chat", "--session", "s"]]


# --- numbers ------------------------------------------------------------------------------------


def test_a_number_of_thousands_of_digits_is_no_number_of_a_message(cli: Cli, chat: Chat) -> None:
    many = "9" * 5000
    assert ask(cli, "one", "s").code == 0
    for command in ("/retry", "/fork"):
        done = chat("--session", "s", *OWNED, says=(f"{command} {many}",))
        assert (done.code, done.out) == (2, "")
        assert "error[bad-sequence]" in done.err
        assert len(done.err) < 500
    done = cli("retry", "s", "--from", many, *OWNED)
    assert (done.code, "error[bad-sequence]" in done.err) == (2, True)
    far = cli("retry", "s", "--from", "9" * 18, *OWNED)
    assert (far.code, "error[sequence-out-of-range]" in far.err) == (2, True)


# --- nothing said, nothing stored ---------------------------------------------------------------


def test_a_talk_without_a_word_leaves_nothing(cli: Cli, chat: Chat, write: Write) -> None:
    write("sum.yaml", "id: sum\nsteps: [{id: a, set: {n: 1}}]\n")
    assert ask(cli, "one", "s").code == 0
    for arguments, code in (
        (("talk.yaml", *OWNED), 0),
        (("talk.yaml", "--session", "new", *OWNED), 0),
        (("sum.yaml", *OWNED), 2),
        (("talk.yaml", *DB), 4),
    ):
        assert chat(*arguments).code == code
    done = chat("-c", *OWNED, says=("two",))
    assert (done.code, done.out) == (0, "2: two\n"), done.err
    assert cli("sessions", "show", "new", *DB).code == 2


@pytest.mark.parametrize("command", ["/fork", "/retry", "/resume"])
def test_commands_about_what_was_said_need_that_something_was(chat: Chat, command: str) -> None:
    done = chat("talk.yaml", *OWNED, says=(command,))
    assert (done.code, "error[empty-session]" in done.err) == (2, True), done.err


def test_a_talk_can_be_looked_at_before_its_first_word(chat: Chat) -> None:
    done = chat("talk.yaml", "--session", "new", *OWNED, says=("/session", "/cost", "/history"))
    assert (done.code, done.err.splitlines()) == (
        0,
        ["new: 0 messages", "0 messages, 0 tokens, $0.0000"],
    )


# --- doubts -------------------------------------------------------------------------------------


def test_a_call_in_doubt_asks_for_a_decision_by_its_exit_code(
    here: Path, cli: Cli, chat: Chat, write: Write
) -> None:
    tools = "permissions: {allow_write: true}\ntools: [die]\n"
    write("talk.yaml", TALK.replace("goal:", "tools: [die]\n    goal:") + tools)
    killed = run_forked(
        [*PROGRAM, "run", "talk.yaml", "-p", "message=call", "--session", "s", *OWNED],
        capture_output=True,
        check=False,
        cwd=here,
        timeout=60,
    )
    assert killed.returncode < 0, killed.stderr
    for done in (ask(cli, "well?", "s"), chat("--session", "s", *OWNED, says=("well?",))):
        assert (done.code, "error[call-in-doubt]" in done.err) == (3, True), done.err


# --- foreign text -------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x1b[2J\x9bdone\x7f\r\n\tok\rno"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\u009bdone\u007f" + "\r\n\tok" + r"\x0dno"


class Terminal(io.StringIO):
    """A screen."""

    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert plain(EVIL) == SHOWN
    red = painter(is_on=True)("no", "red")
    assert plain(f"{red} \x1b[31m{EVIL}", is_painted=True) == rf"{red} \x1b[31m{SHOWN}"
    assert plain(red) == r"\x1b[31;1mno\x1b[0m"
    assert json.loads(plain(json.dumps("\x9b\x7f", ensure_ascii=False))) == "\x9b\x7f"


def test_results_are_shown_on_a_terminal_and_in_a_pipe() -> None:
    """What a pipe leads to is shown on a terminal later."""
    for stream in (Terminal(), io.StringIO()):
        for is_output in (False, True):
            say(EVIL, stream, is_output=is_output)
        assert stream.getvalue() == f"{SHOWN}\n" * 2


def test_our_own_colours_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"{painter(is_on=True)('✗', 'red')} {EVIL}"
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    tell(line)  # nobody wants colours, so they are foreign, too
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    tell(line)
    first = rf"\x1b[31;1m✗\x1b[0m {SHOWN}"
    assert screen.getvalue() == f"{first}\n\x1b[31;1m✗\x1b[0m {SHOWN}\n"
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    tell(line)
    assert pipe.getvalue() == f"{first}\n"


def at_a_terminal(here: Path, *arguments: str, typed: str = "") -> str:
    """What a terminal of that command gets to see."""
    leader, follower = pty.openpty()
    process = ForkedCommand(
        [*PROGRAM, *arguments],
        cwd=here,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    os.write(leader, typed.encode())
    seen = b""
    try:
        while piece := os.read(leader, 4096):
            seen += piece
    except OSError:  # Linux says so where the other side is closed
        pass
    finally:
        os.close(leader)
        process.wait(timeout=60)
    return seen.decode("utf-8", "replace")


def test_a_models_words_do_not_command_the_terminal(here: Path, cli: Cli) -> None:
    asked = ("run", "talk.yaml", "-p", "message=evil", "--session", "s", *OWNED)
    screens = (
        at_a_terminal(here, *asked),
        at_a_terminal(here, "sessions", "show", "s", *DB),
        at_a_terminal(here, "chat", "--session", "s", *OWNED, typed="evil\n/history\n/quit\n"),
    )
    for seen in screens:
        assert r"\x1b]0;owned\x07\x1b[2J\u009bdone" in seen
        for foreign in ("\x1b]0;owned", "\x07", "\x1b[2J", "\x9b"):
            assert foreign not in seen
    assert cli(*asked).out == "\\x1b]0;owned\\x07\\x1b[2J\\u009bdone\n\tok\n"
    assert cli(*asked, "--json").json["output"] == "\x1b]0;owned\x07\x1b[2J\x9bdone\n\tok"
