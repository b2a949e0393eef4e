"""The log of the process; nothing is logged unless it is asked for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, MutableMapping, Set
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from minions.app.settings.settings import LogFormat, Settings, masked
from minions.contracts.runtime import Log
from minions.data.errors import words_of
from minions.data.json_values import JsonValue

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
        from minions.engine.services.run_services import NullLog

        return NullLog()
    return _StructuredLog(_logger(settings.log_format or LogFormat.TEXT, write, now))


class _StructuredLog:
    """Takes any names of facts."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger

    def info(self, event: str, /, **facts: object) -> None:
        """Write one line."""
        self._logger.info(event, **_rename(facts))

    def warning(self, event: str, /, **facts: object) -> None:
        """Write one line as a warning."""
        self._logger.warning(event, **_rename(facts))


def _rename(facts: dict[str, object]) -> dict[str, object]:
    if _RESERVED.isdisjoint(facts):
        return facts
    return {f"{name}_" if name in _RESERVED else name: value for name, value in facts.items()}


_Line = MutableMapping[str, Any]  # Any: as structlog has it


def _logger(
    log_format: LogFormat, write: Callable[[str], None], now: Callable[[], datetime]
) -> FilteringBoundLogger:
    import structlog

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


# --- facts of the log as plain values, masked at any depth ---------------------------------------


_SECRET_NAME: Final = re.compile(
    r"(?:^|[_-])(?:api[_-]?key|authorization|cookie|credentials?|passw(?:or)?d|secret|token)$",
    re.IGNORECASE,
)
"""Names of facts whose values are never written; counts of tokens have another name."""
_MASK: Final = "[masked]"
_DEEPEST: Final = 8
_MOST_ITEMS: Final = 200
_LONGEST: Final = 20_000
"""Characters of one text."""
_LARGEST: Final = 10**18
"""A larger whole number is written as a text: few readers keep it exactly."""


def plain_facts(facts: Mapping[str, object]) -> dict[str, JsonValue]:
    """The facts as JSON values; what is no JSON becomes a text."""
    return {_text(name): _fact(name, value, 0) for name, value in facts.items()}


def json_line(facts: Mapping[str, JsonValue]) -> str:
    """One JSON object on one line, in ASCII."""
    return json.dumps(facts, allow_nan=False)


def text_line(facts: Mapping[str, JsonValue]) -> str:
    """`key=value`, with quotes where a value has blanks or line breaks."""
    return " ".join(f"{name}={_show_value(value)}" for name, value in facts.items())


def _show_value(value: JsonValue) -> str:
    if isinstance(value, str) and re.fullmatch(r"[!#-~]+", value):
        return value
    return json.dumps(value, allow_nan=False)


def _fact(name: object, value: object, depth: int) -> JsonValue:
    if isinstance(name, str) and _SECRET_NAME.search(name) and value is not None:
        return _MASK
    return _plain(value, depth)


def _plain(value: object, depth: int) -> JsonValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return (
            int(value) if abs(value) < _LARGEST else f"a whole number of {value.bit_length()} bits"
        )
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth >= _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        pairs = list(value.items())[:_MOST_ITEMS]
        return {_name(name): _fact(name, each, depth + 1) for name, each in pairs}
    if isinstance(value, list | tuple | Set):
        return [_plain(each, depth + 1) for each in list(value)[:_MOST_ITEMS]]
    return _text(_words(value))


def _name(name: object) -> str:
    return _text(name if isinstance(name, str) else _words(name))


def _words(value: object) -> str:
    if isinstance(value, BaseException):
        return words_of(value)
    if isinstance(value, date):
        return value.isoformat()
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # a stranger's __repr__ may raise anything
        return f"({type(value).__name__}: its text cannot be shown)"


def _text(text: str) -> str:
    shown = masked(str(text))
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
