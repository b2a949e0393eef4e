"""A declared secret over a crash: it is resolved anew when the run goes on, and stays unseen."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from command_line import Cli, Write
from forked_commands import PROGRAM, run_forked

VALUE = 'sk-"\\live/123'
MARKER = "${secret:env:API_TOKEN}"
RECIPE = """
id: call
permissions: {allow_write: true}
inputs:
  token: {type: string, secret: true, description: Of the API}
  text: {type: string, default: ""}
tools: [fetch]
steps:
  - {id: first, set: {n: 1, text: "{{ inputs.text }}"}}
  - {id: fetch, tool: fetch, params: {auth: "Bearer {{ inputs.token }}"}, depends_on: [first]}
  - {id: last, set: {sent: "{{ fetch }}"}}
"""
TOOLS = """
import os, pathlib, signal

from minions import tool

@tool(effect="%s")
def fetch(auth: str) -> dict[str, object]:
    '''Dies the first time, after its effect.'''
    got = pathlib.Path("got")
    with got.open("a") as file:
        file.write(auth + "\\n")
    if len(got.read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"sent": auth}
"""
FLAGS = ("--extensions", "own.py", "--db", "j.sqlite")


def run(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PROGRAM, *arguments, *FLAGS],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def kept(here: Path) -> Iterator[str]:
    """Every byte of the database and its companions, and what is packed in it."""
    names = sorted(path.name for path in here.glob("j.sqlite*"))
    assert "j.sqlite" in names
    for name in names:
        yield (here / name).read_bytes().decode("latin-1")
    with closing(sqlite3.connect(here / "j.sqlite")) as connection:
        for (data,) in connection.execute("SELECT data FROM blobs"):
            yield zlib.decompress(data).decode()


def assert_untold(here: Path, *ended: subprocess.CompletedProcess[str]) -> None:
    texts = [text for each in ended for text in (each.stdout, each.stderr)] + list(kept(here))
    for form in (VALUE, json.dumps(VALUE)[1:-1], repr(VALUE)[1:-1]):
        assert not [text for text in texts if form in text]


@pytest.fixture
def project(here: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    write("call.yaml", RECIPE)
    monkeypatch.setenv("API_TOKEN", VALUE)
    return here


def only_run(cli: Cli) -> str:
    (listed,) = json.loads(cli("sessions", "list", "--db", "j.sqlite", "--json").out)
    return str(listed["run_id"])


@pytest.mark.parametrize("flag", ["--json", "--events"])
def test_a_secret_is_neither_lost_nor_shown_when_a_killed_run_goes_on(
    project: Path, write: Write, cli: Cli, flag: str
) -> None:
    """A-105: the tool gets the value in both processes; files, streams and events do not."""
    write("own.py", TOOLS % "idempotent")
    long = "x" * 40_000  # more than a row holds: it is packed
    begun = run(
        project, "run", "call.yaml", "-p", "token=env:API_TOKEN", "-p", f"text={long}", flag
    )
    assert begun.returncode == -signal.SIGKILL, begun.stderr
    assert_untold(project, begun)
    resumed = run(project, "resume", only_run(cli), flag)
    assert resumed.returncode == 0, resumed.stderr
    assert (project / "got").read_text().splitlines() == [f"Bearer {VALUE}"] * 2
    assert json.dumps(MARKER)[1:-1] in resumed.stdout
    assert_untold(project, begun, resumed)


def test_a_call_with_a_secret_that_is_in_doubt_is_told_without_it(
    project: Path, write: Write, cli: Cli
) -> None:
    """A-105: what a person must decide names the reference, and so does a decided result."""
    write("own.py", TOOLS % "once")
    begun = run(project, "run", "call.yaml", "-p", "token=env:API_TOKEN")
    assert begun.returncode == -signal.SIGKILL
    run_id = only_run(cli)
    waiting = run(project, "resume", run_id)
    assert waiting.returncode == 3
    assert f'fetch({{"auth":"Bearer {MARKER}"}}) in step' in waiting.stderr
    done = run(project, "resume", run_id, "--decide", "fetch=redo")
    assert done.returncode == 0, done.stderr
    assert (project / "got").read_text().splitlines() == [f"Bearer {VALUE}"] * 2
    assert_untold(project, begun, waiting, done)


def test_a_run_whose_secret_is_gone_is_refused_and_goes_on_when_it_is_back(
    project: Path, write: Write, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value is not in the journal: without its source there is none."""
    write("own.py", TOOLS % "idempotent")
    assert run(project, "run", "call.yaml", "-p", "token=env:API_TOKEN").returncode < 0
    monkeypatch.delenv("API_TOKEN")
    refused = run(project, "resume", only_run(cli))
    assert (refused.returncode, "error[missing-secret]" in refused.stderr) == (4, True)
    monkeypatch.setenv("API_TOKEN", VALUE)
    assert run(project, "resume", only_run(cli)).returncode == 0
