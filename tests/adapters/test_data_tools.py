"""CSV and JSON texts to values and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import result_of
from minions.adapters.tools.data_toolset import (
    CsvTable,
    JsonLines,
    data_toolset,
    parse_csv,
    parse_json,
    parse_json_lines,
    to_csv,
)
from minions.contracts.tools import Effect, ToolScope
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")


def test_the_tools_are_pure_and_have_no_options() -> None:
    toolset = data_toolset()
    assert [(spec.name, spec.effect) for spec in toolset.specs] == [
        ("parse_csv", Effect.PURE),
        ("to_csv", Effect.PURE),
        ("parse_json", Effect.PURE),
        ("parse_json_lines", Effect.PURE),
    ]
    for spec in toolset.specs:
        check_schema(spec.parameters)
    assert SchemaValidator(toolset.options).errors({"x": 1}) != ()


async def test_a_recipe_calls_them_under_the_toolsets_name() -> None:
    tools = {tool.spec.name: tool for tool in data_toolset().open({}, "data")}
    table = await result_of(tools["data__parse_csv"], {"text": "a,b\n1,2\n"}, SCOPE)
    assert table == {"rows": [{"a": "1", "b": "2"}], "columns": ["a", "b"], "count": 1}
    failed = {"text": '{"success": false}'}
    assert await tools["data__parse_json"].invoke(failed, SCOPE) == {"success": False}
    assert tools["data__parse_json"].spec.success_key is False


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("", CsvTable([], [], 0)),
        ("a,b\n", CsvTable([], ["a", "b"], 0)),
        (
            '\ufeffa,b\r\n"x, y",""\r\n\r\n"1\n2","""q"""\r\n',
            CsvTable([{"a": "x, y", "b": ""}, {"a": "1\n2", "b": '"q"'}], ["a", "b"], 2),
        ),
    ],
)
def test_a_table_is_read_by_its_header(text: str, table: CsvTable) -> None:
    assert parse_csv(text) == table


def test_a_table_without_a_header_gives_lists() -> None:
    table = CsvTable([["a", "b"], ["1"]], [], 2)
    assert parse_csv("a;b\n1\n", delimiter=";", header=False) == table


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n3\n", "line 3 has 1 cells, the header has 2"),
        ("a,b\n1,2,3\n", "line 2 has 3 cells"),
        ("a,a\n", "called 'a'"),
        ('a,b\n"x', "not CSV"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ToolError, match=words) as caught:
        parse_csv(text)
    assert caught.value.error_code == "bad-csv"


@pytest.mark.parametrize(
    ("rows", "columns", "text"),
    [
        ([], None, ""),
        ([], ["a"], "a\n"),
        ([{"a": 1, "b": None}, {"c": True, "a": "x,y"}], None, 'a,b,c\n1,,\n"x,y",,true\n'),
        ([{"a": 1, "b": [1, {"c": 2}]}], ["b"], 'b\n"[1,{""c"":2}]"\n'),
        ([[""], ["\r"]], None, '""\n"\'\r"\n'),
        ([["x", 1.5], []], None, "x,1.5\n\n"),
        ([["x", 1]], ["n", "m"], "n,m\nx,1\n"),
    ],
)
def test_rows_are_written(rows: list[JsonValue], columns: list[str] | None, text: str) -> None:
    assert (
        to_csv(rows, columns) == to_csv(rows, columns, formulas=True).replace("\r", "'\r") == text
    )


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(["x"], None), ([1], ["a"]), ([["x"]], ["a", "b"]), ([{"a": 1}, []], None)],
)
def test_what_is_no_row_is_refused(rows: list[JsonValue], columns: list[str] | None) -> None:
    with pytest.raises(ToolError) as caught:
        to_csv(rows, columns)
    assert caught.value.error_code == "bad-rows"


@pytest.mark.parametrize("delimiter", ["", "ab", "\n", '"'])
def test_odd_delimiters_are_refused(delimiter: str) -> None:
    for call in (lambda: parse_csv("a", delimiter), lambda: to_csv([], None, delimiter)):
        with pytest.raises(ToolError) as caught:
            call()
        assert caught.value.error_code == "bad-delimiter"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "=1+1",
            "+1+1",
            "-1+1",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            "\n=1",
            "=",
            "-",
            "+49 171 5",
            "- one",
        ),
        *(" =1", "\ufeff=1", "\u200b\u00a0=1", "＝1", "＋1", "－1", "＠a", "-1;=1", "-1e5=2"),
    ],
)
def test_a_text_that_a_spreadsheet_takes_for_a_formula_begins_with_an_apostrophe(text: str) -> None:
    """Strangers wrote the cells; the table is opened by a person."""
    tables: list[list[JsonValue]] = [[[text]], [{"a": text}], [{text: "a"}]]
    for rows in tables:
        written = parse_csv(to_csv(rows), header=False).rows
        assert f"'{text}" in [cell for row in written if isinstance(row, list) for cell in row]
        plain = parse_csv(to_csv(rows, formulas=True), header=False).rows
        assert text in [cell for row in plain if isinstance(row, list) for cell in row]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        *((-5, "-5"), (-1.5, "-1.5"), ("-5", "-5"), ("+3.5", "+3.5"), ("-1,234.5", '"-1,234.5"')),
        *(("-1e-5", "-1e-5"), ("-50%", "-50%"), ("-.5", "-.5"), ("a=b", "a=b"), ("x-y", "x-y")),
        *((True, "true"), (None, '""'), ([-1], "[-1]"), ("", '""'), ("'=1", "'=1")),
        (-1e300, "-1e+300"),
    ],
)
def test_numbers_stay_numbers_and_other_texts_as_they_are(value: JsonValue, cell: str) -> None:
    assert to_csv([[value]]) == f"{cell}\n"


CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TABLES = st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS}), min_size=1, max_size=5)


@given(TABLES)
def test_what_was_written_is_read_again(rows: list[JsonValue]) -> None:
    written = to_csv(rows, ["a", "b"], formulas=True)
    assert parse_csv(written) == CsvTable(rows, ["a", "b"], len(rows))


def test_a_cell_that_begins_like_the_mark_of_a_file_is_read_again() -> None:
    """Only one such mark in front of a table is none of its text."""
    rows: list[JsonValue] = [["\ufeffa", "b"]]
    assert parse_csv(to_csv(rows), header=False) == CsvTable(rows, [], 1)


def test_each_line_of_json_lines_is_a_row_and_a_bad_one_is_named() -> None:
    text = '\ufeff{"a": 1}\r\n\n  [2]\n"half a\u2028line"\n'
    assert parse_json_lines(text) == JsonLines([{"a": 1}, [2], "half a\u2028line"], 3)
    assert parse_json_lines("") == JsonLines([], 0)
    with pytest.raises(ToolError, match="Line 3 is not JSON") as caught:
        parse_json_lines('{"a": 1}\n\n{"a": 2\n')
    assert caught.value.error_code == "bad-json"


def test_json_is_read_and_anything_else_refused() -> None:
    assert parse_json('\ufeff {"a": [1, null, "\\u00e9"]}\n') == {"a": [1, None, "\u00e9"]}
    for text in ("", "{", "[1] x", "NaN", "1e999", "[" * 100_000):
        with pytest.raises(ToolError) as caught:
            parse_json(text)
        assert caught.value.error_code == "bad-json"
