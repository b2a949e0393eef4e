"""`minions agents`, registered recipes by name, and agents in `minions chat`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Cli, Write
from minions.app.wiring import built_in_extensions as built_in_recipes
from patience import HANG_S

WRITER = """
id: writer
description: Writes a text.
inputs: {requirements: string}
steps: [{id: s, set: {t: "wrote {{ inputs.requirements }}"}}]
output: "{{ s.t }}"
"""
TWO = "id: two\ninputs: {a: string, b: string}\nsteps: [{id: s, set: {n: 1}}]\n"
OWN = """
from minions import AgentRecipe, Extensions
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import InputSpec

helper = AgentRecipe(
    id="helper",
    description="Helps.",
    inputs={"task": InputSpec(schema={"type": "string"})},
    steps=(GoalSpec(id="help", goal="Help: {{ inputs.task }}"),),
)
extensions = Extensions(recipes={"helper": helper})
"""


def call(name: str, requirements: str) -> object:
    arguments = {"name": name, "requirements": requirements}
    return {"tool_calls": [{"name": "agents__run_agent", "arguments": arguments}]}


def script(*answers: object) -> str:
    return json.dumps({"answers": list(answers)})


def test_agents_are_listed_with_what_they_take(cli: Cli, write: Write) -> None:
    write("recipes/w.yaml", WRITER)
    write("recipes/two.yaml", TWO)
    write("recipes/broken.yaml", "id: [")
    lines = cli("agents", "list").out.splitlines()
    assert lines == [
        "AGENT         ABOUT",
        "StepExecutor  Plans a task on a folder, and carries the plan out in small steps.",
        "broken        has faults: minions validate broken",
        "two           (takes no text; inputs: a, b)",
        "writer        Writes a text.",
    ]
    listed = cli("agents", "list", "--json").json["agents"]
    assert isinstance(listed, list)
    assert listed[3] == {
        "name": "writer",
        "description": "Writes a text.",
        "inputs": ["requirements"],
        "text_input": "requirements",
        "is_readable": True,
    }


def test_an_agent_is_run_by_name_with_a_text(cli: Cli, write: Write) -> None:
    write("recipes/w.yaml", WRITER)
    write("text.txt", "a long poem")
    assert cli("agents", "run", "writer", "a poem").out == "wrote a poem\n"
    assert cli("agents", "run", "writer", "@text.txt").out == "wrote a long poem\n"


def test_an_agent_that_takes_no_text_or_is_not_there_is_refused(cli: Cli, write: Write) -> None:
    write("recipes/w.yaml", WRITER)
    write("recipes/two.yaml", TWO)
    two = cli("agents", "run", "two", "x")
    assert two.code == 2
    assert "error[no-request-input]" in two.err
    assert "a (required), b (required)" in two.err
    missing = cli("agents", "run", "writr", "x")
    assert missing.code == 2
    assert "Did you mean 'writer'?" in missing.err


def test_an_agent_is_named_never_by_a_path(cli: Cli, write: Write) -> None:
    write("w.yaml", WRITER)
    assert "error[agent-not-found]" in cli("agents", "run", "w.yaml", "x").err


def test_a_registered_recipe_is_run_by_its_name(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    write("s.yaml", script("Helped.", "Helped again."))
    options = ("--extensions", "own.py", "-m", "scripted/s.yaml")
    assert "helper        Helps." in cli("agents", "list", "--extensions", "own.py").out
    assert cli("run", "helper", "-p", "task=x", *options).out == "Helped.\n"
    assert cli("agents", "run", "helper", "x", *options).out == "Helped.\n"


def test_a_run_of_a_registered_recipe_is_retried_on_the_command_line(
    cli: Cli, write: Write
) -> None:
    write("own.py", OWN.replace('{"helper": helper}', '{"other_name": helper}'))
    write("s.yaml", script({"fail": "model-failed"}))
    options = ("--extensions", "own.py", "-m", "scripted/s.yaml", "--db", "r.sqlite")
    assert cli("run", "other_name", "-p", "task=x", *options).code == 1
    run = json.loads(cli("sessions", "list", "--json", "--db", "r.sqlite").out)[0]["run_id"]
    write("s.yaml", script("Helped."))
    retried = cli("retry", run, "--extensions", "own.py", "--db", "r.sqlite")
    assert retried.out == "Helped.\n", retried.err


def test_a_built_in_recipe_is_listed_and_run_by_name_with_a_requirement_text(
    cli: Cli, write: Write, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "shipped").mkdir()
    write("shipped/__init__.py", "")
    write("shipped/step_executor.yaml", WRITER.replace("id: writer", "id: StepExecutor"))
    monkeypatch.syspath_prepend(str(here))
    table = {"StepExecutor": ("shipped", "step_executor.yaml")}
    monkeypatch.setattr(built_in_recipes, "BUILT_IN_RECIPES", table)
    assert "StepExecutor  Writes a text." in cli("agents", "list").out
    assert cli("agents", "run", "StepExecutor", "build it").out == "wrote build it\n"
    assert cli("run", "StepExecutor", "-p", "requirements=x").out == "wrote x\n"
    write("outer.yaml", "id: o\nsteps: [{id: s, recipe: StepExecutor, with: {requirements: x}}]\n")
    assert cli("validate", "outer.yaml").code == 0
    assert cli("run", "outer.yaml").out == "wrote x\n"


def test_a_chat_without_a_recipe_gives_work_to_an_agent(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("recipes/w.yaml", WRITER)
    listing = {"tool_calls": [{"name": "agents__list_agents", "arguments": {}}]}
    write("s.yaml", script(listing, call("writer", "a poem"), "It wrote a poem."))
    monkeypatch.setattr("sys.stdin", io.StringIO("A poem, please.\n"))
    outcome = cli("chat", "-m", "scripted/s.yaml", "--db", "c.sqlite")
    assert (outcome.code, outcome.out) == (0, "It wrote a poem.\n")
    shown = cli("sessions", "list", "--json", "--db", "c.sqlite").out
    run = json.loads(shown)[0]["run_id"]
    messages = cli("sessions", "show", run, "answer", "--db", "c.sqlite").out
    assert '"name": "writer"' in messages or '"name":"writer"' in messages
    assert "wrote a poem" in messages


KILLED = """
id: slow
permissions: {allow_write: true}
tools: [note, die]
inputs: {task: string}
steps:
  - {id: first, tool: note}
  - {id: second, tool: die}
"""
DEADLY = """
import os, signal
from minions import tool

@tool(effect="once")
def note() -> str:
    '''Counts its calls in a file.'''
    with open("notes", "a") as file:
        file.write("x")
    return "noted"

@tool(effect="pure")
def die() -> str:
    '''Ends the process the first time.'''
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"
"""
OUTER = """
id: outer
permissions: {allow_write: true}
tools: [agents]
steps: [{id: talk, goal: Begin., tools: [agents]}]
"""


def test_an_agent_whose_process_is_killed_is_resumed_without_repeating_what_it_did(
    cli: Cli, write: Write, here: Path
) -> None:
    write("recipes/slow.yaml", KILLED)
    write("outer.yaml", OUTER)
    write("own.py", DEADLY)
    write("s.yaml", script(call("slow", "go"), "Done."))
    command = "-m minions run outer.yaml -m scripted/s.yaml --extensions own.py --db r.sqlite"
    killed = subprocess.run(
        [sys.executable, *command.split()],
        cwd=here,
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    assert killed.returncode == -9
    run = json.loads(cli("sessions", "list", "--json", "--db", "r.sqlite").out)[0]["run_id"]
    resumed = cli("resume", run, "--db", "r.sqlite", "--extensions", "own.py")
    assert (resumed.code, resumed.out) == (0, "Done.\n"), resumed.err
    assert (here / "notes").read_text() == "x"


def test_nothing_bounds_what_a_step_with_agents_may_spend_but_a_limit(
    cli: Cli, write: Write
) -> None:
    write("outer.yaml", OUTER)
    bounds = cli("explain", "outer.yaml", "--json").out
    assert "'talk' may run any agent" in bounds
    write("outer.yaml", OUTER + "limits: {max_model_calls: 3}\n")
    assert '"at_most": 3' in cli("explain", "outer.yaml", "--json").out


def test_a_tool_step_runs_an_agent_as_well(cli: Cli, write: Write) -> None:
    write("recipes/w.yaml", WRITER)
    write(
        "outer.yaml",
        "id: o\ntools: [agents]\nsteps:\n"
        "  - {id: s, tool: agents__run_agent, params: {name: writer, requirements: a poem}}\n",
    )
    outcome = cli("run", "outer.yaml", "--json")
    assert outcome.json["output"] == "wrote a poem"


def test_an_agent_whose_model_is_missing_fails_with_words(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "MINIONS_MODEL"):
        monkeypatch.delenv(name, raising=False)
    write(
        "recipes/q.yaml",
        'id: q\ninputs: {task: string}\nsteps: [{id: a, goal: "{{ inputs.task }}"}]\n',
    )
    write(
        "outer.yaml",
        "id: o\ntools: [agents]\nsteps:\n"
        "  - {id: s, tool: agents__run_agent, params: {name: q, requirements: x}}\n",
    )
    outcome = cli("run", "outer.yaml")
    assert outcome.code == 1
    assert "no model" in outcome.err.lower()
    assert "internal" not in outcome.err
