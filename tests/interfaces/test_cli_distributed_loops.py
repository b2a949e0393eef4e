"""Distributed loops over one SQLite file, by commands and by worker processes that are killed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from command_line import Cli, Write
from patience import HANG_S

WORDS = """
id: words
inputs: {words: {type: array, items: {type: string}}}
permissions: {allow_write: true}
steps:
  - {id: each, loop: "{{ inputs.words }}", distribute: true, max_parallel: 3, aggregate: true,
     tool: write_down, params: {word: "{{ loop.item }}"}}
output: "{{ each }}"
"""
TOOL = """
import os, signal
from pathlib import Path
from minions import tool

@tool(effect="idempotent")
def write_down(word: str) -> str:
    '''Writes the word down; a deadly one ends the process first, once.'''
    mark = Path(f"{word}.deadly")
    if word.startswith("x") and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    with Path("effects").open("a") as file:
        file.write(f"{word}\\n")
    return word.upper()
"""
WORKERS = """
import os, sys
from minions.interfaces.cli.main import run_command_line
import minions.interfaces.cli.commands.worker_commands

codes = []
while not codes or codes[-1]:
    pid = os.fork()
    if not pid:
        os._exit(run_command_line(sys.argv[1:]))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(codes)
"""
"""A worker after the other until one ends by itself; what they load is loaded once."""
KILLED = -9


@pytest.fixture(autouse=True)
def _words(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("words.yaml", WORDS)
    write("tools.py", TOOL)
    monkeypatch.setenv("MINIONS_DB", "journal.sqlite")


def queued(cli: Cli, words: str) -> str:
    arguments = ("-p", f"words={words}", "--extensions", "tools.py", "--detach", "--json")
    done = cli("run", "words.yaml", *arguments)
    assert done.code == 0, done.err
    return str(done.json["run_id"])


def test_killed_workers_lose_no_item_and_repeat_none(cli: Cli, here: Path) -> None:
    run_id = queued(cli, '["a", "xb", "c", "d", "xe", "f", "xg", "h"]')
    command = [sys.executable, "-c", WORKERS, "worker", "--once", "--slots", "2"]
    done = subprocess.run(
        [*command, "--extensions", "tools.py"],
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == [KILLED, KILLED, KILLED, 0]
    shown = cli("sessions", "show", run_id, "--json").json
    assert shown["output"] == ["A", "XB", "C", "D", "XE", "F", "XG", "H"]
    effects = Counter((here / "effects").read_text("utf-8").split())
    assert set(effects) == {"a", "xb", "c", "d", "xe", "f", "xg", "h"}
    assert max(effects.values()) <= 2  # another item's effect whose fact was not stored yet
    runs = cli("sessions", "list", "--limit", "100", "--json").out
    assert runs.count('"completed"') == 9


def test_a_cancelled_command_line_run_takes_its_child_runs_along(cli: Cli) -> None:
    run_id = queued(cli, '["a", "b"]')
    assert cli("cancel", run_id).code == 0
    done = cli("worker", "--once", "--extensions", "tools.py")
    assert done.code == 0
    assert cli("sessions", "list", "--status", "completed", "--json").out.count("run_") == 0


def test_a_distributed_run_is_followed_and_shown_with_its_child_runs(cli: Cli) -> None:
    run_id = queued(cli, '["a", "b", "c", "d", "e"]')
    assert cli("worker", "--once", "--extensions", "tools.py").code == 0
    told = cli("sessions", "follow", run_id).err
    assert told.count("recipe words") == 1
    assert "waits-for-runs" not in told
    assert "5 child runs: 5 completed" in cli("sessions", "show", run_id).out
    shown = cli("sessions", "show", run_id, "--json").json
    states = {"total": 5, "counts": {"completed": 5}, "listed": [], "unlisted": 0}
    assert shown["child_runs"] == {"each": states}
