"""What the last release promised still holds, or was deprecated long enough before it went."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Final

import pytest
from packaging.version import Version

import minions
from release.changelog import notes, unannounced
from release.surface import CHANGELOG, Surface, broken, recorded, surface


@pytest.fixture(scope="module")
def now() -> Surface:
    """Of the code as it is."""
    return surface()


def test_what_the_last_release_promised_holds(now: Surface) -> None:
    """If this fails: keep it, or deprecate it first (docs/compatibility.md)."""
    changelog = CHANGELOG.read_text("utf-8")
    lost = broken(recorded().surface, now)
    assert unannounced(lost, changelog, minions.__version__) == []


def test_the_release_that_is_recorded_has_notes_and_is_not_newer_than_the_code() -> None:
    assert Version(recorded().version) <= Version(minions.__version__)
    assert notes(CHANGELOG.read_text("utf-8"), recorded().version).strip()


@pytest.mark.parametrize(
    ("part", "name", "member"),
    [
        ("python", "minions.AgentExecutor.execute", "inputs"),
        ("python", "minions.RunStatus attributes", "COMPLETED"),
        ("recipe", "limits", "max_tokens"),
        ("recipe", "recipe.execution_mode values", "parallel"),
        ("recipe", "step goal", None),
        ("http requests", "GET /api/v1/runs", "query limit"),
        ("http requests", "RecipeTextRequest", "recipe_text"),
        ("http answers", "GET /api/v1/runs/{run_id}", "404"),
        ("http answers", "RunRow", "status"),
        ("journal", "run started", "inputs"),
        ("errors", "codes", "unknown-reference"),
        ("commands", "minions sessions list", "--search"),
    ],
)
def test_whatever_goes_is_noticed(now: Surface, part: str, name: str, member: str | None) -> None:
    less = copy.deepcopy(now)
    if member is None:
        del less[part][name]
    else:
        del less[part][name][member]
    assert list(broken(now, less)) == [" ".join(filter(None, (part, name, member)))]


BEFORE: Final[Surface] = {
    "python": {"run": {"recipe": "!", "inputs": "", "user": "*"}, "Tool subclass": {"call": "!"}},
    "recipe": {"limits": {"max_tokens": "integer", "model": "object string"}},
    "http answers": {"Row": {"ended": "null string!"}},
}


@pytest.mark.parametrize(
    ("part", "name", "members"),
    [
        ("python", "run", {"recipe": "!", "inputs": "", "folder": "", "user": "*", "at": "*"}),
        ("python", "run", {"recipe": "!", "inputs": "", "user": ""}),
        ("python", "run", {"recipe": "", "inputs": "", "user": "*"}),
        ("python", "Tool subclass", {}),
        ("recipe", "limits", {"max_tokens": "integer string", "model": "object string", "x": ""}),
        ("http answers", "Row", {"ended": "string!", "begun": "string!"}),
        ("http answers", "Other", {}),
    ],
)
def test_what_is_more_or_asked_for_less_is_no_breach(
    part: str, name: str, members: dict[str, str]
) -> None:
    after = {**BEFORE, part: {**BEFORE[part], name: members}}
    assert list(broken(BEFORE, after)) == []


@pytest.mark.parametrize(
    ("part", "name", "members", "lost"),
    [
        ("python", "run", {"recipe": "!", "inputs": "!", "user": "*"}, "inputs"),
        ("python", "run", {"recipe": "!", "inputs": "", "user": "*", "at": "*!"}, "at"),
        ("python", "run", {"recipe": "!", "inputs": "*", "user": "*"}, "inputs"),
        ("python", "run", {"inputs": "", "recipe": "!", "user": "*"}, "recipe"),
        ("python", "run", {"recipe": "!", "at": "", "inputs": "", "user": "*"}, "inputs"),
        ("python", "Tool subclass", {"call": "!", "name": "!"}, "name"),
        ("recipe", "limits", {"max_tokens": "integer", "model": "string"}, "model"),
        ("recipe", "limits", {"max_tokens": "integer!", "model": "object string"}, "max_tokens"),
        ("http answers", "Row", {"ended": "integer null string!"}, "ended"),
    ],
)
def test_what_is_less_or_asked_for_more_is_a_breach(
    part: str, name: str, members: dict[str, str], lost: str
) -> None:
    after = {**BEFORE, part: {**BEFORE[part], name: members}}
    assert f"{part} {name} {lost}" in list(broken(BEFORE, after))


# --- how something goes ---------------------------------------------------------------------------

LOG: Final = """
# Changelog

## [Unreleased]

### Deprecated

- `recipe limits d`.

## [0.4.0]

### Deprecated

- `recipe limits c`: write `e`.

### Removed

- `recipe limits b`

## [0.3.0] - 2027-01-01

### Deprecated

- `recipe limits a`: write `e`.

## [0.2.0]

### Added

- All of it.
"""


@pytest.mark.parametrize(
    ("version", "kept"),
    [("0.4.1", "abcd"), ("0.5.0", "bcd"), ("0.6.0", "bd"), ("1.0.0", "bd"), ("0.3.0", "abcd")],
)
def test_something_stays_for_two_minor_versions_after_it_was_deprecated(
    version: str, kept: str
) -> None:
    lost = [f"recipe limits {name}" for name in "abcd"]
    assert unannounced(lost, LOG, version) == [f"recipe limits {name}" for name in kept]


def test_from_the_first_major_version_on_it_stays_until_the_next() -> None:
    log = LOG.replace("0.3.0", "1.3.0").replace("0.4.0", "1.4.0")
    assert unannounced(["recipe limits a"], log, "1.9.0") == ["recipe limits a"]
    assert unannounced(["recipe limits a"], log, "2.0.0") == []


def test_notes_are_those_of_one_version() -> None:
    assert notes(LOG, "0.2.0") == "### Added\n\n- All of it.\n"
    with pytest.raises(ValueError, match=r"no section \[0\.9\.0\]"):
        notes(LOG, "0.9.0")


def test_the_page_says_what_is_compared() -> None:
    page = (Path(__file__).parents[1] / "docs" / "compatibility.md").read_text("utf-8")
    assert all(f"| `{part}` |" in page for part in recorded().surface)
