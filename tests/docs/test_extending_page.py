"""The page about extending Minions: what it says is done to a copy, which then works as it says."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from minions.recipe.kinds.kind_registry import STEP_KINDS

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
    set: {short: "{{ 'Ada' | reversed }}", number: "{{ throw }}"}
output: "{{ names }}"
"""
_SETTINGS: Final = """
model = "lab/some-model"
greeting = "Welcome"
[providers.lab]
api = "compact"
base_url = "http://127.0.0.1:9/v1"
"""

_WIRE_FORM: Final = """
from pathlib import Path
from minions.engine.compile.extensions import Extensions
from minions.app.settings.user_folders import FolderTrust
from minions.app.settings.setting_sources import load_settings
from minions.app.wiring.configured_models import Models
from minions.recipe.catalog import Catalog
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import load_recipe_text

trust, here = FolderTrust(is_given=True), Path.cwd()
settings = load_settings({}, {}, folder=here, user_file=None, trust=trust).settings
recipe = load_recipe_text("id: r\\nsteps: [{id: a, goal: Go.}]", "r.yaml", Catalog())
models = Models(settings, Extensions(), environ={}, folder_of=lambda _: here)
print(type(models.source(recipe)(ModelConfig())).__name__)
"""
_FACT: Final = """
from minions.contracts.journal.facts.rows import fact_of

print(fact_of("visit", "recorded", {"by": "ada"}))
"""
_SCORER: Final = """
from pathlib import Path
from minions.evaluation.suite_file import read_suite_text

suite = read_suite_text("scorers: [{short: 5}]", "s.yaml", Path.cwd())
print(suite.scorers[0].score(None, "abcdef").reason)
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
    (place / "minions.toml").write_text(_SETTINGS, "utf-8")
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
    return _python(place, "-m", "minions", *arguments)


def _python(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(place), "HOME": str(place), "MINIONS_TRUST": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={**own, "NO_COLOR": "1", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def _parts() -> Iterator[tuple[str, str]]:
    for what, file, _ in _BLOCK.findall(PAGE.read_text("utf-8")):
        yield what, file


def test_a_kind_of_step_is_two_modules_of_one_kind_and_one_line() -> None:
    kind = [(what, file) for what, file in _parts() if "kinds" in file]
    assert kind == [
        ("new", "minions/recipe/kinds/pause_kind.py"),
        ("new", "minions/engine/compile/kinds/pause.py"),
        ("change", "minions/recipe/kinds/kind_registry.py"),
    ]


def test_everything_else_is_one_new_file_at_most_and_one_or_two_changed() -> None:
    section, others = "", dict[str, list[str]]()
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif (found := re.match(r"<!-- not run: (\w+) \S+ -->", line)) and "kind" not in section:
            others.setdefault(section, []).append(found[1])
    assert len(others) == 7
    for section, changes in others.items():
        assert changes.count("new") <= 1, section
        assert 1 <= changes.count("change") <= 2, section


def test_what_the_page_says_can_be_said_once_more_where_it_was_done(extended: Path) -> None:
    """What somebody adds as the page says must not break the page for the next one."""
    for what, file, text in _BLOCK.findall(PAGE.read_text("utf-8")):
        if what == "change":
            _changed((extended / file).read_text("utf-8"), text)


def test_what_the_page_adds_is_formatted_and_linted_as_all_else(extended: Path) -> None:
    changed = [extended / file for _, file, _ in _BLOCK.findall(PAGE.read_text("utf-8"))]
    for command in (("format", "--check"), ("check",)):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--config", ROOT / "pyproject.toml", *changed],
            cwd=extended,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_page_quotes_is_the_code() -> None:
    """If this fails: `python docs/generate_extending.py`."""
    text = PAGE.read_text("utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "generate_extending.py"))["page"](text) == text


def test_the_files_and_tests_that_the_page_names_are_there() -> None:
    text = re.sub(r"```.*?```", "", PAGE.read_text("utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+(?:\.\w+)?)`", text))
    assert len(named) > 20
    assert [
        each
        for each in sorted(named)
        if not any((ROOT / at / each).exists() for at in (".", "minions"))
    ] == []
    tests = [each for each in named if each.startswith("tests/")]
    sections = text.split("\n## ")[1:]
    assert len(tests) >= len(sections) - 1
    assert [each.partition("\n")[0] for each in sections if "`tests/" not in each] == []


def test_what_the_page_adds_runs(extended: Path) -> None:
    ran = _minions(extended, "run", "recipe.yaml", "--no-store")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"short": "adA", "number": 1}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("validate", "recipe.yaml"), "ok"),
        (("graph", "recipe.yaml"), "pause 0.01 s"),
        (("graph", "recipe.yaml", "--format", "mermaid"), "classDef pause stroke:#ca8a04"),
        (("explain", "recipe.yaml"), "dice__roll"),
        (("run", "recipe.yaml", "--dry-run"), "pause"),
        (("schema",), "How long, in seconds."),
        (("hello", "you"), "Welcome, you!"),
        (("hello", "you", "--greeting", "Hi"), "Hi, you!"),
        (("config",), 'greeting = "Welcome"'),
        (("--help",), "Say hello."),
    ],
)
def test_commands_know_it(extended: Path, arguments: tuple[str, ...], expected: str) -> None:
    ran = _minions(extended, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert expected in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (_WIRE_FORM, "CompactModel"),
        (_FACT, "VisitRecorded(by='ada')"),
        (_SCORER, "it has 6 characters"),
    ],
    ids=["wire form", "fact", "scorer"],
)
def test_code_knows_it(extended: Path, code: str, expected: str) -> None:
    ran = _python(extended, "-c", code)
    assert ran.stdout.strip() == expected, ran.stderr


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
