"""Rows of lists, folded out of journal entries."""

from __future__ import annotations

import pytest

from builders import entry_of
from minions.contracts.journal.run_row_folds import run_row_after
from minions.data.json_values import JsonValue


@pytest.mark.parametrize("depth", [30, 400, 5_000])
def test_inputs_that_are_nested_deep_are_told_by_their_outer_part(depth: int) -> None:
    """A-123: a line of a list shows the beginning only."""
    inputs: JsonValue = "inside"
    for _ in range(depth):
        inputs = {"a": [inputs]}
    row = run_row_after(
        None, entry_of("run", "started", {"recipe": "r", "steps": {}, "inputs": {"x": inputs}})
    )
    assert row is not None
    assert (row.problem, (row.input_words or "")[:14]) == (None, '{"a":[{"a":[{"')
