"""`getCurrentDateTime` and `getDateTimeHoursAgo`: the time,
under the names that older recipes use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from attrs import frozen

from minions.adapters.tools.declared_tool import DeclaredTool
from minions.contracts.tools import Effect, Reads, Tool, ToolSpec
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue

_ZONE: Final[Mapping[str, JsonValue]] = {
    "type": "string",
    "description": "IANA name such as 'Europe/Zurich', or 'UTC'.",
    "default": "UTC",
}
_NOW: Final = ToolSpec(
    name="getCurrentDateTime",
    description="Tell the time of day in a time zone.",
    parameters={
        "type": "object",
        "properties": {"timezone": _ZONE},
        "additionalProperties": False,
    },
    effect=Effect.PURE,
    reads=Reads.TRUSTED,
)
_HOURS_AGO: Final = ToolSpec(
    name="getDateTimeHoursAgo",
    description="Tell the time some hours ago.",
    parameters={
        "type": "object",
        "properties": {
            "hours": {"type": "number", "description": "May be a fraction, or negative."},
            "timezone": _ZONE,
        },
        "required": ["hours"],
        "additionalProperties": False,
    },
    effect=Effect.PURE,
    reads=Reads.TRUSTED,
)


def date_time_tools(now: Callable[[], datetime]) -> Sequence[Tool]:
    """Both tools.

    Args:
        now: Returns the time of day, with its zone.
    """
    tools = _DateTimeTools(now)
    return DeclaredTool(_NOW, tools.current), DeclaredTool(_HOURS_AGO, tools.hours_ago)


@frozen
class _DateTimeTools:
    now: Callable[[], datetime]

    async def current(self, arguments: Mapping[str, JsonValue]) -> JsonValue:
        return _shown(self.now(), arguments)

    async def hours_ago(self, arguments: Mapping[str, JsonValue]) -> JsonValue:
        hours = cast("int | float", arguments["hours"])
        try:
            # In UTC: an hour ago is 60 minutes ago, also where the clocks were changed.
            then = self.now().astimezone(UTC) - timedelta(hours=hours)
        except OverflowError as error:
            raise ToolError(
                f"{hours} hours ago is beyond the years 1 to 9999. Ask for fewer.", code="bad-time"
            ) from error
        return _shown(then, arguments)


def _shown(time: datetime, arguments: Mapping[str, JsonValue]) -> JsonValue:
    from minions.adapters.tools.time import moment_in

    shown = moment_in(time, cast(str, arguments.get("timezone", "UTC")))
    return {
        "datetime": {
            "unix_timestamp": int(shown.unix_timestamp // 1),
            "iso": shown.iso,
            "timezone": shown.timezone,
            "weekday": shown.weekday,
        }
    }
