"""Prints an answer of a conversation while it is streamed."""

from __future__ import annotations

import sys
from typing import TextIO

from minions.contracts.events import (
    AttemptFailed,
    RunEvent,
    ServerWait,
    StepCompleted,
    StepDeltaEvent,
    ToolFinished,
    ToolStarted,
)
from minions.interfaces.cli.console.console import for_stream, say, tell
from minions.interfaces.cli.console.progress import retry_text, server_wait_text
from minions.interfaces.cli.console.render import stderr_painter


class AnswerPrinter:
    """Writes a streamed answer and lines on tool calls; call it with every event of the turn."""

    def __init__(self, out: TextIO, *, is_silent: bool) -> None:
        """Nothing is written yet.

        Args:
            is_silent: Whether the answer is not written here, as it is printed in another way.
        """
        self._out = out
        self._is_silent = is_silent
        self._line = ""
        self.last: str | None = None
        """The last answer, as the model sent it; None: there is none yet."""
        self._paint = stderr_painter()

    def __call__(self, event: RunEvent) -> None:
        """Print the event, if it is one of those that are shown."""
        if isinstance(event, StepDeltaEvent):
            self._write(event.delta.content or "")
        elif isinstance(event, StepCompleted) and event.snapshot.is_assistant_step():
            text = event.snapshot.content or ""
            self._write(text.removeprefix(self._line) if text.startswith(self._line) else "")
            self.close()
            self.last = text
        elif isinstance(event, ToolStarted):
            self.close()
            self._tell(f"{event.tool}({event.arguments})")
        elif isinstance(event, ToolFinished) and event.error is not None:
            self._tell(f"{event.tool}: {event.error.get('message')}")
        elif isinstance(event, AttemptFailed):
            self.close()
            self._tell(retry_text(event))
        elif isinstance(event, ServerWait):
            self.close()
            self._tell(server_wait_text(event))

    def _tell(self, text: str) -> None:
        tell(self._paint(f"  {for_stream(text, sys.stderr)}", "dim"))

    def _write(self, text: str) -> None:
        if text and not self._is_silent:
            self._line += text
            self._out.write(for_stream(text, self._out, is_output=True))
            self._out.flush()

    def close(self) -> None:
        """End the current line."""
        if self._line and not self._is_silent:
            say("", self._out)
        self._line = ""
