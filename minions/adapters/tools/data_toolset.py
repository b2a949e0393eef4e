"""The toolset `data`: conversion between CSV, JSON or JSON Lines texts and values."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated

from attrs import frozen

from minions.contracts.tools import Effect, Reads, Tool, Toolset
from minions.data.csv_lines import csv_line
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.data.json_values import parse_json as parsed_json


@frozen
class CsvTable:
    """The result of `parse_csv`."""

    rows: list[JsonValue]
    """Objects by column; lists of texts where there is no header."""
    columns: list[str]
    """Names of the columns; empty where there is no header."""
    count: int
    """Number of rows."""


@frozen
class JsonLines:
    """The result of `parse_json_lines`."""

    rows: list[JsonValue]
    """The value of each line."""
    count: int
    """Number of rows."""


def built_in_data(_now: Callable[[], datetime]) -> Toolset:
    """The toolset under its usual name, for every recipe."""
    return data_toolset()


def data_toolset() -> Toolset:
    """The tools `parse_csv`, `to_csv`, `parse_json`, `parse_json_lines`: all pure, no options."""
    return Toolset(
        name="data",
        description="Read and write CSV and JSON texts.",
        options={"type": "object", "properties": {}, "additionalProperties": False},
        specs=tuple(tool.spec for tool in _tools("")),
        open=lambda _, prefix: _tools(f"{prefix}__" if prefix else ""),
    )


def _tools(prefix: str) -> Sequence[Tool]:
    from minions.adapters.tools.function_tool import tool

    return (
        tool(name=f"{prefix}parse_csv", effect=Effect.PURE, reads=Reads.TRUSTED)(parse_csv),
        tool(name=f"{prefix}to_csv", effect=Effect.PURE, reads=Reads.TRUSTED)(to_csv),
        # In a parsed JSON text, `success: false` says nothing about this call.
        tool(
            name=f"{prefix}parse_json", effect=Effect.PURE, reads=Reads.TRUSTED, success_key=False
        )(parse_json),
        tool(name=f"{prefix}parse_json_lines", effect=Effect.PURE, reads=Reads.TRUSTED)(
            parse_json_lines
        ),
    )


_Delimiter = Annotated[str, "What separates cells.", {"minLength": 1, "maxLength": 1}]


def parse_csv(
    text: Annotated[str, "The whole table."],
    delimiter: _Delimiter = ",",
    header: Annotated[bool, "Whether the first line names the columns."] = True,
) -> CsvTable:
    """Read a CSV text. Cells stay texts; empty lines are left out."""
    _check_delimiter(delimiter)
    lines = _lines(text.removeprefix("\ufeff"), delimiter)
    if not header:
        return CsvTable([cells for _, cells in lines], [], len(lines))
    if not lines:
        return CsvTable([], [], 0)
    columns = lines[0][1]
    if len(set(columns)) < len(columns):
        counts = Counter(columns)
        twice = next(name for name in columns if counts[name] > 1)
        raise ToolError(f"Two columns are called '{twice}'.", code="bad-csv")
    rows: list[JsonValue] = []
    for number, cells in lines[1:]:
        if len(cells) != len(columns):
            raise ToolError(
                f"The row that ends in line {number} has {len(cells)} cells, the header has "
                f"{len(columns)}. Is '{delimiter}' what separates them?",
                code="bad-csv",
            )
        rows.append(dict(zip(columns, cells, strict=True)))
    return CsvTable(rows, columns, len(rows))


def _check_delimiter(delimiter: str) -> None:
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise ToolError(f"{delimiter!r} cannot separate cells.", code="bad-delimiter")


def _lines(text: str, delimiter: str) -> Sequence[tuple[int, list[str]]]:
    """Cells of each record, with the number of the line in which it ends, from 1."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise ToolError(f"Line {reader.line_num} is not CSV: {error}.", code="bad-csv") from error


def to_csv(
    rows: Annotated[list[JsonValue], "Mappings by column, or lists of cells."],
    columns: Annotated[list[str] | None, "Which, in order; none: all of the mappings."] = None,
    delimiter: _Delimiter = ",",
    formulas: Annotated[
        bool, "Whether texts may begin as formulas do; else an apostrophe stands before them."
    ] = False,
) -> str:
    """Write a CSV text: a header where columns are known, then a line for each row."""
    _check_delimiter(delimiter)
    names = _columns(rows) if columns is None else columns
    lines: list[Sequence[JsonValue]] = [names] if names else []
    lines += [_cells(number, row, names) for number, row in enumerate(rows)]
    return "".join(csv_line(line, delimiter, formulas=formulas) for line in lines)


def _columns(rows: Sequence[JsonValue]) -> Sequence[str]:
    """The keys of all mappings, in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows if isinstance(row, Mapping) for name in row))


def _cells(number: int, row: JsonValue, names: Sequence[str]) -> Sequence[JsonValue]:
    if isinstance(row, Mapping):
        return [row.get(name) for name in names]
    if isinstance(row, Sequence) and not isinstance(row, str):
        if names and len(row) != len(names):
            raise ToolError(
                f"rows[{number}] has {len(row)} cells, and there are {len(names)} columns.",
                code="bad-rows",
            )
        return row
    raise ToolError(f"rows[{number}] is neither a mapping nor a list.", code="bad-rows")


def parse_json(text: Annotated[str, "One JSON value, nothing around it."]) -> JsonValue:
    """Read a JSON text."""
    try:
        return parsed_json(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise ToolError(
            f"The text is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.",
            code="bad-json",
        ) from error
    except ValueError as error:
        raise ToolError(f"The text is not JSON: {error}.", code="bad-json") from error


def parse_json_lines(
    text: Annotated[str, "One JSON value in each line (.jsonl); empty lines are left out."],
) -> JsonLines:
    """Read a JSON Lines text."""
    rows: list[JsonValue] = []
    # Not `splitlines`: other ends of lines, such as U+2028, may stand within a JSON text.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(parsed_json(line))
        except ValueError as error:
            what = (
                f"{error.msg} in column {error.colno}"
                if isinstance(error, json.JSONDecodeError)
                else error
            )
            raise ToolError(f"Line {number} is not JSON: {what}.", code="bad-json") from error
    return JsonLines(rows, len(rows))
