"""When a recipe is due: what `schedule` may say, and which times that means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, MissedRuns, Overlap, ScheduleSpec
from minions.recipe.reading.load import check_recipe_text, load_recipe_text
from minions.recipe.schedules import (
    MOST_MISSED,
    due_times,
    next_due,
)

RECIPE = "id: r\ninputs: {city: {type: string, default: Bern}}\nsteps: [{id: a, set: {x: 1}}]\n"


def recipe(schedule: str) -> AgentRecipe:
    return load_recipe_text(f"{RECIPE}schedule: {schedule}\n", "r.yaml", Catalog())


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]  # the parts of a date


def test_a_cron_expression_alone_is_a_schedule_in_utc() -> None:
    assert recipe('"0 8 * * 1-5"').schedules == (ScheduleSpec(cron="0 8 * * 1-5"),)
    assert recipe('"@daily"').schedules[0].cron == "@daily"


def test_a_schedule_has_a_time_zone_policies_and_inputs() -> None:
    text = "{cron: 5 4 * * *, timezone: Asia/Tokyo, missed: all, overlap: queue, inputs: {city: X}}"
    found = recipe(text)
    inputs: dict[str, JsonValue] = {"city": "X"}
    assert found.schedules == (
        ScheduleSpec(
            cron="5 4 * * *",
            timezone="Asia/Tokyo",
            missed=MissedRuns.ALL,
            overlap=Overlap.QUEUE,
            inputs=inputs,
        ),
    )
    assert recipe(f"[{text}, '@hourly']").schedules[1] == ScheduleSpec(cron="@hourly")


@pytest.mark.parametrize("words", ["every day at 8", "Every 5 minutes, on weekdays only", "daily"])
def test_a_time_in_words_as_the_older_format_had_it_is_a_warning(words: str) -> None:
    found = check_recipe_text(f"{RECIPE}schedule: {words!r}\n", "r.yaml", Catalog())
    [fault] = found.faults
    assert (fault.code, fault.is_warning, fault.line) == ("bad-schedule", True, 4)
    assert fault.message == f"'{words}' is no cron expression: no worker starts runs by it"
    assert found.unwrap().schedules == ()


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            '"0 25 * * *"',
            "'0 25 * * *' is no cron expression: the hour is '25'; expected 0 to 23, `*`, `A-B`,",
        ),
        ('"*/0 * * * *"', "the minute is '*/0'; expected 0 to 59"),
        ('"0 8 1,32 * *"', "the day of month is '1,32'; expected 1 to 31"),
        ('"0 8 * foo *"', "the month is 'foo'; expected 1 to 12 or JAN to DEC"),
        ('"0 8 * * 9"', "the day of week is '9'; expected 0 to 7 or SUN to SAT"),
        ('"0 0 30 2 *"', "it is never due"),
        ('"* * * * * *"', "expected five fields"),
        ('"R * * * *"', "random and hashed fields"),
        ('"@sometimes"', "expected one of @annually"),
        (f'"{"1," * 200}"', "has more than 200 characters"),
        ("{cron: 0 8 * * *, timezone: Bern}", "'Bern' is no time zone: expected the name of an"),
        ("{cron: 0 8 * * *, timezone: ../../etc/passwd}", "is no time zone"),
        ("{cron: 0 8 * * *, missed: never}", "missed"),
        ("{cron: 0 8 * * *, patience: long}", "'long' is no duration"),
        ("{cron: 0 8 * * *, inputs: {town: X}}", "the recipe has no input 'town'"),
        ("{timezone: UTC}", "a schedule needs the key 'cron'"),
        ("[['0 8 * * *']]", "a schedule is a cron expression or a mapping, but this is a list"),
        (str(["@daily"] * 21), "a list of schedules has 1 to 20 of them"),
        ("[]", "a list of schedules has 1 to 20 of them"),
    ],
)
def test_a_schedule_that_means_nothing_is_a_fault_with_its_place(schedule: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(schedule)
    assert len(caught.value.faults) == 1
    assert said in caught.value.faults[0].message
    assert caught.value.faults[0].line == 4


def test_a_time_that_clocks_leave_out_is_due_when_they_go_on() -> None:
    """In Berlin 02:00 to 03:00 of 29 March 2026 did not exist."""
    daily = ScheduleSpec(cron="30 2 * * *", timezone="Europe/Berlin")
    expected = [at(2026, 3, 28, 1, 30), at(2026, 3, 29, 1, 0), at(2026, 3, 30, 0, 30)]
    assert due_times(daily, at(2026, 3, 28), at(2026, 3, 31)) == expected


def test_a_time_that_clocks_show_twice_is_due_once_unless_every_hour_is_due() -> None:
    """In Berlin 02:00 to 03:00 of 25 October 2026 came twice."""
    daily = ScheduleSpec(cron="30 2 * * *", timezone="Europe/Berlin")
    expected = [at(2026, 10, 24, 0, 30), at(2026, 10, 25, 0, 30), at(2026, 10, 26, 1, 30)]
    assert due_times(daily, at(2026, 10, 24), at(2026, 10, 27)) == expected
    assert next_due(daily, at(2026, 10, 25, 0, 30)) == at(2026, 10, 26, 1, 30)
    hourly = ScheduleSpec(cron="0 * * * *", timezone="Europe/Berlin")
    found = due_times(hourly, at(2026, 10, 24, 23), at(2026, 10, 25, 4))
    assert found == [at(2026, 10, 25, hour) for hour in range(5)]


def test_of_very_many_times_the_newest_are_found_at_the_same_cost() -> None:
    found = due_times(ScheduleSpec(cron="* * * * *"), at(1999, 1, 1), at(2026, 1, 1))
    assert len(found) == MOST_MISSED
    assert (found[0], found[-1]) == (at(2025, 12, 31, 22, 21), at(2026, 1, 1))


CRONS = ["*/7 * * * *", "0 */2 * * *", "30 2 * * *", "15 1-3 * * 0", "59 23 31 12 *", "0 0 29 2 *"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Africa/Casablanca"]


@given(
    some.sampled_from(CRONS),
    some.sampled_from(ZONES),
    some.integers(0, 400 * 24 * 60),
    some.integers(1, 3 * 24 * 60),
)
def test_the_next_times_are_those_that_are_found_afterwards(
    cron: str, zone: str, start: int, minutes: int
) -> None:
    """Whoever sleeps until the next time finds it due then, and no time is due twice or never."""
    spec = ScheduleSpec(cron=cron, timezone=zone)
    begin = at(2026, 1, 1) + timedelta(minutes=start)
    end, found = begin + timedelta(minutes=minutes), list[datetime]()
    time = next_due(spec, begin)
    while time is not None and time <= end:
        found.append(time)
        time = next_due(spec, time)
    assert due_times(spec, begin, end) == found[-MOST_MISSED:]
