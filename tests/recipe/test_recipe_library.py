"""Recipes are found by path, and by id under folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from minions.data.errors import NotFoundError
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import check_recipe
from minions.recipe.recipe_files import find_recipe, recipe_ids


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.yaml").write_text("id: news.daily  # the news\nsteps: []\n")
    (tmp_path / "b.yml").write_text("description: no id\nsteps:\n  - id: inner\n")
    (tmp_path / "deep" / "c.yaml").write_text('name: "other"\n')
    (tmp_path / "broken.yaml").write_bytes(b"\xff\xfe{{{")
    (tmp_path / "notes.txt").write_text("id: text\n")
    return tmp_path


def test_ids_come_from_the_file_or_its_name(folder: Path) -> None:
    assert recipe_ids([folder]) == {
        "news.daily": folder / "a.yaml",
        "b": folder / "b.yml",
        "other": folder / "deep" / "c.yaml",
        "broken": folder / "broken.yaml",
    }


@pytest.mark.parametrize(
    ("head", "recipe_id"),
    [
        ("name: Day Watch\n", "day-watch"),
        ("name: Day Watch  # for people\n", "day-watch"),
        ('name: "Day # Watch"   # for people\n', "day-watch"),
        ("name: 'Day Watch'\r\n", "day-watch"),
        ("name: Größe über alles\n", "groe-uber-alles"),
        ("name: strava_monitor.v2\n", "strava_monitor.v2"),
        ("name: Day Watch\nid: watch\n", "watch"),
        ("name: 日報\n", "file"),
        ("name: '...'\n", "..."),
        ("name:\n", "file"),
    ],
)
def test_an_id_is_made_of_a_name_for_people(tmp_path: Path, head: str, recipe_id: str) -> None:
    """By the list of ids, which reads no YAML, just as by the loader."""
    path = tmp_path / "file.yaml"
    path.write_text(f"{head}steps: [{{id: a, set: {{n: 1}}}}]\n", "utf-8", newline="")
    assert recipe_ids([tmp_path]) == {recipe_id: path}
    loaded = check_recipe(path, Catalog())
    if loaded.recipe is not None:
        assert loaded.recipe.id == recipe_id


def test_a_path_wins_over_an_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert find_recipe("a.yaml", [folder]) == Path("a.yaml")
    assert find_recipe("news.daily", [folder / "none", folder]) == folder / "a.yaml"


def test_a_miss_names_what_is_near_and_where_was_looked(folder: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_recipe("news.dayly", [folder])
    error = caught.value
    assert (error.error_code, error.suggestions) == ("recipe-not-found", ("news.daily",))
    assert str(folder) in error.message
    with pytest.raises(NotFoundError, match=r"Did you mean 'other'"):
        find_recipe("othr.yaml", [folder])
    with pytest.raises(NotFoundError, match="no folder"):
        find_recipe("x", [])


def test_the_other_suffix_and_a_near_file_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "deep")
    (folder / "deep" / "native.yaml").write_text("id: other.id\n")
    for asked, near in (("native.yml", "native.yaml"), ("./natve.yaml", "native.yaml")):
        with pytest.raises(NotFoundError, match=rf"Did you mean '{near}'") as caught:
            find_recipe(asked, [])
        assert caught.value.suggestions == (near,)
    absolute = str(folder / "broken.yml")
    with pytest.raises(NotFoundError) as caught:
        find_recipe(absolute, [])
    assert caught.value.suggestions == (str(folder / "broken.yaml"),)
