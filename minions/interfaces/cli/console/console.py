"""Prints lines to standard output and standard error. Loads little, as `--help` needs it."""

from __future__ import annotations

import contextlib
import os
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from minions.data.json_values import JsonValue


WHOLE_HELP: Final = "minions.whole_help"
"""In the `meta` of the outermost context of a command: whether help leaves nothing out."""

_ONE_LINE_EACH: Final[ContextVar[bool]] = ContextVar("minions_one_line_each", default=False)
"""Whether standard error has a log, so that each text is one line, and none looks like another."""


def keep_to_lines(*, is_on: bool) -> None:
    """Whether standard error is read line by line from now on, as a log is."""
    _ONE_LINE_EACH.set(is_on)


def tell(line: str) -> None:
    """Print a line to standard error, where everything goes that is not the result.

    Control characters, and those that are not seen, are escaped, also in a pipe, except a painter's
    colours. A closed stream is ignored: a run must not fail because nobody reads its progress.
    """
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):
        line = for_stream(line, sys.stderr, is_painted=True)
        if _ONE_LINE_EACH.get():
            line = _as_one_line(line)
        try:
            print(line, file=sys.stderr, flush=True)  # noqa: T201  # the command line's own output
        except RuntimeError:  # a signal's handler prints while the same thread prints
            os.write(sys.stderr.fileno(), f"{line}\n".encode(errors="backslashreplace"))


def _as_one_line(text: str) -> str:
    from minions.data.texts import joined_lines

    line = joined_lines(text)
    # As a line of a log in JSON begins.
    return f"text: {line}" if line.lstrip().startswith("{") else line


def log_line(line: str) -> None:
    """Print a line of the log, which is one line already, to standard error."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, RuntimeError):
            print(line, file=sys.stderr, flush=True)  # noqa: T201  # as above


def say(
    text: str, stream: TextIO | None = None, *, is_painted: bool = False, is_output: bool = False
) -> None:
    """Print a result to standard output, or to another stream in its place.

    A reader that has closed the stream is no error; later output is discarded. Control characters,
    and those that are not seen, are escaped, also in a pipe.

    Args:
        is_painted: Whether a painter's colours are let through.
        is_output: As for `for_stream`.
    Raises:
        EnvironmentRefusedError: The stream cannot be written, as on a full disk.
    """
    out = stream or sys.stdout
    if out is None:
        return
    try:
        text = for_stream(text, out, is_painted=is_painted, is_output=is_output)
        print(text, file=out, flush=True)  # the command line's own output
    except OSError as error:
        _close_off(out)
        if isinstance(error, BrokenPipeError):
            return
        from minions.data.errors import EnvironmentRefusedError

        raise EnvironmentRefusedError(
            f"The result cannot be written to standard output: {error.strerror}.", code="no-output"
        ) from error


def for_stream(
    text: str, stream: TextIO | None, *, is_painted: bool = False, is_output: bool = False
) -> str:
    """The text as a terminal may get it, now or when somebody shows the file that it goes to.

    Args:
        is_painted: Whether a painter's colours are let through, if colours are wanted.
        is_output: Whether it is the output of a run: in a file it keeps what its languages need,
            such as marks that only join, or say where a line may break.
    """
    if text.isascii() and text.isprintable():
        return text
    from minions.interfaces.cli.console.render import plain, wants_color, without_commands

    if is_output and not (stream is not None and stream.isatty()):
        return without_commands(text)
    return plain(text, is_painted=is_painted and wants_color(stream, os.environ))


def table_lines(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[str] = ()
) -> list[str]:
    """A head line and one line for each row, in columns as wide as their widest cell.

    Args:
        numbers: The heads of columns that end at the right.
    """
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if head in numbers else cell.ljust(width)
            for head, cell, width in zip(heads, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def say_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[str] = (),
    details: Sequence[Sequence[str]] = (),
) -> None:
    """Print a table with a head line; without rows nothing. A terminal's long lines are wrapped.

    Args:
        numbers: As for `table_lines`.
        details: Further lines below each row; empty: there are none.
    """
    if not rows:
        return
    width = list_width()
    cells = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    head, *lines = table_lines(heads, cells, numbers=numbers)
    below = details or [()] * len(rows)
    listed = [each for row, more in zip(lines, below, strict=True) for each in (row, *more)]
    for line in (head, *listed):
        say(line if width is None else hanging(line, width))


def list_width() -> int | None:
    """The columns of the terminal; None: the output is none, and lines may have any length."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def hanging(text: str, width: int = 80) -> str:
    """Wrap long lines; the further ones are indented by four columns more."""
    import textwrap

    lines: list[str] = []
    for line in text.splitlines() or [""]:
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def _close_off(stream: TextIO) -> None:
    """Redirect a broken stream to nowhere: else the interpreter fails on it when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def json_text(value: JsonValue, indent: int | None = None) -> str:
    """JSON for standard output; escaped are characters that its encoding cannot express, that a
    terminal obeys, and that are not seen.

    Args:
        indent: Blanks of each level; None: all of it is one line.
    """
    import json

    from minions.data.texts import UNSEEN

    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if not text.isascii() or "\x7f" in text:  # what is below the blank, JSON escapes itself
        text = UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
