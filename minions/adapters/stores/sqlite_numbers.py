"""Times and numbers of the SQLite journal: integers, times in microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from minions.adapters.stores.sqlite_file import DamageError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_MICROSECOND: Final = timedelta(microseconds=1)


def as_micros(at: datetime) -> int:
    """Microseconds since 1970, in UTC."""
    return (at - EPOCH) // _MICROSECOND


def as_time(micros: int) -> datetime:
    """The time of a column in microseconds since 1970."""
    try:
        return EPOCH + micros * _MICROSECOND
    except (OverflowError, TypeError) as error:
        raise DamageError(f"its time is out of range ({error})") from error


def as_count(stored: object) -> int:
    """The largest number of some rows; 0 where there are none."""
    if stored is not None and not isinstance(stored, int):
        raise DamageError("a number in it is none")
    return stored or 0
