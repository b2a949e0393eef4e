"""A worker's part of DBOS: its one workflow, and the jobs that this process has."""

from __future__ import annotations

import asyncio
import base64
import logging
import pickle  # one of our own is offered to DBOS, which must refuse it
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from minions.adapters.dispatch.postgres_workers import SCHEMA
from minions.contracts.dispatch import Execute, Job, JobEnd, WorkerPlan
from minions.contracts.runtime import Log
from minions.data.errors import EnvironmentRefusedError, words_of
from minions.data.json_values import JsonValue

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
        claimed: Callable[[], Awaitable[Collection[object]]],
        log: Log,
    ) -> None:
        """Nothing is launched yet; an event loop must be running.

        Args:
            submit: Stores the job that takes the place of one that is put back.
            claimed: Rows of jobs that this worker has.
        """
        self.plan = plan
        self.dead: frozenset[str] = frozenset()
        """The names of workers that were not heard of for too long."""
        self._url = url
        self._execute = execute
        self._submit = submit
        self._claimed = claimed
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(plan.slots)
        self._tasks: set[asyncio.Task[str]] = set()
        self._missing: frozenset[str] = frozenset()
        self._is_stopping = False
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

    def _launch(self) -> None:
        from dbos import DBOS, DBOSPortableJSONSerializer

        _keep_delays()
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
            taking = asyncio.run_coroutine_threadsafe(self._taken(job), self._loop)
            return await asyncio.wrap_future(taking)

        return execute

    async def _taken(self, document: Mapping[str, JsonValue]) -> str:
        job = Job(**document)  # type: ignore[arg-type]  # attrs checks what another process stored
        task = asyncio.create_task(self._executed(job), name=job.key)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await task

    async def _executed(self, job: Job) -> str:
        try:
            async with self._slots:
                end = await self._execute(job) if not self._is_stopping else _unused(job)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            end = _unused(job)
        if end.again is None:
            return _DONE
        await self._put_back(end.again)
        return _PUT_BACK

    async def _put_back(self, job: Job) -> None:
        """Store the job, also where the server is away for a while."""
        while True:
            try:
                await self._submit(job)
            except EnvironmentRefusedError as error:
                self._log.warning("job_not_put_back", run_id=job.run_id, reason=error.message)
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def drain(self) -> None:
        """Take no more jobs, let those that it has end in time, and hand over the rest."""
        self._is_stopping = True
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


def _unused(job: Job) -> JobEnd:
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
