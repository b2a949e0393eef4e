"""When a recipe is due: cron expressions in a time zone, and what happens to missed times.

The expressions are read by croniter, which is loaded only for recipes that have a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from minions.recipe.model import ScheduleSpec

MOST_MISSED: Final = 100
"""Due times that count at once; of more the newest do."""
_NICKNAMES: Final = frozenset(
    ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
)
_FIELDS: Final = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of month", "1 to 31"),
    ("month", "1 to 12 or JAN to DEC"),
    ("day of week", "0 to 7 or SUN to SAT"),
)
MOST_CHARACTERS: Final = 200
"""Characters of an expression."""
_YEARS: Final = 8
"""Between two due times at most: the 29th of February is one after eight years."""
_REFERENCE: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""From where it is looked whether an expression is ever due."""


def cron_problem(cron: str) -> str | None:
    """Why that is no cron expression, or one that is never due; None: it is one."""
    text = cron.strip()
    if len(text) > MOST_CHARACTERS:
        return f"it has more than {MOST_CHARACTERS} characters"
    if text.startswith("@"):
        return None if text in _NICKNAMES else f"expected one of {', '.join(sorted(_NICKNAMES))}"
    if len(text.split()) != len(_FIELDS):
        return f"expected five fields: {', '.join(name for name, _ in _FIELDS)}"
    if any(letter in word for word in text.split()[:3] for letter in "hHrR"):
        return "random and hashed fields are not supported"
    from croniter import CroniterBadDateError, croniter  # type: ignore[import-untyped]  # it has no stubs

    for number, (word, (name, numbers)) in enumerate(zip(text.split(), _FIELDS, strict=True)):
        if not _is_read([word if each == number else "*" for each in range(len(_FIELDS))]):
            return f"the {name} is '{word}'; expected {numbers}, `*`, `A-B`, `A,B` or `*/N`"
    try:
        croniter(text, _REFERENCE, max_years_between_matches=_YEARS).get_next()
    except CroniterBadDateError:
        return "it is never due"
    return None if _is_read(text.split()) else "its fields do not go together"


def _is_read(words: Sequence[str]) -> bool:
    from croniter import CroniterError, croniter

    try:
        croniter.expand(" ".join(words))
    except (CroniterError, ValueError, KeyError, OverflowError):
        return False
    return True


def timezone_problem(name: str) -> str | None:
    """Why that is no time zone of this machine; None: it is one."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "expected the name of an IANA time zone, such as UTC or Europe/Zurich"
    return None


def next_due(spec: ScheduleSpec, after: datetime) -> datetime | None:
    """The first due time after `after`, in UTC; None: there is none in the next years."""
    return next(_times(spec, after, forward=True), None)


def due_times(spec: ScheduleSpec, after: datetime, until: datetime) -> Sequence[datetime]:
    """The due times after `after` and up to `until`, in UTC and in order.

    Of more than `MOST_MISSED` these are the newest, so that the cost does not grow with the time
    that has passed.
    """
    found: list[datetime] = []
    start = until.replace(microsecond=0) + timedelta(seconds=1)
    for at in _times(spec, start, forward=False):
        if at <= after or len(found) == MOST_MISSED:
            break
        found.append(at)
    return found[::-1]


def _times(spec: ScheduleSpec, start: datetime, *, forward: bool) -> Iterator[datetime]:
    """The due times after `start`, or before it, the nearest first.

    Where clocks are put forward, a time that does not exist becomes the first one that does. Where
    they are put back, a time that occurs twice is due once, at the first, unless every hour is due.
    """
    from zoneinfo import ZoneInfo

    from croniter import CroniterBadDateError, croniter

    zone = ZoneInfo(spec.timezone)
    is_hourly = croniter.expand(spec.cron)[0][1] == ["*"]
    times = croniter(
        spec.cron,
        start.astimezone(zone),
        ret_type=datetime,
        max_years_between_matches=_YEARS,
    )
    while True:
        try:
            at: datetime = times.get_next() if forward else times.get_prev()
        except CroniterBadDateError:
            return
        local = at.astimezone(zone)
        if is_hourly or not _is_second(local):
            yield at.astimezone(UTC)


def _is_second(local: datetime) -> bool:
    """Whether the clock showed that time an hour ago already, before it was put back."""
    return bool(local.fold) and local.replace(fold=0).astimezone(UTC) != local.astimezone(UTC)
