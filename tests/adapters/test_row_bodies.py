"""Bodies of journal rows: what both decoders take, and what they refuse."""

from __future__ import annotations

import pytest

from minions.adapters.stores.row_bodies import decoder_for


@pytest.mark.parametrize("rows", [1, 1_000], ids=["few rows", "many rows"])
@pytest.mark.parametrize("opening", ["[", '{"a":'], ids=["lists", "objects"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "cut off"])
def test_a_body_that_is_nested_without_end_is_no_json(
    rows: int, opening: str, *, closed: bool
) -> None:
    """A-123: whatever the database, it is damage of that entry alone."""
    ends = ("]" if opening == "[" else "}") * 20_000 if closed else ""
    with pytest.raises(ValueError, match=r"nested too deep|Expecting value"):
        decoder_for(rows)(f"{opening * 20_000}1{ends}".encode())
