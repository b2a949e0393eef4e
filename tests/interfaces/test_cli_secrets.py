"""Secrets on the command line: given by reference, never printed, refused with the right code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Cli, Outcome, Write

VALUE = 'sk-"\\live/123'
MARKER = "${secret:env:API_TOKEN}"
RECIPE = """
id: call
inputs:
  token: {type: string, secret: true, description: Of the API}
limits: {max_tool_call_retries: 0}
steps:
  - {id: fetch, tool: fetch, params: {auth: "Bearer {{ inputs.token }}"}}
"""
TOOLS = """
import pathlib

from minions import tool

@tool
def fetch(auth: str) -> dict[str, object]:
    '''Tells what it was given.'''
    pathlib.Path("got").write_text(auth)
    if auth.endswith("!"):
        raise RuntimeError(f"401 for {auth!r}")
    return {"sent": auth, auth: [len(auth)]}
"""
RUN = ("run", "call.yaml", "--extensions", "own.py", "--db", "j.sqlite")


@pytest.fixture
def project(here: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    write("call.yaml", RECIPE)
    write("own.py", TOOLS)
    monkeypatch.setenv("API_TOKEN", VALUE)
    return here


def assert_untold(outcome: Outcome, folder: Path, value: str = VALUE) -> None:
    texts = [outcome.out, outcome.err]
    texts += [p.read_bytes().decode("latin-1") for p in folder.glob("j.sqlite*")]
    for form in (value, json.dumps(value)[1:-1], repr(value)[1:-1]):
        assert not [text for text in texts if form in text]


@pytest.mark.parametrize("flags", [(), ("--json",), ("--events",), ("--debug",)])
def test_the_tool_gets_the_secret_and_nothing_prints_it(
    cli: Cli, project: Path, flags: tuple[str, ...]
) -> None:
    """A-105: standard output, standard error and the database hold the marker at most."""
    outcome = cli(*RUN, "-p", "token=env:API_TOKEN", *flags)
    assert (outcome.code, (project / "got").read_text()) == (0, f"Bearer {VALUE}")
    assert MARKER in outcome.out
    assert_untold(outcome, project)
    shown = cli("sessions", "show", "run_", "--db", "j.sqlite", "--messages")
    assert MARKER in shown.out
    assert_untold(shown, project)


@pytest.mark.parametrize("flags", [(), ("--json",), ("--debug",)])
def test_a_tools_error_does_not_print_the_secret(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("API_TOKEN", f"{VALUE}!")
    outcome = cli(*RUN, "-p", "token=env:API_TOKEN", *flags)
    assert outcome.code == 1
    assert f"401 for 'Bearer {MARKER}'" in outcome.err + outcome.out
    assert_untold(outcome, project)


def test_a_file_of_inputs_names_a_file(cli: Cli, project: Path, write: Write) -> None:
    write("token", f"{VALUE}\n")
    write("params.yaml", f"token: file:{project}/token\n")
    outcome = cli(*RUN, "--params", "params.yaml")
    assert (outcome.code, (project / "got").read_text()) == (0, f"Bearer {VALUE}")
    assert_untold(outcome, project)


@pytest.mark.parametrize("flags", [(), ("--json",), ("--debug",)])
def test_a_literal_secret_is_refused_and_not_repeated(
    cli: Cli, project: Path, flags: tuple[str, ...]
) -> None:
    outcome = cli(*RUN, "-p", f"token={VALUE}", *flags)
    assert outcome.code == 2
    assert "error[literal-secret]" in outcome.err
    assert "write env:TOKEN or file:/absolute/path" in outcome.err
    assert_untold(outcome, project)


@pytest.mark.parametrize(
    ("reference", "code", "words"),
    [
        ("env:MINIONS_TEST_NONE", "missing-secret", "MINIONS_TEST_NONE is not set"),
        ("file:/none/such", "missing-secret", "/none/such cannot be read"),
        ("env:SHORT", "short-secret", "env:SHORT is too short"),
    ],
)
def test_a_secret_that_cannot_be_had_is_the_surroundings_fault(
    cli: Cli,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: str,
    code: str,
    words: str,
) -> None:
    monkeypatch.setenv("SHORT", "12345")
    outcome = cli(*RUN, "-p", f"token={reference}")
    assert outcome.code == 4
    assert f"error[{code}]" in outcome.err
    assert words in outcome.err
    assert not (project / "got").exists()
    assert not (project / "j.sqlite").exists()


def test_a_missing_secret_input_tells_how_to_give_it(cli: Cli, project: Path) -> None:
    outcome = cli(*RUN)
    assert outcome.code == 2
    assert "-p token=env:TOKEN" in outcome.err


def test_a_process_of_its_own_tells_nothing_either(project: Path) -> None:
    """What Python itself writes to the streams counts too."""
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "dev",
            "-m",
            "minions",
            *RUN,
            "--debug",
            "-p",
            "token=env:API_TOKEN",
        ],
        cwd=project,
        env={**os.environ, "API_TOKEN": f"{VALUE}!", "PYTHONASYNCIODEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert_untold(Outcome(done.returncode, done.stdout, done.stderr), project)
