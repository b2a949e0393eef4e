"""The log of the process; nothing is logged unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from minions.app.settings.settings import LogFormat, Settings
from minions.contracts.runtime import Log

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


_RESERVED: Final = frozenset(("event", "level", "timestamp"))
"""Names that each line has already; a fact of that name gets an underscore behind it."""
_FIRST: Final = ("timestamp", "level", "event", "run_id", "session_id", "step_id", "address")


def _utc_now() -> datetime:
    return datetime.now(UTC)


def is_logging(settings: Settings) -> bool:
    """Whether a log was asked for."""
    return settings.debug or settings.log_format is not None


def make_log(
    settings: Settings, write: Callable[[str], None], now: Callable[[], datetime] = _utc_now
) -> Log:
    """A structured log where one was asked for, else one that discards everything.

    No global configuration is made. Texts that look like keys, and facts with such names, are
    masked at any depth; whatever a fact is, its line can be written.

    Args:
        write: Called with each line.
    """
    if not is_logging(settings):
        from minions.engine.services.services import NullLog

        return NullLog()
    return _StructuredLog(_logger(settings.log_format or LogFormat.TEXT, write, now))


class _StructuredLog:
    """Takes any names of facts."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger

    def info(self, event: str, /, **facts: object) -> None:
        """Write one line."""
        self._logger.info(event, **_renamed(facts))

    def warning(self, event: str, /, **facts: object) -> None:
        """Write one line as a warning."""
        self._logger.warning(event, **_renamed(facts))


def _renamed(facts: dict[str, object]) -> dict[str, object]:
    if _RESERVED.isdisjoint(facts):
        return facts
    return {f"{name}_" if name in _RESERVED else name: value for name, value in facts.items()}


_Line = MutableMapping[str, Any]  # Any: as structlog has it


def _logger(
    log_format: LogFormat, write: Callable[[str], None], now: Callable[[], datetime]
) -> FilteringBoundLogger:
    import structlog

    from minions.app.wiring.log_values import json_line, plain_facts, text_line

    class _Lines:
        def msg(self, message: str) -> None:
            write(message)

        info = warning = msg

    def stamped(_logger: object, _name: str, line: _Line) -> _Line:
        line["timestamp"] = now().isoformat()
        return line

    def rendered(_logger: object, _name: str, line: _Line) -> str:
        first = {name: line[name] for name in _FIRST if name in line}
        facts = plain_facts({**first, **line})
        return json_line(facts) if log_format is LogFormat.JSON else text_line(facts)

    logger = structlog.wrap_logger(
        _Lines(),
        processors=[structlog.processors.add_log_level, stamped, rendered],
        wrapper_class=structlog.BoundLogger,
    )
    return cast("FilteringBoundLogger", logger.bind())
