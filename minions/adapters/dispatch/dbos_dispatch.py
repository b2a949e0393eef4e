"""Dispatch over DBOS on PostgreSQL: one durable workflow for each job, and no steps of its own.

Its tables hold ids, numbers and states; its client submits and cancels. Workers take jobs without
its threads (`job_server`), and tell by heartbeats that they are alive.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import pickle  # one of our own is offered to DBOS, which must refuse it
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import asdict, evolve

from minions.adapters.dispatch.job_server import APPLICATION, VERSION, JobServer, JobStore
from minions.adapters.dispatch.postgres_claims import NO_KEY, SCHEMA, WORKFLOW
from minions.adapters.dispatch.postgres_news import PostgresNews
from minions.adapters.dispatch.postgres_workers import PostgresWorkers
from minions.adapters.stores.postgres_url import without_password
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
from minions.contracts.runtime import IsWorkerGone, Log
from minions.data.errors import EnvironmentRefusedError, words_of
from minions.data.json_values import as_object, as_objects

if TYPE_CHECKING:
    from dbos import DBOSClient, EnqueueOptions, WorkflowStatus
    from dbos import Queue as DbosQueue

T = TypeVar("T")

_POLL_S: Final = 0.25
"""How often a worker looks for jobs that wait and may not begin yet."""
_KEPT_S: Final = 7 * 86_400.0
"""A week: a run that is submitted twice within it has one job."""
_HEARTBEATS: Final = 3.0
"""So many heartbeats may fail to come until a worker counts as dead."""
_DEAD_AFTER_S: Final = 20.0
"""Seconds after which one does that says no such time: it is of an earlier version."""
_CLEAN_EVERY_S: Final = 600.0


class DbosDispatch(DispatchEngine):
    """Jobs in the schema `minions_dispatch` of the journal's database.

    Delays, limits on rate and the death of workers are by the server's clock.
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
        workers: PostgresWorkers | None = None,
        news: PostgresNews | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        """No I/O here, and DBOS is not loaded.

        Args:
            url: `postgresql://…` of the journal.
            is_gone: Whether a worker is known to be dead by its name, as where its process was on
                this machine: then nobody waits for its heartbeats.
            heartbeat_s: Seconds between two heartbeats of a worker; None: as its plan says.
            dead_after_s: Seconds without one after which its jobs are put back; None: three
                heartbeats, and 20 s of a worker of an earlier version.
            poll_s: Seconds between two looks while jobs wait that may not begin yet, or while the
                server cannot tell of new ones.
            kept_s: Seconds after their end for which jobs are kept.
            workers: Where workers and jobs are stored; None: in that database.
            news: What tells of jobs; None: that database.
            monotonic, random: When workers look for jobs; a number is from 0 to 1.
        """
        self._url = url
        self._log = log
        self._heartbeat_s = heartbeat_s
        self._dead_after_s = dead_after_s
        self._poll_s = poll_s
        self._kept_s = kept_s
        self._is_gone = is_gone
        self._workers = workers or PostgresWorkers(url, dead_after_s=dead_after_s or _DEAD_AFTER_S)
        self._news = news
        self._monotonic = monotonic
        self._random = random
        self._client: DBOSClient | None = None
        self._opening = asyncio.Lock()
        self._has_tables = False
        self._calls = 0
        """Of the client, at this moment."""
        self._was_used = False
        """Whether the client was called since the last heartbeat."""
        self._servers: dict[str, JobServer] = {}
        self.beaten_at: float | None = None
        """When a worker last said that it lives, by `monotonic`; None: it never did."""
        self._dead: frozenset[str] = frozenset()
        """The names of workers that were not heard of for too long, or whose process has ended."""

    async def submit(self, job: Job) -> bool:
        await self._prepare()
        delay_s = await self._delay_s(job)
        shares = (await self._ask_workers(self._workers.shares(job.queue))).get(job.queue)
        by = None if shares is None or shares.shares is None else shares.shares.by
        labels = {name: value for name, value in job.labels.items() if name == by}
        key = job.session_id if shares is None else labels.get(by or "", NO_KEY)
        known = evolve(job, labels=labels)
        return await self._call_client(lambda client: enqueue(client, known, delay_s, key))

    async def _delay_s(self, job: Job) -> float | None:
        """The job's delay for DBOS, which adds it to the clock of this process; None: it has none.

        It is negative where that clock is far ahead of the server's.
        """
        if not job.delay_s:
            return None
        server_s = await self._ask_workers(self._workers.server_s())
        return server_s + job.delay_s - time.time()

    async def cancel(self, run_id: str) -> int:
        def cancel(client: DBOSClient) -> int:
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
        def wake(client: DBOSClient) -> int:
            found = [each for each in unended_jobs(client, [run_id]) if each.status == "DELAYED"]
            for each in found:
                client.set_workflow_delay(each.workflow_id, delay_until_epoch_ms=0)
            return len(found)

        return await self._call_client(wake)

    async def jobs(self, run_ids: Collection[str]) -> Sequence[JobView]:
        return await self._call_client(
            lambda client: job_views(unended_jobs(client, list(run_ids)))
        )

    async def queues(self) -> Sequence[QueueView]:
        known = await self._call_client(
            lambda client: [queue_limits(each) for each in client.list_queues()]
        )
        counts: dict[str, dict[JobState, int]] = defaultdict(dict)
        for (queue, status), count in (await self._ask_workers(self._workers.job_counts())).items():
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
        await self._call_client(lambda client: self._register(client, limits, replaces=True))
        await self._ask_workers(self._workers.set_shares(limits))
        rates = (limits.rate, None if limits.shares is None else limits.shares.rate)
        if (period_s := max((each.period_s for each in rates if each), default=None)) is not None:
            await self._ask_workers(self._workers.count_starts(limits.name, period_s))

    async def remove_queue(self, name: str) -> bool:
        known = {each.limits.name: each for each in await self.queues()}
        if name not in known or known[name].has_jobs:
            return False
        await self._call_client(lambda client: client.delete_queue(name))
        await self._ask_workers(self._workers.forget_queue(name))
        return True

    async def workers(self) -> Sequence[WorkerView]:
        await self._prepare()
        return await self._ask_workers(self._workers.views())

    async def server_s(self) -> float | None:
        return await self._ask_workers(self._workers.server_s())

    def pause(self, queues: Collection[str]) -> None:
        paused = self._paused
        super().pause(queues)
        if self._paused != paused:
            for server in self._servers.values():
                server.look_soon()

    def when_begun(self, job: Job) -> Callable[[], None] | None:
        found = (each.when_begun(job.run_id) for each in self._servers.values())
        return next((each for each in found if each is not None), None)

    async def serve(self, execute: Execute, plan: WorkerPlan, stop: asyncio.Event) -> None:
        await self._prepare()
        await self._call_client(lambda client: self._register_all(client, plan))
        server = JobServer(
            execute,
            plan,
            self._store(),
            poll_s=self._poll_s,
            is_paused=self.is_paused,
            log=self._log,
            monotonic=self._monotonic,
            random=self._random,
        )
        watching: list[asyncio.Future[None]] = []
        try:
            await self._beat(server)
            self._servers[plan.name] = server
            news = self._news or PostgresNews(self._url, self._log)
            watching.append(asyncio.ensure_future(news.listen(server.hear, server.set_heard)))
            await server.launch()
            watching.append(asyncio.ensure_future(self._beats(server)))
            serving = asyncio.ensure_future(self._serve_until_stopped(server, stop))
            watching.append(serving)
            await server.until_failed(serving)
        finally:
            await server.drain()
            for task in watching:
                task.cancel()
            with contextlib.suppress(EnvironmentRefusedError):  # others see that it is silent
                left = await self._ask_workers(self._workers.taken_by([plan.name]))
                await self._put_back(left, is_failed_try=False)
                await self._ask_workers(self._workers.forget(plan.name))
            self._servers.pop(plan.name, None)

    def _store(self) -> JobStore:
        workers, ask = self._workers, self._ask_workers
        return JobStore(
            look=lambda queues, left: ask(workers.look(queues, left)),
            begin_due=lambda: ask(workers.begin_due()),
            claim=lambda wanted: ask(workers.claim(wanted)),
            submit=self.submit,
            note_begin=lambda jobs: ask(workers.note_begin(jobs)),
            end=lambda worker, words: ask(workers.end(worker, words)),
        )

    async def problem(self, worker: str) -> str | None:
        server = self._servers.get(worker)
        if server is None or not server.is_launched:
            return "it takes no jobs yet"
        return await super().problem(worker)

    def is_worker_gone(self, worker_id: str) -> bool:
        return any(worker_id.startswith(f"{name}.") for name in self._dead)

    async def aclose(self) -> None:
        await self._close_client()
        await self._workers.aclose()

    # --- serving ----------------------------------------------------------------------------------

    async def _serve_until_stopped(self, server: JobServer, stop: asyncio.Event) -> None:
        """Until the worker is stopped, or has nothing to do and is meant to end then."""
        if not server.plan.ends_when_idle:
            await stop.wait()
            return
        while not stop.is_set() and await self._has_work(server):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._poll_s)

    async def _has_work(self, server: JobServer) -> bool:
        if server.taken:
            return True
        left = server.left
        queues = tuple(each for each in server.plan.queues if not self.is_paused(each))
        plan = evolve(server.plan, queues=queues)
        asking = self._workers.has_work(plan, left.needs, left.runs)
        try:
            return await self._ask_workers(asking)
        except EnvironmentRefusedError:  # heartbeats fail then, and say so
            return True

    async def _beats(self, server: JobServer) -> None:
        loop = asyncio.get_running_loop()
        dead_after_s = self._dead_after_s or _HEARTBEATS * server.plan.heartbeat_s
        steady_since = -dead_after_s
        """After a pause of its own, a worker waits until the others could have been heard of: all
        are silent while the database is away."""
        cleaned_at = -_CLEAN_EVERY_S
        pause_s = self._heartbeat_s or server.plan.heartbeat_s
        # Else all that were started together would beat together for ever.
        await asyncio.sleep(pause_s * (1.0 - self._random()))
        while True:
            try:
                await self._beat(server, is_steady=loop.time() >= steady_since)
                if loop.time() >= cleaned_at + _CLEAN_EVERY_S:
                    cleaned_at = loop.time()
                    await self._forget_ended()
                elif not self._was_used and not self._calls:
                    await self._close_client()  # an idle worker keeps no connection for it
                self._was_used = False
            except EnvironmentRefusedError as error:
                steady_since = loop.time() + dead_after_s
                self._log.warning("heartbeat_failed", reason=error.message)
            await asyncio.sleep(pause_s)

    async def _forget_ended(self) -> None:
        """Remove jobs that ended long ago, some at a time; the journal has their runs."""
        before = datetime.now(UTC) - timedelta(seconds=self._kept_s)
        await self._call_client(lambda client: delete_ended(client, before))
        await self._ask_workers(self._workers.forget_old())

    async def _beat(self, server: JobServer, *, is_steady: bool = True) -> None:
        """Say that the worker is alive, and put back the jobs of dead ones."""
        dead_after_s = self._dead_after_s or _HEARTBEATS * server.plan.heartbeat_s
        beating = self._workers.beat(
            server.plan, server.taken, server.left, dead_after_s, time.time()
        )
        heard = await self._ask_workers(beating)
        before, self.beaten_at = self.beaten_at, self._monotonic()
        self.silences += before is not None and self.beaten_at - before > dead_after_s
        gone = frozenset(name for name in heard.nearby if self._is_gone(name))
        self.living_workers = max(1, heard.living - len(gone))
        server.note_look(heard.look, self.living_workers)
        if not is_steady:
            return
        self._dead = heard.dead | gone
        lost = server.not_begun(heard.own)
        abandoned = [*heard.abandoned]
        if gone:
            abandoned += await self._ask_workers(self._workers.taken_by(gone))
        await self._put_back(sorted(lost), is_failed_try=False)
        await self._put_back(abandoned, is_failed_try=True)

    async def _put_back(self, names: Sequence[str], *, is_failed_try: bool) -> None:
        """Let others take these jobs, which a worker has."""
        if not names:
            return
        taken = await self._call_client(
            lambda client: client.list_workflows(
                workflow_ids=list(names), status="PENDING", name=WORKFLOW, load_output=False
            )
        )
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
            await self._call_client(lambda client: client.cancel_workflows(ended))

    # --- the client -------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Make the tables at the first use, or bring them to the newest form.

        Raises:
            EnvironmentRefusedError: The extra is not installed, or the server cannot be reached.
        """
        async with self._opening:
            if self._has_tables:
                return
            _require_dbos()
            await self._ask_workers(self._workers.make_table())
            await self._call(asyncio.to_thread(make_job_tables, self._url))
            await self._ask_workers(self._workers.make_triggers())
            self._has_tables = True

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.destroy)

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

    async def _call_client(self, call: Callable[[DBOSClient], T]) -> T:
        """The result of a blocking call of the client, which is opened where it is not.

        Raises:
            EnvironmentRefusedError: The server cannot be reached, or refuses.
        """
        await self._prepare()
        self._calls += 1
        self._was_used = True
        try:
            async with self._opening:
                if (client := self._client) is None:
                    client = await self._call(asyncio.to_thread(client_at, self._url))
                    self._client = client
            return await self._call(asyncio.to_thread(call, client))
        finally:
            self._calls -= 1

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
        except psycopg.errors.UndefinedColumn as error:
            raise _unknown(f"its tables are others ({words_of(error)})") from error
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
    logger = logging.getLogger("dbos")
    if not logger.handlers:  # else it prints to standard error
        logger.addHandler(logging.NullHandler())
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


def make_job_tables(url: str) -> None:
    """Make DBOS's tables, or bring them to the newest form.

    Raises:
        SQLAlchemyError: The server cannot be reached, or refuses.
    """
    from dbos import DBOS

    DBOS.migrate(url, schema=SCHEMA)


def client_at(url: str) -> DBOSClient:
    """A client of the tables, which are there.

    Raises:
        SQLAlchemyError: The server cannot be reached, or refuses.
    """
    from dbos import DBOSClient, DBOSPortableJSONSerializer

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
