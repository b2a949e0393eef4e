"""The search syntax of lists of runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.journal.run_rows import RunFilter, RunRow, UsageBound
from minions.data.errors import UsageError
from minions.engine.views.run_query import KEYS, run_filter_of

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def test_each_term_of_a_search_narrows_the_list() -> None:
    found = run_filter_of(
        'status:failed cost>0.01 recipe:triage user:"Ada L" project:/x since:2d tokens<=1000 '
        'session:s1 refund "late parcel" order',
        NOW,
    )
    assert found == RunFilter(
        statuses={"failed"},
        recipe="triage",
        user="Ada L",
        project="/x",
        session_id="s1",
        since=NOW - timedelta(days=2),
        text="refund order",
        phrases=("late parcel",),
        bounds=(
            UsageBound(name="cost_usd", sign=">", value=0.01),
            UsageBound(name="total_tokens", sign="<=", value=1000),
        ),
    )


def test_several_states_select_the_runs_of_each_and_keys_have_no_case() -> None:
    assert run_filter_of("status:failed Status:partial", NOW).statuses == {"failed", "partial"}


def test_an_empty_search_changes_nothing() -> None:
    asked = RunFilter(recipe="triage", statuses={"failed"}, text="late")
    assert run_filter_of("  ", NOW, asked) == asked


@pytest.mark.parametrize(
    ("query", "place", "told"),
    [
        ("late stauts:failed", 6, "Did you mean 'status'?"),
        ("status:faild", 1, "Did you mean 'failed'?"),
        ("status:x", 1, "There are"),
        ("cost>many", 1, "no number"),
        ("cost>-1", 1, "no number"),
        ("tokens>nan", 1, "no number"),
        ("tokens>1e999", 1, "no number"),
        ("cost:3", 1, "write cost>100"),
        ("recipe>3", 1, "write recipe:VALUE"),
        ("recipe:", 1, "a value is missing"),
        ("recipe: triage", 1, "a value is missing"),
        ("since:soon", 1, "write how long ago"),
        ('late "parcel', 6, "the quotation mark is not closed"),
        ("recipe:a recipe:b", 10, "it is asked for twice"),
        ("http://example", 1, 'Words with such a sign: "http://example"'),
    ],
)
def test_a_term_that_cannot_be_read_is_refused_with_its_place(
    query: str, place: int, told: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(told)) as caught:
        run_filter_of(query, NOW)
    assert caught.value.error_code == "bad-search"
    assert f"(character {place} of the search)" in caught.value.message


def test_what_is_asked_for_beside_the_search_is_not_asked_for_in_it() -> None:
    with pytest.raises(UsageError, match="asked for twice"):
        run_filter_of("recipe:b", NOW, RunFilter(recipe="a"))
    with pytest.raises(UsageError, match="beside the search"):
        run_filter_of("status:failed", NOW, RunFilter(statuses={"queued"}))


def test_a_run_whose_use_is_not_known_is_within_no_bound() -> None:
    row = RunRow(
        run_id="r", session_id="s", position=1, recipe="a", started_at=NOW, usage={"cost_usd": 0.5}
    )
    assert run_filter_of("cost>0.1", NOW).fits(row)
    assert run_filter_of("cost>=0.5", NOW).fits(row)
    assert not run_filter_of("cost>0.5", NOW).fits(row)
    assert not run_filter_of("tokens<10", NOW).fits(row)
    assert not run_filter_of("tokens>=0", NOW).fits(row)


_TEXTS = st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), min_size=1)


@given(st.text(max_size=200))
def test_any_text_is_a_filter_or_one_named_error(query: str) -> None:
    refused: UsageError | None = None
    try:
        found = run_filter_of(query, NOW)
    except UsageError as error:
        refused = error
    if refused is None:
        assert found == run_filter_of(f" {query} ", NOW)
        return
    assert refused.error_code == "bad-search"
    place = re.search(r"\(character (\d+) of the search\)", refused.message)
    assert place is not None
    assert 1 <= int(place[1]) <= len(query)


@given(st.sampled_from(["recipe", "user", "project", "session"]), _TEXTS)
def test_a_value_in_quotation_marks_is_taken_as_it_stands(key: str, value: str) -> None:
    assert key in KEYS
    found = run_filter_of(f'late {key}:"{value}" parcel', NOW)
    assert getattr(found, "session_id" if key == "session" else key) == value
    assert found.text == "late parcel"
