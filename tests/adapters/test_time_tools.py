"""The time tools, under a clock that stands still."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import result_of
from minions.adapters.tools.time_toolset import time_toolset
from minions.contracts.tools import Effect, ToolScope
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema
from minions.testing.virtual_time import FakeClock

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")


async def ask(name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
    tools = {made.spec.name: made for made in time_toolset(FakeClock().now).open({}, "time")}
    made = tools[f"time__{name}"]
    assert SchemaValidator(made.spec.parameters).errors(arguments) == ()
    return await result_of(made, arguments, SCOPE)


def shown(iso: str, unix: float, timezone: str, weekday: str) -> JsonValue:
    return {"iso": iso, "unix_timestamp": unix, "timezone": timezone, "weekday": weekday}


def test_the_toolset_takes_no_options_and_has_pure_tools() -> None:
    toolset = time_toolset(FakeClock().now)
    assert {spec.name: spec.effect for spec in toolset.specs} == {
        "now": Effect.PURE,
        "shift": Effect.PURE,
    }
    for spec in toolset.specs:
        check_schema(spec.parameters)
    assert SchemaValidator(toolset.options).errors({"zone": "UTC"}) != ()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, shown("2026-01-01T00:00:00+00:00", 1_767_225_600.0, "UTC", "Thursday")),
        (
            {"timezone": "America/New_York"},
            shown("2025-12-31T19:00:00-05:00", 1_767_225_600.0, "America/New_York", "Wednesday"),
        ),
    ],
)
async def test_now(arguments: Mapping[str, JsonValue], expected: JsonValue) -> None:
    assert await ask("now", arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "iso", "timezone"),
    [
        ({"days": 1, "hours": -1}, "2026-01-01T23:00:00+00:00", "UTC"),
        ({"weeks": 1, "minutes": 0.5}, "2026-01-08T00:00:30+00:00", "UTC"),
        ({"start": "2026-06-01T12:00:00+02:00"}, "2026-06-01T12:00:00+02:00", "UTC+02:00"),
        ({"start": "2026-06-01", "seconds": 1}, "2026-06-01T00:00:01+00:00", "UTC"),
        (
            {"start": "2026-03-28T12:00", "days": 1, "timezone": "Europe/Zurich"},
            "2026-03-29T13:00:00+02:00",
            "Europe/Zurich",
        ),
        (
            {"start": "2026-06-01T12:00Z", "timezone": "Asia/Tokyo"},
            "2026-06-01T21:00:00+09:00",
            "Asia/Tokyo",
        ),
    ],
)
async def test_shift(arguments: Mapping[str, JsonValue], iso: str, timezone: str) -> None:
    result = await ask("shift", arguments)
    assert isinstance(result, Mapping)
    assert (result["iso"], result["timezone"]) == (iso, timezone)


async def test_an_unknown_time_zone_is_told_with_near_names() -> None:
    with pytest.raises(ToolError, match="Did you mean 'Europe/Zurich'") as caught:
        await ask("now", {"timezone": "Europe/Zurch"})
    assert caught.value.error_code == "unknown-timezone"


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "../../etc/passwd",
        "/etc/localtime",
        "x" * 5_000,
        "a\0b",
        "a" + "/a" * 400,
        "b" + "/b" * 3,
    ],
)
async def test_odd_zone_names_are_refused(zone: str) -> None:
    with pytest.raises(ToolError) as caught:
        await ask("now", {"timezone": zone})
    assert caught.value.error_code == "unknown-timezone"


@pytest.mark.parametrize("arguments", [{"start": "soon"}, {"days": 10**7}, {"days": 1e300}])
async def test_times_that_cannot_be_are_refused(arguments: Mapping[str, JsonValue]) -> None:
    with pytest.raises(ToolError) as caught:
        await ask("shift", arguments)
    assert caught.value.error_code == "bad-time"
