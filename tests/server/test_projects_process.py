"""`minions serve --projects` as a process, with workers of one project's database."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked_commands import PROGRAM, run_forked
from patience import HANG_S
from served import RECIPES
from serving import EXTENSIONS, Serving

_TABLE = """
default = "shop"
[projects.shop]
db = "shop.sqlite"
[projects.lab]
db = "lab.sqlite"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with recipes, a model and a table of projects."""
    (tmp_path / "own.py").write_text(EXTENSIONS, "utf-8")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "adds.yaml").write_text(RECIPES["adds"], "utf-8")
    (tmp_path / "projects.toml").write_text(_TABLE, "utf-8")
    return tmp_path


def commanded(folder: Path, *arguments: str) -> tuple[int, str]:
    done = run_forked(
        [*PROGRAM, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_worker_of_one_database_executes_what_was_queued_for_its_project(folder: Path) -> None:
    options = ("--projects", "projects.toml", "--extensions", "own.py", "--submit-only")
    with Serving(folder, *options) as server:
        shop, lab = server.of_project("shop"), server.of_project("lab")
        runs = [
            each.ask("POST", "/runs", {"recipe": "adds", "inputs": {"a": 1}})
            for each in (shop, lab)
        ]
        code, told = commanded(
            folder, "worker", "--once", "--db", "lab.sqlite", "--extensions", "own.py"
        )
        assert code == 0, told
        states = {
            row["project"]: row["status"] for row in server.ask("GET", "/projects/runs")["runs"]
        }
        assert states == {"shop": "queued", "lab": "completed"}
        assert lab.ask("GET", f"/runs/{runs[1]['run_id']}")["output"] == 2
        assert server.end()[0] == 143


def test_a_database_beside_the_table_is_refused(folder: Path) -> None:
    for more in (("--db", "j.sqlite"), ("--no-store",)):
        code, told = commanded(folder, "serve", "--projects", "projects.toml", *more)
        assert code == 2
        assert "names the database of each project" in told
