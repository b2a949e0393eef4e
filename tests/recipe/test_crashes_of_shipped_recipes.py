"""The shipped recipes under kills and faults: nothing is said of what cannot happen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forked_commands import PROGRAM, run_forked

ROOT = Path(__file__).parents[2]
REFUSED = {
    "ask_table": "its model's program runs in a sandbox, a process with a time of its own",
    "build_package": "its plan reads files that a step before it writes",
    "write_function": "its model is done when the tests in its folder pass",
}
"""Recipes that do not come to their end where tools that write are doubles, and why."""
PLAYED = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml") if path.stem not in REFUSED)


def _crash(*names: str, stories: int) -> tuple[int, str, str]:
    recipes = (f"recipes/{name}.yaml" for name in names)
    command = [*PROGRAM, "test", *recipes, "--real-tools", "--trust", "--json"]
    done = run_forked([*command, "--crash", str(stories)], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_shipped_recipe_has_no_findings() -> None:
    code, out, err = _crash(*PLAYED, stories=20)
    assert code == 0, out + err
    reports = json.loads(out)["recipes"]
    assert len(reports) == len(PLAYED)
    assert [name for name, report in reports.items() if report["findings"]] == []
    assert all(report["facts"] > 4 for report in reports.values())


@pytest.mark.long
@pytest.mark.parametrize("name", PLAYED)
def test_a_shipped_recipe_has_no_findings_in_many_stories(name: str) -> None:
    code, out, err = _crash(name, stories=500)
    assert code == 0, out + err


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_recipe_that_needs_the_effects_of_its_tools_is_refused(name: str) -> None:
    code, _, err = _crash(name, stories=1)
    assert code == 2, err
    assert "crash-test-fails" in err
