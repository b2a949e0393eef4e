"""Dispatch over DBOS on PostgreSQL: one durable workflow for each job, and no steps of its own.

Its tables hold ids, numbers and states. Workers tell by heartbeats that they are alive, for the
engine itself does not notice a process that died elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import logging
import pickle  # one of our own is offered to DBOS, which must refuse it
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import asdict, evolve

from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.adapters.dispatch.postgres_claims import NO_KEY, SCHEMA, Claim
from minions.adapters.dispatch.postgres_workers import PostgresWorkers
from minions.adapters.stores.postgres_url import without_password
from minions.contracts.dispatch import (
    DispatchEngine,
    Execute,
    Job,
    JobEnd,
    JobState,
    JobView,
    QueueLimits,
    QueueView,
    RateLimit,
    WorkerPlan,
    WorkerView,
)
from minions.contracts.runtime import IsWorkerGone, Log
from minions.data.errors import EnvironmentRefusedError, words_of
from minions.data.json_values import JsonValue, as_object, as_objects

if TYPE_CHECKING:
    from dbos import DBOSClient, EnqueueOptions, WorkflowStatus
    from dbos import Queue as DbosQueue

T = TypeVar("T")

_POLL_S: Final = 0.25
"""How often a worker looks for jobs."""
_POLLS_PER_LOOK: Final = 4
"""How many times a worker looks for jobs until it looks which delays are over."""
_KEPT_S: Final = 7 * 86_400.0
"""A week: a run that is submitted twice within it has one job."""
_HEARTBEATS: Final = 3.0
"""So many heartbeats may fail to come until a worker counts as dead."""
_DEAD_AFTER_S: Final = 20.0
"""Seconds after which one does that says no such time: it is of an earlier version."""
_CLEAN_EVERY_S: Final = 600.0


class DbosDispatch(DispatchEngine):
    """Jobs in the schema `minions_dispatch` of the journal's database.

    Delays, limits on rate and the death of workers are by the server's clock. A process serves once
    at a time: the engine is one object for the process.
    """

    is_shared = True

    def __init__(
        self,
        url: str,
        log: Log,
        *,
        is_gone: IsWorkerGone = lambda _: False,
        heartbeat_s: float | None = None,
        dead_after_s: float | None = None,
        poll_s: float = _POLL_S,
        kept_s: float = _KEPT_S,
    ) -> None:
        """No I/O here, and DBOS is not loaded.

        Args:
            url: `postgresql://…` of the journal.
            is_gone: Whether a worker is known to be dead by its name, as where its process was on
                this machine: then nobody waits for its heartbeats.
            heartbeat_s: Seconds between two heartbeats of a worker; None: as its plan says.
            dead_after_s: Seconds without one after which its jobs are put back; None: three
                heartbeats, and 20 s of a worker of an earlier version.
            poll_s: Seconds between two looks for jobs.
            kept_s: Seconds after their end for which jobs are kept.
        """
        self._url = url
        self._log = log
        self._heartbeat_s = heartbeat_s
        self._dead_after_s = dead_after_s
        self._poll_s = poll_s
        self._kept_s = kept_s
        self._is_gone = is_gone
        self._workers = PostgresWorkers(url, dead_after_s=dead_after_s or _DEAD_AFTER_S)
        self._client: DBOSClient | None = None
        self._opening = asyncio.Lock()
        self._server: DbosServer | None = None

    async def submit(self, job: Job) -> bool:
        client = await self._open_client()
        delay_s = await self._delay_s(job)
        shares = (await self._ask_workers(self._workers.shares(job.queue))).get(job.queue)
        by = None if shares is None or shares.shares is None else shares.shares.by
        labels = {name: value for name, value in job.labels.items() if name == by}
        key = job.session_id if shares is None else labels.get(by or "", NO_KEY)
        known = evolve(job, labels=labels)
        return await self._call_client(lambda: enqueue(client, known, delay_s, key))

    async def _delay_s(self, job: Job) -> float | None:
        """The job's delay for DBOS, which adds it to the clock of this process; None: it has none.

        It is negative where that clock is far ahead of the server's.
        """
        if not job.delay_s:
            return None
        server_s = await self._ask_workers(self._workers.server_s())
        return server_s + job.delay_s - time.time()

    async def cancel(self, run_id: str) -> int:
        client = await self._open_client()

        def cancel() -> int:
            found = [
                each.workflow_id
                for each in unended_jobs(client, [run_id])
                if each.status in ("ENQUEUED", "DELAYED")
            ]
            if found:
                client.cancel_workflows(found)
            return len(found)

        return await self._call_client(cancel)

    async def wake(self, run_id: str) -> int:
        client = await self._open_client()

        def wake() -> int:
            found = [each for each in unended_jobs(client, [run_id]) if each.status == "DELAYED"]
            for each in found:
                client.set_workflow_delay(each.workflow_id, delay_until_epoch_ms=0)
            return len(found)

        return await self._call_client(wake)

    async def jobs(self, run_ids: Collection[str]) -> Sequence[JobView]:
        client = await self._open_client()
        return await self._call_client(lambda: job_views(unended_jobs(client, list(run_ids))))

    async def queues(self) -> Sequence[QueueView]:
        client = await self._open_client()
        known = await self._call_client(
            lambda: [queue_limits(each) for each in client.list_queues()]
        )
        counts: dict[str, dict[JobState, int]] = defaultdict(dict)
        for (queue, status), count in (
            await self._ask_workers(self._workers.job_counts(WORKFLOW))
        ).items():
            counts[queue][STATES[status]] = count
        limits = {name: QueueLimits(name=name) for name in counts}
        limits |= {each.name: each for each in known}
        shares = await self._ask_workers(self._workers.shares())
        limits |= {
            name: evolve(limits[name], shares=each.shares, age_s=each.age_s)
            for name, each in shares.items()
            if name in limits
        }
        return [
            QueueView(
                limits=limits[name],
                waiting=counts[name].get(JobState.WAITING, 0),
                delayed=counts[name].get(JobState.DELAYED, 0),
                taken=counts[name].get(JobState.TAKEN, 0),
            )
            for name in sorted(limits)
        ]

    async def set_queue(self, limits: QueueLimits) -> None:
        client = await self._open_client()
        await self._call_client(lambda: self._register(client, limits, replaces=True))
        await self._ask_workers(self._workers.set_shares(limits))
        rates = (limits.rate, None if limits.shares is None else limits.shares.rate)
        if (period_s := max((each.period_s for each in rates if each), default=None)) is not None:
            await self._ask_workers(self._workers.count_starts(limits.name, period_s))

    async def remove_queue(self, name: str) -> bool:
        client = await self._open_client()
        known = {each.limits.name: each for each in await self.queues()}
        if name not in known or known[name].has_jobs:
            return False
        await self._call_client(lambda: client.delete_queue(name))
        await self._ask_workers(self._workers.forget_queue(name))
        return True

    async def workers(self) -> Sequence[WorkerView]:
        await self._open_client()
        return await self._ask_workers(self._workers.views())

    async def server_s(self) -> float | None:
        return await self._ask_workers(self._workers.server_s())

    async def serve(self, execute: Execute, plan: WorkerPlan, stop: asyncio.Event) -> None:
        client = await self._open_client()
        await self._call_client(lambda: self._register_all(client, plan))
        server = DbosServer(
            self._url,
            execute,
            plan,
            submit=self.submit,
            note_begin=lambda jobs: self._ask_workers(self._workers.note_begin(jobs)),
            claimed=lambda: self._claimed_by(plan.name),
            is_paused=self.is_paused,
            log=self._log,
        )
        watching: list[asyncio.Task[None]] = []
        try:
            await self._beat(server)
            self._server = server
            await self._call(server.launch())
            watching += (
                asyncio.ensure_future(self._beats(server)),
                asyncio.ensure_future(self._begins_due()),
            )
            await self._serve_until_stopped(server, stop)
        finally:
            await server.drain()
            for task in watching:
                task.cancel()
            with contextlib.suppress(EnvironmentRefusedError):  # others see that it is silent
                left = await self._claimed_by(plan.name)
                await self._put_back(client, left, is_failed_try=False)
                await self._ask_workers(self._workers.forget(plan.name))

    async def problem(self, worker: str) -> str | None:
        if self._server is None or not self._server.is_launched:
            return "it takes no jobs yet"
        return await super().problem(worker)

    def is_worker_gone(self, worker_id: str) -> bool:
        if self._server is None:
            return False
        return any(worker_id.startswith(f"{name}.") for name in self._server.dead)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.destroy)
        await self._workers.aclose()

    # --- serving ----------------------------------------------------------------------------------

    async def _serve_until_stopped(self, server: DbosServer, stop: asyncio.Event) -> None:
        """Until the worker is stopped, or has nothing to do and is meant to end then."""
        if not server.plan.ends_when_idle:
            await stop.wait()
            return
        while not stop.is_set() and await self._has_work(server):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._poll_s)

    async def _has_work(self, server: DbosServer) -> bool:
        if server.taken:
            return True
        left = server.left
        queues = tuple(each for each in server.plan.queues if not self.is_paused(each))
        plan = evolve(server.plan, queues=queues)
        asking = self._workers.has_work(WORKFLOW, plan, left.needs, left.runs)
        try:
            return await self._ask_workers(asking)
        except EnvironmentRefusedError:  # heartbeats fail then, and say so
            return True

    async def _beats(self, server: DbosServer) -> None:
        loop = asyncio.get_running_loop()
        dead_after_s = self._dead_after_s or _HEARTBEATS * server.plan.heartbeat_s
        steady_since = -dead_after_s
        """After a pause of its own, a worker waits until the others could have been heard of: all
        are silent while the database is away."""
        cleaned_at = -_CLEAN_EVERY_S
        while True:
            await asyncio.sleep(self._heartbeat_s or server.plan.heartbeat_s)
            try:
                await self._beat(server, is_steady=loop.time() >= steady_since)
                if loop.time() >= cleaned_at + _CLEAN_EVERY_S:
                    cleaned_at = loop.time()
                    await self._forget_ended(await self._open_client())
            except EnvironmentRefusedError as error:
                steady_since = loop.time() + dead_after_s
                self._log.warning("heartbeat_failed", reason=error.message)

    async def _begins_due(self) -> None:
        """End the delays of jobs whose time has come; each worker does it for all."""
        while True:
            await asyncio.sleep(self._poll_s * _POLLS_PER_LOOK)
            with contextlib.suppress(EnvironmentRefusedError):  # heartbeats fail then, and say so
                await self._ask_workers(self._workers.begin_due(WORKFLOW))

    async def _forget_ended(self, client: DBOSClient) -> None:
        """Remove jobs that ended long ago, some at a time; the journal has their runs."""
        before = datetime.now(UTC) - timedelta(seconds=self._kept_s)
        await self._call_client(lambda: delete_ended(client, before))
        await self._ask_workers(self._workers.forget_last_claims())

    async def _beat(self, server: DbosServer, *, is_steady: bool = True) -> None:
        """Say that the worker is alive, and put back the jobs of dead ones."""
        dead_after_s = self._dead_after_s or _HEARTBEATS * server.plan.heartbeat_s
        beating = self._workers.beat(server.plan, server.taken, dead_after_s, time.time())
        heard = await self._ask_workers(beating)
        gone = frozenset(name for name in heard.living if self._is_gone(name))
        if not is_steady:
            return
        server.dead = heard.dead | gone
        living = heard.living - gone
        client = await self._open_client()
        taken = await self._call_client(lambda: taken_jobs(client))
        own = [each.workflow_id for each in taken if each.executor_id == server.plan.name]
        lost = server.not_begun(own)
        left = [each for each in taken if each.workflow_id in lost]
        abandoned = [each for each in taken if each.executor_id not in living]
        await self._put_back(client, left, is_failed_try=False)
        await self._put_back(client, abandoned, is_failed_try=True)

    async def _put_back(
        self, client: DBOSClient, taken: Sequence[WorkflowStatus], *, is_failed_try: bool
    ) -> None:
        for each in taken:
            # The old jobs are ended last: a process that dies in between does the same again.
            if (job := job_of(each)) is None:
                self._log.warning("job_not_read", workflow=each.workflow_id)
                continue
            await self.submit(job.put_back(is_failed_try=is_failed_try))
            self._log.warning("job_put_back", run_id=job.run_id, worker=each.executor_id)
        if taken:
            ended = [each.workflow_id for each in taken]
            if is_failed_try:  # it may have begun
                await self._ask_workers(self._workers.note_begin(ended))
            await self._call_client(lambda: client.cancel_workflows(ended))

    async def _claimed_by(self, worker: str) -> Sequence[WorkflowStatus]:
        client = await self._open_client()
        return await self._call_client(
            lambda: client.list_workflows(
                status="PENDING", name=WORKFLOW, executor_id=worker, load_output=False
            )
        )

    # --- the client -------------------------------------------------------------------------------

    async def _open_client(self) -> DBOSClient:
        """The client; tables are made at its first use.

        Raises:
            EnvironmentRefusedError: The extra is not installed, or the server cannot be reached.
        """
        async with self._opening:
            if self._client is None:
                _require_dbos()
                await self._ask_workers(self._workers.make_table())
                self._client = await self._call_client(lambda: client_at(self._url))
            return self._client

    def _register_all(self, client: DBOSClient, plan: WorkerPlan) -> None:
        """Make the plan's queues that nobody has set."""
        for name in plan.queues:
            limits = QueueLimits(name=name, per_worker=plan.slots)
            self._register(client, limits, replaces=False)

    def _register(self, client: DBOSClient, limits: QueueLimits, *, replaces: bool) -> None:
        rate, limits = limits.rate, limits.capped()
        client.register_queue(
            limits.name,
            global_concurrency=limits.concurrency,
            worker_concurrency=limits.per_worker,
            limiter={"limit": rate.starts, "period": rate.period_s} if rate is not None else None,
            polling_interval_sec=self._poll_s,
            on_conflict="always_update" if replaces else "never_update",
            application_name=APPLICATION,
        )

    async def _call_client(self, call: Callable[[], T]) -> T:
        """The result of a blocking call of the client.

        Raises:
            EnvironmentRefusedError: The server cannot be reached, or refuses.
        """
        return await self._call(asyncio.to_thread(call))

    async def _call(self, calling: Awaitable[T]) -> T:
        """What DBOS gives.

        Raises:
            EnvironmentRefusedError: The server cannot be reached, or refuses.
        """
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return await calling
        except SQLAlchemyError as error:
            raise self._refusal(error) from error

    async def _ask_workers(self, asking: Awaitable[T]) -> T:
        """What the table of workers says.

        Raises:
            EnvironmentRefusedError: The server cannot be reached, or refuses.
        """
        _require_dbos()
        import psycopg

        try:
            return await asking
        except (psycopg.Error, OSError) as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> EnvironmentRefusedError:
        words = str(error).strip().partition("\n")[0]
        return EnvironmentRefusedError(
            f"The queues in {without_password(self._url)} cannot be used: "
            f"{_hide(self._url, words)}. Check that the server runs there, and that its user may "
            f"use the schema {SCHEMA}.",
            code="dispatch-unreachable",
        )


def _require_dbos() -> None:
    """Load the packages of the extra.

    Raises:
        EnvironmentRefusedError: `missing-extra`.
    """
    try:
        import dbos  # noqa: F401  # whether it can be
        import psycopg  # noqa: F401
    except ImportError as error:
        raise EnvironmentRefusedError(
            f"Queues in PostgreSQL need the package '{error.name}', which is not installed. "
            "Install the extra: pip install 'minions-engine[dbos]'.",
            code="missing-extra",
        ) from error
    refuse_pickles()


def _hide(url: str, words: str) -> str:
    from minions.adapters.stores.postgres_url import hidden_in

    for word in hidden_in(url):
        words = words.replace(word, "***")
    return words


# --- jobs as rows of DBOS ------------------------------------------------------------------------


STATES: Final = {
    "DELAYED": JobState.DELAYED,
    "ENQUEUED": JobState.WAITING,
    "PENDING": JobState.TAKEN,
}
_CLEANED: Final = 1_000
"""Jobs that are removed at once."""
_PAGE: Final = 100
"""Runs whose jobs are looked up in one query."""


def client_at(url: str) -> DBOSClient:
    """A client; the tables are made, or brought to the newest form.

    Raises:
        SQLAlchemyError: The server cannot be reached, or refuses.
    """
    from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer

    DBOS.migrate(url, schema=SCHEMA)
    return DBOSClient(
        system_database_url=url,
        dbos_system_schema=SCHEMA,
        serializer=DBOSPortableJSONSerializer(),
        application_name=APPLICATION,
        retry_connection_errors=False,
    )


def enqueue(client: DBOSClient, job: Job, delay_s: float | None, key: str) -> bool:
    """Store a job; whether there was none of its name.

    Args:
        key: By which its queue shares its workers, where it does.
        delay_s: Seconds from now by the clock of this process, also negative ones, after which it
            may begin; None: now.
    """
    from dbos import error

    options: EnqueueOptions = {
        "workflow_name": WORKFLOW,
        "queue_name": job.queue,
        "workflow_id": job.key,
        "workflow_id_reuse_policy": "reject",
        "app_version": VERSION,
        # What was put back was begun, or was there before; the least that DBOS takes is 1.
        "priority": 2 * job.priority + (1 if job.number else 2),
        "queue_partition_key": key,
        "application_name": APPLICATION,
    }
    if delay_s is not None:
        options["delay_seconds"] = delay_s
    try:
        # Workers of an earlier version know no labels: what has none is as they know it.
        client.enqueue(
            options, asdict(job, filter=lambda each, value: each.name != "labels" or value)
        )
    except error.DBOSWorkflowIDInUseError:
        return False
    return True


def unended_jobs(client: DBOSClient, run_ids: list[str]) -> list[WorkflowStatus]:
    """The jobs of these runs that have not ended."""
    found: list[WorkflowStatus] = []
    for at in range(0, len(run_ids), _PAGE):
        part = run_ids[at : at + _PAGE]
        found += client.list_workflows(
            workflow_id_prefix=[f"{run_id}@" for run_id in part],
            status=list(STATES),
            name=WORKFLOW,
            load_output=False,
        )
    return found


def taken_jobs(client: DBOSClient) -> list[WorkflowStatus]:
    """The jobs that workers have."""
    return client.list_workflows(status="PENDING", name=WORKFLOW, load_output=False)


def delete_ended(client: DBOSClient, before: datetime) -> None:
    """Remove some of the jobs that ended before a time."""
    ended = client.list_workflows(
        status=["SUCCESS", "CANCELLED", "ERROR"],
        name=WORKFLOW,
        completed_before=before.isoformat(),
        limit=_CLEANED,
        load_input=False,
        load_output=False,
    )
    if ended:
        client.delete_workflows([each.workflow_id for each in ended])


def job_views(found: Iterable[WorkflowStatus]) -> list[JobView]:
    """Those that can be read: anybody with the database's password can write rows."""
    return [
        JobView(job=job, state=state, worker=each.executor_id if state is JobState.TAKEN else None)
        for each in found
        if (job := job_of(each)) is not None
        for state in (STATES[each.status],)
    ]


def job_of(status: WorkflowStatus) -> Job | None:
    """The job of a row; None: it is none."""
    stored: object = status.input
    try:
        (fields,) = as_objects(as_object(stored)["args"])
        return Job(**fields)  # type: ignore[arg-type]  # its fields check what they are given
    except (TypeError, ValueError, LookupError):
        return None


def queue_limits(queue: DbosQueue) -> QueueLimits:
    """The limits of a queue, from its row."""
    rate = queue.limiter
    return QueueLimits(
        name=queue.name,
        concurrency=queue.global_concurrency,
        per_worker=queue.worker_concurrency or 1,
        rate=RateLimit(starts=rate["limit"], period_s=rate["period"]) if rate else None,
    )


# --- a worker's part of DBOS ---------------------------------------------------------------------


APPLICATION: Final = "minions"
"""The owner of queues and workflows in DBOS's tables."""
WORKFLOW: Final = "minions.execute"
"""The name of the workflow that executes a job."""
VERSION: Final = "minions-1"
"""Of the workflow, not of this program: what a run needs of a version is in its record."""
_DONE: Final = "done"
_PUT_BACK: Final = "put back"
_HAND_OVER_S: Final = 10
"""Seconds for handing over what has not ended within the time for it."""
_CONNECTIONS: Final = 4
_AGAIN_S: Final = 1.0
_LOOKING: Final = "(queue_thread)"
"""The function of DBOS's thread that starts one for each queue, which looks for jobs, and ends when
all of these have ended."""


class DbosServer:
    """Takes jobs in DBOS's threads, and executes them on the loop on which it was made."""

    def __init__(
        self,
        url: str,
        execute: Execute,
        plan: WorkerPlan,
        *,
        submit: Callable[[Job], Awaitable[bool]],
        note_begin: Callable[[Sequence[str]], Awaitable[None]],
        claimed: Callable[[], Awaitable[Collection[object]]],
        is_paused: Callable[[str], bool],
        log: Log,
    ) -> None:
        """Nothing is launched yet; an event loop must be running.

        Args:
            submit: Stores the job that takes the place of one that is put back.
            note_begin: Stores that jobs have begun, by their names.
            claimed: Rows of jobs that this worker has.
            is_paused: Whether it takes no jobs of a queue now.
        """
        self.plan = plan
        self.dead: frozenset[str] = frozenset()
        """The names of workers that were not heard of for too long."""
        self._url = url
        self._execute = execute
        self._submit = submit
        self._note_begin = note_begin
        self._counted: set[str] = set()
        """Jobs that a limit on rate counts from when they begin."""
        self._claimed = claimed
        self._is_paused = is_paused
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(plan.slots)
        self.left = LeftJobs(time.monotonic)
        self._tasks: set[asyncio.Task[str]] = set()
        self._missing: frozenset[str] = frozenset()
        self._is_stopping = False
        self.is_launched = False
        """Whether it takes jobs."""
        self._stop_events: Sequence[threading.Event] = ()
        """What ends the threads that look for jobs."""

    @property
    def taken(self) -> int:
        """How many jobs the worker has, those that wait for a slot included."""
        return len(self._tasks)

    def not_begun(self, claimed: Collection[str]) -> frozenset[str]:
        """Of the jobs that the database says the worker has, those that it did not have at two
        looks in a row: they were claimed, and what was to begin them failed.

        Args:
            claimed: Their names.
        """
        missing = frozenset(claimed) - {task.get_name() for task in self._tasks}
        found, self._missing = self._missing & missing, missing
        return found

    async def launch(self) -> None:
        """Take jobs from now on."""
        await asyncio.to_thread(self._launch)
        self.is_launched = True

    def _launch(self) -> None:
        from dbos import DBOS, DBOSPortableJSONSerializer

        _keep_delays()
        self._replace_claim()
        logger = logging.getLogger("dbos")
        if not logger.handlers:  # else it prints to standard error
            logger.addHandler(logging.NullHandler())
        engine = DBOS(
            config={
                "name": APPLICATION,
                "system_database_url": self._url,
                "dbos_system_schema": SCHEMA,
                "application_version": VERSION,
                "executor_id": self.plan.name,
                "serializer": DBOSPortableJSONSerializer(),
                "sys_db_pool_size": _CONNECTIONS,
                "enable_otlp": False,
                "use_listen_notify": True,
            }
        )
        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)(self._workflow())
        DBOS.listen_queues(list(self.plan.queues))
        DBOS.launch()
        self._stop_events = engine.background_thread_stop_events

    def _workflow(self) -> Callable[[Mapping[str, JsonValue]], Awaitable[str]]:
        async def execute(job: Mapping[str, JsonValue]) -> str:
            """Run on DBOS's own loop; gives only a state."""
            taking = asyncio.run_coroutine_threadsafe(self._take(job), self._loop)
            return await asyncio.wrap_future(taking)

        return execute

    async def _take(self, document: Mapping[str, JsonValue]) -> str:
        job = Job(**document)  # type: ignore[arg-type]  # attrs checks what another process stored
        task = asyncio.create_task(self._execute_job(job), name=job.key)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._counted.discard(job.key))
        return await task

    async def _execute_job(self, job: Job) -> str:
        try:
            async with self._slots:
                is_taken = self.left.takes(job) and not self._is_stopping
                end = await self._begin(job) if is_taken else _end_unused(job)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            end = _end_unused(job)
        if end.again is None:
            return _DONE
        if end.lack is not None:
            self.left.leave(end.again, end.lack)
        await self._put_back(end.again)
        return _PUT_BACK

    async def _begin(self, job: Job) -> JobEnd:
        if job.key not in self._counted:
            return await self._execute(job)
        # It counts as begun from a moment after it began, so that a limit holds for what is
        # executed; until that is stored it counts as well.
        noting = asyncio.create_task(self._until_stored(job, lambda: self._note_begin([job.key])))
        try:
            return await self._execute(job)
        finally:
            await noting

    async def _put_back(self, job: Job) -> None:
        await self._until_stored(job, lambda: self._submit(job))

    async def _until_stored(self, job: Job, store: Callable[[], Awaitable[object]]) -> None:
        """Store what became of the job, also where the server is away for a while."""
        while True:
            try:
                await store()
            except EnvironmentRefusedError as error:
                self._log.warning("job_not_stored", run_id=job.run_id, reason=error.message)
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    def _replace_claim(self) -> None:
        """Let DBOS claim jobs as `Claim` does.

        Raises:
            EnvironmentRefusedError: `unknown-dbos`; this version claims in another way.
        """
        try:
            from dbos._queue import Queue
            from dbos._sys_db import SystemDatabase

            known = list(inspect.signature(getattr(SystemDatabase, _CLAIM)).parameters)[1:]
            limits = Queue.__init__.__code__.co_names
        except (ImportError, AttributeError) as error:
            raise _unknown(f"it claims jobs in another way ({error})") from error

        def claim(
            database: SystemDatabase,
            queue: DbosQueue,
            executor_id: str,
            app_version: str,
            queue_partition_key: str | None,  # noqa: ARG001  # of DBOS's signature
            local_running_count: int = 0,
            partition_local_running_count: int = 0,  # noqa: ARG001
            *,
            owner_xid: str | None = None,
            is_latest_version: bool | None = None,  # noqa: ARG001
        ) -> tuple[list[str], None]:
            """In a thread of DBOS; the names of the jobs, and no limit that left no room."""
            if self._is_paused(queue.name):
                return [], None
            rate, per_worker = queue._limiter, queue._worker_concurrency or 1  # noqa: SLF001
            wanted = Claim(
                queue=queue.name,
                worker=executor_id,
                owner=owner_xid or "",
                application=APPLICATION,
                version=app_version,
                most=max(0, per_worker - local_running_count),
                concurrency=queue._concurrency,  # noqa: SLF001
                starts=rate["limit"] if rate is not None else None,
                period_s=rate["period"] if rate is not None else 0.0,
                needs=self.left.needs,
                runs=self.left.runs,
            )
            with database.engine.begin() as db:

                def rows_of(sql: str, values: Mapping[str, object]) -> Sequence[Sequence[object]]:
                    return db.exec_driver_sql(sql, dict(values)).fetchall()

                found = wanted.take(rows_of)
                if found.is_counted:
                    self._counted.update(found.names)
            return list(found.names), None

        has_limits = {"_limiter", "_concurrency", "_worker_concurrency"} <= {*limits}
        if known != list(inspect.signature(claim).parameters)[1:] or not has_limits:
            raise _unknown(f"it claims jobs by {', '.join(known)}")
        setattr(SystemDatabase, _CLAIM, claim)

    async def drain(self) -> None:
        """Take no more jobs, let those that it has end in time, and hand over the rest."""
        self._is_stopping, self.is_launched = True, False
        await asyncio.to_thread(self._take_no_more)
        # It looks once a second whether they have ended; none is not waited for.
        has_jobs = bool(self._tasks) or await self._has_claimed()
        wait_s = int(self.plan.drain_s) + _HAND_OVER_S + 1 if has_jobs else 0
        ending = asyncio.ensure_future(asyncio.to_thread(_destroy, wait_s))
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=self.plan.drain_s)
        for task in set(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_HAND_OVER_S)
        await ending

    def _take_no_more(self) -> None:
        """End the threads that look for jobs. What they have claimed by then is begun first: a loop
        that is closed at once would leave it to nobody.
        """
        for event in self._stop_events:
            event.set()
        for thread in threading.enumerate():
            if thread.name.endswith(_LOOKING):
                thread.join(_HAND_OVER_S)

    async def _has_claimed(self) -> bool:
        try:
            return bool(await self._claimed())
        except EnvironmentRefusedError:  # others find that this worker is silent
            return False


def _destroy(wait_s: int) -> None:
    from dbos import DBOS

    DBOS.destroy(destroy_registry=True, workflow_completion_timeout_sec=wait_s)


def _keep_delays() -> None:
    """Keep DBOS from ending delays: it goes by the clock of one process, which may be wrong, and
    while that process hangs no other one does it. The dispatch ends them by the server's clock.

    Raises:
        EnvironmentRefusedError: `unknown-dbos`; this version does it in another way.
    """
    try:
        from dbos._sys_db import SystemDatabase

        known = SystemDatabase.transition_delayed_workflows
    except (ImportError, AttributeError) as error:
        raise _unknown(f"it ends delays by its own clock ({error})") from error

    def nothing(database: SystemDatabase) -> None:
        """The delays stay."""

    if callable(known):
        SystemDatabase.transition_delayed_workflows = nothing  # type: ignore[method-assign,assignment]  # see above


_CLAIM: Final = "start_queued_workflows"
"""DBOS's own method with which a worker takes jobs."""


def _end_unused(job: Job) -> JobEnd:
    """The end of a job that another worker shall have."""
    return JobEnd(again=job.put_back(is_failed_try=False))


def refuse_pickles() -> None:
    """Keep DBOS from unpickling rows that say of themselves that they are pickles.

    None is written here, and whoever can write a row could have code run by each worker. Its
    settings choose what is written and not what is read, so that its own serializer is replaced;
    then a pickle is given to each of its readers: a version that reads it is not used.

    Raises:
        EnvironmentRefusedError: `unknown-dbos`; it would read one.
    """
    from dbos import Serializer

    class NoPickles(Serializer):
        """Reads and writes nothing."""

        def serialize(self, data: object) -> str:
            raise TypeError("Nothing is pickled here.")

        def deserialize(self, serialized_data: str) -> object:
            raise _PickleRefusedError("A row of the queue is a pickle, which is not read here.")

        def name(self) -> str:
            return "py_pickle"

    try:
        from dbos import DBOSPortableJSONSerializer, _serialization

        _serialization.DBOSDefaultSerializer = NoPickles()
        readers = (
            _serialization.deserialize_args,
            _serialization.deserialize_value,
            _serialization.deserialize_exception,
        )
        usual = DBOSPortableJSONSerializer()
    except (ImportError, AttributeError) as error:
        raise _unknown(f"it reads rows in another way ({error})") from error
    pickled = base64.b64encode(pickle.dumps("harmless")).decode()
    for read in readers:
        try:
            read(pickled, "py_pickle", usual)
        except _PickleRefusedError:
            continue
        except Exception as error:  # whatever it is, it is not our refusal
            raise _unknown(f"it reads rows in another way ({words_of(error)})") from error
        raise _unknown("it would read pickles, which can run code")


class _PickleRefusedError(TypeError):
    """A pickle was not read."""


def _unknown(why: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"This version of the package 'dbos' is not known here: {why}. No job is read with it. "
        "Install one that is: pip install 'minions-engine[dbos]' 'dbos<3.5'.",
        code="unknown-dbos",
    )
