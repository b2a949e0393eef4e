"""Files that a recipe names: beneath its project, nowhere else, whatever leads there."""

from __future__ import annotations

from pathlib import Path

import pytest

from minions.data.errors import Fault
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import check_recipe, check_recipe_text
from minions.recipe.recipe_files import project_root

PART = "id: part\nsteps: [{id: a, set: {n: 1}}]\n"
OUTSIDE = "id: outside\npassword_of_the_host: hunter2\n"


def naming(*names: str | Path) -> str:
    steps = "".join(f"  - {{id: s{at}, recipe: '{name}'}}\n" for at, name in enumerate(names))
    return f"id: main\nsteps:\n{steps}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a file beside it that is none of its own."""
    folder = tmp_path / "project"
    (folder / "recipes" / "sub").mkdir(parents=True)
    (folder / "shared").mkdir()
    (folder / "minions.toml").touch()
    (folder / "shared" / "part.yaml").write_text(PART)
    (tmp_path / "outside.yaml").write_text(OUTSIDE)
    (folder / "recipes" / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (folder / "recipes" / "folder").symlink_to(tmp_path)
    monkeypatch.chdir(folder)
    return folder


def faults_of(path: Path, *names: str | Path, folders: tuple[Path, ...] = ()) -> list[Fault]:
    path.write_text(naming(*names))
    return list(check_recipe(path, Catalog(recipe_folders=folders)).faults)


def codes(faults: list[Fault]) -> list[str]:
    return [fault.code for fault in faults]


@pytest.mark.parametrize(
    "name",
    [
        "../../outside.yaml",
        "/{}/outside.yaml",
        "link.yaml",
        "link",
        "folder/outside.yaml",
        "../../nothing.yaml",
        "../../outsyde.yaml",
        "/etc/passwd.yaml",
        "a\0b.yaml",
    ],
)
def test_a_file_outside_of_the_project_is_refused_and_not_read(
    project: Path, tmp_path: Path, name: str
) -> None:
    """Nothing tells whether there is such a file either."""
    text = naming(name.format(tmp_path)).replace("\0", "\\0").replace("'", '"')
    path = project / "recipes" / "main.yaml"
    (fault,) = check_recipe_text(text, str(path), Catalog()).faults
    assert (fault.code, fault.line, fault.label) == ("outside-project", 3, None)
    assert f"beneath {project / 'recipes'} or {project}. Move the file" in fault.message
    assert "password" not in f"{fault.message}{fault.label}{fault.help}"


@pytest.mark.parametrize(
    "name", ["../../outside.yaml/", "../../outside", "~nobody/outside", "~", "outside"]
)
def test_what_is_no_name_of_a_file_is_an_id_and_never_a_path(project: Path, name: str) -> None:
    """Nor is an id taken from a file outside, to which a link leads."""
    (fault,) = faults_of(project / "recipes" / "main.yaml", name)
    assert (fault.code, fault.label) == ("unknown-recipe", None)


@pytest.mark.parametrize("name", ["a" * 5_000, "a" * 5_000 + ".yaml", "~nobody/x.yaml"])
def test_a_name_that_no_file_can_have_is_unknown(project: Path, name: str) -> None:
    (fault,) = faults_of(project / "recipes" / "main.yaml", name)
    assert fault.code == "unknown-recipe"
    assert len(fault.message) < 400


def test_files_of_the_project_are_found_by_any_path(project: Path) -> None:
    (project / "recipes" / "inside.yaml").symlink_to(project / "shared" / "part.yaml")
    part = project / "shared" / "part.yaml"
    main = project / "recipes" / "sub" / "main.yaml"
    assert faults_of(main, "../../shared/part.yaml", part, "../inside.yaml") == []


def test_without_a_project_the_folder_of_the_recipe_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the recipe that was asked for, also for those that it runs."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "top" / "sub").mkdir(parents=True)
    (tmp_path / "part.yaml").write_text(PART)
    (tmp_path / "top" / "part.yaml").write_text(PART)
    (tmp_path / "top" / "sub" / "mid.yaml").write_text(naming("../part.yaml"))
    main = tmp_path / "top" / "main.yaml"
    assert faults_of(main, "sub/mid.yaml", "part.yaml") == []
    assert codes(faults_of(main, "../part.yaml")) == ["outside-project"]
    assert codes(faults_of(tmp_path / "top" / "sub" / "mid.yaml", "../part.yaml")) == [
        "outside-project"
    ]


def test_recipes_under_the_usual_folder_name_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("flows", "parts"):
        (tmp_path / "recipes" / name).mkdir(parents=True)
    (tmp_path / "recipes" / "parts" / "part.yaml").write_text(PART)
    main = tmp_path / "recipes" / "flows" / "main.yaml"
    assert faults_of(main, "../parts/part.yaml", "part") == []
    other = tmp_path / "other.yaml"
    assert faults_of(other, "part") == []


def test_the_servers_folders_count_and_a_recipes_own_does_not(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.yaml").write_text(PART)
    folders = (tmp_path / "a", tmp_path / "b")
    main = tmp_path / "a" / "main.yaml"
    assert faults_of(main, "../b/part.yaml", "part.yaml", folders=folders) == []
    assert codes(faults_of(main, "../c/part.yaml", folders=folders)) == ["outside-project"]
    sent = check_recipe_text(
        naming(tmp_path / "c" / "part.yaml"),
        str(tmp_path / "c" / "<sent>"),
        Catalog(recipe_folders=folders),
    )
    assert codes(list(sent.faults)) == ["outside-project"]


def test_the_project_is_where_its_configuration_is_or_the_repository(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b" / "c"
    below.mkdir(parents=True)
    assert project_root(below) is None
    (tmp_path / ".git").mkdir()
    assert project_root(below) == tmp_path
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert project_root(below) == tmp_path
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.minions]\n")
    assert project_root(below) == tmp_path / "a"
    (tmp_path / "a" / "b" / "pyproject.toml").write_text("no toml")
    assert project_root(below) == tmp_path / "a" / "b"
    (below / "minions.toml").touch()
    assert project_root(below) == below
