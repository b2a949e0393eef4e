"""Workers, queues and what waits in them, as lists for commands, HTTP and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import evolve, frozen

from minions.adapters.stores.memory_stores import StateStore
from minions.app.runs.left_runs import (
    MOST_LOOKED,
    LeftRunsFound,
    WaitingRun,
    WorkerRecord,
    cut_off_runs,
    lacks_of,
    left_runs,
    living_records,
    living_workers,
    queued_rows,
    waiting_rows,
    waiting_run,
    worker_records,
)
from minions.app.runs.paused_queues import QueuePause, pause_among, queue_pauses
from minions.app.runs.run_needs import missing_words
from minions.contracts.dispatch import DispatchEngine, QueueLimits, QueueView
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import DEFAULT_QUEUE
from minions.contracts.runtime import IsWorkerGone
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue

_MOST_COUNTED: Final = 500
"""Runs, those that wait longest, that are counted by queue where no engine counts them."""
_MOST_LOOKED: Final = 20
"""Queued runs, those that wait longest, that are looked at where no engine counts jobs."""


@frozen(kw_only=True)
class ListedWorker:
    """A worker, as it last said of itself."""

    name: str
    is_alive: bool
    queues: tuple[str, ...]
    version: str = ""
    """That of the package; empty: not known."""
    slots: int | None = None
    """Runs at a time; None: not known, as of one that stored nothing."""
    taken: int | None = None
    """Runs that it has."""
    started_at: datetime | None = None
    seen_at: datetime | None = None
    """When it last gave a sign of life; None: its process is looked at, or nothing is known."""
    stream_url: str | None = None
    """Where it offers the pieces of answers of its runs; None: it offers none."""
    lacks: tuple[str, ...] = ()
    """What it lacks, for any run or for those that it met, each part once."""
    problem: str | None = None
    """What it lacks for any run at all; None: nothing that is known."""


@frozen(kw_only=True)
class ListedQueue:
    """A queue with what waits in it."""

    view: QueueView
    oldest_at: datetime | None = None
    """Since when the run waits that waits longest; None: none waits, or it was not looked at."""
    workers: int = 0
    """Living workers that take its runs."""
    has_limits: bool = True
    """Whether its limits hold: in an SQLite file there are none."""
    is_partial: bool = False
    """Whether more runs are queued than were counted."""
    pause: QueuePause | None = None
    """Since when and why no worker takes its runs; None: they do."""


@frozen(kw_only=True)
class RunHindrance:
    """What keeps workers from a queued run, as far as is known."""

    lacks: tuple[str, ...] = ()
    """What it needs and no living worker of its queue has, in words."""
    not_taken: str | None = None
    """Why none takes it: its queue is paused, or has no living worker. None: they may."""
    is_paused: bool = False
    """Whether it is the pause of its queue that keeps them from it."""
    takers: tuple[str, ...] = ()
    """The living workers that may take it: of those of its queue, all that lack nothing that is
    known. Empty: there is none, or it is not known who lives."""
    run: WaitingRun | None = None
    """The run, with where and with what it began; None: it waits in no queue."""

    def to_json(self) -> dict[str, JsonValue]:
        """The form in which it is printed."""
        return {
            "run_id": None if self.run is None else self.run.run_id,
            "lacks": list(self.lacks),
            "not_taken": self.not_taken,
            "takers": list(self.takers),
        }


@frozen(kw_only=True)
class QueuedRun:
    """A run that waits in a queue, and why."""

    run: WaitingRun
    reason: str
    """One clause for a person: `no worker has the tool 'price'`."""


class WorkLists:
    """Reads what works in a database. Costs what is alive and what is returned."""

    def __init__(
        self,
        journal: Journal,
        state: StateStore,
        engine: DispatchEngine | None,
        is_gone: IsWorkerGone,
    ) -> None:
        """Nothing is read yet.

        Args:
            state: The texts beside the journal.
            engine: Where runs are submitted; None: workers find them in the journal alone.
            is_gone: Whether a worker is known to be dead.
        """
        self._journal = journal
        self._state = state
        self._engine = engine
        self._is_gone = is_gone

    async def workers(self) -> list[ListedWorker]:
        """The workers that are or were alive lately, by name.

        Raises:
            JournalError, EnvironmentRefusedError: The database cannot be used.
        """
        records = {each.name: each for each in await worker_records(self._state)}
        if self._engine is None:
            taken = Counter(each.lease.worker_id for each in await self._journal.held_leases())
            return [
                ListedWorker(
                    name=each.name,
                    is_alive=not self._is_gone(each.name),
                    queues=each.queues,
                    version=each.version,
                    slots=each.slots,
                    taken=taken[each.name],
                    started_at=each.started_at,
                    lacks=each.all_lacks,
                    problem=each.problem,
                )
                for each in records.values()
            ]
        unknown = WorkerRecord(name="", queues=())
        return [
            ListedWorker(
                name=each.name,
                is_alive=each.is_alive,
                queues=each.queues,
                version=records.get(each.name, unknown).version,
                slots=each.slots,
                taken=each.taken,
                started_at=each.started_at,
                seen_at=each.seen_at,
                stream_url=each.stream_url,
                lacks=records.get(each.name, unknown).all_lacks,
                problem=records.get(each.name, unknown).problem,
            )
            for each in await self._engine.workers()
        ]

    async def queues(self, now: datetime) -> list[ListedQueue]:
        """The queues that have limits, runs or living workers, by name.

        Raises:
            JournalError, EnvironmentRefusedError: The database cannot be used.
        """
        living = await self._living()
        serving = Counter(name for each in living for name in each.queues)
        runs, total = await self._waiting(_MOST_COUNTED)
        waiting, delayed = Counter[str](), Counter[str]()
        oldest, pauses = dict[str, datetime](), await queue_pauses(self._state)
        for run in runs:
            is_delayed = run.not_before is not None and run.not_before > now
            (delayed if is_delayed else waiting)[run.queue] += 1
            oldest.setdefault(run.queue, run.since)
        if self._engine is None:
            names = sorted({DEFAULT_QUEUE, *serving, *waiting, *delayed})
            views = [
                QueueView(limits=QueueLimits(name=n), waiting=waiting[n], delayed=delayed[n])
                for n in names
            ]
        else:
            views = list(await self._engine.queues())
        return [
            ListedQueue(
                view=each,
                oldest_at=oldest.get(each.limits.name),
                workers=serving[each.limits.name],
                has_limits=self._engine is not None,
                is_partial=self._engine is None and total > _MOST_COUNTED,
                pause=pause_among(pauses, each.limits.name),
            )
            for each in views
        ]

    async def queued(
        self, now: datetime, *, limit: int, offset: int
    ) -> tuple[list[QueuedRun], int]:
        """A part of the runs that wait in queues, the longest first, and how many there are.

        Raises:
            JournalError, EnvironmentRefusedError: The database cannot be used.
        """
        part, total = await self._waiting(limit, offset)
        living, pauses = await self._living(), await queue_pauses(self._state)
        found = []
        for run in part:
            serving = [each for each in living if run.queue in each.queues]
            if len(lacks := lacks_of(run, serving)) == len(serving):
                run = evolve(run, lacks=lacks)  # noqa: PLW2901  # the same run, with what is lacking
            why = wait_reason(run, now, pauses, is_served=bool(serving))
            found.append(QueuedRun(run=run, reason=why.until or why.words))
        return found, total

    async def left(self) -> LeftRunsFound:
        """The queued runs of which each living worker of their queues lacks something, among those
        that wait longest.

        Raises:
            JournalError, EnvironmentRefusedError: The database cannot be used.
        """
        living = await self._living_queues()
        return await left_runs(self._journal, self._state, self._is_gone, living)

    async def unserved(self) -> Mapping[str, int]:
        """How many runs wait in queues of which no living worker takes any, by queue.

        Where no engine counts jobs, the runs that wait longest are looked at, and only those.

        Raises:
            JournalError, EnvironmentRefusedError: The database cannot be used.
        """
        served = {queue for each in await self._living() for queue in each.queues}
        if self._engine is not None:
            views = await self._engine.queues()
            # Where no worker is alive, what is taken was so by dead ones.
            waiting = {each.limits.name: each.waiting + each.taken for each in views}
        else:
            queued = await queued_rows(self._journal, limit=_MOST_LOOKED)
            cut_off = await cut_off_runs(self._journal, self._is_gone)
            runs = await self._read((*cut_off[:MOST_LOOKED], *queued.rows))
            waiting = Counter(each.queue for each in runs)
        return {queue: count for queue, count in waiting.items() if count and queue not in served}

    async def hindrance(self, run_id: str) -> RunHindrance:
        """What keeps workers from a run that waits in a queue, and who may take it. A worker lacks
        what it found with the run, or with others of the same needs, or has not among what it says
        that it has. Where the engine cannot be asked who lives, what workers stored counts, and
        none is said to be missing.

        Raises:
            JournalError: The database cannot be used.
        """
        rows = await self._journal.runs(RunFilter(run_ids={run_id}), limit=1)
        run = await waiting_run(self._journal, rows[0]) if rows else None
        if run is None:
            return RunHindrance()
        try:
            living, is_known = await self._living(), True
        except EnvironmentRefusedError:
            living, is_known = await living_records(self._state, self._is_gone, None), False
        serving = [each for each in living if run.queue in each.queues]
        found = {each.name: each.lacking(run) or each.lacking_of(run.wants) for each in serving}
        run = evolve(run, lacks={name: parts for name, parts in found.items() if parts})
        pause = pause_among(await queue_pauses(self._state), run.queue)
        words = None if pause is None else pause.words
        if words is None and is_known and not serving:
            words = f"the queue '{run.queue}' has no living worker"
        able = tuple(name for name, parts in found.items() if not parts)
        return RunHindrance(
            lacks=() if able else run.parts,
            not_taken=words,
            is_paused=pause is not None,
            takers=able if is_known and pause is None else (),
            run=run,
        )

    async def _waiting(self, limit: int, offset: int = 0) -> tuple[list[WaitingRun], int]:
        """A part of the runs that wait for workers, and how many there are."""
        part = await waiting_rows(self._journal, self._is_gone, limit=limit, offset=offset)
        return await self._read(part.rows), part.total

    async def _read(self, rows: Sequence[RunRow]) -> list[WaitingRun]:
        found = [await waiting_run(self._journal, row) for row in rows]
        return [each for each in found if each is not None]

    async def _living(self) -> Sequence[WorkerRecord]:
        return await living_records(self._state, self._is_gone, await self._living_queues())

    async def _living_queues(self) -> Mapping[str, Collection[str]] | None:
        return None if self._engine is None else await living_workers(self._engine)


@frozen(kw_only=True)
class WaitReason:
    """Why no worker has begun with a queued run."""

    words: str
    """One clause for a person, the same for all runs that wait for the same."""
    is_stuck: bool = False
    """Whether somebody has to do something."""
    until: str | None = None
    """The same with the time until which it waits; None: it waits until something happens."""


def wait_reason(
    run: WaitingRun, now: datetime, pauses: Mapping[str, QueuePause], *, is_served: bool
) -> WaitReason:
    """Why no worker has begun with it.

    Args:
        pauses: Those of queues, by name.
        is_served: Whether a living worker takes its queue.
    """
    pause = pause_among(pauses, run.queue)
    if pause is not None:
        return WaitReason(words=f"paused: {pause.reason}")
    if run.not_before is not None and run.not_before > now:
        at = f"{run.not_before:%Y-%m-%d %H:%M:%S}Z"
        if run.pauses:
            return WaitReason(words="waits for a server", until=f"waits for a server until {at}")
        return WaitReason(words="its time has not come", until=f"not before {at}")
    if run.has_children:
        return WaitReason(words="waits for its child runs")
    if run.is_in_batch:
        return WaitReason(words="waits for answers of a batch of model calls")
    if not is_served:
        words = f"no living worker takes the queue '{run.queue}'"
        return WaitReason(words=words, is_stuck=True)
    if run.parts:
        return WaitReason(words=missing_words(run.parts), is_stuck=True)
    return WaitReason(words="waits for a free worker")
