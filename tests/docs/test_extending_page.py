"""The page about extending Minions: what it says is done to a copy, which then works as it says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from minions.recipe.kinds.registry import STEP_KINDS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "extending-minions.md"
_BLOCK: Final = re.compile(
    r"<!-- not run: (new|change) (\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
_RECIPE: Final = """
id: extended
tools: [dice]
steps:
  - id: wait
    pause: 0.01
  - id: throw
    tool: dice__roll
    params: {sides: 1}
    depends_on: wait
  - id: names
    set: {short: "{{ 'Ada Lovelace' | initials }}", number: "{{ throw }}"}
output: "{{ names }}"
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which all that the page says is done."""
    place = tmp_path_factory.mktemp("extended")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "minions", place / "minions", ignore=skipped)
    for what, file, text in _BLOCK.findall(PAGE.read_text("utf-8")):
        target = place / file
        if what == "new":
            assert not target.exists(), file
            target.write_text(text, "utf-8")
        else:
            target.write_text(_changed(target.read_text("utf-8"), text), "utf-8")
    (place / "recipe.yaml").write_text(_RECIPE, "utf-8")
    return place


def _changed(text: str, change: str) -> str:
    """The file with the added lines behind the line that stands before them, in order."""
    lines, at = text.splitlines(), -1
    for line in change.splitlines():
        mark, content = line[0], line[1:]
        if mark == "+":
            at += 1
            lines.insert(at, content)
            continue
        at = lines.index(content, at + 1)
        if mark == "-":
            del lines[at]
            at -= 1
    return "\n".join(lines) + "\n"


def _minions(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "minions", *arguments],
        cwd=place,
        env={"PYTHONPATH": str(place), "NO_COLOR": "1", "HOME": str(place), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def _parts() -> Iterator[tuple[str, str]]:
    for what, file, _ in _BLOCK.findall(PAGE.read_text("utf-8")):
        yield what, file


def test_a_kind_of_step_is_two_modules_of_one_name_and_one_line() -> None:
    kind = [(what, file) for what, file in _parts() if "kinds" in file]
    assert kind == [
        ("new", "minions/recipe/kinds/pause.py"),
        ("new", "minions/engine/compile/kinds/pause.py"),
        ("change", "minions/recipe/kinds/registry.py"),
    ]


def test_everything_else_is_one_file_and_one_line() -> None:
    others: dict[str, list[str]] = {}
    for what, file in _parts():
        if "kinds" not in file:
            others.setdefault(what, []).append(Path(file).name)
    assert others == {
        "new": ["dice.py", "hello.py"],
        "change": ["filters.py", "built_in_toolsets.py", "main.py"],
    }


def test_what_the_page_adds_runs(extended: Path) -> None:
    ran = _minions(extended, "run", "recipe.yaml", "--no-store")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"short": "AL", "number": 1}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("validate", "recipe.yaml"), "ok"),
        (("graph", "recipe.yaml"), "pause 0.01 s"),
        (("graph", "recipe.yaml", "--format", "mermaid"), "classDef pause stroke:#ca8a04"),
        (("explain", "recipe.yaml"), "dice__roll"),
        (("run", "recipe.yaml", "--dry-run"), "pause"),
        (("schema",), "How long, in seconds."),
        (("hello", "you"), "Hello, you!"),
        (("--help",), "Say hello."),
    ],
)
def test_commands_know_it(extended: Path, arguments: tuple[str, ...], expected: str) -> None:
    ran = _minions(extended, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert expected in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("id: a\nsteps:\n  - {id: w, pause: soon}\n", "pause"),
        ("id: a\nsteps:\n  - {id: w, pause: 0}\n", "more than 0"),
        ("id: a\nsteps:\n  - {id: w, pouse: 1}\n", "pause"),
    ],
)
def test_faults_of_the_new_kind_are_told_like_others(
    extended: Path, recipe: str, expected: str
) -> None:
    (extended / "wrong.yaml").write_text(recipe, "utf-8")
    ran = _minions(extended, "validate", "wrong.yaml")
    assert ran.returncode == 2
    assert expected in ran.stdout + ran.stderr


def test_every_kind_of_step_has_its_compiler() -> None:
    compilers = ROOT / "minions" / "engine" / "compile" / "kinds"
    missing = [k.name for k in STEP_KINDS if not (compilers / f"{k.module}.py").is_file()]
    assert missing == []


def test_every_kind_of_step_stands_on_the_page_of_keys() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    assert [k.name for k in STEP_KINDS if f"<!-- generated: kind_{k.name} -->" not in page] == []
