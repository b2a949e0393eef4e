"""Text in an ASCII locale: what comes in is what a model gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from command_line import Write
from patience import HANG_S

RECIPE: Final = """
id: echo
inputs: {text: string}
steps:
  - {id: say, goal: "{{ inputs.text }}"}
"""
MODEL: Final = """
import json
from minions import ScriptedModel

def answer(prompt):
    with open("asked.json", "ab") as file:
        file.write(json.dumps(prompt.messages[-1].content).encode() + bytes([10]))
    return "Grüezi ☃"

echo = ScriptedModel(answer, name="scripted/echo")
"""
LOCALES: Final = [
    {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "ascii:replace"},
]
FLAGS: Final = ("-m", "scripted/echo", "--extensions", "own.py", "--db", "j.sqlite")


def minions(
    here: Path, environ: dict[str, str], *arguments: str | bytes, text: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "minions", *arguments],
        cwd=here,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("PYTHONIO")}, **environ},
        input=text,
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.fixture
def echo(write: Write) -> None:
    write("own.py", MODEL)
    write("echo.yaml", RECIPE)


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("environ", LOCALES, ids=[" ".join(each) for each in LOCALES])
def test_arguments_and_typed_lines_reach_the_model_whole(
    here: Path, environ: dict[str, str]
) -> None:
    value = "text=Grüße ☃".encode()
    done = minions(here, environ, "run", "echo.yaml", "-p", value, *FLAGS)
    assert done.returncode == 0, done.stderr
    said = minions(here, environ, "chat", *FLAGS, text="Grüße ☃\n".encode())
    assert said.returncode == 0, said.stderr
    asked = (here / "asked.json").read_text("ascii").splitlines()
    assert [line for line in asked if "Gr\\u00fc\\u00dfe \\u2603" not in line] == []
    assert len(asked) == 2
    for out in (done.stdout, said.stdout):
        assert b"?" not in out
        assert "Grüezi ☃".encode() in out or b"Gr\\xfcezi \\u2603" in out


@pytest.mark.usefixtures("echo")
def test_a_value_that_is_no_utf_8_is_refused(here: Path) -> None:
    done = minions(here, {}, "run", "echo.yaml", "-p", b"text=Gr\xfc\xdfe", *FLAGS)
    assert done.returncode == 2
    assert b"the value is not UTF-8" in done.stderr
    assert not (here / "asked.json").exists()


@pytest.mark.usefixtures("echo")
def test_a_typed_line_that_is_no_utf_8_is_escaped(here: Path) -> None:
    assert minions(here, {}, "chat", *FLAGS, text=b"Gr\xfc\xdfe\n").returncode == 0
    assert "Gr\\\\xfc\\\\xdfe" in (here / "asked.json").read_text("ascii")


@pytest.mark.usefixtures("echo")
def test_a_run_is_exported_whole(here: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert minions(here, {}, "run", "echo.yaml", "-p", "text=Grüße ☃", *FLAGS).returncode == 0
    for words in (("--html", "run.html"), ("-o", "run.jsonl")):
        done = minions(here, ascii_only, "sessions", "export", "run_", *words, "--db", "j.sqlite")
        assert done.returncode == 0, done.stderr
    assert "Grüezi ☃" in (here / "run.html").read_text("utf-8")
    assert (here / "run.jsonl").read_text("utf-8").endswith("\n")


def test_an_output_that_is_json_stays_json_where_the_encoding_has_not_its_characters(
    here: Path, write: Write
) -> None:
    write("own.yaml", "id: own\nsteps: [{id: s, set: {x: Grüezi ☃}}]\noutput: {x: '{{ s.x }}'}\n")
    done = minions(here, {"PYTHONIOENCODING": "ascii"}, "run", "own.yaml", "--no-store")
    assert json.loads(done.stdout.decode("ascii")) == {"x": "Grüezi ☃"}
