"""Inputs and recipes from files and standard input."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Final

import pytest

from command_line import Cli, Write

RECIPE: Final = """
id: echo
inputs: {text: string, times: {type: integer, default: 1}}
steps:
  - {id: say, set: {text: "{{ inputs.text }}", times: "{{ inputs.times }}"}}
output: "{{ inputs.times }} x {{ inputs.text }}"
"""


class Pipe:
    """Puts bytes on standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    return Pipe(monkeypatch)


@pytest.fixture(autouse=True)
def _recipe(write: Write) -> None:
    write("echo.yaml", RECIPE)


def test_a_value_is_read_from_a_file_as_it_is(cli: Cli, write: Write) -> None:
    write("letter.txt", "Dear all,\n\nGrüezi!\n")
    done = cli("run", "echo.yaml", "--no-store", "-p", "text=@letter.txt")
    assert (done.code, done.out) == (0, "1 x Dear all,\n\nGrüezi!\n\n")


def test_a_value_is_read_from_standard_input(cli: Cli, pipe: Pipe) -> None:
    pipe("from a pipe")
    assert cli("run", "echo.yaml", "--no-store", "-p", "text=@-").out == "1 x from a pipe\n"


def test_a_number_is_read_from_a_file(cli: Cli, write: Write) -> None:
    write("times.txt", "3\n")
    done = cli("run", "echo.yaml", "--no-store", "-p", "times=@times.txt", "-p", "text=a")
    assert done.out == "3 x a\n"


def test_two_at_signs_are_one(cli: Cli) -> None:
    assert cli("run", "echo.yaml", "--no-store", "-p", "text=@@bob").out == "1 x @bob\n"


def test_a_missing_file_is_told_with_how_to_write_the_text_itself(cli: Cli) -> None:
    done = cli("run", "echo.yaml", "--no-store", "-p", "text=@bob")
    assert done.code == 2
    assert "error[bad-input]: -p text=@bob: No such file or directory." in done.err
    assert "text=@@bob" in done.err


def test_text_that_is_not_utf_8_is_refused(cli: Cli, here: Path, pipe: Pipe) -> None:
    (here / "old.txt").write_bytes(b"Gr\xfcezi")
    done = cli("run", "echo.yaml", "--no-store", "-p", "text=@old.txt")
    assert (done.code, done.out) == (2, "")
    assert "-p text=@old.txt: not UTF-8 text: invalid start byte at byte 2." in done.err
    pipe(b"\xff")
    assert "-p text=@-: not UTF-8 text" in cli("run", "echo.yaml", "-p", "text=@-").err


def test_inputs_are_read_from_standard_input(cli: Cli, pipe: Pipe) -> None:
    pipe('{"text": "a", "times": 4}')
    assert cli("run", "echo.yaml", "--no-store", "--params", "-").out == "4 x a\n"
    pipe("text: b\n")
    assert cli("run", "echo.yaml", "--no-store", "--params", "-", "-p", "times=2").out == "2 x b\n"
    pipe("")
    assert "--params -: the file is empty" in cli("run", "echo.yaml", "--params", "-").err


def test_standard_input_is_read_once(cli: Cli, pipe: Pipe) -> None:
    pipe("text: b\n")
    done = cli("run", "echo.yaml", "--no-store", "--params", "-", "-p", "text=@-")
    assert done.code == 2
    assert "Standard input can be read once: by --params - or by -p text=@-." in done.err


def test_a_recipe_is_run_from_standard_input(cli: Cli, pipe: Pipe) -> None:
    pipe(RECIPE)
    assert cli("run", "-", "--no-store", "-p", "text=a").out == "1 x a\n"


def test_a_run_of_a_recipe_from_standard_input_can_be_retried(
    cli: Cli, pipe: Pipe, here: Path
) -> None:
    pipe("id: piped\nsteps:\n  - {id: a, assert: [1 > 2]}\n")
    done = cli("run", "-", "--db", "j.sqlite")
    assert done.code == 1
    assert "retry: minions retry run_" in done.err
    run_id = done.err.rpartition("minions retry ")[2].split()[0]
    assert cli("retry", run_id, "--db", "j.sqlite").code == 1


def test_the_faults_of_a_recipe_from_standard_input_have_places(cli: Cli, pipe: Pipe) -> None:
    pipe("id: x\nsteps:\n  - {id: a, gaol: b}\n")
    done = cli("validate", "-")
    assert done.code == 2
    assert "--> stdin.yaml:3:" in done.err
    pipe("id: x\nsteps:\n  - {id: a, gaol: b}\n")
    assert "--> stdin.yaml:3:" in cli("run", "-").err


def test_a_recipe_from_standard_input_is_explained_and_drawn(cli: Cli, pipe: Pipe) -> None:
    pipe(RECIPE)
    assert cli("explain", "-").out.startswith("echo")
    pipe(RECIPE)
    assert "say" in cli("graph", "-").out


def test_a_batch_reads_its_items_from_standard_input(cli: Cli, pipe: Pipe) -> None:
    for _ in range(2):
        pipe('{"text": "a"}\n{"text": "b"}\n')
        done = cli("batch", "echo.yaml", "-", "--db", "j.sqlite")
        assert done.code == 0, done.err
        outputs = [json.loads(line)["output"] for line in done.out.splitlines()]
        assert outputs == ["1 x a", "1 x b"]
    pipe("{}\n")
    assert "stdin:1: The input 'text' is missing" in cli("batch", "echo.yaml", "-").err
