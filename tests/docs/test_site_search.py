"""The search of the documentation site finds pages by the words of those who look for them."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
QUESTIONS: Final[Mapping[str, str]] = yaml.safe_load(
    Path(__file__).with_name("newcomer_questions.yaml").read_text("utf-8")
)
_MOST_MISSED: Final = 2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    python = ROOT / ".venv-docs" / "bin" / "python"
    if not python.exists():
        pytest.skip("the site's packages are not installed: `make docs` installs them")
    if shutil.which("node") is None:
        pytest.skip("Node is not installed, which runs the site's search")
    out = tmp_path_factory.mktemp("docs")
    command = [str(python), str(ROOT / "docs" / "build_site.py"), str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "site"


def test_the_right_page_comes_first_for_the_questions_of_newcomers(site: Path) -> None:
    """A-186. Fewer: add the reader's words to the list of `docs/how-to/README.md`."""
    missed = {
        question: pages[:3]
        for question, pages in _pages_found(site, QUESTIONS).items()
        if pages[:1] != [QUESTIONS[question]]
    }
    assert len(missed) <= _MOST_MISSED, missed


def test_pages_for_users_come_before_decisions_and_the_reference(site: Path) -> None:
    for question, pages in _pages_found(site, ["budgets", "mcp", "resume"]).items():
        later = next(at for at, page in enumerate(pages) if page.startswith("docs/design/"))
        assert pages.index(f"docs/{question}") < later


def test_there_are_forty_questions_about_most_pages_for_users() -> None:
    assert len(QUESTIONS) == 40
    words = runpy.run_path(str(ROOT / "docs" / "build_site.py"))["search_words"]()
    known = {name.removesuffix(".md").removesuffix("/README") for name in words}
    assert set(QUESTIONS.values()) <= known
    assert len(set(QUESTIONS.values())) > 25


def _pages_found(site: Path, questions: Collection[str]) -> dict[str, list[str]]:
    """By question: the pages that the site's own script finds, best first."""
    script = Path(__file__).with_name("site_search.js")
    command = ["node", str(script), str(site), *questions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {
        question: [place.partition("#")[0].rstrip("/") for place in places]
        for question, places in zip(questions, json.loads(done.stdout), strict=True)
    }
