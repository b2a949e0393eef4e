"""Processes that are killed while a program in a sandbox calls tools, and what a resume does."""

from __future__ import annotations

import signal
from pathlib import Path
from textwrap import dedent

import pytest

from command_line import Cli
from forked_commands import PROGRAM, run_forked
from minions.adapters.sandboxes.python_sandboxes import MontySandbox, ProcessSandbox

TOOLS = """
import os, signal
from pathlib import Path
from minions import tool

def note(name, number):
    with Path(f"{name}.txt").open("a") as file:
        file.write(f"{number} ")

def die(where):
    if Path("dies.txt").exists() and Path("dies.txt").read_text() == where:
        Path("dies.txt").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

@tool(effect="pure")
def look(number: int) -> int:
    die(f"before look {number}")
    note("look", number)
    return number * 10

@tool(effect="once")
def pay(number: int) -> int:
    die(f"before pay {number}")
    note("pay", number)
    die(f"after pay {number}")
    return number
"""
RECIPE = """
id: paying
permissions: {{allow_write: true}}
steps:
  - id: work
    sandbox: {sandbox}
    tools: [look, pay]
    code: |
      import random, tools
      drawn = random.random()
      paid = [tools.pay(number=tools.look(number=each)) for each in (1, 2)]
      look = tools.look(number=3)
      [paid, look, drawn == random.Random().random(), drawn]
"""
SANDBOXES = {"monty": MontySandbox, "process": ProcessSandbox}


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize(
    ("dies", "decision"),
    [
        ("before look 1", None),
        ("before look 2", None),
        ("before pay 20", "redo"),
        ("after pay 20", "done:20"),
        ("before look 3", None),
    ],
)
def test_a_process_that_is_killed_in_a_call_goes_on_and_pays_once(
    cli: Cli, here: Path, sandbox: str, dies: str, decision: str | None
) -> None:
    """A-179, with `kill -9` and both sandboxes."""
    if not all(probe.ok for probe in SANDBOXES[sandbox]().probe()):
        pytest.skip(f"{sandbox} does not hold here")
    (here / "own.py").write_text(dedent(TOOLS), "utf-8")
    (here / "paying.yaml").write_text(RECIPE.format(sandbox=sandbox), "utf-8")
    (here / "dies.txt").write_text(dies, "utf-8")
    own: tuple[str, ...] = ("--extensions", "own.py", "--db", "own.sqlite")
    command = [*PROGRAM, "run", "paying.yaml", *own]
    killed = run_forked(command, cwd=here, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if decision is not None:
        waits = cli("resume", "run_", *own)
        assert (waits.code, "error[in-doubt]" in waits.err) == (3, True)
        own = (*own, "--decide", f"pay={decision}")
    done = cli("resume", "run_", *own, "--json")
    assert done.code == 0, done.err
    output = done.json["output"]
    assert isinstance(output, list)
    assert output[:3] == [[10, 20], 30, False]
    assert (here / "pay.txt").read_text("utf-8") == "10 20 "
    looks = (here / "look.txt").read_text("utf-8").split()
    assert sorted(looks) == ["1", "2", "3"]
