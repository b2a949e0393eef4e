"""The step of a GitHub workflow and the hooks of pre-commit do what they say.

The runner of workflows is not here: the scripts of the step are executed as it would, with its
variables, and everything that it would replace in them is refused.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from minions.interfaces.cli.main import command as minions
from patience import HANG_S

ROOT: Final = Path(__file__).parents[2]
ACTION: Final[Mapping[str, Any]] = yaml.safe_load(  # Any: YAML, taken apart here
    (ROOT / "action.yml").read_text("utf-8")
)
HOOKS: Final[list[Mapping[str, Any]]] = yaml.safe_load(  # Any: likewise
    (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
)
STEPS: Final = {step["name"]: step for step in ACTION["runs"]["steps"]}
RECIPE: Final = """\
id: adds
inputs: {a: integer}
steps:
  - {id: sum, set: {total: "{{ inputs.a + 1 }}"}}
output: "{{ sum.total }}"
tests:
  - {name: one, inputs: {a: 1}, expect: {output: 2}}
"""
SUITE: Final = "recipe: adds.yaml\ncases:\n  - {inputs: {a: 1}, expected: 2}\n"


def test_every_input_of_the_action_is_described_and_reaches_a_step() -> None:
    used = re.findall(r"inputs\.([\w-]+)", str(ACTION["runs"]))
    assert set(used) == set(ACTION["inputs"])
    for each in ACTION["inputs"].values():
        assert each["description"].endswith(".")
        assert isinstance(each["default"], str)


def test_no_script_of_the_action_holds_an_expression() -> None:
    """What a caller gives comes as a variable: in the script it would be read as shell."""
    for step in STEPS.values():
        assert "${{" not in step["run"]
        assert set(re.findall(r"\$\{?([A-Z_]+)", step["run"])) <= {
            *("RUNNER_TEMP", "GITHUB_ACTION_PATH", "GITHUB_PATH"),
            *step["env"],
        }


def test_the_step_installs_the_version_that_it_was_taken_from(tmp_path: Path) -> None:
    python = tmp_path / "tools" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nmkdir -p "$3/bin"\ncp "$0" "$3/bin/python"\necho "$@" >> log\n')
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    given = {"EXTRAS": "mcp,sandbox", "PATH": path, "GITHUB_ACTION_PATH": "/the/action"}
    assert _execute(tmp_path, "Install Minions", given).returncode == 0
    assert (tmp_path / "log").read_text().endswith("/the/action[mcp,sandbox]\n")
    assert (tmp_path / "path").read_text() == f"{tmp_path}/temp/minions/bin\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with two recipes that pass, and an evaluation beside one of them."""
    (tmp_path / "recipes" / "more").mkdir(parents=True)
    (tmp_path / "recipes" / "adds.yaml").write_text(RECIPE)
    (tmp_path / "recipes" / "more" / "of these.yaml").write_text(RECIPE.replace("adds", "more"))
    (tmp_path / "recipes" / "adds.eval.yaml").write_text(SUITE)
    command = tmp_path / "tools" / "minions"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m minions "$@"\n')
    command.chmod(0o755)
    return tmp_path


def test_what_passes_is_found_in_all_folders_and_reported(project: Path) -> None:
    given = {"RECIPES": "recipes/**/*.yaml", "EVALUATIONS": "recipes/*.eval.yaml", "MAX_COST": "1"}
    for name in ("Find recipes", "Validate recipes", "Run their tests", "Evaluate"):
        done = _execute(project, name, {**given, "REPORTS": "reports"})
        assert (done.returncode, "::" in done.stdout) == (0, False), (name, done)
    found = (project / "temp" / "minions-recipes").read_text().splitlines()
    assert found == ["recipes/adds.yaml", "recipes/more/of these.yaml"]
    reports = sorted(each.name for each in (project / "reports").iterdir())
    assert reports == ["recipes_adds.eval.yaml.xml", "tests.xml"]


def test_what_fails_ends_its_step_and_is_annotated_at_its_line(project: Path) -> None:
    given = {"RECIPES": "recipes/*.yaml", "EVALUATIONS": "recipes/*.eval.yaml", "MAX_COST": "1"}
    recipe = project / "recipes" / "adds.yaml"
    recipe.write_text(RECIPE.replace("a + 1", "a + 2"))
    assert _execute(project, "Find recipes", given).returncode == 0
    tested = _execute(project, "Run their tests", given)
    assert tested.returncode == 1
    assert "::error file=recipes/adds.yaml,line=7,title=test-failed::" in tested.stdout
    scored = _execute(project, "Evaluate", {**given, "AT_LEAST": "0.9"})
    assert scored.returncode == 1
    assert "::error file=recipes/adds.eval.yaml," in scored.stdout
    recipe.write_text(RECIPE.replace("inputs.a", "inputs.b"))
    checked = _execute(project, "Validate recipes", given)
    assert checked.returncode == 2
    assert "::error file=recipes/adds.yaml,line=4," in checked.stdout


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"RECIPES": "recipe/*.yaml"}, "no-recipes"),
        ({"RECIPES": "recipes/*.yaml", "EVALUATIONS": "*.eval.yaml"}, "no-evaluations"),
        ({"RECIPES": "recipes/*.yaml", "EVALUATIONS": "recipes/*.eval.yaml"}, "no-limit"),
    ],
)
def test_a_pattern_that_names_nothing_and_a_missing_limit_end_the_step(
    project: Path, given: dict[str, str], code: str
) -> None:
    done = _execute(project, "Find recipes", given)
    assert (done.returncode, f"::error title={code}::" in done.stdout) == (2, True)


def test_the_folder_counts_only_where_it_is_trusted(project: Path) -> None:
    (project / "minions.toml").write_text('extensions = ["own.py"]\n')
    (project / "own.py").write_text('open("executed", "w").close()\n')
    given = {"RECIPES": "recipes/*.yaml"}
    assert _execute(project, "Find recipes", given).returncode == 0
    _execute(project, "Run their tests", {**given, "MINIONS_TRUST": "false"})
    assert not (project / "executed").exists()
    _execute(project, "Run their tests", {**given, "MINIONS_TRUST": "true"})
    assert (project / "executed").exists()


def _execute(folder: Path, name: str, given: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A step's script as the runner executes it: `shell: bash`, in the checkout."""
    step, bash = STEPS[name], shutil.which("bash")
    assert bash is not None
    assert step["shell"] == "bash"
    temp = folder / "temp"
    temp.mkdir(exist_ok=True)
    settings = dict.fromkeys(step["env"], "")
    environ = {
        **{key: value for key, value in os.environ.items() if key != "MINIONS_TRUST"},
        "PATH": f"{folder / 'tools'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "GITHUB_ACTIONS": "true",
        "GITHUB_PATH": str(folder / "path"),
        "RUNNER_TEMP": str(temp),
        **settings,
        **given,
    }
    script = temp / "script.sh"
    script.write_text(step["run"], "utf-8")
    return subprocess.run(
        [bash, "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


# --- hooks ----------------------------------------------------------------------------------------


def test_a_hook_is_a_command_that_takes_the_files_of_a_commit() -> None:
    for hook in HOOKS:
        program, name, *words = hook["entry"].split()
        command = minions.get_command(click.Context(minions), name)
        assert (program, hook["language"]) == ("minions", "python")
        assert command is not None
        # A command keeps the help option of its first context, whose names it has.
        given = [*words, "recipes/a.yaml"]
        with command.make_context(name, given, **minions.context_settings) as context:
            assert context.params["recipes"] == ("recipes/a.yaml",)


def test_hooks_take_recipes_and_leave_evaluations_out() -> None:
    for hook in HOOKS:
        for file, is_taken in (
            ("recipes/a.yaml", True),
            ("shop/recipes/deep/b.yml", True),
            ("recipes/a.eval.yaml", False),
            ("compose.yaml", False),
        ):
            found = re.search(hook["files"], file) and not re.search(hook["exclude"], file)
            assert bool(found) is is_taken, (hook["id"], file)


def test_the_page_on_tests_names_each_hook_and_each_input() -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    for name in (*(hook["id"] for hook in HOOKS), *ACTION["inputs"]):
        assert f"`{name}`" in page or f"id: {name}\n" in page, name
