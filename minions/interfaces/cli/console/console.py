"""What the command line says, and to which stream. Light: `--help` passes through here."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from minions.contracts.json_values import JsonValue

__all__ = ["for_stream", "hanging", "json_text", "say", "tell"]


def tell(line: str) -> None:
    """To standard error, where everything goes that is not the result.

    On a terminal control characters are shown, and only a painter's colours obeyed. Nobody may be
    there to read it: that is no reason for a run to fail.
    """
    if sys.stderr is None:
        return
    # RuntimeError: a signal's handler speaks while the same thread is in the middle of a message.
    with contextlib.suppress(OSError, RuntimeError):
        line = for_stream(line, sys.stderr, is_painted=True)
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # the command line's own voice


def say(text: str, stream: TextIO | None = None, *, is_painted: bool = False) -> None:
    """A result, to standard output or the stream that stands for it.

    A reader that went away is no error; what is said after that goes nowhere. On a terminal control
    characters are shown.

    Args:
        is_painted: Whether a painter's colours are let through there.
    Raises:
        EnvironmentRefusedError: Nothing can be written there, such as on a full disk.
    """
    out = stream or sys.stdout
    if out is None:
        return
    try:
        text = for_stream(text, out, is_painted=is_painted)
        print(text, file=out, flush=True)  # the command line's own voice
    except OSError as error:
        _close_off(out)
        if isinstance(error, BrokenPipeError):
            return
        from minions.contracts.errors import EnvironmentRefusedError

        raise EnvironmentRefusedError(
            f"The result cannot be written to standard output: {error.strerror}.", code="no-output"
        ) from error


def for_stream(text: str, stream: TextIO | None, *, is_painted: bool = False) -> str:
    """What a terminal may have of it; elsewhere it stays as it is.

    Args:
        is_painted: Whether a painter's colours are let through, where colours are wanted.
    """
    if stream is None or not stream.isatty():
        return text
    from minions.interfaces.cli.console.render import plain, wants_color

    return plain(text, is_painted=is_painted and wants_color(stream, os.environ))


def hanging(text: str, width: int = 80) -> str:
    """Lines that are too long go on in further ones, four columns more to the right."""
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
    """Lead the stream nowhere: the interpreter would stumble over it again on its way out."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def json_text(value: JsonValue) -> str:
    """One line of JSON that standard output can carry: escaped where its encoding cannot say it."""
    import json

    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
