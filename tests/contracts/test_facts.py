"""Rows of every kind that databases hold are facts, and are written again without growing."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import entry_of
from minions.adapters.stores.stored_rows import read_fact
from minions.contracts.journal.facts import FACTS, UnreadableFact, body_of, fact_of
from minions.contracts.journal.journal import EntryDraft, body_text
from minions.data.json_values import JsonValue

GOLDEN: Final[list[dict[str, Any]]] = [  # Any: rows as they stand in databases
    json.loads(line)
    for line in Path(__file__).with_name("golden_facts.jsonl").read_text("utf-8").splitlines()
]
"""One row of each kind, state and set of fields that this program ever wrote. Rows are added here
and never changed: databases hold them."""


OTHER_ORDERS: Final = (("recipe", "steps", "note"), ("step_id", "status", "reason", "error"))
"""Members of rows that are written in another order now."""


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['kind']}-{row['state']}")
def test_what_was_ever_written_is_a_fact_and_is_written_again_byte_by_byte(
    row: dict[str, Any],  # Any: as above
) -> None:
    fact = fact_of(**row)
    assert not isinstance(fact, UnreadableFact), fact.problem
    assert (fact.kind, fact.state) == (row["kind"], row["state"])
    text = body_text(EntryDraft(key="k", fact=fact))
    if tuple(row["body"]) in OTHER_ORDERS:
        assert json.loads(text) == row["body"]
    else:
        assert text == json.dumps(row["body"], ensure_ascii=False, separators=(",", ":"))
    stored = text.encode("utf-8", "surrogatepass")
    assert read_fact(fact.kind, fact.state, stored) == fact
    assert fact_of(fact.kind, fact.state, json.loads(text)) == fact


def test_there_is_a_golden_row_of_every_kind_of_fact() -> None:
    assert {(row["kind"], row["state"]) for row in GOLDEN} == {
        (each.kind, each.state) for each in FACTS
    }


_DECIDED: dict[str, JsonValue] = {"step_id": "a", "what": "answer"}
_RESUMED: dict[str, JsonValue] = {"recipe": "r", "steps": {}}


@pytest.mark.parametrize(
    ("kind", "state", "body", "problem"),
    [
        ("run", "started", {"steps": {}}, "Object missing required field `recipe`"),
        ("run", "started", {"recipe": 7, "steps": {}}, "Expected `str`, got `int` - at `$.recipe`"),
        ("run", "started", {"recipe": "r"}, "neither `document` nor `steps` defines the steps"),
        ("run", "resumed", {"recipe": "r", "steps": {}, "decisions": {"k": 1}}, "$.decisions[...]"),
        (
            "run",
            "finished",
            {"status": "over"},
            "`over` is not a status; expected: completed, failed",
        ),
        ("message", "recorded", {}, "neither `message` nor `call` holds the message's content"),
        ("message", "recorded", {"call": "k", "sequence": 0}, "`int` >= 1 - at `$.sequence`"),
        ("message", "recorded", {"call": "k", "sequence": -3}, "`int` >= 1 - at `$.sequence`"),
        ("session", "cut", {"sequence": -1}, "`int` >= 0 - at `$.sequence`"),
        ("decision", "recorded", {"step_id": "a", "what": "answer"}, "required field `word`"),
        ("talk", "started", {}, "the kind 'talk' is not known; known are: run, step, "),
        ("run", "begun", {}, "run has no state 'begun'; its states are: started, resumed, "),
        ("decision", "recorded", _DECIDED | {"word": "perhaps"}, "`perhaps` is not a decision"),
        ("decision", "recorded", _DECIDED | {"word": "answer:{"}, "`answer:{` holds no JSON"),
        ("run", "resumed", _RESUMED | {"decisions": {"k": "done:{"}}, "`done:{` holds no JSON"),
    ],
)
def test_what_is_no_fact_says_what_was_expected(
    kind: str, state: str, body: dict[str, JsonValue], problem: str
) -> None:
    found = fact_of(kind, state, body)
    assert isinstance(found, UnreadableFact)
    assert problem in found.problem


_JSON: st.SearchStrategy[Any] = st.recursive(  # Any: JSON of any shape
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    row=st.sampled_from(GOLDEN),
    change=st.dictionaries(st.sampled_from([*{n for r in GOLDEN for n in r["body"]}]), _JSON),
)
def test_a_row_is_a_fact_or_is_told_as_unreadable(
    row: dict[str, Any],  # Any: as above
    change: dict[str, Any],  # Any: as above
) -> None:
    """A-123: nothing in a body makes reading it end otherwise."""
    fact = fact_of(row["kind"], row["state"], {**row["body"], **change})
    if isinstance(fact, UnreadableFact):
        assert fact.problem
    else:
        assert fact_of(row["kind"], row["state"], body_of(fact)) == fact


def test_a_long_record_gives_the_garbage_collector_nothing_to_search() -> None:
    entry = entry_of(
        "step", "finished", {"step_id": "a", "status": "completed", "output": {"n": 1}}
    )
    assert not gc.is_tracked(entry)
    assert not gc.is_tracked(entry.fact)
