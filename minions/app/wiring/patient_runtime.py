"""A runtime whose model calls may wait for batches of their providers, and the time until when."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from minions.app.wiring.configured_runtime import Runtime
from minions.app.wiring.databases import state_beside
from minions.data.errors import UsageError
from minions.data.texts import seconds_of

if TYPE_CHECKING:
    from minions.contracts.patience import PatientCalls

_TIME: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def deadline_of(
    by: str | None, patience: str | None, now: datetime, *, marks: str = "--"
) -> datetime | None:
    """When a run has to be done, in UTC; None: its calls do not wait.

    Args:
        by: A time of day, whose next one is meant, or a date and time of ISO 8601; both are local
            where they name no zone.
        patience: A duration from now on, such as 24h.
        now: With the local zone.
        marks: What stands before the names in messages.
    Raises:
        UsageError: `bad-deadline`; both are given, one is of another form, or is over.
    """
    if patience is not None:
        if by is not None:
            raise UsageError(
                f"{marks}by {by} and {marks}patience {patience} say the same: give one of them.",
                code="bad-deadline",
            )
        return (now + timedelta(seconds=seconds_of(patience))).astimezone(UTC)
    if by is None:
        return None
    found = _TIME.fullmatch(by.strip())
    if found is not None:
        at = now.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0)
        if at <= now:  # by the clock on the wall: a day may have 23 hours
            at = at.replace(tzinfo=None) + timedelta(days=1)
            at = at.astimezone() if now.tzinfo is not UTC else at.replace(tzinfo=UTC)
        return at.astimezone(UTC)
    try:
        at = datetime.fromisoformat(by.strip())
    except ValueError as error:
        raise UsageError(
            f"{marks}by {by}: expected a time of day such as 06:00, or a date and time such as "
            f"{now:%Y-%m-%d}T06:00.",
            code="bad-deadline",
        ) from error
    if at.tzinfo is None:
        at = at.astimezone() if now.tzinfo is not UTC else at.replace(tzinfo=UTC)
    if at <= now:
        raise UsageError(f"{marks}by {by}: that time is over.", code="bad-deadline")
    return at.astimezone(UTC)


@asynccontextmanager
async def patient_runtime(
    runtime: Runtime, by: datetime | None, tell: Callable[[str], None]
) -> AsyncIterator[Runtime]:
    """The runtime, with patience until then; the same one where there is no such time.

    Args:
        tell: Called with a line when calls were sent in a batch, were answered, or are late.
    """
    if by is None:
        yield runtime
        return
    from minions.contracts.patience import Patience

    calls = open_patient_calls(runtime, tell)
    try:
        yield runtime.evolve(patience=Patience(calls=calls, by=by))
    finally:
        await calls.aclose()


def open_patient_calls(runtime: Runtime, tell: Callable[[str], None] | None = None) -> PatientCalls:
    """What asks for the calls of the runtime's runs that wait; opens nothing yet.

    Args:
        tell: As above; None: the log says it.
    """
    from minions.engine.services.waves.wave_calls import WaveCalls

    store = state_beside(runtime.services.journal)
    return WaveCalls(runtime.services, store, tell=tell, close=store.aclose)
