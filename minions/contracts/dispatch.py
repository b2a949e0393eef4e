"""Dispatch of whole runs to workers: jobs, queues, workers, and the engine that stores them.

A job holds ids and numbers, and labels where its queue shares by one. What a run needs and what
became of it is in the journal.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from attrs import evolve, field, frozen
from attrs.validators import and_, ge, gt, instance_of, le, matches_re, max_len, min_len, optional

from minions.contracts.journal.start_note import (
    DEFAULT_QUEUE,
    LABEL_NAME,
    LOWEST_PRIORITY,
    QUEUE_NAME,
)

DEFAULT_SLOTS: Final = 4
"""Runs at a time of a worker for which no number is given."""


@frozen(kw_only=True)
class Job:
    """One submission of a run: a worker shall execute it from where its record stands."""

    run_id: str = field(validator=and_(instance_of(str), min_len(1), max_len(200)))
    session_id: str = field(validator=instance_of(str))
    submission: str = field(validator=and_(instance_of(str), min_len(1), max_len(100)))
    """Names the submission of the run: a second one with the same name is the same job. Behind the
    first `-` stands the key of what the run needs of its worker."""
    queue: str = field(default=DEFAULT_QUEUE, validator=matches_re(QUEUE_NAME))
    priority: int = field(default=0, validator=[ge(0), le(LOWEST_PRIORITY)])
    """The lower number goes first; with the same number, one that was put back, then the one that
    was submitted first."""
    delay_s: float = field(default=0.0, validator=ge(0))
    """Seconds until it may begin."""
    number: int = field(default=0, validator=ge(0))
    """How often it was put back into its queue."""
    tries: int = field(default=0, validator=ge(0))
    """How often a worker took it and could not execute the run, or died."""
    labels: Mapping[str, str] = field(factory=dict, hash=False)
    """Values by which queues share their workers, such as `user`; an engine may keep only the one
    that its queue shares by."""

    @property
    def key(self) -> str:
        """The name of the job: `RUN@SUBMISSION`, and how often it was put back."""
        return f"{self.run_id}@{self.submission}" + (f".{self.number}" if self.number else "")

    @property
    def needs(self) -> str:
        """The key of what the run needs: jobs of one key need the same. Empty: it is not known."""
        return self.submission.partition("-")[2]

    def put_back(self, delay_s: float = 0.0, *, is_failed_try: bool) -> Job:
        """The job that follows this one in the same queue.

        Args:
            is_failed_try: Whether it counts in `tries`.
        """
        return evolve(
            self,
            number=self.number + 1,
            tries=self.tries + 1 if is_failed_try else self.tries,
            delay_s=delay_s,
        )


class JobState(StrEnum):
    """Where a job stands."""

    DELAYED = "delayed"
    """It may not begin yet."""
    WAITING = "waiting"
    """It waits for a worker."""
    TAKEN = "taken"
    """A worker has it."""


@frozen(kw_only=True)
class JobView:
    """A job that has not ended."""

    job: Job
    state: JobState
    worker: str | None = None
    """The worker that has it; None: none has."""


@frozen(kw_only=True)
class Lack:
    """Why a worker leaves a job to others: it takes no more jobs of that kind."""

    parts: tuple[str, ...]
    """What it lacks, in words for people."""
    is_of_run: bool = False
    """Whether that holds of this run alone; else of all jobs with the same `needs`."""
    again_s: float | None = None
    """Seconds until it may take them again; None: it never does."""


@frozen(kw_only=True)
class JobEnd:
    """What became of a job at a worker."""

    again: Job | None = None
    """The job that takes its place in the queue; None: nothing is left to do."""
    lack: Lack | None = None
    """Why this worker takes neither `again` nor others like it; None: it may."""


Execute: TypeAlias = Callable[[Job], Awaitable[JobEnd]]
"""Executes the run of a job. Where it is cancelled, it has handed over the run; else it never
raises."""


@frozen(kw_only=True)
class RateLimit:
    """How many jobs may begin in a time."""

    starts: int = field(validator=ge(1))
    period_s: float = field(validator=gt(0))


@frozen(kw_only=True)
class FairShares:
    """How the jobs of a queue take turns: of each priority, keys alternate."""

    by: str = field(validator=matches_re(LABEL_NAME))
    """The label whose values are the keys; jobs without it have one key together."""
    per_key: int | None = field(default=None, validator=optional(ge(1)))
    """The most jobs at a time of one key, over all workers; None: unlimited."""
    rate: RateLimit | None = None
    """The most jobs of one key that begin in a time; None: unlimited."""


@frozen(kw_only=True)
class QueueLimits:
    """How the jobs of a queue are limited, over all workers."""

    name: str = field(default=DEFAULT_QUEUE, validator=matches_re(QUEUE_NAME))
    concurrency: int | None = field(default=None, validator=optional(ge(1)))
    """The most jobs at a time, over all workers; None: unlimited."""
    per_worker: int = field(default=DEFAULT_SLOTS, validator=ge(1))
    """The most jobs of the queue at a time that one worker takes."""
    rate: RateLimit | None = None
    """The most jobs that begin in a time, over all workers; None: unlimited."""
    shares: FairShares | None = None
    """Whose jobs take turns; None: of each priority the oldest goes first."""
    age_s: float | None = field(default=None, validator=optional(gt(0)))
    """Seconds of waiting for which a job goes as if its priority was lower by one, so that it goes
    first at last; None: a lower number always does."""

    def capped(self) -> QueueLimits:
        """The limits as engines store them: one worker takes no more than all of them may."""
        if self.concurrency is None or self.per_worker <= self.concurrency:
            return self
        return evolve(self, per_worker=self.concurrency)


@frozen(kw_only=True)
class QueueView:
    """A queue with the number of its jobs."""

    limits: QueueLimits
    waiting: int = 0
    delayed: int = 0
    taken: int = 0

    @property
    def has_jobs(self) -> bool:
        """Whether a job of it has not ended."""
        return bool(self.waiting or self.delayed or self.taken)


@frozen(kw_only=True)
class WorkerView:
    """A worker, as it last said of itself."""

    name: str
    queues: tuple[str, ...]
    slots: int
    taken: int
    """Jobs that it has."""
    started_at: datetime
    seen_at: datetime
    """When it last said so, by the clock of the database."""
    is_alive: bool
    """Whether that was not too long ago."""
    stream_url: str | None = None
    """Where it offers the pieces of answers of its runs; None: it offers none."""
    clock_ahead_s: float | None = None
    """By how many seconds its clock was ahead of the database's; None: it is not known."""


@frozen(kw_only=True)
class WorkerPlan:
    """What a worker takes, and how it ends."""

    name: str
    """Unique among all workers, also of other times."""
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    slots: int = field(default=DEFAULT_SLOTS, validator=ge(1))
    """The most runs at a time."""
    drain_s: float = field(default=30.0, validator=ge(0))
    """Seconds that runs have to end when the worker is stopped; then they are handed over."""
    heartbeat_s: float = field(default=5.0, validator=gt(0))
    """Seconds between two signs of life, where others cannot see its process: after three without
    one they take over its runs."""
    ends_when_idle: bool = False
    """Whether it ends when no job of its queues waits and it has none."""
    stream_url: str | None = None
    """The base URL at which other processes reach its HTTP server; None: they are not told."""


class DispatchEngine(ABC):
    """Stores which runs wait for a worker, and gives each of them to one.

    Its own store is no truth: a job that is lost is submitted again from the journal, and one that
    is given to two workers is executed by one of them, for a run has one lease.
    """

    is_shared: bool = False
    """Whether other processes see the jobs that are submitted here."""
    living_workers: int = 1
    """How many workers are alive, as those of this process last heard."""
    silences: int = 0
    """How often a worker of this process was silent for so long that others took it for dead."""

    @abstractmethod
    async def submit(self, job: Job) -> bool:
        """Put a job into its queue. When this returns, it is stored.

        Returns:
            Whether it is new; False: there was a job of that key, and it stays as it was.
        Raises:
            EnvironmentRefusedError: The engine cannot be reached.
        """

    @abstractmethod
    async def cancel(self, run_id: str) -> int:
        """Remove the jobs of that run that no worker has; returns their number.

        A run that is executed is cancelled through the journal.
        """

    @abstractmethod
    async def wake(self, run_id: str) -> int:
        """Let delayed jobs of that run begin at once; returns their number."""

    @abstractmethod
    async def jobs(self, run_ids: Collection[str]) -> Sequence[JobView]:
        """The jobs of these runs that have not ended, in no particular order."""

    @abstractmethod
    async def queues(self) -> Sequence[QueueView]:
        """All queues that have limits or jobs, by name."""

    @abstractmethod
    async def set_queue(self, limits: QueueLimits) -> None:
        """Replace the limits of a queue; workers obey them for the jobs that they take next."""

    @abstractmethod
    async def remove_queue(self, name: str) -> bool:
        """Forget a queue and its limits; a worker or job that names it makes it again.

        Returns:
            Whether it was there and had no job that has not ended; else it stays.
        """

    @abstractmethod
    async def workers(self) -> Sequence[WorkerView]:
        """The workers that are or were alive lately, by name."""

    @abstractmethod
    async def serve(self, execute: Execute, plan: WorkerPlan, stop: asyncio.Event) -> None:
        """Take jobs of the plan's queues until `stop` is set, or until the worker is idle.

        Then those that it has may end within `drain_s`; the rest are cancelled. Jobs of dead
        workers are put back meanwhile. What `execute` says that this worker lacks, it does not take
        again, and other workers do; a worker that has nothing else to do is idle.

        Raises:
            EnvironmentRefusedError: The engine cannot be reached.
        """

    def when_begun(self, job: Job) -> Callable[[], None] | None:
        """What is to be called when the run of a job that this process executes has begun, so that
        a limit on rate counts it from then on; None: nobody counts that. Costs nothing.
        """
        del job
        return None

    async def server_s(self) -> float | None:
        """The clock by which workers are alive, in seconds since 1970; None: that of the process.

        Raises:
            EnvironmentRefusedError: The engine cannot be reached.
        """
        return None

    def pause(self, queues: Collection[str]) -> None:
        """Let the workers of this process take no jobs of these queues from now on, and of all
        others again; `*` means all. What they have is executed. Costs nothing.
        """
        self._paused = frozenset(queues)

    _paused: frozenset[str] = frozenset()

    def is_paused(self, queue: str) -> bool:
        """Whether the workers of this process take no jobs of that queue."""
        return queue in self._paused or "*" in self._paused

    async def problem(self, worker: str) -> str | None:
        """Why the worker of that name gets no jobs now, in words; None: it does.

        Raises:
            EnvironmentRefusedError: The engine cannot be reached.
        """
        if worker in [each.name for each in await self.workers() if each.is_alive]:
            return None
        return "it takes no jobs yet"

    def is_worker_gone(self, worker_id: str) -> bool:
        """Whether the worker with a lease of that name is known to be dead; costs nothing."""
        return False

    async def aclose(self) -> None:
        """Close what was opened."""
