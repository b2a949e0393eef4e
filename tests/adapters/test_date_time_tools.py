"""The time tools that need no toolset, under a clock that stands still."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import result_of
from minions.adapters.tools.default_tools import date_time_tools
from minions.contracts.tools import Effect, ToolScope
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema
from minions.testing.virtual_time import FakeClock

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")


async def ask(name: str, clock: FakeClock | None = None, **arguments: JsonValue) -> object:
    tools = {tool.spec.name: tool for tool in date_time_tools((clock or FakeClock()).now)}
    assert SchemaValidator(tools[name].spec.parameters).errors(arguments) == ()
    return await result_of(tools[name], arguments, SCOPE)


def shown(unix: int, iso: str, timezone: str, weekday: str) -> Mapping[str, object]:
    moment = {"unix_timestamp": unix, "iso": iso, "timezone": timezone, "weekday": weekday}
    return {"datetime": moment}


def test_both_are_pure() -> None:
    specs = [tool.spec for tool in date_time_tools(FakeClock().now)]
    assert [(spec.name, spec.effect) for spec in specs] == [
        ("getCurrentDateTime", Effect.PURE),
        ("getDateTimeHoursAgo", Effect.PURE),
    ]
    for spec in specs:
        check_schema(spec.parameters)


async def test_the_time_is_told_in_a_zone() -> None:
    now = shown(1_767_225_600, "2026-01-01T00:00:00+00:00", "UTC", "Thursday")
    assert await ask("getCurrentDateTime") == now
    there = shown(1_767_225_600, "2026-01-01T09:00:00+09:00", "Asia/Tokyo", "Thursday")
    assert await ask("getCurrentDateTime", timezone="Asia/Tokyo") == there


async def test_a_timestamp_is_in_whole_seconds_that_have_passed() -> None:
    clock = FakeClock()
    clock.advance(0.9)
    now = shown(1_767_225_600, "2026-01-01T00:00:00.900000+00:00", "UTC", "Thursday")
    assert await ask("getCurrentDateTime", clock) == now


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        (24, shown(1_767_139_200, "2025-12-31T00:00:00+00:00", "UTC", "Wednesday")),
        (0.5, shown(1_767_223_800, "2025-12-31T23:30:00+00:00", "UTC", "Wednesday")),
        (-1, shown(1_767_229_200, "2026-01-01T01:00:00+00:00", "UTC", "Thursday")),
    ],
)
async def test_hours_ago(hours: float, expected: Mapping[str, object]) -> None:
    assert await ask("getDateTimeHoursAgo", hours=hours) == expected


@pytest.mark.parametrize("hours", [10**12, 1e300, 10**400, 17_758_824])
async def test_times_that_cannot_be_are_refused(hours: float) -> None:
    with pytest.raises(ToolError) as caught:
        await ask("getDateTimeHoursAgo", hours=hours, timezone="America/New_York")
    assert caught.value.error_code == "bad-time"


async def test_an_unknown_time_zone_is_told_with_near_names() -> None:
    with pytest.raises(ToolError, match="Did you mean 'Europe/Zurich'"):
        await ask("getCurrentDateTime", timezone="Europe/Zurch")
