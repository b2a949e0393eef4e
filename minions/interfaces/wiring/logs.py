"""The log of the process; nothing is logged unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from minions.contracts.runtime import Log
from minions.interfaces.settings import Settings

__all__ = ["make_log"]


def make_log(settings: Settings, write: Callable[[str], None]) -> Log:
    """A structured log with `debug`, else one that discards everything; no global configuration."""
    if not settings.debug:
        from minions.engine.services.services import NullLog

        return NullLog()
    import structlog

    class _Lines:
        def msg(self, message: str) -> None:
            write(message)

        info = warning = msg

    logger = structlog.wrap_logger(
        _Lines(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.BoundLogger,
    )
    return cast(Log, logger.bind())
