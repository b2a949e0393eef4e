"""The toolset `time`: the time of day, and times before or after it."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from attrs import frozen

from minions.adapters.tools.function_tool import tool
from minions.contracts.tools import Effect, Reads, Tool, Toolset
from minions.data.errors import ToolError, near_hint, near_names
from minions.data.json_values import JsonValue


@frozen
class TimeShown:
    """A point in time."""

    iso: str
    """ISO 8601 with the offset."""
    unix_timestamp: float
    """Seconds since 1970-01-01T00:00Z."""
    timezone: str
    """The requested time zone, or the offset (`UTC+02:00`) of a given time."""
    weekday: str
    """The day of the week in English."""


def built_in_time(now: Callable[[], datetime]) -> Toolset:
    """The toolset under its usual name, for every recipe."""
    return time_toolset(now)


def time_toolset(now: Callable[[], datetime]) -> Toolset:
    """The tools `now` and `shift`, both pure.

    Args:
        now: Returns the time of day, with its zone.
    """

    def open_tools(_options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
        return _tools(_TimeTools(now), prefix=f"{prefix}__" if prefix else "")

    return Toolset(
        name="time",
        description="Tell the time, and reckon with times.",
        options={"type": "object", "properties": {}, "additionalProperties": False},
        specs=tuple(made.spec for made in _tools(_TimeTools(now), prefix="")),
        open=open_tools,
    )


def _tools(times: _TimeTools, *, prefix: str) -> Sequence[Tool]:
    return (
        tool(name=f"{prefix}now", effect=Effect.PURE, reads=Reads.TRUSTED)(times.now),
        tool(name=f"{prefix}shift", effect=Effect.PURE, reads=Reads.TRUSTED)(times.shift),
    )


_Zone = Annotated[str, "IANA name such as 'Europe/Zurich', or 'UTC'."]
_Amount = Annotated[float, "May be negative or a fraction; a day is 24 hours."]


@frozen
class _TimeTools:
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    clock: Callable[[], datetime]

    async def now(self, timezone: _Zone = "UTC") -> TimeShown:
        """Tell the time of day in a time zone."""
        return moment_in(self.clock(), timezone)

    async def shift(
        self,
        weeks: _Amount = 0,
        days: _Amount = 0,
        hours: _Amount = 0,
        minutes: _Amount = 0,
        seconds: _Amount = 0,
        start: Annotated[str | None, "ISO 8601 time to start from; none: now."] = None,
        timezone: Annotated[str | None, "IANA name of the zone to show; none: as start."] = None,
    ) -> TimeShown:
        """Tell the time some weeks, days, hours, minutes and seconds after (or before) a start."""
        begin = self.clock().astimezone(UTC) if start is None else _parse(start, timezone)
        try:
            span = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
            end = (begin.astimezone(UTC) + span).astimezone(begin.tzinfo)
        except OverflowError as error:
            raise ToolError(
                f"That time is beyond the years 1 to 9999 ({error}). Ask for a shorter span.",
                code="bad-time",
            ) from error
        if timezone is None:
            return _show_time(end, str(end.tzname()))
        return moment_in(end, timezone)


def moment_in(time: datetime, timezone: str) -> TimeShown:
    """The point in time in a time zone.

    Raises:
        ToolError: There is no such zone, or the time is outside of the calendar.
    """
    zone = _zone(timezone)
    try:
        return _show_time(time.astimezone(zone), timezone)
    except OverflowError as error:
        raise ToolError(
            f"That time is beyond the years 1 to 9999 in {timezone} ({error}).", code="bad-time"
        ) from error


def _parse(text: str, timezone: str | None) -> datetime:
    """The time of a text; without an offset it is local time of `timezone`, or UTC for None."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ToolError(
            f"'{text}' is not an ISO 8601 time, such as '2026-01-31T08:30:00+01:00'.",
            code="bad-time",
        ) from error
    if time.tzinfo is not None:
        return time
    return time.replace(tzinfo=UTC if timezone is None else _zone(timezone))


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        if len(name) > _LONGEST_ZONE or name.count("/") >= _MOST_PARTS:
            raise zoneinfo.ZoneInfoNotFoundError(name)  # else it imports a package for each part
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        near = near_names(name, zoneinfo.available_timezones())
        hint = near_hint(near)
        raise ToolError(
            f"There is no time zone '{name}'.{hint} Give an IANA name such as 'Europe/Zurich', "
            "or 'UTC'.",
            code="unknown-timezone",
            suggestions=near,
        ) from error


_LONGEST_ZONE: Final = 64
_MOST_PARTS: Final = 3
"""Parts of an IANA name: `America/Argentina/Ushuaia`."""
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _show_time(time: datetime, timezone: str) -> TimeShown:
    return TimeShown(time.isoformat(), time.timestamp(), timezone, _WEEKDAYS[time.weekday()])
