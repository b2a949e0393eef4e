"""Lines of CSV texts, which no spreadsheet takes for formulas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from minions.data.json_values import JsonValue, dumps


def csv_line(values: Sequence[JsonValue], delimiter: str = ",", *, formulas: bool = False) -> str:
    """One line of a CSV text, with its end.

    Written by hand: the csv module leaves a lone carriage return unquoted, which ends the row.

    Args:
        values: Null is an empty cell; lists and mappings are written as JSON.
        formulas: Whether texts may begin as formulas do; else an apostrophe stands before them.
    """
    texts = [(_cell if formulas else _safe_cell)(value) for value in values]
    if texts == [""]:
        return '""\n'  # an unquoted empty cell would be an empty line, which readers skip
    # A byte order mark in quotes is part of the cell; in front of a text it is none of it.
    odd = frozenset(f'{delimiter}"\r\n\ufeff')
    quoted = (
        f'"{cell.replace(chr(34), chr(34) * 2)}"' if odd & set(cell) else cell for cell in texts
    )
    return delimiter.join(quoted) + "\n"


def _cell(value: JsonValue) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value)


_FORMULA: Final = frozenset("=+-@\t\r\n＝＋－＠")
"""With what a spreadsheet begins a formula, or a command; some take the full width for the same."""
_NUMBER: Final = re.compile(r"[+-]?(?:\d[\d.,]*|[.,]\d+)(?:[eE][+-]?\d+)?%?", re.ASCII)
_UNSEEN: Final = " \u00a0\ufeff\u200b"
"""What a spreadsheet may pass over before it looks."""


def _safe_cell(value: JsonValue) -> str:
    """The cell, which no spreadsheet takes for a formula: strangers may have written it. Numbers,
    also as texts, stay numbers.
    """
    cell = _cell(value)
    if _FORMULA.isdisjoint(cell.lstrip(_UNSEEN)[:1]) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"
