"""Data written as YAML is read again as the same data."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.json_values import JsonValue
from minions.recipe.text.nodes import to_plain
from minions.recipe.text.yaml_reader import read_document, yaml_text

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x2FFF), max_size=12)
NUMBERS = st.from_regex(r"[-+]?(0o|0x)?[0-9.]{1,4}([eE][-+]?[0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    "text",
    [
        *("1e0", "1E5", "0o17", "0x1F", "1.", ".5", "+1", ".inf", ".NaN", "1e999", "9" * 400),
        *("null", "NULL", "~", "", "True", "no", "on", "1_000", "12:30", "2026-01-02", "=", "<<"),
    ],
)
def test_a_text_stays_one(text: str) -> None:
    document: JsonValue = {"a": text, "b": [text]}
    assert to_plain(read_document(yaml_text(document), "r.yaml")) == document


@given(st.dictionaries(TEXTS.filter(bool), TEXTS | NUMBERS | st.integers() | st.booleans()))
def test_what_is_written_is_read_in_its_order(document: dict[str, JsonValue]) -> None:
    read = to_plain(read_document(yaml_text(document), "r.yaml"))
    assert read == document or not document
    assert not isinstance(read, Mapping) or list(read) == list(document)
