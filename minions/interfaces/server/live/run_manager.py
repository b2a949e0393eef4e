"""The run manager: starts, follows, cancels and ends the runs of this process.

A run belongs to the manager, not to the request that began it: it continues when the caller leaves.
When the server stops, runs are left so that they can be resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from weakref import WeakValueDictionary

from attrs import frozen

from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.contracts.events import RunEvent, RunFailed
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.queue_places import QueuePlace
from minions.contracts.runtime import Log
from minions.data.errors import EnvironmentRefusedError, FencedError, words_of
from minions.engine.run.agent_run import AgentRun
from minions.interfaces.http.problems import RefusedError
from minions.interfaces.server.live.channels import Channels


@frozen(eq=False)
class Execution:
    """A run that this process executes now."""

    run: AgentRun
    task: asyncio.Task[AgentResult[object]]


class RunManager:
    """Executes runs in background tasks; no run is executed twice at a time."""

    def __init__(
        self,
        channels: Channels,
        log: Log,
        *,
        most: int,
        on_waiting: Callable[[str], None],
        queue: RunQueue,
        place: QueuePlace | None = None,
    ) -> None:
        """Start without runs.

        Args:
            queue: Where runs are queued that workers execute; closed here.
            place: Where all runs are queued; None: only those that were queued before.
            most: The most runs at a time.
            on_waiting: Called with the id of a run that has begun to wait for a person.
        """
        self._on_waiting = on_waiting
        self._queue = queue
        self._place = place
        self._channels = channels
        self._log = log
        self._most = most
        self._executions: dict[str, Execution] = {}
        self.is_closing = False
        self.lost: dict[str, str] = {}
        """By id of runs whose execution here ended without a recorded end, as when the journal was
        lost, the worker that executed them."""

    def find(self, run_id: str) -> Execution | None:
        """The execution of that run; None: this process does not execute it."""
        return self._executions.get(run_id)

    @property
    def count(self) -> int:
        """How many runs are executed now."""
        return len(self._executions)

    async def begin(self, run: AgentRun) -> None:
        """Start to execute a run in the background, or queue it for a worker; returns when its
        start is stored.

        Raises:
            RefusedError: It is active already, or there are too many runs.
            BudgetSpentError: It is new, and the budget of its session, user or day is spent.
            EnvironmentRefusedError: The server stops.
            LeaseHeldError, JournalError: The journal refused; nothing was done.
        """
        place = RunPolicy.recorded(run.note).queue or self._place
        if place is not None:
            await self._put(run, place)
            return
        await run.check_budgets()
        self._check_room(run.run_id)
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def notice(_event: RunEvent) -> None:
            if not started.done():
                started.set_result(None)

        channel = self._channels.of(run.session_id)
        run.listen(channel.tell)
        run.listen(notice)
        channel.begin(run.run_id)
        task = asyncio.ensure_future(self._execute(run))
        execution = Execution(run, task)
        self._executions[run.run_id] = execution
        task.add_done_callback(lambda _: self._forget(run, has_begun=started.done()))
        await asyncio.wait((started, task), return_when=asyncio.FIRST_COMPLETED)
        if not started.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _put(self, run: AgentRun, place: QueuePlace) -> None:
        self._check_open()
        queued = await self._queue.put(run, place)
        if queued.problem is not None:
            self._log.warning("job_not_submitted", run_id=run.run_id, reason=queued.problem)

    def _check_open(self) -> None:
        if self.is_closing:
            raise EnvironmentRefusedError(
                "The server is stopping; no run is started.", code="stopping"
            )

    def _check_room(self, run_id: str) -> None:
        self._check_open()
        if run_id in self._executions:
            raise RefusedError(
                HTTPStatus.CONFLICT, "run-active", f"Run '{run_id}' is executed already."
            )
        if self.count >= self._most:
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too-many-runs",
                f"{self.count} runs are executed, which is the limit.",
                headers={"retry-after": "5"},
            )

    async def _execute(self, run: AgentRun) -> AgentResult[object]:
        result = await run.execute()
        if run.has_recorded_end and result.status is RunStatus.NEEDS_DECISION:
            self._on_waiting(run.run_id)
        if not run.has_recorded_end:
            self._lose(run)
            if _was_taken_over(result):  # followers read on what the other worker records
                return result
            # No row has the end, so followers get it here.
            now = run.context.scope.services.clock.now()
            error = result.error.to_document() if result.error is not None else None
            event = RunFailed(
                run_id=run.run_id,
                session_id=run.session_id,
                timestamp=now,
                status=result.status.value,
                data={"error": error},
            )
            self._channels.of(run.session_id).tell(event)
        return result

    def _forget(self, run: AgentRun, *, has_begun: bool) -> None:
        task = self._executions.pop(run.run_id).task
        error = None if task.cancelled() else task.exception()
        goes_on = not task.cancelled() and error is None and _was_taken_over(task.result())
        self._channels.of(run.session_id).end(run.run_id, ends_streams=has_begun and not goes_on)
        if error is not None and has_begun:  # else the caller of `begin` gets it
            self._log.warning("run_not_executed", run_id=run.run_id, error=words_of(error))
            self._lose(run)

    def _lose(self, run: AgentRun) -> None:
        self.lost[run.run_id] = run.context.scope.services.worker_id

    def cancel(self, run_id: str) -> bool:
        """Cancel that run; False: this process does not execute it."""
        execution = self._executions.get(run_id)
        if execution is not None:
            execution.run.cancel()
        return execution is not None

    async def aclose(self, grace_s: float) -> None:
        """Cancel all runs; every one of them can be resumed.

        Args:
            grace_s: How many seconds runs have to end; later ones are left as if they were killed.
        """
        self.is_closing = True
        tasks = [execution.task for execution in self._executions.values()]
        for execution in tuple(self._executions.values()):
            execution.run.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
        await self._queue.aclose()


def _was_taken_over(result: AgentResult[object]) -> bool:
    """Whether another worker executes the run, or did so: this one stood still for too long."""
    return result.error is not None and result.error.code == FencedError.code


# --- one lock for each run -----------------------------------------------------------------------


class RunLocks:
    """Locks by the id of their run, which exist as long as somebody uses them."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, run_id: str) -> asyncio.Lock:
        """The lock of that run."""
        return self._locks.setdefault(run_id, asyncio.Lock())
