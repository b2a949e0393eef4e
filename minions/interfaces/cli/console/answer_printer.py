"""An answer of a conversation, written while it comes."""

from __future__ import annotations

import sys
from typing import TextIO

from minions.contracts.events import (
    AttemptFailed,
    RunEvent,
    StepCompleted,
    StepDeltaEvent,
    ToolFinished,
    ToolStarted,
)
from minions.interfaces.cli.console.console import for_stream, say, tell
from minions.interfaces.cli.console.progress import retry_text
from minions.interfaces.cli.console.render import stderr_painter

__all__ = ["AnswerPrinter"]


class AnswerPrinter:
    """Writes an answer while it comes, and tells of tools; give it every event of the turn."""

    def __init__(self, out: TextIO, *, is_silent: bool) -> None:
        """Write nothing yet.

        Args:
            is_silent: Whether the answer itself is not written, as it is printed another way.
        """
        self._out = out
        self._is_silent = is_silent
        self._line = ""
        self.last: str | None = None
        """The last answer, as it was written."""
        self._paint = stderr_painter()

    def __call__(self, event: RunEvent) -> None:
        """Show what there is to show of it."""
        if isinstance(event, StepDeltaEvent):
            self._write(event.delta.content or "")
        elif isinstance(event, StepCompleted) and event.snapshot.is_assistant_step():
            said = event.snapshot.content or ""
            self._write(said.removeprefix(self._line) if said.startswith(self._line) else "")
            self.close()
            self.last = said
        elif isinstance(event, ToolStarted):
            self.close()
            self._tell(f"{event.tool}({event.arguments})")
        elif isinstance(event, ToolFinished) and event.error is not None:
            self._tell(f"{event.tool}: {event.error.get('message')}")
        elif isinstance(event, AttemptFailed):
            self.close()
            self._tell(retry_text(event))

    def _tell(self, text: str) -> None:
        tell(self._paint(f"  {for_stream(text, sys.stderr)}", "dim"))

    def _write(self, text: str) -> None:
        if text and not self._is_silent:
            self._line += text
            self._out.write(for_stream(text, self._out))
            self._out.flush()

    def close(self) -> None:
        """End the line that was begun."""
        if self._line and not self._is_silent:
            say("", self._out)
        self._line = ""
