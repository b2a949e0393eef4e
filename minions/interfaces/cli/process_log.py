"""The log of a command that runs until it is stopped: on standard error, also unasked."""

from __future__ import annotations

from minions.contracts.runtime import Log
from minions.interfaces.cli.console.console import log_line, tell
from minions.interfaces.cli.options import (
    CommandContext,
)


def process_log(context: CommandContext) -> Log:
    """The log in the form that was asked for, else as plain lines."""
    from minions.app.wiring.logs import make_log

    settings = context.settings
    return make_log(settings, log_line) if settings.log_format is not None else _Lines()


class _Lines:
    """The server's log, on standard error."""

    def info(self, event: str, /, **facts: object) -> None:
        """Write one line."""
        tell(" ".join((event, *(f"{name}={value!r}" for name, value in facts.items()))))

    def warning(self, event: str, /, **facts: object) -> None:
        """Write one line."""
        self.info(event, **facts)
