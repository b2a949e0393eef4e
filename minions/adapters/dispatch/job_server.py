"""A worker's part of the queues in PostgreSQL: when it looks for jobs, which it takes, their ends.

How jobs are stored is not known here. It looks when it is told of a job, when one that was delayed
is due, when it has room again for what it left waiting, and with each heartbeat, for what is told
may be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.adapters.dispatch.postgres_claims import Claim, ClaimedJobs
from minions.adapters.dispatch.postgres_news import JobNews
from minions.contracts.dispatch import Execute, Job, JobEnd, WorkerPlan
from minions.contracts.runtime import Log
from minions.data.errors import EnvironmentRefusedError, words_of
from minions.data.json_values import as_object, as_objects, parse_json

APPLICATION: Final = "minions"
"""The owner of queues and jobs in DBOS's tables."""
VERSION: Final = "minions-1"
"""Of the form of a job, not of this program: what a run needs of a version is in its record."""
_DONE: Final = '"done"'
_PUT_BACK: Final = '"put back"'
_UNREAD: Final = '"not read"'
_HAND_OVER_S: Final = 10
"""Seconds for handing over what has not ended within the time for it."""
_AGAIN_S: Final = 1.0
_BEGUN_S: Final = 2.0
"""Seconds after which a job counts as begun that says nothing of it."""
_UNTOLD_S: Final = 15.0
"""The longest time between two looks of a worker that is told of jobs; half of it the shortest. A
heartbeat that found nothing counts as one."""
_LEAST_S: Final = 0.01
"""Seconds between two looks at least: jobs that are told together are taken together."""
_SPREAD_S: Final = 0.002
"""Seconds for each living worker over which their looks for one job are spread. Who hears that it
was taken does not look."""
_MOST_SPREAD_S: Final = 0.5
_CROWD: Final = 8
"""Living workers that look at full pace for what waits and may not begin; more look less often."""
_MOST_TOLD: Final = 1_000
"""Jobs told of that are remembered one by one; beyond, it just looks."""


@frozen(kw_only=True)
class WaitingQueue:
    """A queue of the worker, as one look finds it."""

    name: str
    waits: bool
    """Whether a job waits in it that this worker may take."""
    concurrency: int | None = None
    per_worker: int | None = None
    starts: int | None = None
    period_s: float = 0.0


@frozen(kw_only=True)
class QueueLook:
    """What one look finds."""

    queues: Sequence[WaitingQueue]
    next_key: str = ""
    """The delayed job that may begin first."""
    next_s: float | None = None
    """Seconds until then; None: no job is delayed."""


@frozen(kw_only=True)
class JobStore:
    """Where jobs are kept. Calls raise `EnvironmentRefusedError` where it cannot be reached."""

    look: Callable[[Sequence[str], LeftJobs], Awaitable[QueueLook]]
    """Into these queues."""
    begin_due: Callable[[], Awaitable[None]]
    """Let delayed jobs wait for a worker whose time has come."""
    claim: Callable[[Claim], Awaitable[ClaimedJobs]]
    submit: Callable[[Job], Awaitable[object]]
    note_begin: Callable[[Sequence[str]], Awaitable[None]]
    """Jobs have begun which a limit on rate counts from then on."""
    end: Callable[[str, Mapping[str, str]], Awaitable[None]]
    """Jobs of that worker have ended: a word in JSON by the name of each."""


class JobServer:
    """Takes jobs and executes them, on the loop on which it was made."""

    def __init__(
        self,
        execute: Execute,
        plan: WorkerPlan,
        store: JobStore,
        *,
        poll_s: float,
        is_paused: Callable[[str], bool],
        log: Log,
        monotonic: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """It looks for nothing yet.

        Args:
            poll_s: Seconds between two looks while jobs wait that may not begin yet, or while
                nothing is told.
            is_paused: Whether it takes no jobs of a queue now.
            random: From 0 to 1, so that workers do not look at the same moments.
        """
        self.plan = plan
        self.is_launched = False
        """Whether it takes jobs."""
        self.left = LeftJobs(monotonic)
        self._execute = execute
        self._store = store
        self._poll_s = poll_s
        self._is_paused = is_paused
        self._log = log
        self._monotonic = monotonic
        self._random = random
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, asyncio.Event] = {}
        """Of each run that a limit on rate counts, whether it has begun."""
        self._queues: dict[str, str] = {}
        """Of each job that it has, its queue."""
        self._missing: frozenset[str] = frozenset()
        self._living = 1
        """How many workers are alive."""
        self._is_stopping = False
        self._looking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._told: dict[str, float] = {}
        """Jobs that it was told of, with the time at which it looks for each."""
        self._next_at = 0.0
        """When it looks without being told."""
        self._last_at = -_LEAST_S
        self._is_waiting = False
        """Whether the last look left jobs waiting."""
        self._is_heard = False
        """Whether it is told of jobs."""
        self._ends: dict[str, str] = {}
        self._ending = asyncio.Lock()

    async def until_failed(self, serving: asyncio.Future[None]) -> None:
        """Return when `serving` has ended, or raise what ended its looking for jobs."""
        if self._looking is None:
            return
        ends = {serving, self._looking}
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()

    @property
    def taken(self) -> int:
        """How many jobs the worker has."""
        return len(self._tasks)

    def not_begun(self, claimed: Collection[str]) -> frozenset[str]:
        """Of the jobs that the database says the worker has, those that it did not have at two
        looks in a row: they were claimed, and the answer was lost.

        Args:
            claimed: Their names.
        """
        missing = frozenset(claimed) - self._tasks.keys()
        found, self._missing = self._missing & missing, missing
        return found

    # --- when it looks ----------------------------------------------------------------------------

    def hear(self, news: JobNews) -> None:
        """Look for a job in time, unless it was taken."""
        if news.is_taken:
            self._told.pop(news.key, None)
        elif news.queue in self.plan.queues:
            if len(self._told) >= _MOST_TOLD:
                self.look_soon()
                return
            self._told[news.key] = self._monotonic() + news.due_s + self._spread_s()
            self._changed.set()

    def set_heard(self, is_heard: bool) -> None:  # a callback with one value
        """Take note whether it is told of jobs from now on; what was told meanwhile is lost."""
        self._is_heard = is_heard
        self.look_soon()

    def look_soon(self) -> None:
        """Look without being told, as when a queue is no longer paused."""
        self._next_at = self._monotonic()
        self._changed.set()

    def note_look(self, look: QueueLook, living: int) -> None:
        """Take note of what a heartbeat found: it looks itself only if that was of use.

        Args:
            living: How many workers are alive.
        """
        self._living = living
        if any(each.waits and not self._is_paused(each.name) for each in look.queues):
            self.look_soon()
        elif not self._is_waiting:
            self._next_at = max(self._next_at, self._monotonic() + self._pause_s(is_full=False))
        if look.next_s is not None:
            self._told[look.next_key] = self._monotonic() + look.next_s + self._spread_s()
            self._changed.set()

    def _spread_s(self) -> float:
        most_s = min(_MOST_SPREAD_S, _SPREAD_S * max(0, self._living - 1))
        return most_s * self._random()

    async def launch(self) -> None:
        """Take jobs from now on.

        Raises:
            EnvironmentRefusedError: The store cannot be reached, or is not as it is known here.
        """
        await self._look()
        self._looking = asyncio.create_task(self._look_when_due())
        self.is_launched = True

    async def _look_when_due(self) -> None:
        while not self._is_stopping:
            self._changed.clear()
            at = max(min((self._next_at, *self._told.values())), self._last_at + _LEAST_S)
            pause_s = at - self._monotonic()
            if pause_s > 0 or self.taken >= self.plan.slots:
                with contextlib.suppress(TimeoutError):
                    timeout_s = None if self.taken >= self.plan.slots else pause_s
                    await asyncio.wait_for(self._changed.wait(), timeout_s)
                continue
            try:
                await self._look()
            except EnvironmentRefusedError:  # heartbeats fail then, and say so
                self._next_at = self._monotonic() + _AGAIN_S

    async def _look(self) -> None:
        """Take what may begin, and note when to look again."""
        self._last_at = self._monotonic()
        self._told = {key: at for key, at in self._told.items() if at > self._last_at}
        queues = [each for each in self.plan.queues if not self._is_paused(each)]
        look = await self._store.look(queues, self.left)
        if look.next_s is not None and look.next_s <= 0:
            await self._store.begin_due()
            look = await self._store.look(queues, self.left)
        is_full = False
        self._is_waiting = False
        for queue in sorted(look.queues, key=lambda _: self._random()):
            if not queue.waits:
                continue
            most = self._room(queue)
            found = await self._take(queue, most) if most else 0
            is_full = is_full or (found == most > 0)
            self._is_waiting = True  # what else waits is seen at the next look
        if look.next_s is not None and look.next_s > 0:
            self._told[look.next_key] = self._monotonic() + look.next_s + self._spread_s()
        self._next_at = self._monotonic() + self._pause_s(is_full=is_full)

    def _pause_s(self, *, is_full: bool) -> float:
        """Seconds until the next look without being told."""
        jitter = 0.5 + self._random() / 2
        if is_full:
            return 0.0
        if self._is_waiting:
            return self._poll_s * max(1.0, self._living / _CROWD) * jitter
        longest_s = _UNTOLD_S if self._is_heard else self._poll_s
        next_s = self.left.next_s()
        return longest_s * jitter if next_s is None else min(next_s, longest_s * jitter)

    def _room(self, queue: WaitingQueue) -> int:
        own = sum(name == queue.name for name in self._queues.values())
        most = self.plan.slots if queue.per_worker is None else queue.per_worker
        return max(0, min(most - own, self.plan.slots - self.taken))

    # --- jobs -------------------------------------------------------------------------------------

    async def _take(self, queue: WaitingQueue, most: int) -> int:
        """Begin with up to so many jobs of a queue; how many those are."""
        found = await self._store.claim(
            Claim(
                queue=queue.name,
                worker=self.plan.name,
                owner=self.plan.name,
                application=APPLICATION,
                version=VERSION,
                most=most,
                concurrency=queue.concurrency,
                starts=queue.starts,
                period_s=queue.period_s,
                needs=self.left.needs,
                runs=self.left.runs,
            )
        )
        for name, inputs in zip(found.names, found.inputs, strict=True):
            job = None if inputs is None else job_of_text(inputs)
            working = (
                self._refuse(name)
                if job is None
                else self._work(name, job, is_counted=found.is_counted)
            )
            self._queues[name] = queue.name
            self._tasks[name] = task = asyncio.create_task(working, name=name)
            task.add_done_callback(self._note_end)
        return len(found.names)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task.get_name()], self._queues[task.get_name()]
        if self._is_waiting:
            self._next_at = self._monotonic()
        self._changed.set()

    async def _refuse(self, name: str) -> None:
        """End a row that is no job: else whoever takes it next has it too."""
        self._log.warning("job_not_read", workflow=name)
        await self._until_stored(name, lambda: self._end(name, _UNREAD))

    async def _work(self, name: str, job: Job, *, is_counted: bool) -> None:
        try:
            is_taken = self.left.takes(job) and not self._is_stopping
            end = await self._begin(job, is_counted=is_counted) if is_taken else _end_unused(job)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            end = _end_unused(job)
        except Exception as error:  # noqa: BLE001  # the rim of a job: others may have more luck
            self._log.warning("job_failed", run_id=job.run_id, reason=words_of(error))
            end = JobEnd(again=job.put_back(is_failed_try=True))
        again, word = end.again, _DONE
        if again is not None:
            if end.lack is not None:
                self.left.leave(again, end.lack)
            word = _PUT_BACK
            await self._until_stored(job.run_id, lambda: self._store.submit(again))
        await self._until_stored(job.run_id, lambda: self._end(name, word))

    async def _begin(self, job: Job, *, is_counted: bool) -> JobEnd:
        if not is_counted:
            return await self._execute(job)
        # It counts as begun from a moment after it began, so that a limit holds for what is
        # executed; until that is stored it counts as well.
        begun = self._begun[job.run_id] = asyncio.Event()
        noting = asyncio.create_task(self._note_begin(job, begun))
        try:
            return await self._execute(job)
        finally:
            begun.set()
            self._begun.pop(job.run_id, None)
            await noting

    def when_begun(self, run_id: str) -> Callable[[], None] | None:
        """What is to be called when that run has begun; None: no limit on rate counts it."""
        begun = self._begun.get(run_id)
        return None if begun is None else begun.set

    async def _note_begin(self, job: Job, begun: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEGUN_S):
                await begun.wait()
        await self._until_stored(job.run_id, lambda: self._store.note_begin([job.key]))

    async def _end(self, name: str, word: str) -> None:
        """Store the end of a job, together with those of others that end meanwhile."""
        self._ends[name] = word
        async with self._ending:
            if name not in self._ends:  # stored with another's
                return
            ends, self._ends = self._ends, {}
            try:
                await self._store.end(self.plan.name, ends)
            except BaseException:
                self._ends = ends | self._ends
                raise

    async def _until_stored(self, run_id: str, store: Callable[[], Awaitable[object]]) -> None:
        """Store what became of a job, also where the server is away for a while."""
        while True:
            try:
                await store()
            except EnvironmentRefusedError as error:
                self._log.warning("job_not_stored", run_id=run_id, reason=error.message)
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def drain(self) -> None:
        """Take no more jobs, let those that it has end in time, and hand over the rest."""
        self._is_stopping, self.is_launched = True, False
        self._changed.set()
        if self._looking is not None:  # a claim that is cut off would leave its jobs to nobody
            await asyncio.wait([self._looking])
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=self.plan.drain_s)
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_HAND_OVER_S)


def job_of_text(text: str) -> Job | None:
    """The job of a row's inputs; None: it is none, for anybody with the password can write one."""
    try:
        (fields,) = as_objects(as_object(parse_json(text))["positionalArgs"])
        return Job(**fields)  # type: ignore[arg-type]  # its fields check what they are given
    except (TypeError, ValueError, LookupError):
        return None


def _end_unused(job: Job) -> JobEnd:
    """The end of a job that another worker shall have."""
    return JobEnd(again=job.put_back(is_failed_try=False))
