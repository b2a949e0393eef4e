"""Prints lines to standard output and standard error. Loads little, as `--help` needs it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from minions.contracts.json_values import JsonValue

__all__ = ["for_stream", "hanging", "json_text", "say", "tell"]


def tell(line: str) -> None:
    """Print a line to standard error, where everything goes that is not the result.

    On a terminal control characters are escaped, except a painter's colours. A closed stream is
    ignored: a run must not fail because nobody reads its progress.
    """
    if sys.stderr is None:
        return
    # RuntimeError: a signal's handler may print while the same thread prints.
    with contextlib.suppress(OSError, RuntimeError):
        line = for_stream(line, sys.stderr, is_painted=True)
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # the command line's own output


def say(text: str, stream: TextIO | None = None, *, is_painted: bool = False) -> None:
    """Print a result to standard output, or to another stream in its place.

    A reader that has closed the stream is no error; later output is discarded. On a terminal
    control characters are escaped.

    Args:
        is_painted: Whether a painter's colours are let through.
    Raises:
        EnvironmentRefusedError: The stream cannot be written, as on a full disk.
    """
    out = stream or sys.stdout
    if out is None:
        return
    try:
        text = for_stream(text, out, is_painted=is_painted)
        print(text, file=out, flush=True)  # the command line's own output
    except OSError as error:
        _close_off(out)
        if isinstance(error, BrokenPipeError):
            return
        from minions.contracts.errors import EnvironmentRefusedError

        raise EnvironmentRefusedError(
            f"The result cannot be written to standard output: {error.strerror}.", code="no-output"
        ) from error


def for_stream(text: str, stream: TextIO | None, *, is_painted: bool = False) -> str:
    """The text as a terminal may get it; for another stream it is not changed.

    Args:
        is_painted: Whether a painter's colours are let through, if colours are wanted.
    """
    if stream is None or not stream.isatty():
        return text
    from minions.interfaces.cli.console.render import plain, wants_color

    return plain(text, is_painted=is_painted and wants_color(stream, os.environ))


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
    """JSON for standard output; escaped if its encoding cannot express a character.

    Args:
        indent: Blanks of each level; None: all of it is one line.
    """
    import json

    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text
