"""Standard input of one command: read once, and within a bound."""

from __future__ import annotations

import sys
from typing import BinaryIO, Final

from minions.data.errors import UsageError
from minions.interfaces.cli.console.console import tell

MOST_INPUT_BYTES: Final = 16 * 1_048_576
"""Bytes of a text, of inputs or of a recipe that a command reads."""


class StandardInput:
    """Gives standard input to the one argument that names it with `-`."""

    def __init__(self) -> None:
        self._reader: str | None = None

    def read(self, argument: str) -> bytes:
        """Everything until its end.

        Args:
            argument: The argument that asks for it, for messages: `--params -`.
        Raises:
            UsageError: `bad-input`; another argument has read it, there is none, or it is too long.
        """
        stream = self.stream(argument)
        try:
            content = stream.read(MOST_INPUT_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{argument}: {error.strerror}.", code="bad-input") from error
        if len(content) > MOST_INPUT_BYTES:
            raise UsageError(
                f"{argument}: standard input has more than {MOST_INPUT_BYTES // 1_048_576} MiB. "
                "Put what is large into a file that a step reads.",
                code="bad-input",
            )
        return content

    def stream(self, argument: str) -> BinaryIO:
        """The stream itself, for who reads it piece by piece.

        Args:
            argument: As above.
        Raises:
            UsageError: `bad-input`; another argument has read it, or there is none.
        """
        if self._reader is not None:
            raise UsageError(
                f"Standard input can be read once: by {self._reader} or by {argument}. Put one of "
                "them into a file.",
                code="bad-input",
            )
        self._reader = argument
        if sys.stdin is None:
            raise UsageError(f"{argument}: there is no standard input.", code="bad-input")
        if sys.stdin.isatty():
            tell(f"{argument}: reading standard input until Ctrl-D …")
        return sys.stdin.buffer
