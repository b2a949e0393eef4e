"""What of an imported entry stays, and what would grant something and does not count."""

from __future__ import annotations

import pytest

from builders import entry_of
from minions.data.json_values import JsonValue
from minions.engine.history.imported_entries import imported_entry
from minions.engine.views.judgements import marks_in

DECIDED: dict[str, JsonValue] = {"step_id": "a", "what": "approval", "word": "approve:1"}

MARKS = {"imported": True, "strangers_recipe": True}


def test_a_recorded_decision_is_shown_and_decides_nothing() -> None:
    given = entry_of("decision", "recorded", DECIDED)
    taken = imported_entry(given, None)
    assert (taken.state, taken.body, taken.key) == ("imported", DECIDED, "k")


def test_a_recorded_mark_is_shown_and_counts_for_nothing() -> None:
    given = entry_of("mark", "recorded", {"verdict": "good", "address": "a", "by": "ada"})
    taken = imported_entry(given, None)
    assert (taken.state, taken.body) == ("imported", given.body)
    assert marks_in([taken]) == ()
    assert len(marks_in([given])) == 1


@pytest.mark.parametrize(
    ("kind", "state"),
    [("decision", "waiting"), ("decision", "imported"), ("message", "recorded"),
     ("goto", "recorded"), ("run", "finished"), ("run", "rejected"), ("step", "started")],
)  # fmt: skip
def test_what_grants_nothing_stays_as_it_is(kind: str, state: str) -> None:
    given = entry_of(kind, state, {"note": {"approve": "all"}, "directory": "/"})
    assert imported_entry(given, None) is given


@pytest.mark.parametrize("state", ["started", "resumed"])
def test_of_a_runs_start_only_what_grants_nothing_is_taken(state: str) -> None:
    note: dict[str, JsonValue] = {
        "command": "run",
        "extensions": ["x.py"],
        "model": "m",
        "approve": "all",
        "cwd": "/",
        "max_cost_usd": 9,
        "server": True,
        "imported": False,
    }
    body: dict[str, JsonValue] = {
        "recipe": "r",
        "inputs": {"x": 1},
        "note": note,
        "document": "d",
        "directory": "/home",
        "decisions": {"k": "approve:1"},
    }
    assert imported_entry(entry_of("run", state, body), None).body == {
        "recipe": "r",
        "inputs": {"x": 1},
        "note": {"command": "run", "extensions": ["x.py"], **MARKS},
        "document": "d",
    }


def test_a_run_without_a_note_says_only_that_it_was_imported() -> None:
    taken = imported_entry(entry_of("run", "started", {"recipe": "r", "note": None}), None)
    assert taken.body == {"recipe": "r", "note": MARKS, "steps": {}}
