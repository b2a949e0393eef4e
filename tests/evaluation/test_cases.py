"""The cases of rows: where inputs stand, what is expected, what they are called."""

from __future__ import annotations

import pytest

from minions.contracts.secrets import InputValue
from minions.data.errors import UsageError
from minions.data.schema import JsonSchema
from minions.evaluation.cases import Case, CaseRow, cases_of


def only(row: dict[str, InputValue], *inputs: str, is_text: bool = False) -> Case:
    (found,) = cases_of([CaseRow(place="c:1", values=row, is_text=is_text)], inputs)
    return found


def test_a_row_has_inputs_of_its_own_or_beside_what_is_expected() -> None:
    nested = only({"inputs": {"text": "x"}, "expected": {"a": 1}, "name": "one"}, "text")
    flat = only({"text": "x", "expected": {"a": 1}, "name": "one"}, "text")
    assert (nested.inputs, nested.expected, nested.name) == ({"text": "x"}, {"a": 1}, "one")
    assert (flat.inputs, flat.expected, flat.name) == ({"text": "x"}, {"a": 1}, "one")


def test_columns_of_csv_are_fields_that_are_expected() -> None:
    row: dict[str, InputValue] = {"text": "x", "expected.a": "1", "expected.b": "", "name": ""}
    found = only(row, "text", is_text=True)
    assert (found.inputs, found.expected) == ({"text": "x"}, {"a": "1"})
    assert (found.name, found.is_text) == ("case 1", True)


def test_columns_of_all_items_are_a_list_where_the_output_has_one() -> None:
    row: dict[str, InputValue] = {"expected.rows.0.k": "1", "expected.rows.1.k": "2"}
    schema: JsonSchema = {
        "type": "object",
        "properties": {
            "rows": {
                "type": "array",
                "items": {"type": "object", "properties": {"k": {"type": "integer"}}},
            }
        },
    }
    (found,) = cases_of([CaseRow(place="c:1", values=row, is_text=True)], (), [schema])
    assert found.expected == {"rows": [{"k": 1}, {"k": 2}]}


def test_nothing_expected_is_not_null() -> None:
    assert not only({"text": "x"}, "text").has_expected
    assert only({"text": "x", "expected": None}, "text").has_expected
    assert not only({"text": "x", "expected": ""}, "text", is_text=True).has_expected


def test_an_input_that_is_called_name_is_an_input() -> None:
    found = only({"name": "Ann", "expected": 1}, "name")
    assert (found.inputs, found.name) == ({"name": "Ann"}, "case 1")
    nested = only({"inputs": {"name": "Ann"}, "name": "first"}, "name")
    assert (nested.inputs, nested.name) == ({"name": "Ann"}, "first")


@pytest.mark.parametrize(
    ("row", "inputs", "expected"),
    [
        ({"inputs": {"a": 1}, "expcted": 1}, ["a"], "not 'expcted'"),
        ({"expected": 1}, ["expected"], "has an input 'expected'"),
        ({"a": 1, "expected": 1, "expected.b": "2"}, ["a"], "say it twice"),
    ],
)
def test_a_row_that_can_be_read_in_two_ways_is_refused(
    row: dict[str, InputValue], inputs: list[str], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        only(row, *inputs)
    assert caught.value.message.startswith("c:1: ")


OUTPUT: JsonSchema = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "a.b": {"type": "boolean"}, "in": {"type": "object"}},
}


def test_cells_become_what_the_output_has() -> None:
    """A-138."""
    row: dict[str, InputValue] = {"text": "x", "expected.n": "3", "expected.in.deep": "4"}
    (found,) = cases_of([CaseRow(place="c:1", values=row, is_text=True)], ["text"], [OUTPUT])
    assert (found.expected, found.columns) == ({"n": 3, "in": {"deep": "4"}}, ("n", "in.deep"))
    assert found.expected_fields == ("n", "in.deep")


def test_a_field_may_have_dots_in_its_name() -> None:
    row: dict[str, InputValue] = {"text": "x", "expected.a.b": "yes"}
    (found,) = cases_of([CaseRow(place="c:1", values=row, is_text=True)], ["text"], [OUTPUT])
    assert found.expected == {"a.b": True}


def test_values_of_json_are_what_they_are() -> None:
    row: dict[str, InputValue] = {"text": "x", "expected.n": "3", "expected.m": 4}
    (found,) = cases_of([CaseRow(place="c:1", values=row)], ["text"], [OUTPUT])
    assert found.expected == {"n": "3", "m": 4}


def test_empty_cells_expect_nothing() -> None:
    found = only({"text": "x", "expected.a": "", "expected.b": ""}, "text", is_text=True)
    assert (found.has_expected, found.has_cells) == (False, True)
    assert not only({"text": "x"}, "text", is_text=True).has_cells


def test_the_faults_of_all_rows_are_told_together() -> None:
    rows = [
        CaseRow(place=f"c:{at}", values={"text": "x", "expected.n": cell}, is_text=True)
        for at, cell in enumerate(("1", "two", "3", "four"))
    ]
    with pytest.raises(UsageError) as refused:
        list(cases_of(rows, ["text"], [OUTPUT]))
    assert [line[:4] for line in refused.value.message.splitlines()] == ["c:1:", "c:3:"]
