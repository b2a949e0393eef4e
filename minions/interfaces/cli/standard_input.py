"""Standard input of one command: read whole, and once."""

from __future__ import annotations

import sys

from minions.contracts.errors import UsageError
from minions.interfaces.cli.console.console import tell

__all__ = ["StandardInput"]


class StandardInput:
    """Gives the whole of standard input to the one argument that names it with `-`."""

    def __init__(self) -> None:
        self._reader: str | None = None

    def read(self, argument: str) -> bytes:
        """Everything until its end.

        Args:
            argument: The argument that asks for it, for messages: `--params -`.
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
        try:
            return sys.stdin.buffer.read()
        except OSError as error:
            raise UsageError(f"{argument}: {error.strerror}.", code="bad-input") from error
