"""What finding tools saves, and that the page about it tells what is measured."""

from __future__ import annotations

import pytest

from benchmarks.token_counting import estimate
from benchmarks.tool_search import PAGE, Form, measured, missed_rows, rank_rows, stuffed_rows


async def test_finding_tools_saves_five_sixths_of_the_tokens_of_twenty_tasks() -> None:
    """A-178."""
    alone, together = (await measured(estimate)).values()
    every, found, deferred = alone
    assert [each.form for each in alone] == list(Form)
    assert [each.calls for each in alone] == [40, 60, 60]
    assert found.first < every.first / 6
    assert found.input < every.input * 0.15
    assert deferred.input <= found.input
    every, found, deferred = together
    assert found.input < every.input * 0.6
    assert deferred.price < found.price < every.price


@pytest.mark.long
def test_the_page_about_found_tools_has_what_is_measured() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    for row in (*rank_rows(), *missed_rows(), *stuffed_rows()):
        assert row in lines
