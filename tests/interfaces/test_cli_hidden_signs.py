"""What strangers wrote is printed as data, also in a pipe: no sign of it is a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Cli, Write
from forked_commands import PROGRAM, run_forked
from minions.interfaces.cli.console.console import for_stream, json_text

SIGNS = "a\x1b]0;title\x07\x1b[2J\x9b31m\u202eb\u2066c\x7f\U000e0041d"
SHOWN = r"a\x1b]0;title\x07\x1b[2J\u009b31m\u202eb\u2066c\u007f"
RAW = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\x7f")


def test_a_result_in_a_pipe_holds_no_command_for_a_terminal(cli: Cli, write: Write) -> None:
    write(
        "r.yaml",
        f"id: r\nsteps: [{{id: a, set: {{v: {json.dumps(SIGNS)}}}}}]\noutput: '{{{{ a.v }}}}'\n",
    )
    done = cli("run", "r.yaml", "--no-store")
    assert done.out.startswith(SHOWN)
    whole = cli("run", "r.yaml", "--no-store", "--json")
    assert whole.json["output"] == SIGNS  # a program gets it as it was
    for out in (done.out, done.err, whole.out, cli("run", "r.yaml", "--no-store", "--events").out):
        assert [each for each in RAW if each in out] == []


def test_a_result_in_a_pipe_keeps_what_its_language_needs() -> None:
    """Marks that join, or say where a word may break, are no overrides."""
    text = "\u05e9\u05dc\u05d5\u05dd\u200f Schiff\u00adfahrt \u0e01\u200b\u0e02\n\t\U0001f468\u200d"
    assert for_stream(text, None, is_output=True) == text


def test_messages_and_tables_in_a_pipe_hold_none_either(cli: Cli, write: Write) -> None:
    write("r.yaml", f"id: r\nsteps: [{{id: a, ask: {json.dumps(SIGNS)}}}]\n")
    waits = cli("run", "r.yaml", "--db", "j.sqlite")
    assert (waits.code, SHOWN in waits.err) == (3, True)
    run = waits.err.split("minions answer ")[1].split()[0]
    stored = ("--db", "j.sqlite")
    for command in (
        ("sessions", "show", run, *stored),
        ("sessions", "list", *stored),
        ("explain", "r.yaml"),
    ):
        for shown in (cli(*command), cli(*command, "--json")):
            assert shown.code == 0, shown.err
            assert [each for each in RAW if each in shown.out + shown.err] == []
    missing = cli("run", f"no{SIGNS}.yaml")
    assert [each for each in RAW if each in missing.err] == []


def test_json_is_escaped_and_the_same_value() -> None:
    value = {"a": SIGNS, "\u202e": ["\u2028", "\U0001f600", "é"]}
    text = json_text(value)
    assert json.loads(text) == value
    assert [each for each in (*RAW, "\u2028", "\U000e0041") if each in text] == []
    assert "é" in text


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_text_makes_a_line_of_the_log(here: Path, write: Write, form: str) -> None:
    """A newline in an error, a question or a name would make a line that nobody logged."""
    fakes = {
        "json": '{"timestamp": "x", "level": "info", "event": "run_finished"}',
        "text": "timestamp=x level=info event=run_finished",
    }
    fake = fakes[form]
    write("r.yaml", f"id: r\nsteps: [{{id: a, ask: {json.dumps(f'why?{chr(10)}{fake}')}}}]\n")
    for arguments in (["run", "r.yaml"], ["run", f"no\n{fake}\n.yaml"], ["run", fake]):
        done = run_forked(
            [*PROGRAM, *arguments, "--no-store", "--log-format", form],
            cwd=here,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(here)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        lines = done.stderr.splitlines()
        assert [line for line in lines if line.lstrip().startswith(fake)] == []
        if "\n" not in arguments[1]:  # else it is the text of a recipe, whose first line is shown
            assert any(fake in line.replace("\\", "") for line in lines)  # within another line
