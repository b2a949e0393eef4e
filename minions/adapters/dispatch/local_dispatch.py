"""Dispatch within one process, on asyncio: the default. Jobs end with the process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import itertools
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import field, frozen

from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.contracts.dispatch import (
    DispatchEngine,
    Execute,
    Job,
    JobState,
    JobView,
    QueueLimits,
    QueueView,
    RateLimit,
    WorkerPlan,
    WorkerView,
)
from minions.contracts.runtime import Clock, Sleep

_MOST_STARTS: Final = 1_000
"""Starts that are remembered of a queue without a limit on them."""
_MOST_ENDED: Final = 10_000
"""Keys of ended jobs that are remembered."""


@frozen(order=True)
class _QueuedJob:
    """A job in its queue, in the order in which jobs begin."""

    order: int
    number: int
    job: Job = field(order=False)
    due: float = field(order=False)
    """When it may begin, by the monotonic clock."""


@frozen(kw_only=True, eq=False)
class _Server:
    """One call of `serve`."""

    plan: WorkerPlan
    execute: Execute
    tasks: dict[asyncio.Task[None], Job] = field(factory=dict)
    started_at: datetime
    left: LeftJobs

    def taken(self, queue: str) -> int:
        """How many jobs of that queue it has."""
        return sum(job.queue == queue for job in self.tasks.values())


class LocalDispatch(DispatchEngine):
    """Jobs in memory. One loop owns it, so nothing is locked.

    Two jobs of one session are never executed at the same time.
    """

    def __init__(self, clock: Clock, sleep: Sleep = asyncio.sleep) -> None:
        """Start without jobs.

        Args:
            sleep: Waits for delays and rate limits, in the time of `clock`.
        """
        self._clock = clock
        self._sleep = sleep
        self._numbers = itertools.count()
        self._waiting: dict[str, list[_QueuedJob]] = defaultdict(list)
        """Heaps by queue."""
        self._active: set[str] = set()
        """Keys of jobs that have not ended."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._limits: dict[str, QueueLimits] = {}
        self._starts: dict[str, deque[float]] = defaultdict(deque)
        """When the newest jobs of a queue began: a limit that is set later counts them, too."""
        self._key_starts: dict[tuple[str, str], deque[float]] = defaultdict(deque)
        """The same by queue and key, of those that share."""
        self._begins: dict[tuple[str, str], tuple[float, int]] = {}
        """When jobs of a queue and key began last, and as which one."""
        self._servers: list[_Server] = []
        self._changed = asyncio.Event()

    async def submit(self, job: Job) -> bool:
        if job.key in self._active or job.key in self._ended:
            return False
        self._active.add(job.key)
        due = self._clock.monotonic() + job.delay_s
        order = 2 * job.priority + (0 if job.number else 1)  # what was put back goes first
        entry = _QueuedJob(order, next(self._numbers), job, due)
        heapq.heappush(self._waiting[job.queue], entry)
        self._changed.set()
        return True

    async def cancel(self, run_id: str) -> int:
        count = 0
        for queue, entries in self._waiting.items():
            left = [each for each in entries if each.job.run_id != run_id]
            for each in entries:
                if each.job.run_id == run_id:
                    self._end(each.job)
                    count += 1
            heapq.heapify(left)
            self._waiting[queue] = left
        self._changed.set()
        return count

    async def wake(self, run_id: str) -> int:
        count, now = 0, self._clock.monotonic()
        for entries in self._waiting.values():
            for at, each in enumerate(entries):
                if each.job.run_id == run_id and each.due > now:
                    entries[at] = _QueuedJob(each.order, each.number, each.job, now)
                    count += 1
        self._changed.set()
        return count

    async def jobs(self, run_ids: Collection[str]) -> Sequence[JobView]:
        now = self._clock.monotonic()
        waiting = [
            JobView(job=each.job, state=_state(each, now))
            for entries in self._waiting.values()
            for each in entries
            if each.job.run_id in run_ids
        ]
        taken = [
            JobView(job=job, state=JobState.TAKEN, worker=server.plan.name)
            for server in self._servers
            for job in server.tasks.values()
            if job.run_id in run_ids
        ]
        return waiting + taken

    async def queues(self) -> Sequence[QueueView]:
        names = {*self._limits, *(name for name, found in self._waiting.items() if found)}
        names |= {job.queue for server in self._servers for job in server.tasks.values()}
        return [self._queue_view(name) for name in sorted(names)]

    def _queue_view(self, name: str) -> QueueView:
        now = self._clock.monotonic()
        states = Counter(_state(each, now) for each in self._waiting[name])
        return QueueView(
            limits=self._limits_of(name),
            waiting=states[JobState.WAITING],
            delayed=states[JobState.DELAYED],
            taken=self._count_taken(name),
        )

    async def set_queue(self, limits: QueueLimits) -> None:
        self._limits[limits.name] = limits.capped()
        self._changed.set()

    async def remove_queue(self, name: str) -> bool:
        known = {each.limits.name: each for each in await self.queues()}
        if name not in known or known[name].has_jobs:
            return False
        del self._limits[name]
        return True

    async def workers(self) -> Sequence[WorkerView]:
        return [
            WorkerView(
                name=server.plan.name,
                queues=server.plan.queues,
                slots=server.plan.slots,
                taken=len(server.tasks),
                started_at=server.started_at,
                seen_at=self._clock.now(),
                is_alive=True,
            )
            for server in sorted(self._servers, key=lambda each: each.plan.name)
        ]

    async def serve(self, execute: Execute, plan: WorkerPlan, stop: asyncio.Event) -> None:
        server = _Server(
            plan=plan,
            execute=execute,
            started_at=self._clock.now(),
            left=LeftJobs(self._clock.monotonic),
        )
        self._servers.append(server)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set() and not self._is_over(server):
                self._changed.clear()
                while (job := self._next(server)) is not None:
                    self._begin(server, job)
                await self._news(stopping, server)
            await self._drain(server)
        finally:
            stopping.cancel()
            self._servers.remove(server)

    # --- which job begins -------------------------------------------------------------------------

    def _next(self, server: _Server) -> Job | None:
        """Take the first job that may begin now; None: there is none."""
        if len(server.tasks) >= server.plan.slots:
            return None
        found = [each for name in server.plan.queues if (each := self._first(name, server))]
        if not found:
            return None
        entry = min(found)
        self._note_begin(entry.job)
        self._take(self._waiting[entry.job.queue], entry)
        starts, rate = self._starts[entry.job.queue], self._limits_of(entry.job.queue).rate
        starts.append(self._clock.monotonic())
        while len(starts) > max(_MOST_STARTS, 0 if rate is None else rate.starts):
            starts.popleft()
        return entry.job

    @staticmethod
    def _take(entries: list[_QueuedJob], entry: _QueuedJob) -> None:
        if entries[0] is entry:  # the usual case, which costs little in a long queue
            heapq.heappop(entries)
        else:
            entries.remove(entry)
            heapq.heapify(entries)

    def _first(self, queue: str, server: _Server) -> _QueuedJob | None:
        """The first job of the queue that may begin at that worker now."""
        limits = self._limits_of(queue)
        if self.is_paused(queue):
            return None
        if limits.concurrency is not None and self._count_taken(queue) >= limits.concurrency:
            return None
        if queue in self._limits and server.taken(queue) >= limits.per_worker:
            return None
        now = self._clock.monotonic()
        if self._allowed_at(queue) > now:
            return None
        busy = {job.session_id for each in self._servers for job in each.tasks.values()}

        def is_ready(each: _QueuedJob) -> bool:
            is_free = each.due <= now and each.job.session_id not in busy
            return is_free and server.left.takes(each.job)

        entries = self._waiting[queue]
        if limits.shares is None and limits.age_s is None:
            if entries and is_ready(entries[0]):
                return entries[0]
            return min(filter(is_ready, entries), default=None)
        is_open = functools.cache(lambda key: self._key_allowed_at(limits, key) <= now)
        ready = [each for each in entries if is_ready(each) and is_open(_key(limits, each.job))]
        return min(ready, key=lambda each: self._rank_of(limits, each, now), default=None)

    def _rank_of(
        self, limits: QueueLimits, entry: _QueuedJob, now: float
    ) -> tuple[float, float, int, _QueuedJob]:
        """What is smallest for the job that goes next: its priority, and since when its key waits
        for a turn.
        """
        waited = 0.0 if limits.age_s is None else (now - entry.due) // limits.age_s
        at, number = self._begins.get((limits.name, _key(limits, entry.job)), (entry.due, 0))
        return max(0.0, entry.job.priority - waited), max(at, entry.due), number, entry

    def _note_begin(self, job: Job) -> None:
        limits, now = self._limits_of(job.queue), self._clock.monotonic()
        if limits.shares is not None:
            key = (job.queue, _key(limits, job))
            self._begins.pop(key, None)  # it is the newest one again
            self._begins[key] = (now, next(self._numbers))
            starts, rate = self._key_starts[key], limits.shares.rate
            starts.append(now)
            while len(starts) > max(_MOST_STARTS, 0 if rate is None else rate.starts):
                starts.popleft()
            if len(self._begins) > _MOST_ENDED:
                oldest = next(iter(self._begins))
                del self._begins[oldest], self._key_starts[oldest]

    def _key_allowed_at(self, limits: QueueLimits, key: str) -> float:
        """When the share of a key lets its next job begin; infinite: when one of its jobs ends."""
        shares = limits.shares
        if shares is None:
            return 0.0
        if shares.per_key is not None:
            taken = sum(
                job.queue == limits.name and _key(limits, job) == key
                for server in self._servers
                for job in server.tasks.values()
            )
            if taken >= shares.per_key:
                return math.inf
        return _allowed_at(shares.rate, self._key_starts[limits.name, key])

    def _key_opens_at(self, queue: str, job: Job) -> float:
        """The same, where only time is waited for: the end of a job is told."""
        limits = self._limits_of(queue)
        at = self._key_allowed_at(limits, _key(limits, job))
        return 0.0 if at == math.inf else at

    def _allowed_at(self, queue: str) -> float:
        """When the rate limit lets a next job begin."""
        return _allowed_at(self._limits_of(queue).rate, self._starts[queue])

    def _limits_of(self, queue: str) -> QueueLimits:
        return self._limits.get(queue) or QueueLimits(name=queue)

    def _count_taken(self, queue: str) -> int:
        return sum(server.taken(queue) for server in self._servers)

    # --- a job at a worker ------------------------------------------------------------------------

    def _begin(self, server: _Server, job: Job) -> None:
        task = asyncio.ensure_future(self._execute_job(server, job))
        server.tasks[task] = job
        task.add_done_callback(lambda done: self._forget(server, done))

    async def _execute_job(self, server: _Server, job: Job) -> None:
        try:
            end = await server.execute(job)
        except asyncio.CancelledError:
            await self.submit(job.put_back(is_failed_try=False))
            raise
        if end.again is not None:
            if end.lack is not None:
                server.left.leave(end.again, end.lack)
            await self.submit(end.again)

    def _forget(self, server: _Server, task: asyncio.Task[None]) -> None:
        self._end(server.tasks.pop(task))
        self._changed.set()

    def _end(self, job: Job) -> None:
        self._active.discard(job.key)
        self._ended[job.key] = None
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def _is_over(self, server: _Server) -> bool:
        if not server.plan.ends_when_idle or server.tasks:
            return False
        now = self._clock.monotonic()
        return not any(
            each.due <= now and server.left.takes(each.job)
            for name in server.plan.queues
            if not self.is_paused(name)
            for each in self._waiting[name]
        )

    def pause(self, queues: Collection[str]) -> None:
        paused = self._paused
        super().pause(queues)
        if self._paused != paused:
            self._changed.set()

    async def _news(self, stopping: asyncio.Task[bool], server: _Server) -> None:
        """Wait until a job may begin or the worker is stopped."""
        waits: list[asyncio.Future[Any]] = [  # Any: what they give is not looked at
            asyncio.ensure_future(self._changed.wait())
        ]
        if (seconds := self._next_due(server)) is not None:
            waits.append(asyncio.ensure_future(self._sleep(seconds)))
        try:
            await asyncio.wait((*waits, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _next_due(self, server: _Server) -> float | None:
        """Seconds until a delay or a rate limit is over; None: only a change can help."""
        now = self._clock.monotonic()
        times = [
            max(each.due, self._allowed_at(name), self._key_opens_at(name, each.job))
            for name in server.plan.queues
            for each in self._waiting[name]
        ]
        soonest = min((at - now for at in times if at > now), default=None)
        left_s = server.left.next_s()
        return left_s if soonest is None or (left_s is not None and left_s < soonest) else soonest

    async def _drain(self, server: _Server) -> None:
        """Let the worker's jobs end in time, and cancel the others."""
        if not server.tasks:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(server.plan.drain_s):
                await asyncio.wait(set(server.tasks))
        late = set(server.tasks)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _key(limits: QueueLimits, job: Job) -> str:
    return "" if limits.shares is None else job.labels.get(limits.shares.by, "")


def _allowed_at(rate: RateLimit | None, starts: Sequence[float]) -> float:
    if rate is None or len(starts) < rate.starts:
        return 0.0
    return starts[-rate.starts] + rate.period_s


def _state(entry: _QueuedJob, now: float) -> JobState:
    return JobState.DELAYED if entry.due > now else JobState.WAITING
