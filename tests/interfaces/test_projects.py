"""Two projects that share a journal: what one lists and continues is its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from command_line import Cli, Outcome
from minions.recipe.recipe_files import project_of

RECIPE: Final = "id: notes\nsteps:\n  - {id: fine, set: {n: 1}}\n  - {id: last, set: {n: 2}}\n"
TALK: Final = """
id: talk
inputs: {message: string}
steps: [{id: say, goal: "{{ inputs.message }}", memory: conversation}]
output: "{{ say }}"
"""
WAITS: Final = "id: waits\nsteps: [{id: sure, ask: 'Sure?'}]\n"

In = Callable[..., Outcome]
"""A command in the folder that is named first."""


@pytest.fixture
def within(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> In:
    """Two projects, `a` and `b`, and one database."""
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "below").mkdir(parents=True)
        (folder / "minions.toml").write_text("", "utf-8")
        (folder / "notes.yaml").write_text(RECIPE, "utf-8")
        (folder / "talk.yaml").write_text(TALK, "utf-8")
        (folder / "waits.yaml").write_text(WAITS, "utf-8")
        script = f'{{"answers": ["I am of {name}.", "Still {name}."]}}'
        (folder / "s.yaml").write_text(script, "utf-8")

    def run(folder: str, *words: str) -> Outcome:
        monkeypatch.chdir(tmp_path / folder)
        return cli(*words, "--db", str(tmp_path / "both.sqlite"))

    return run


def run_ids(listed: Outcome) -> list[str]:
    return [line.split()[0] for line in listed.out.splitlines()[1:]]


def made(within: In, folder: str, *words: str) -> str:
    return str(within(folder, "run", *words, "--json").json["run_id"])


def test_a_project_is_the_nearest_folder_with_configuration_or_git(tmp_path: Path) -> None:
    root = tmp_path / "root"
    inner = root / "x" / "y"
    inner.mkdir(parents=True)
    assert project_of(inner) == str(inner.resolve())
    (root / ".git").mkdir()
    assert project_of(inner) == str(root.resolve())
    (root / "x" / "minions.toml").write_text("", "utf-8")
    assert project_of(inner) == str((root / "x").resolve())


def test_a_list_shows_the_runs_of_its_project_alone(within: In) -> None:
    """A-157."""
    first, second = made(within, "a", "notes.yaml"), made(within, "b", "notes.yaml")
    assert run_ids(within("a", "sessions", "list")) == [first]
    assert run_ids(within("a/below", "sessions", "list")) == [first]
    assert run_ids(within("b", "sessions", "list")) == [second]
    assert run_ids(within("b", "sessions", "list", "--all")) == [second, first]
    assert run_ids(within("b", "sessions", "list", "--search", first)) == []
    assert run_ids(within("b", "sessions", "list", "--search", first, "--all")) == [first]


def test_a_list_without_runs_tells_of_those_of_other_projects(within: In) -> None:
    made(within, "a", "notes.yaml")
    told = within("b", "sessions", "list").err
    assert "No run of the project" in told
    assert "--all" in told
    told = within("b", "sessions", "list", "--recipe", "other").err
    assert told.strip() == "No run fits."


def test_the_last_session_is_that_of_the_project(within: In) -> None:
    """A-157: no message of another project is sent to the model."""
    said = ("run", "talk.yaml", "-m", "scripted/s.yaml", "-p")
    own = within("a", *said, "message=Hello from a.", "--json").json["session_id"]
    refused = within("b", *said, "message=Hello from b.", "-c")
    assert refused.code == 2
    assert "There is no session of the project" in " ".join(refused.err.split())
    assert within("b", *said, "message=Hello from b.", "--json").json["session_id"] != own
    again = within("a", *said, "message=And again.", "-c", "--json")
    assert again.json["session_id"] == own
    last_of_all = within("b", *said, "message=Of all.", "-c", "--all", "--json")
    assert last_of_all.json["session_id"] == own


def test_the_name_of_another_projects_session_is_refused(within: In) -> None:
    said = ("run", "talk.yaml", "-m", "scripted/s.yaml", "--session", "diary", "-p")
    assert within("a", *said, "message=Mine.").code == 0
    refused = within("b", *said, "message=Yours?")
    assert refused.code == 2
    assert "is of the project" in refused.err
    assert within("b", *said, "message=Yours.", "--all").code == 0


def test_outputs_of_another_projects_runs_are_not_pinned(within: In) -> None:
    made(within, "a", "notes.yaml")
    within("b", "validate", "notes.yaml")
    text = (Path.cwd() / "notes.yaml").read_text("utf-8")
    (Path.cwd() / "notes.yaml").write_text(text.replace("{n: 2}", "{n: '{{ fine.n }}'}"), "utf-8")
    refused = within("b", "run", "notes.yaml", "--only", "last")
    assert "no earlier run of 'notes'" in refused.err
    made(within, "b", "notes.yaml")
    assert within("b", "run", "notes.yaml", "--only", "last").code == 0


def test_an_imported_session_belongs_to_the_project_that_imports_it(
    within: In, tmp_path: Path
) -> None:
    run_id = made(within, "a", "notes.yaml")
    file = str(tmp_path / "one.jsonl")
    within("a", "sessions", "export", run_id, "-o", file)
    within("a", "sessions", "rm", run_id, "--yes")
    within("b", "sessions", "import", file)
    assert run_ids(within("b", "sessions", "list")) == [run_id]
    assert run_ids(within("a", "sessions", "list")) == []


def test_a_fork_and_a_refused_recipe_belong_to_the_project(within: In) -> None:
    within("a", "run", "notes.yaml")
    bad = Path.cwd() / "bad.yaml"
    bad.write_text("id: bad\nsteps: [{id: x, sett: {n: 1}}]\n", "utf-8")
    within("a", "run", "bad.yaml")
    assert "rejected" in within("a", "sessions", "list").out
    assert "rejected" not in within("b", "sessions", "list").out
