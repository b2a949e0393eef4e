"""The note of a run's start: what is ours is read in one place, what is not ours is kept."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.journal.child_run_links import ChildLink, ChildWait
from minions.contracts.journal.start_note import MARKS, Offer, QueuePlace, StartNote
from minions.data.json_values import JsonValue

WHOLE = StartNote(
    is_imported=True,
    is_strangers=True,
    is_of_server=True,
    queue=QueuePlace(name="night", priority=3, not_before=datetime(2026, 1, 2, tzinfo=UTC)),
    child=ChildLink(run_id="run_1", session_id="ses_1", step_id="all", since=2, share=3),
    waits=(ChildWait(start="run_1", most_open=2),),
    offer=Offer(way="http", folders=("/data",), brings_recipe=True),
    evaluation="e1",
    command="eval",
    batch="digest",
    asked="digest",
    cwd="/work",
    extensions=("a.py", "b"),
    model="openai/gpt-5-mini",
    folder="/models",
    approve="ask",
    max_cost_usd=1.5,
    no_cache=True,
    reasons={"k": "why"},
)


def test_what_is_noted_is_read_again() -> None:
    assert StartNote.of(WHOLE.to_json()) == WHOLE
    assert StartNote.of(StartNote().to_json()) == StartNote()
    assert StartNote().to_json() == {}


def test_marks_are_keys_of_the_note() -> None:
    assert set(MARKS) <= WHOLE.to_json().keys()


@pytest.mark.parametrize("note", [None, {}, {"mine": {"a": 1}}])
def test_a_note_of_an_application_alone_notes_nothing_of_ours(
    note: dict[str, JsonValue] | None,
) -> None:
    assert StartNote.of(note) == StartNote()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(WHOLE.to_json())), JSON))
def test_a_note_of_another_form_never_raises_and_trusts_no_one_more(
    note: dict[str, JsonValue],
) -> None:
    read = StartNote.of(note)
    assert read.is_imported is bool(note.get("imported"))
    assert read.is_strangers is bool(note.get("strangers_recipe"))
    assert (read.offer is not None) == ("offer" in note)


@pytest.mark.parametrize(
    ("cost", "read"), [(1, 1), (1.5, 1.5), (0, 0), (True, None), ("1", None), ([1], None)]
)
def test_a_cost_is_a_number(cost: JsonValue, read: float | None) -> None:
    assert StartNote.of({"max_cost_usd": cost}).max_cost_usd == read


def test_names_of_extensions_are_texts() -> None:
    assert StartNote.of({"extensions": ["a", 1, "b"]}).extensions == ("a", "b")
