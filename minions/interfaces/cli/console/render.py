"""Formats errors, as text and as JSON, and decides on colours."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TextIO

from minions.data.errors import Fault, MinionsError, RecipeError
from minions.data.json_values import JsonValue
from minions.data.texts import escaped, shown_text

_CODES: Final = {
    "red": "31;1",
    "yellow": "33;1",
    "blue": "34;1",
    "dim": "2",
    "green": "32",
    "bold": "1",
}

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
"""Characters that a terminal obeys instead of showing them; newline and tab are not among them."""
_COMMANDS: Final = re.compile(f"{_CONTROL.pattern}|[\u202a-\u202e\u2066-\u2069]")
_PAINT: Final = "|".join(re.escape(f"\x1b[{code}m") for code in ("0", *_CODES.values()))
_OTHER_CONTROL: Final = re.compile(f"({_PAINT})|{_CONTROL.pattern}")


def plain(text: str, *, is_painted: bool = False) -> str:
    r"""The text with control characters escaped, as `\x1b`, and those that are not seen or turn
    the direction, as `\u202e`.

    Else the author of a text could clear the screen, rename the window, hide other output, or show
    another command than the one that is approved.

    Args:
        is_painted: Whether a painter's colours are let through.
    """
    if not is_painted:
        return _CONTROL.sub(lambda found: escaped(found[0]), shown_text(text))
    return _OTHER_CONTROL.sub(lambda found: found[1] or escaped(found[0]), shown_text(text))


def without_commands(text: str) -> str:
    """The text with what a terminal obeys, and what overrides the direction of others, escaped."""
    return _COMMANDS.sub(lambda found: escaped(found[0]), text)


def wants_color(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Whether to use colours: NO_COLOR and TERM=dumb win, then FORCE_COLOR, then a terminal."""
    if stream is None or environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty()


class painter:  # noqa: N801  # used like a function
    """Colours text, or returns it unchanged."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on

    def __call__(self, text: str, color: str) -> str:
        """The text in that colour."""
        return f"\x1b[{_CODES[color]}m{text}\x1b[0m" if self._is_on else text


def stderr_painter() -> painter:
    """A painter for standard error."""
    return painter(is_on=wants_color(sys.stderr, os.environ))


def error_lines(error: MinionsError, paint: painter) -> Iterator[str]:
    """The lines of an error; of a recipe's error all faults."""
    if isinstance(error, RecipeError):
        yield from faults_lines(error.faults, paint)
        return
    yield f"{paint(f'error[{error.error_code}]', 'red')}: {error.message}"
    if error.where and error.where not in error.message:
        yield f"  {paint('-->', 'blue')} {error.where}"


def faults_lines(faults: Iterable[Fault], paint: painter) -> Iterator[str]:
    """The lines of all faults, and their count if there are several."""
    listed = list(faults)
    for fault in listed:
        yield from fault_lines(fault, paint)
    errors = sum(1 for fault in listed if not fault.is_warning)
    warnings = len(listed) - errors
    if len(listed) > 1:
        parts = [_count_noun(errors, "error"), _count_noun(warnings, "warning")]
        yield ", ".join(part for part in parts if part)


def _count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}" if count else ""


def fault_lines(fault: Fault, paint: painter) -> Iterator[str]:
    """Code and message, place, the source line with a caret, and help."""
    word, color = ("warning", "yellow") if fault.is_warning else ("error", "red")
    yield f"{paint(f'{word}[{fault.code}]', color)}: {fault.message}"
    yield f"  {paint('-->', 'blue')} {fault.where}"
    if fault.source_line is not None:
        number = str(fault.line)
        bar = paint("|", "blue")
        shown, caret = _excerpt(fault.source_line, fault.column - 1, fault.length)
        yield f"{paint(number, 'blue')} {bar} {shown}"
        label = f" {fault.label}" if fault.label else ""
        yield f"{' ' * len(number)} {bar} {paint(caret + label, color)}"
    elif fault.label:
        yield f"  {fault.label}"
    if fault.help:
        yield f"{paint('help', 'bold')}: {fault.help}"


_WIDEST: Final = 200
"""How many characters of a source line are shown; generated lines can be megabytes long."""


def _excerpt(source_line: str, at: int, length: int) -> tuple[str, str]:
    """The part of the line that is shown, and the caret line below it."""
    line = source_line.replace("\t", " ").rstrip("\n")
    start = max(0, min(at - _WIDEST // 2, len(line) - _WIDEST))
    end = start + _WIDEST
    before, after = "…" if start else "", "…" if end < len(line) else ""
    caret = "^" * max(1, min(length, end - at))
    return f"{before}{line[start:end]}{after}", " " * (len(before) + at - start) + caret


def error_to_json(error: MinionsError) -> dict[str, JsonValue]:
    """The error as JSON: `error`, and `faults` of a recipe."""
    result: dict[str, JsonValue] = {"error": dict(error.info().to_document())}
    if isinstance(error, RecipeError):
        result["faults"] = [fault_to_json(fault) for fault in error.faults]
    return result


def fault_to_json(fault: Fault) -> dict[str, JsonValue]:
    """One fault as JSON; with `fix` where its suggestion is certain."""
    from minions.data.fault_fixes import fix_of

    fix = fix_of(fault)
    return {
        "code": fault.code,
        "severity": "warning" if fault.is_warning else "error",
        "message": fault.message,
        "file": fault.file,
        "line": fault.line,
        "column": fault.column,
        "label": fault.label,
        "help": fault.help,
        "fix": None if fix is None else dict(fix._asdict()),
    }


# --- formats amounts of money for people ---------------------------------------------------------


def dollars(amount: float) -> str:
    """An amount as `$12.50` or `$0.0042`: cents, or two digits of less; `$0` for nothing."""
    if amount <= 0:
        return "$0"
    if amount >= 1:
        return f"${amount:,.2f}"
    digits = max(2, 1 - math.floor(math.log10(amount)))
    return f"${amount:.{digits}f}"
