"""The engine that gives runs to workers, by the database of the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minions.app.settings.settings import Settings
from minions.app.wiring.databases import postgres_of
from minions.contracts.runtime import Log

if TYPE_CHECKING:
    from minions.contracts.dispatch import DispatchEngine


def make_dispatch(settings: Settings, log: Log) -> DispatchEngine:
    """The engine of a worker: over DBOS where the journal is in PostgreSQL, else in the process.

    Workers of one SQLite file find queued runs in it, and a lease decides which of them has one.
    Opens nothing yet.
    """
    shared = shared_dispatch(settings, log)
    if shared is not None:
        return shared
    from minions.adapters.dispatch.local_dispatch import LocalDispatch
    from minions.contracts.runtime import SystemClock

    return LocalDispatch(SystemClock())


def shared_dispatch(settings: Settings, log: Log) -> DispatchEngine | None:
    """The engine to which a process submits that executes nothing itself; None: workers find what
    is queued in the journal alone. Opens nothing yet.
    """
    if settings.no_store or (url := postgres_of(settings)) is None:
        return None
    from minions.adapters.dispatch.dbos_dispatch import DbosDispatch

    return DbosDispatch(url, log)
