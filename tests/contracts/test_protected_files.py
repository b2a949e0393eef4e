"""Which names configure tools or are secret, however they are written."""

from __future__ import annotations

import re

import pytest

from minions.contracts import protected_files
from minions.contracts.protected_files import (
    CONFIGURES,
    REFUSED_ENDING,
    SECRETS,
    configures,
    entry_configures,
    entry_is_secret,
    folded_name,
    is_git_name,
    is_opened,
    is_secret,
    matches_any,
)


@pytest.fixture(autouse=True)
def _compiled_anew() -> None:
    protected_files._compiled.cache_clear()


def sample_of(pattern: str) -> str:
    """A path that the pattern means."""
    path = re.sub(r"\[(.).*?\]", r"\1", pattern).replace("*", "_")
    return f"{path}inner.txt" if path.endswith("/") else path


def named(path: str) -> list[str]:
    return path.split("/")


@pytest.mark.parametrize("group", CONFIGURES)
def test_each_pattern_of_what_configures_means_what_it_says(group: str) -> None:
    for pattern in CONFIGURES[group].split():
        path = sample_of(pattern)
        for each in (path, f"a/b/{path}", path.upper(), f"{path}.", f"{path} ", f"{path}:x"):
            assert configures(named(each)), each
        assert not configures(named(f"{path}{REFUSED_ENDING}")) or pattern.endswith("/"), path
        if "*" not in pattern and not path.startswith(".env"):
            assert pattern.endswith("/") or not configures(named(f"{path}x")), path


@pytest.mark.parametrize("group", SECRETS)
def test_each_pattern_of_what_is_secret_means_what_it_says(group: str) -> None:
    for pattern in SECRETS[group].split():
        path = sample_of(pattern)
        for each in (path, f"a/b/{path}", path.upper(), f"{path}.", f"{path} "):
            assert is_secret(named(each)), each


@pytest.mark.parametrize(
    "path",
    [
        *("src/main.py", "a/makefile-notes.md", "build/out", "workspace/x", "configure/x.py"),
        *("recipes/a/b.txt", "recipes.yaml", "x.yaml", "app/tasks.py", ".env.example", "envoy"),
        *("Makefil", "x.gradle", "gradle/x/wrapper", "wrapper/x", "a/b.yaml"),
        *("setup.py.refused", "xsetup.py", "setup.pyx", "my.pth.txt", "vendor/x", "makefiles/a"),
    ],
)
def test_other_names_configure_nothing(path: str) -> None:
    assert not configures(named(path))


@pytest.mark.parametrize(
    "path", ["a.py", "id_rsa.pub", ".env.sample", "credentials/x.py", "key.txt", "apem", "x.envs"]
)
def test_other_names_are_no_secrets(path: str) -> None:
    assert not is_secret(named(path))


def test_a_file_of_that_name_is_meant_and_no_folder() -> None:
    assert configures(["WORKSPACE"])
    assert not configures(["WORKSPACE"], is_folder=True)
    assert configures([".vscode"], is_folder=True)
    assert not is_secret(["credentials"], is_folder=True)
    assert is_secret(["credentials"])
    assert is_secret([".aws"], is_folder=True)
    assert is_secret([".env.example"], is_folder=True)
    assert configures([".env.example"], is_folder=True)
    assert configures(["gradle", "wrapper"], is_folder=True)
    assert not configures(["recipes", "x.yaml"], is_folder=True)


@pytest.mark.parametrize(
    "name",
    [
        ".git",
        ".GIT",
        ".Git.",
        ".git ",
        "GIT~1",
        "git~2",
        "git~3",
        "git~4",
        ".g\u200cit",
        ".git::$INDEX",
        ".\uff47it",
    ],
)
def test_every_spelling_of_git_is_known_and_nothing_opens_it(name: str) -> None:
    assert is_git_name(name)
    assert configures(["a", name, "config"], ["*", name, ".git", "config"])


@pytest.mark.parametrize("name", ["git", ".gitx", ".gitignore", "git~9", "a.git", ".git-x"])
def test_other_names_are_not_git(name: str) -> None:
    assert not is_git_name(name)


def test_names_are_compared_as_the_most_careless_file_system_does() -> None:
    assert folded_name("MAKEFILE") == folded_name("Makefile..") == "makefile"
    assert folded_name("Ma\u200dke\ufe0ffile") == folded_name("\uff2dakefile") == "makefile"
    for unseen in "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufe00\ufe0f\u00ad\u202e":
        assert folded_name(f"ma{unseen}kefile") == "makefile", unseen
    assert folded_name("ma\ufe10kefile") != "makefile"
    assert folded_name("ma\ufdffkefile") != "makefile"
    assert folded_name("a:b") == "a"
    assert folded_name(":b") == ":b"
    assert folded_name("...") == "..."
    assert folded_name("stra\u00dfe") == "strasse"
    assert folded_name("e\u0301") == folded_name("\u00e9")


def test_what_is_opened_is_opened_by_name_and_no_more() -> None:
    assert not configures(["a", "Makefile"], ["MAKEFILE"])
    assert not configures(["a", "Makefile"], ["a"])
    assert not configures([".vscode", "x"], [".vscode/"])
    assert not configures(["web", "package.json"], ["web/*.json"])
    assert configures(["app", "package.json"], ["web/*.json"])
    assert configures(["Makefile"], [])
    assert configures(["Makefile"], ["a Makefile", ""])
    assert not configures(["Makefile"], ["[lm]akefile"])
    assert not configures(["Makefile"], ["?akefile"])
    assert not configures(["Makefile"], ["m*f?le"])
    assert configures(["Makefile"], ["?akefil"])
    assert configures(["Makefile.am"], ["Makefil?"])
    assert configures(["Makefile"], ["makefiles", "a/Makefile"])
    assert not is_secret([".env.test"], [".env.test"])
    assert is_secret([".env"], [".env.test"])
    assert is_opened(["a", "b"], ["A"])
    assert not is_opened(["a", "b"], [])
    assert not is_opened(["a", "b"], ["c"])


def test_of_the_names_above_only_folders_count_that_are_named_exactly() -> None:
    assert configures(["recipes", "x.yaml"], above=1)
    assert configures([".vscode", "x"], above=1)
    assert configures([".ssh", "a", "b"], above=2)
    assert not configures(["Makefile", "x"], above=1)
    assert not configures([".environments", "x"], above=1)
    assert configures([".vscode", "x"], ["x"], above=1)
    assert not configures([".vscode", "x"], [".vscode"], above=1)
    assert configures(["tools", "Makefile"], ["tools"], above=1)
    assert not configures(["x", ".vscode", "y"], [".vscode/y"], above=1)
    assert not is_secret([], above=0)
    assert not configures([])


def test_an_entry_is_known_by_its_name_and_the_folders_above() -> None:
    assert entry_configures([], "makefile", is_folder=False)
    assert not entry_configures([], "makefile", is_folder=True)
    assert entry_configures(["x", "recipes"], "a.yaml", is_folder=False)
    assert not entry_configures(["recipes", "x"], "a.yaml", is_folder=False)
    assert not entry_configures([], "makefile.refused", is_folder=False)
    assert not entry_configures([], ".env.refused", is_folder=True)
    assert not entry_configures([], ".env.example", is_folder=False)
    assert entry_configures([], ".env.example", is_folder=True)
    assert not entry_configures([".vscode"], "x", is_folder=False)
    assert entry_is_secret([], "a.pem", is_folder=False)
    assert not entry_is_secret([], "a.pem", is_folder=True)
    assert entry_is_secret([".git"], "config", is_folder=False)
    assert entry_is_secret([], ".env.refused", is_folder=False)
    assert not entry_is_secret([], "id_rsa.pub", is_folder=False)


def test_globs_of_an_option_match_names_paths_and_what_is_below() -> None:
    assert matches_any(["a", "B.lock"], ["*.LOCK"])
    assert matches_any(["a", "b", "c"], ["a/b"])
    assert not matches_any(["a", "b"], ["b/a", "c"])
    assert not matches_any([], ["*"])
