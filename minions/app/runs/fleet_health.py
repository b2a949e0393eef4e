"""How the workers of a database are, and what its queued runs wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import field, frozen

from minions.adapters.stores.memory_stores import StateStore
from minions.app.runs.left_runs import (
    MOST_LOOKED,
    WorkerRecord,
    left_runs,
    waiting_rows,
    waiting_run,
    worker_records,
)
from minions.app.runs.paused_queues import QueuePause, queue_pauses
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.runs.work_lists import wait_reason
from minions.contracts.dispatch import WorkerView
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import IsWorkerGone

MOST_AHEAD_S: Final = 2.0
"""Seconds that the clock of a worker may differ from that of the database: schedules and delays
are by the clock of one of them."""


@frozen(kw_only=True)
class FleetWorker:
    """A worker that is alive."""

    name: str
    queues: tuple[str, ...]
    version: str
    """That of the package; empty: it is not known."""
    clock_ahead_s: float | None = None
    """By how many seconds its clock is ahead of that of the database; None: it is not known, or
    there is one clock only.
    """
    silent_s: float | None = None
    """Seconds since its last heartbeat, by the clock of the database; None: it has none."""
    load: str = ""
    """How many runs it has of how many."""
    problem: str | None = None
    """What it lacks for any run at all; None: nothing that is known."""


@frozen(kw_only=True)
class WaitingGroup:
    """Queued runs of a queue that wait for the same."""

    queue: str
    reason: str
    is_stuck: bool
    """Whether somebody has to do something."""
    count: int
    oldest_run: str
    oldest_since: datetime


@frozen(kw_only=True)
class FleetHealth:
    """The workers, and what waits."""

    now: datetime
    workers: Sequence[FleetWorker] = ()
    waiting: Sequence[WaitingGroup] = ()
    pauses: Mapping[str, QueuePause] = field(factory=dict)
    schedules: Mapping[str, str] = field(factory=dict)
    """Why schedules could not be carried out, by their names."""
    has_more: bool = False
    """Whether more runs wait than were looked at, which are those that wait longest."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is to be mended: of what, and why."""
        versions = sorted({each.version for each in self.workers if each.version})
        if len(versions) > 1:
            yield "versions", f"living workers have the versions {', '.join(versions)}"
        for worker in self.workers:
            if worker.problem is not None:
                yield f"worker {worker.name}", f"it lacks {worker.problem}"
            if abs(worker.clock_ahead_s or 0.0) > MOST_AHEAD_S:
                yield f"clock of {worker.name}", f"{worker.clock_ahead_s:+.1f} s of the database's"
        for group in self.waiting:
            if group.is_stuck:
                yield f"queue {group.queue}", f"{group.count} wait: {group.reason}"
        yield from ((f"schedule {name}", why) for name, why in self.schedules.items())


async def fleet_health(
    journal: Journal,
    state: StateStore,
    views: Sequence[WorkerView] | None,
    is_gone: IsWorkerGone,
    now: datetime,
) -> FleetHealth:
    """How the fleet of a database is.

    Args:
        views: The workers of a shared engine; None: those that stored something are known.
        now: By the clock of the database.
    Raises:
        JournalError: The database cannot be used.
    """
    records = {each.name: each for each in await worker_records(state)}
    workers = _living(records, views, is_gone, now)
    pauses = await queue_pauses(state)
    store = ScheduleStore(state)
    problems = {name: await store.problem(name) for name in await store.names()}
    part = await waiting_rows(journal, is_gone, limit=MOST_LOOKED)
    living = None if views is None else {each.name: each.queues for each in workers}
    found = await left_runs(journal, state, is_gone, living)
    left = {run.run_id: run for run in found.runs}
    served = {queue for each in workers for queue in each.queues}
    groups: dict[tuple[str, str, bool], list[tuple[datetime, str]]] = {}
    for row in part.rows:
        run = left.get(row.run_id) or await waiting_run(journal, row)
        if run is None:
            continue
        why = wait_reason(run, now, pauses, is_served=run.queue in served)
        group = groups.setdefault((run.queue, why.words, why.is_stuck), [])
        group.append((run.since, run.run_id))
    return FleetHealth(
        now=now,
        workers=workers,
        waiting=[
            WaitingGroup(
                queue=queue,
                reason=reason,
                is_stuck=is_stuck,
                count=len(runs),
                oldest_run=min(runs)[1],
                oldest_since=min(runs)[0],
            )
            for (queue, reason, is_stuck), runs in sorted(groups.items())
        ],
        pauses=pauses,
        schedules={name: why for name, why in problems.items() if why is not None},
        has_more=len(part.rows) < part.total,
    )


def _living(
    records: Mapping[str, WorkerRecord],
    views: Sequence[WorkerView] | None,
    is_gone: IsWorkerGone,
    now: datetime,
) -> list[FleetWorker]:
    if views is None:
        return [
            FleetWorker(
                name=each.name, queues=each.queues, version=each.version, problem=each.problem
            )
            for each in records.values()
            if not is_gone(each.name)
        ]
    return [
        FleetWorker(
            name=each.name,
            queues=each.queues,
            version=records[each.name].version if each.name in records else "",
            clock_ahead_s=each.clock_ahead_s,
            silent_s=max(0.0, (now - each.seen_at).total_seconds()),
            load=f"{each.taken} of {each.slots}",
            problem=records[each.name].problem if each.name in records else None,
        )
        for each in views
        if each.is_alive and not is_gone(each.name)
    ]
