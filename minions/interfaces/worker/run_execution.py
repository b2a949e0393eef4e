"""The execution of one job at a worker: the run is resumed from where its record stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Final, TypeAlias, cast

from attrs import evolve

from minions.app.runs.left_runs import LeftRuns, WaitingRun
from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import RunQueue, job_of
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.app.runs.unexecuted_runs import (
    MOST_IDLE_EXECUTIONS,
    RunPages,
    UnexecutedRuns,
    idle_executions,
    may_pass,
)
from minions.contracts.dispatch import DispatchEngine, Job, JobEnd, Lack
from minions.contracts.executions import RunState, RunStatus
from minions.contracts.journal.child_run_links import (
    OPEN_STATES,
    ChildRunQueue,
    ChildWait,
    QueueableRun,
    child_runs_start,
)
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import QueuePlace, StartNote, without_waits
from minions.contracts.runtime import IsWorkerGone, Log
from minions.data.errors import (
    EnvironmentRefusedError,
    FailureInfo,
    JournalError,
    LeaseHeldError,
    MinionsError,
    NotFoundError,
    words_of,
)
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.run_pause import LOOK_AT_WAVES_S, RunPause
from minions.engine.services.run_services import Services
from minions.engine.sessions.cancellation import cancel_child_runs, cancel_run, fail_run
from minions.engine.views.lookup import find_run
from minions.interfaces.worker.delta_streams import DeltaStreams
from minions.recipe.model import AgentRecipe, StepSpec

_BUSY_S: Final = 2.0
"""Seconds until a run is tried again whose session is busy, or whose record cannot be read now."""
_AGAIN_S: Final = 1.0
"""Seconds until this worker tries a run again that it could not execute, twice as long each time.
Others may take it at once."""
_LONGEST_S: Final = 60.0
"""The longest of these times."""
GIVEN_UP: Final = "The run was given up"
"""How the message of a run begins that workers gave up; the reason follows it."""
_MOST_TRIES: Final = 5
"""Of workers that died with a run of which nothing was finished since it was queued."""
_MOST_TRIES_AT_WORK: Final = 50
"""Of any other run: its executions finish something, and yet end with their process."""
_NEWS_S: Final = 10.0
"""Seconds until a run is executed again that has just parked and whose wave nobody looks at."""
_DONE: Final = JobEnd()
MOST_PAUSES: Final = 10
"""Of a run in a row without an answer in between; then it waits in its place, with its retries, so
that it comes to an end."""
OnEnded: TypeAlias = Callable[[AgentRecipe, Mapping[str, JsonValue], str | None], None]
_FINISHED: Final = frozenset(("finished", "failed"))


class RunExecution:
    """Executes jobs. Whether a run is executed at all is decided by its record, not by the job."""

    def __init__(
        self,
        runtime: UnattendedRuntime,
        log: Log,
        parents: ParentRuns,
        *,
        on_waiting: Callable[[str], None],
        on_ended: OnEnded,
        when_begun: Callable[[Job], Callable[[], None] | None],
        deltas: DeltaStreams | None = None,
        parks: bool = True,
        patience_s: float | None = None,
        left: LeftRuns,
    ) -> None:
        """Nothing is executed yet.

        Args:
            parents: Knows which runs wait for child runs.
            left: Told of runs that this worker cannot execute.
            on_waiting: Called with the id of a run that has begun to wait for a person.
            on_ended: Called with the recipe, the note and the project of a run that has ended.
            when_begun: As of `DispatchEngine`.
            deltas: Offers the pieces of answers; None: nobody reads them, so none are made.
            parks: Whether runs whose calls wait for batches of providers leave their slots.
            patience_s: Seconds after its start until which model calls of a run may wait for such
                batches, where the run says nothing; None: they do not.
        """
        self._parks = parks
        self._patience_s = patience_s
        self._runtime = runtime
        self._services = runtime.services
        self._journal = runtime.services.journal
        self._log = log
        self._parents = parents
        self._on_waiting = on_waiting
        self._on_ended = on_ended
        self._when_begun = when_begun
        self._deltas = deltas
        self._left = left

    async def execute(self, job: Job) -> JobEnd:
        """Execute the run of a job until it ends or waits; cancelled, it hands over the run.

        A job ends for good only when the record says that nothing is left to do.
        """
        try:
            return await self._execute_job(job)
        except NotFoundError as error:
            return self._drop(job, error.message)
        except LeaseHeldError:  # another run of its session, or another worker has this one
            return JobEnd(again=job.put_back(_BUSY_S, is_failed_try=False))
        except MinionsError as error:
            return await self._put_back(job, error)
        except Exception as error:  # noqa: BLE001  # one odd run must not end the worker
            return await self._put_back(job, EnvironmentRefusedError(words_of(error)))

    async def _execute_job(self, job: Job) -> JobEnd:
        runtime, parents = self._runtime, self._parents
        if job.tries >= _MOST_TRIES and (reason := await self._reason_to_give_up(job)) is not None:
            return await self._given_up(job, reason)
        if job.number and await parents.still_waits(job):  # without loading all of the run
            return parents.looked_at_later(job)
        if job.number and self._parks and await self._waits_for_batch(job):
            return JobEnd(again=job.put_back(LOOK_AT_WAVES_S, is_failed_try=False))
        recorded = await runtime.recorded(job.run_id, of_any_folder=True)
        if (end := await self._end_at_once(job, recorded)) is not None:
            return end
        if lacking := await self._lacking(recorded):
            return await self._leave(job, Lack(parts=lacking), recorded.noted.extensions)
        runtime.check_folder(recorded)
        recipe = runtime.own_recipe(recorded)
        executor = runtime.executor_of(
            recipe,
            note=recorded.note,
            children=parents.queue_of(recorded),
            pause=_pause_of(recorded, parks=self._parks),
            by=self._deadline_of(recorded),
        )
        note = without_waits(recorded.note)
        run = executor.prepare_resume(recorded, recipe=recipe, note=note)
        self._left.took(job)
        self._log.info("run_taken", run_id=job.run_id, queue=job.queue)
        with nullcontext() if self._deltas is None else self._deltas.executing(run):
            end = await self._end(job, run)
        if run.has_recorded_end:
            self._on_ended(recipe, recorded.note, recorded.summary.project)
            await self._tell_others(recorded, run)
        return end

    def _deadline_of(self, recorded: RecordedRun) -> datetime | None:
        """When a run is to be done that says nothing of it; None: its calls do not wait."""
        if self._patience_s is None:
            return None
        return recorded.summary.started_at + timedelta(seconds=self._patience_s)

    async def _waits_for_batch(self, job: Job) -> bool:
        """Whether its run waits for the answers of batches that are not there. One fact is read."""
        newest = await self._journal.entries(
            job.session_id, run_id=job.run_id, kinds={"run"}, limit=1, newest_first=True
        )
        fact = newest[0].fact if newest else None
        return isinstance(fact, RunBeginning) and not await self._has_news(job.run_id, fact)

    async def _has_news(self, run_id: str, newest: RunBeginning) -> bool:
        """Whether a run with this newest beginning waits for no batch that has not ended."""
        waves = StartNote.of(newest.note).batch_waves if newest.queued else ()
        return not waves or await self._runtime.has_news(run_id, waves)

    async def _end_at_once(self, job: Job, recorded: RecordedRun) -> JobEnd | None:
        """The end of a job whose run is not executed, as its record says; None: it is."""
        if recorded.has_ended:
            return _DONE
        if recorded.noted.is_imported:
            return self._drop(job, "it came from a file, and nobody here queued it")
        if RunPolicy.recorded(recorded.note).queue is None:
            return self._drop(job, "its record does not say that it was queued")
        if not job.number and await self._parents.waits(recorded):
            return self._parents.looked_at_later(job)
        if not job.number and self._parks and not await self._has_news(job.run_id, recorded.start):
            return JobEnd(again=job.put_back(LOOK_AT_WAVES_S, is_failed_try=False))
        if idle_executions(recorded.entries) >= MOST_IDLE_EXECUTIONS and not (
            await self._parents.have_ended_since(job.run_id, _since_of(recorded.entries))
        ):
            reason = f"its last {MOST_IDLE_EXECUTIONS} executions finished nothing"
            return await self._given_up(job, reason)
        if await self._parents.is_orphan(recorded):
            return self._drop(job, "the run whose child run it is has ended")
        return None

    async def _tell_others(self, recorded: RecordedRun, run: AgentRun) -> None:
        """The run has ended: what is left of its child runs ends, the run around it continues."""
        try:
            if not run.waits_for_person:
                await self._parents.ended(recorded, run.context.recipe)
                await self._parents.child_ended(recorded)
        except EnvironmentRefusedError as error:  # each of them looks by itself
            self._log.warning("runs_not_told", run_id=run.run_id, reason=error.message)

    async def _end(self, job: Job, run: AgentRun) -> JobEnd:
        """The end of the job when the run has ended or waits, or was handed over."""
        if (begun := self._when_begun(job)) is not None:
            run.listen(lambda _event: begun())  # events are told when they are recorded
        task = asyncio.ensure_future(run.execute())
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                run.hand_over()
                await asyncio.wait((task,))
                self._log.info("run_handed_over", run_id=job.run_id)
            raise
        if run.child_waits:
            self._runtime.has_ended(run.context.scope.services.worker_id)
            return await self._parents.queued_again(job, run)
        if run.is_paused:
            return await self._queued_until(job, run)
        if not run.has_recorded_end:  # the journal was lost, or another worker has the run
            self._log.warning("run_lost", run_id=job.run_id, status=result.status.value)
            self._runtime.has_ended(run.context.scope.services.worker_id)
            return JobEnd(again=job.put_back(_BUSY_S, is_failed_try=False))
        if result.status is RunStatus.NEEDS_DECISION:
            self._on_waiting(run.run_id)
        self._log.info("run_ended", run_id=job.run_id, status=result.status.value)
        return _DONE

    async def _queued_until(self, job: Job, run: AgentRun) -> JobEnd:
        """The end of the job of a run that has paused: it is queued until a server may be asked.

        Where that cannot be recorded now, its job is put back until then.
        """
        services = self._services
        pause = run.context.scope.services.pause
        now = services.clock.now()
        if pause is not None and pause.waves and pause.until is None:
            return await self._park_run(job, pause)
        until = now if pause is None or pause.again_at is None else pause.again_at
        self._log.info("run_paused", run_id=job.run_id, until=until.isoformat())
        try:
            recorded = await self._runtime.recorded(job.run_id)
            before = RunPolicy.recorded(recorded.note).queue or QueuePlace()
            pauses = 1 if _has_progress(recorded) else before.pauses + 1
            place = evolve(before, not_before=until, pauses=pauses)
            queue = RunQueue(None, services.clock)
            return JobEnd(again=(await self._runtime.queue_again(recorded, place, queue)).job)
        except MinionsError as error:
            self._log.warning("pause_not_recorded", run_id=job.run_id, reason=error.message)
            delay_s = max(0.0, (until - now).total_seconds())
            return JobEnd(again=job.put_back(delay_s, is_failed_try=False))

    async def _park_run(self, job: Job, pause: RunPause) -> JobEnd:
        """The end of the job of a run that waits for the answers of batches: it costs nothing until
        they are there.

        Raises:
            MinionsError: It could not be recorded; the run is to be executed again.
        """
        recorded = await self._runtime.recorded(job.run_id)
        place = RunPolicy.recorded(recorded.note).queue
        if recorded.has_ended or place is None:
            return _DONE
        waits = StartNote(batch_waves=tuple(pause.waves)).to_json()
        note = {**without_waits(recorded.note), **waits}
        place = evolve(place, not_before=None, pauses=0)
        queue = RunQueue(None, self._services.clock)
        await self._runtime.queue_again(recorded, place, queue, note=note)
        self._log.info("run_waits_for_batch", run_id=job.run_id)
        has_news = await self._runtime.has_news(job.run_id, pause.waves)
        pause_s = _NEWS_S if has_news else LOOK_AT_WAVES_S
        return JobEnd(again=job.put_back(pause_s, is_failed_try=False))

    # --- runs that are not executed ---------------------------------------------------------------

    def _drop(self, job: Job, reason: str) -> JobEnd:
        self._log.warning("job_dropped", run_id=job.run_id, reason=reason)
        return _DONE

    async def _put_back(self, job: Job, error: MinionsError) -> JobEnd:
        """Try again later, or leave it to another worker: what is wrong may be wrong only here."""
        if may_pass(error):
            self._log.warning("run_not_taken", run_id=job.run_id, reason=error.message)
            return JobEnd(again=job.put_back(_BUSY_S, is_failed_try=False))
        again_s = min(_LONGEST_S, _AGAIN_S * 2 ** self._left.times(job.run_id))
        return await self._leave(job, Lack(parts=(error.message,), is_of_run=True, again_s=again_s))

    async def _lacking(self, recorded: RecordedRun) -> tuple[str, ...]:
        """What this worker lacks for the run, in words; empty: nothing that is known."""
        place = RunPolicy.recorded(recorded.note).queue
        needs = () if place is None else place.needs
        parts = self._runtime.parts
        if any(each.startswith("sandbox:") for each in needs):  # it is tried, which takes a moment
            return await asyncio.to_thread(parts.lacking, needs)
        return parts.lacking(needs)

    async def _leave(self, job: Job, lack: Lack, extensions: Sequence[str] = ()) -> JobEnd:
        """Leave the run to a worker that can execute it; it waits until there is one.

        Args:
            extensions: Those that it was queued with; they may have what is lacking.
        """
        facts = {"queued_with_extensions": ", ".join(extensions)} if extensions else {}
        self._log.warning("run_left", run_id=job.run_id, lacks="; ".join(lack.parts), **facts)
        await self._left.leave(job, lack)
        return JobEnd(again=job.put_back(is_failed_try=False), lack=lack)

    async def give_up(self, run: WaitingRun) -> None:
        """Record that a run failed that waited too long for a worker that can execute it."""
        job = Job(run_id=run.run_id, session_id=run.session_id, submission=str(run.position))
        lacks = "; ".join(run.parts)
        since = f"since {run.since:%Y-%m-%d %H:%M}Z no worker could execute it, for each lacks"
        await self._given_up(job, f"{since}: {lacks}")

    async def _reason_to_give_up(self, job: Job) -> str | None:
        """Why the run is not tried once more; None: it is. Read without loading all of the run."""
        if job.tries >= _MOST_TRIES_AT_WORK:
            return f"{job.tries} workers that executed it have died"
        submitted = job.submission.partition("-")[0]
        since = await self._journal.entries(
            job.session_id,
            run_id=job.run_id,
            after=int(submitted) if submitted.isdecimal() else 0,
            kinds={"step", "model_call", "batch_call", "tool_call"},
            limit=_MOST_TRIES_AT_WORK,
        )
        if any(entry.state not in ("started", "resumed", "waiting") for entry in since):
            return None
        begun = await self._journal.entries(
            job.session_id, run_id=job.run_id, kinds={"run"}, limit=20, newest_first=True
        )
        if begun and await self._parents.have_ended_since(job.run_id, _since_of(begun[::-1])):
            return None
        return f"{job.tries} workers that took it have died"

    async def _given_up(self, job: Job, reason: str) -> JobEnd:
        """Record that the run failed, so that no worker tries it any more."""
        name = shell_word(job.run_id)
        message = (
            f"{GIVEN_UP}: {reason.rstrip('.')}. What was done is kept. Look at it with "
            f"`minions sessions show {name}`, then try it again with `minions retry {name} "
            "--detach`."
        )
        try:
            run = await find_run(self._journal, job.run_id)
            if not run.has_ended:
                failure = FailureInfo(code="given-up", message=message)
                await fail_run(self._services, run, failure)
        except NotFoundError as error:
            return self._drop(job, error.message)
        except JournalError as error:
            self._log.warning("run_not_given_up", run_id=job.run_id, reason=error.message)
            return JobEnd(again=job.put_back(_BUSY_S, is_failed_try=False))
        self._log.warning("run_given_up", run_id=job.run_id, reason=reason)
        try:  # not by the rules of runs that are executed here: it may be of another folder
            recorded = await load_recorded_run(self._journal, job.run_id)
            await self._parents.child_ended(recorded)
        except MinionsError as error:  # the run around it looks by itself
            self._log.warning("runs_not_told", run_id=job.run_id, reason=error.message)
        return _DONE


def _since_of(entries: Sequence[JournalEntry]) -> datetime:
    """When the fifth execution from the end began, or the first that there is: what ended since
    then is progress.

    Args:
        entries: With the facts of its beginnings, the oldest first; not empty.
    """
    begun = [
        entry.at
        for entry in entries
        if isinstance(entry.fact, RunBeginning) and not entry.fact.queued
    ]
    return (begun[-MOST_IDLE_EXECUTIONS:] or [entries[0].at])[0]


def _pause_of(recorded: RecordedRun, *, parks: bool) -> RunPause | None:
    """Where the next execution of the run notes a pause; None: it makes no more of them."""
    place = RunPolicy.recorded(recorded.note).queue
    if place is None or place.pauses >= MOST_PAUSES:
        return None
    return RunPause(parks=parks)


def _has_progress(recorded: RecordedRun) -> bool:
    """Whether its last execution ended a call."""
    return any(
        entry.generation == recorded.generation
        and entry.kind in ("model_call", "tool_call")
        and entry.state in _FINISHED
        for entry in recorded.entries
    )


# --- submits again what the journal says is queued and what the engine does not know -------------


_OPEN: Final = (RunState.QUEUED, RunState.INTERRUPTED)
"""States of runs that a worker has to execute; an index finds those of one state in order."""
_MOST_NUMBERS: Final = 1_000
"""Jobs of one submission that may have ended without an end of their run."""


class Reconciliation:
    """Finds runs whose process died between the record and the job, and jobs that were lost."""

    def __init__(
        self, services: Services, engine: DispatchEngine, is_worker_gone: IsWorkerGone, log: Log
    ) -> None:
        """Nothing is read yet."""
        self._journal = services.journal
        self._clock = services.clock
        self._engine = engine
        self._unexecuted = UnexecutedRuns(services.journal, is_worker_gone)
        self._log = log
        self._pages = [RunPages(services.journal, state) for state in _OPEN]

    async def look(self) -> int:
        """Submit what is missing; returns how many jobs that are.

        The cost of a pass is bounded: of very many queued runs it looks at some, and at the others
        next time.

        Raises:
            JournalError, EnvironmentRefusedError: Journal or engine cannot be reached.
        """
        found = [await pages.read_next() for pages in self._pages]
        return sum([await self.submit_missing(rows[::-1]) for rows in found])  # the oldest first

    async def submit_missing(self, rows: Sequence[RunRow]) -> int:
        """Submit those of these runs that are queued without a job; returns how many.

        Raises:
            JournalError, EnvironmentRefusedError: As of `look`.
        """
        if not rows:
            return 0
        known = {view.job.run_id for view in await self._engine.jobs([row.run_id for row in rows])}
        missing = [row for row in rows if row.run_id not in known]
        return sum([await self._submit(row) for row in await self._unexecuted.among(missing)])

    async def _submit(self, row: RunRow) -> bool:
        newest = await self._journal.entries(
            row.session_id, run_id=row.run_id, kinds={"run"}, limit=1, newest_first=True
        )
        fact = newest[0].fact if newest else None
        if not isinstance(fact, RunBeginning):
            return False  # it has ended by now
        place = RunPolicy.recorded(fact.note or {}).queue
        if place is None:
            return False
        job = await self._put(job_of(newest[0], place, self._clock.now()))
        if job is not None:
            self._log.info("job_found", run_id=row.run_id, queue=place.name)
        return job is not None

    async def _put(self, job: Job) -> Job | None:
        """Submit it under the first name that no ended job has."""
        for _ in range(_MOST_NUMBERS):
            if await self._engine.submit(job):
                return job
            if await self._engine.jobs([job.run_id]):
                return None  # somebody else submitted it just now
            job = job.put_back(is_failed_try=False)
        return None


# --- child runs at a worker ----------------------------------------------------------------------


_ENDED_STATES: Final = frozenset(RunState) - OPEN_STATES
_MOST_CHILDREN: Final = 2_000
"""Child runs that are read, the newest first, before a run is given up."""
_LOOK_S: Final = 10.0
"""Seconds until a run that waits for child runs looks whether they ended, if nobody wakes it."""


class WorkerChildQueue(ChildRunQueue):
    """Queues the child runs of one run where that run is queued itself, under its policy."""

    def __init__(self, recorded: RecordedRun, place: QueuePlace, queue: RunQueue) -> None:
        """Nothing is queued yet."""
        self._recorded = recorded
        self._user = recorded.start.user
        self._project = recorded.summary.project
        self._place = evolve(place, not_before=None, pauses=0)
        self._queue = queue

    @property
    def queue(self) -> str:
        return self._place.name

    @property
    def note(self) -> Mapping[str, JsonValue]:
        return without_waits(self._recorded.note)

    @property
    def user(self) -> str | None:
        return self._user

    @property
    def project(self) -> str | None:
        return self._project

    async def put(self, run: QueueableRun) -> None:
        await self._queue.put(cast(AgentRun, run), self._place)


class ParentRuns:
    """Runs that wait for child runs, at one worker."""

    def __init__(
        self,
        runtime: UnattendedRuntime,
        engine: DispatchEngine,
        reconciliation: Reconciliation,
        log: Log,
    ) -> None:
        """Nothing is read yet.

        Args:
            reconciliation: Submits the job of a run that waits, where the engine has none.
        """
        self._runtime = runtime
        self._engine = engine
        self._reconciliation = reconciliation
        self._log = log
        self._journal = runtime.services.journal
        self._clock = runtime.services.clock

    def queue_of(self, recorded: RecordedRun) -> ChildRunQueue | None:
        """Where the child runs of that run are queued; None: it is not queued itself."""
        place = RunPolicy.recorded(recorded.note).queue
        if place is None:
            return None
        return WorkerChildQueue(recorded, place, RunQueue(self._engine, self._clock))

    # --- a run that waits -------------------------------------------------------------------------

    async def still_waits(self, job: Job) -> bool:
        """Whether its run waits for child runs of which not enough have ended.

        One fact is read, so that a long run that is looked at again and again costs little.
        """
        return await self._is_ready(job.session_id, job.run_id) is False

    async def waits(self, recorded: RecordedRun) -> bool:
        """The same of a run whose record is there."""
        return await self._has_enough(recorded.start) is False

    async def _is_ready(self, session_id: str, run_id: str) -> bool | None:
        """Whether enough child runs have ended; None: it does not wait for any."""
        newest = await self._journal.entries(
            session_id, run_id=run_id, kinds={"run"}, limit=1, newest_first=True
        )
        fact = newest[0].fact if newest else None
        return await self._has_enough(fact) if isinstance(fact, RunBeginning) else None

    async def _has_enough(self, newest: RunBeginning) -> bool | None:
        waits = StartNote.of(newest.note).waits if newest.queued else ()
        for wait in waits:
            wanted = RunFilter(id_start=wait.start, statuses=OPEN_STATES)
            if not await self._journal.runs(wanted, limit=1, offset=wait.most_open):
                return True
        return False if waits else None

    def looked_at_later(self, job: Job) -> JobEnd:
        """The end of the job of a run that still waits."""
        return JobEnd(again=job.put_back(_LOOK_S, is_failed_try=False))

    async def queued_again(self, job: Job, run: AgentRun) -> JobEnd:
        """Record that the run waits, which costs nothing until enough child runs have ended.

        Raises:
            MinionsError: It could not be recorded; the run is to be executed again.
        """
        recorded = await self._runtime.recorded(job.run_id)
        place = RunPolicy.recorded(recorded.note).queue
        if recorded.has_ended or place is None:
            return _DONE
        note = {**without_waits(recorded.note), **ChildWait.to_note(run.child_waits)}
        place, queue = evolve(place, not_before=None), RunQueue(None, self._clock)
        await self._runtime.queue_again(recorded, place, queue, note=note)
        self._log.info("run_waits_for_runs", run_id=job.run_id)
        is_ready = await self._is_ready(job.session_id, job.run_id)
        pause_s = _LOOK_S if is_ready is False else 0.0
        # Whoever held it before may have died; this execution came to its end.
        return JobEnd(again=evolve(job.put_back(pause_s, is_failed_try=False), tries=0))

    async def have_ended_since(self, run_id: str, since: datetime) -> bool:
        """Whether a child run of that run has ended after that time; some of them are read.

        Raises:
            JournalError: It cannot be read.
        """
        wanted = RunFilter(id_start=child_runs_start(run_id), statuses=_ENDED_STATES)
        rows = await self._journal.runs(wanted, limit=_MOST_CHILDREN)
        return any(row.ended_at is not None and row.ended_at > since for row in rows)

    # --- a child run ------------------------------------------------------------------------------

    async def is_orphan(self, recorded: RecordedRun) -> bool:
        """Whether it is the child run of a run that has ended: then it is cancelled here."""
        link = RunPolicy.recorded(recorded.note).child
        if link is None:
            return False
        rows = await self._journal.runs(RunFilter(run_ids={link.run_id}), limit=1)
        if rows and (rows[0].ended_at is None or rows[0].status == RunState.NEEDS_DECISION):
            return False
        await cancel_run(self._runtime.services, recorded.run_id)
        return True

    async def child_ended(self, recorded: RecordedRun) -> None:
        """Let the run around it continue, if it waited for this child run."""
        link = RunPolicy.recorded(recorded.note).child
        if link is None or not await self._is_ready(link.session_id, link.run_id):
            return
        if not await self._engine.wake(link.run_id):
            rows = await self._journal.runs(RunFilter(run_ids={link.run_id}), limit=1)
            await self._reconciliation.submit_missing(rows)

    async def wake(self, run_ids: Collection[str]) -> None:
        """Let runs that wait for the answers of a batch be resumed now."""
        for run_id in run_ids:
            await self._engine.wake(run_id)

    async def ended(self, recorded: RecordedRun, recipe: AgentRecipe) -> None:
        """Cancel what is left of the child runs of a run that has ended."""
        steps = (step for step in recipe.steps if isinstance(step, StepSpec))
        if any(step.distribute for step in steps):
            await cancel_child_runs(self._runtime.services, recorded.run_id)
