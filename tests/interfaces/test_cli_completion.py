"""What a shell is offered when it completes a line, and how little is loaded for it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from command_line import Cli, Write

ROOT: Final = Path(__file__).parents[2]
RECIPE: Final = "id: %s\nsteps:\n  - {id: first, set: {n: 1}}\n  - id: second\n    set: {n: 2}\n"


@pytest.fixture
def project(write: Write) -> None:
    write("recipes/news.yaml", RECIPE % "news")
    write("recipes/notes.yaml", RECIPE % "notes")


def offered(here: Path, line: str, *, python: str = "-m minions") -> list[str]:
    """What bash is offered at the end of the line."""
    words = line.split(" ")
    environ = {
        **os.environ,
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_MINIONS_COMPLETE": "bash_complete",
        "MINIONS_DB": str(here / "j.sqlite"),
    }
    command = [sys.executable, *python.split(" ", 1)]
    done = subprocess.run(
        command, cwd=here, env=environ, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each.startswith("plain")]


@pytest.mark.usefixtures("project")
def test_commands_options_recipes_and_steps_are_offered(here: Path) -> None:
    assert offered(here, "minions re") == ["resume", "retry", "reject"]
    assert offered(here, "minions run ne") == ["news"]
    assert offered(here, "minions run news --dry") == ["--dry-run"]
    assert offered(here, "minions run news --approve d") == ["deny"]
    assert offered(here, "minions run news --from ") == ["first", "second"]
    assert offered(here, "minions sessions ex") == ["export"]
    assert offered(here, "minions completion ") == ["bash", "zsh", "fish"]


@pytest.mark.usefixtures("project")
def test_ids_of_runs_and_sessions_are_offered_with_the_newest_first(here: Path, cli: Cli) -> None:
    ids, sessions = [], []
    for name in ("news", "notes"):
        done = cli("run", name, "--db", "j.sqlite", "--json").json
        ids.append(str(done["run_id"]))
        sessions.append(str(done["session_id"]))
    assert offered(here, "minions sessions show run_") == ids[::-1]
    assert offered(here, f"minions resume {ids[0][:12]}") == [ids[0]]
    assert sorted(offered(here, "minions sessions export ses_")) == sorted(sessions)
    assert offered(here, f"minions retry {ids[1]} --from s") == ["second"]


@pytest.mark.usefixtures("project")
def test_models_are_offered_those_of_earlier_runs_first(here: Path, cli: Cli, write: Write) -> None:
    write("minions.toml", '[providers.lab]\nbase_url = "http://127.0.0.1:9/v1"\n')
    write("answers.yaml", "answers: [Really.]\n")
    write("ask.yaml", "steps: [{id: ask, goal: Really?}]\n")
    assert cli("run", "ask.yaml", "-m", "scripted/answers.yaml", "--db", "j.sqlite").code == 0
    offers = offered(here, "minions run news -m ")
    assert offers[:2] == ["scripted/answers.yaml", "local"]
    assert {"ollama/", "openai/", "lab/"} < set(offers)
    assert offered(here, "minions batch news items.jsonl --model scr") == ["scripted/answers.yaml"]
    assert offered(here, "minions eval news cases.csv -m loc") == ["local"]


def test_where_there_is_no_journal_none_is_made(here: Path) -> None:
    assert offered(here, "minions retry run_") == []
    assert not (here / "j.sqlite").exists()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "line",
    ["minions run ne", "minions retry run_", "minions run news --from ", "minions run news -m "],
)
def test_a_completion_loads_no_engine(here: Path, line: str) -> None:
    program = (
        "-c import atexit, sys\n"
        "heavy = ['minions.engine', 'cattrs', 'openai', 'rich', 'yaml', 'jsonschema']\n"
        "atexit.register(lambda: [print('plain,LOADED ' + each) for each in heavy "
        "if each in sys.modules])\n"
        "from minions.__main__ import main\n"
        "sys.argv = ['minions']\n"
        "main()"
    )
    assert [each for each in offered(here, line, python=program) if "LOADED" in each] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(cli: Cli, shell: str) -> None:
    done = cli("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_MINIONS_COMPLETE={shell}_complete" in done.out


def test_the_script_for_bash_is_valid(cli: Cli) -> None:
    subprocess.run(["bash", "-n"], input=cli("completion", "bash").out, text=True, check=True)


def test_the_table_has_the_parameters_of_every_command() -> None:
    """If this fails: `python docs/generate_completion.py`."""
    script = runpy.run_path(str(ROOT / "docs" / "generate_completion.py"))
    table = ROOT / "minions/interfaces/cli/completion_table.json"
    assert json.loads(table.read_text("utf-8")) == script["table"]()
