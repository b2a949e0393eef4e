"""Queued runs that no worker can execute: what each worker lacks is stored beside the journal.

A worker writes one text at its start, with what it has, and another where it leaves a kind of runs
for the first time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Self

from attrs import evolve, field, frozen

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.app.runs.run_needs import OfferedParts, needs_key
from minions.app.runs.run_policy import QUEUE
from minions.contracts.dispatch import DispatchEngine, Job, Lack, WorkerPlan
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import StartNote
from minions.contracts.runtime import IsWorkerGone
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.engine.views.run_states import executed_runs

_WORKER: Final = f"{RESERVED}worker:"
_MOST_LACKS: Final = 100
"""Entries of one worker; of more runs that it cannot execute, the first ones are named."""
MOST_LOOKED: Final = 500
"""Runs of which one look reads more than their row."""
_PAGE: Final = 500
"""Rows of interrupted runs that are read at a time."""
_QUEUED: Final = RunFilter(statuses={RunState.QUEUED})
_MOST_TIMES: Final = 10
_MOST_KNOWN: Final = 10_000


@frozen(kw_only=True)
class WorkerRecord:
    """What a worker serves, and what it lacks for runs that it met."""

    name: str
    queues: tuple[str, ...]
    version: str = ""
    """That of the package, with the digits of its build."""
    slots: int | None = None
    """Runs at a time; None: it was written by a version that did not store them."""
    started_at: datetime | None = None
    """When it began; None: it was written by a version that did not store it."""
    lacks: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """In words, by the key of needs or by the id of a run."""
    parts: OfferedParts | None = None
    """What it has; None: it is not known."""
    problem: str | None = None
    """What it lacks for any run at all, such as its folder; None: nothing that is known."""

    def to_text(self) -> str:
        """The form in which it is stored."""
        lacks: JsonValue = {key: list(parts) for key, parts in self.lacks.items()}
        parts = None if self.parts is None else self.parts.to_json()
        started = None if self.started_at is None else self.started_at.isoformat()
        document: dict[str, JsonValue] = {
            "queues": list(self.queues),
            "version": self.version,
            "lacks": lacks,
            "parts": parts,
            "slots": self.slots,
            "started_at": started,
            "problem": self.problem,
        }
        return dumps(document)

    @classmethod
    def of_text(cls, name: str, text: str) -> Self | None:
        """What was stored; None: it is of another form."""
        try:
            stored = parse_json(text)
        except ValueError:
            return None
        lacks = stored.get("lacks") if isinstance(stored, Mapping) else None
        if not isinstance(stored, Mapping) or not isinstance(lacks, Mapping):
            return None
        slots, started = stored.get("slots"), stored.get("started_at")
        problem = stored.get("problem")
        try:
            started_at = datetime.fromisoformat(started) if isinstance(started, str) else None
        except ValueError:
            started_at = None
        return cls(
            name=name,
            queues=_texts(stored.get("queues")),
            version=str(stored.get("version", "")),
            slots=slots if isinstance(slots, int) else None,
            started_at=started_at,
            lacks={key: _texts(parts) for key, parts in lacks.items()},
            parts=OfferedParts.of_json(stored.get("parts")),
            problem=problem if isinstance(problem, str) else None,
        )

    def lacking(self, run: WaitingRun) -> tuple[str, ...] | None:
        """What it lacks for that run; None: nothing is known."""
        known = self.lacks.get(run.run_id) or self.lacks.get(run.needs)
        if self.problem is None:
            return known
        return (self.problem, *(each for each in known or () if each != self.problem))

    def lacking_of(self, needs: Sequence[str]) -> tuple[str, ...]:
        """What it lacks of what a run needs that it may never have met, by what it says that it
        has; empty: nothing that is known.
        """
        if self.problem is not None:
            return (self.problem,)
        return () if self.parts is None else self.parts.lacking(needs)

    @property
    def all_lacks(self) -> tuple[str, ...]:
        """What it lacks for any run, and for those that it met, each part once."""
        parts = (part for each in self.lacks.values() for part in each)
        return tuple(dict.fromkeys(parts if self.problem is None else (self.problem, *parts)))


@frozen(kw_only=True)
class WaitingRun:
    """A run that waits in a queue, and what the workers of the queue lack for it."""

    run_id: str
    session_id: str
    recipe: str
    queue: str
    position: int
    """The place in the journal of the fact that queued it."""
    since: datetime
    needs: str
    """The key of its needs; empty: it is not known what it needs."""
    wants: tuple[str, ...] = ()
    """Its needs themselves, as of `needs_of`."""
    home: str | None = None
    """The folder where it began; None: it is not known."""
    extensions: tuple[str, ...] = ()
    """The extensions that it was begun with."""
    not_before: datetime | None = None
    """Before this time no worker begins with it; None: it may begin at once."""
    pauses: int = 0
    """How often in a row it paused for a server."""
    has_children: bool = False
    """Whether it waits for child runs of its own."""
    is_in_batch: bool = False
    """Whether it waits for answers of batches of a provider."""
    lacks: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """By the name of each worker of its queue; none of them can execute it."""

    @property
    def parts(self) -> tuple[str, ...]:
        """All that is lacking somewhere, each part once."""
        return tuple(dict.fromkeys(part for each in self.lacks.values() for part in each))

    def to_json(self) -> dict[str, JsonValue]:
        """The form in which it is printed."""
        return {
            "run_id": self.run_id,
            "queue": self.queue,
            "queued_at": self.since.isoformat(),
            "lacks": {worker: list(parts) for worker, parts in self.lacks.items()},
        }


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


async def worker_records(state: StateStore) -> list[WorkerRecord]:
    """What workers stored of themselves, also those that were killed; by name.

    Raises:
        JournalError: The database cannot be used.
    """
    found = []
    for key in await state.keys(_WORKER):
        text, name = await state.get(key), key.removeprefix(_WORKER)
        if text is not None and (record := WorkerRecord.of_text(name, text)) is not None:
            found.append(record)
    return found


@frozen(kw_only=True)
class LeftRunsFound:
    """The runs that no worker can execute, among those that were looked at."""

    runs: Sequence[WaitingRun] = ()
    """Those that have waited longest first."""
    has_more: bool = False
    """Whether more runs wait behind those that were looked at."""


async def left_runs(
    journal: Journal,
    state: StateStore,
    is_gone: IsWorkerGone,
    living: Mapping[str, Collection[str]] | None = None,
    *,
    offset: int = 0,
) -> LeftRunsFound:
    """The runs of queues that wait and that no living worker of their queues can execute.

    Where workers lack nothing, no run is read; else `MOST_LOOKED` are, those that have waited
    longest. Runs of queues without a living worker are not among them: `WorkLists.unserved` counts
    those.

    Args:
        is_gone: Whether a worker is known to be dead.
        living: The queues of all workers that are alive; None: only those that stored something
            are known.
        offset: How many runs were looked at before.
    Raises:
        JournalError: The database cannot be used.
    """
    records = await living_records(state, is_gone, living)
    if not any(each.lacks or each.problem for each in records):
        return LeftRunsFound()
    found = []
    rows = await waiting_rows(journal, is_gone, limit=MOST_LOOKED, offset=offset)
    for row in rows.rows:
        run = await waiting_run(journal, row)
        if run is None:
            continue
        able = [each for each in records if run.queue in each.queues and not each.lacking(run)]
        if not able and (lacks := lacks_of(run, records)):
            found.append(evolve(run, lacks=lacks))
    return LeftRunsFound(runs=found, has_more=offset + len(rows.rows) < rows.total)


def lacks_of(run: WaitingRun, records: Collection[WorkerRecord]) -> Mapping[str, tuple[str, ...]]:
    """What each worker of the run's queue lacks for it, by its name."""
    of_queue = [each for each in records if run.queue in each.queues]
    return {each.name: parts for each in of_queue if (parts := each.lacking(run))}


async def living_records(
    state: StateStore, is_gone: IsWorkerGone, living: Mapping[str, Collection[str]] | None
) -> list[WorkerRecord]:
    """The workers that are alive, as far as is known.

    Args:
        is_gone, living: As of `left_runs`.
    Raises:
        JournalError: The database cannot be used.
    """
    records = [each for each in await worker_records(state) if not is_gone(each.name)]
    if living is None:
        return records
    known = {each.name for each in records}
    # Of a version that stores nothing, and not known to be dead by its process:
    others = [each for each in living if each not in known and not is_gone(each)]
    records = [each for each in records if each.name in living]
    return records + [WorkerRecord(name=each, queues=tuple(living[each])) for each in others]


@frozen(kw_only=True)
class WaitingRows:
    """A part of the runs that wait for workers."""

    rows: Sequence[RunRow]
    """Those that workers had begun with first, of each kind the oldest first."""
    total: int
    """How many wait."""


async def waiting_rows(
    journal: Journal, is_gone: IsWorkerGone, *, limit: int, offset: int = 0
) -> WaitingRows:
    """A part of the runs that wait for workers: those that were cut off, and those that are queued.

    Args:
        is_gone: As of `left_runs`.
    Raises:
        JournalError: The journal cannot be read.
    """
    cut_off = await cut_off_runs(journal, is_gone)
    part = cut_off[offset : offset + limit]
    behind = max(0, offset - len(cut_off))
    queued = await queued_rows(journal, limit=limit - len(part), offset=behind)
    return WaitingRows(rows=[*part, *queued.rows], total=len(cut_off) + queued.total)


async def queued_rows(journal: Journal, *, limit: int, offset: int = 0) -> WaitingRows:
    """A part of those that are queued: the journal lists the newest first."""
    total = await journal.count_runs(_QUEUED)
    end = max(0, total - offset)
    start = max(0, end - limit)
    rows = await journal.runs(_QUEUED, limit=end - start, offset=start) if start < end else ()
    return WaitingRows(rows=rows[::-1], total=total)


async def cut_off_runs(journal: Journal, is_gone: IsWorkerGone) -> list[RunRow]:
    """The runs of queues that a worker had begun with when it died or handed them over, and that
    nobody executes: they wait for a worker, too. The oldest first.

    It costs as much as there are interrupted runs.

    Args:
        is_gone: As of `left_runs`.
    Raises:
        JournalError: The journal cannot be read.
    """
    wanted = RunFilter(
        statuses={RunState.INTERRUPTED}, running=await executed_runs(journal, is_gone)
    )
    found, last = list[RunRow](), None
    while rows := await journal.runs(wanted, limit=_PAGE, after=last):
        found += (row for row in rows if row.mark == QUEUE)
        if len(rows) < _PAGE:
            break
        last = rows[-1]
    return found[::-1]


async def waiting_run(journal: Journal, row: RunRow) -> WaitingRun | None:
    """A run that is queued, or was cut off, as the fact that began it says; None: it waits in no
    queue.

    Raises:
        JournalError: The journal cannot be read.
    """
    if row.mark != QUEUE:
        return None
    newest = await journal.entries(
        row.session_id, run_id=row.run_id, kinds={"run"}, limit=1, newest_first=True
    )
    fact = newest[0].fact if newest else None
    noted = StartNote.of(fact.note if isinstance(fact, RunBeginning) else None)
    place = None if noted.is_imported else noted.queue
    if place is None:
        return None
    since = newest[0].at
    if row.status == RunState.INTERRUPTED:
        last = await journal.entries(
            row.session_id, run_id=row.run_id, limit=1, newest_first=True, with_damaged=True
        )
        since = last[0].at if last else since
    return WaitingRun(
        run_id=row.run_id,
        session_id=row.session_id,
        recipe=row.recipe,
        queue=place.name,
        position=newest[0].position,
        since=since,
        needs=needs_key(place.needs),
        wants=tuple(place.needs),
        home=noted.cwd,
        extensions=noted.extensions,
        not_before=place.not_before,
        pauses=place.pauses,
        has_children=bool(noted.waits),
        is_in_batch=bool(noted.batch_waves),
    )


async def missing_parts(
    state: StateStore,
    is_gone: IsWorkerGone,
    living: Mapping[str, Collection[str]] | None,
    queue: str,
    needs: Sequence[str],
) -> tuple[str, ...]:
    """What no living worker of a queue has of what a run needs, in words; empty: one has all of
    it, or may have.

    Args:
        is_gone, living: As for `left_runs`.
        needs: As of `needs_of`.
    Raises:
        JournalError: The database cannot be used.
    """
    records = {each.name: each for each in await worker_records(state) if not is_gone(each.name)}
    if living is None:
        own = [each for each in records.values() if queue in each.queues]
    else:
        names = [name for name, queues in living.items() if queue in queues and not is_gone(name)]
        own = [records.get(name, WorkerRecord(name=name, queues=(queue,))) for name in names]
    if not own:
        return (f"a worker of the queue '{queue}'",)
    lacks = [each.lacking_of(needs) for each in own]
    return tuple(dict.fromkeys(part for each in lacks for part in each)) if all(lacks) else ()


async def living_workers(engine: DispatchEngine) -> Mapping[str, Collection[str]] | None:
    """The queues of all living workers by name; None: workers of other processes are not known.

    Raises:
        EnvironmentRefusedError: The engine cannot be reached.
    """
    if not engine.is_shared:
        return None
    return {each.name: each.queues for each in await engine.workers() if each.is_alive}


class LeftRuns:
    """What one worker cannot execute, as it stores it."""

    def __init__(
        self,
        state: StateStore,
        plan: WorkerPlan,
        parts: OfferedParts,
        started_at: datetime | None = None,
        version: str | None = None,
    ) -> None:
        """Nothing is stored yet.

        Args:
            version: That of its build; None: that of the package.
        """
        self._state = state
        self._record = WorkerRecord(
            name=plan.name,
            queues=plan.queues,
            version=version or parts.package,
            parts=parts,
            slots=plan.slots,
            started_at=started_at,
        )
        self._times: dict[str, int] = {}
        self._is_stored = False
        self.run_ids: set[str] = set()
        """The runs that it left and that may still wait."""

    @property
    def name(self) -> str:
        """The name of the worker."""
        return self._record.name

    @property
    def has_any(self) -> bool:
        """Whether it left any run."""
        return bool(self._record.lacks)

    def times(self, run_id: str) -> int:
        """How often in a row it left that run alone."""
        return self._times.get(run_id, 0)

    async def leave(self, job: Job, lack: Lack) -> None:
        """Note that it leaves the job to others. Where it cannot be stored now, `store` does it."""
        self.run_ids.add(job.run_id)
        key = job.run_id if lack.is_of_run or not job.needs else job.needs
        if lack.is_of_run:
            self._times[job.run_id] = min(_MOST_TIMES, self.times(job.run_id) + 1)
            if len(self._times) > _MOST_KNOWN:
                self._times.pop(next(iter(self._times)))
        lacks = dict(self._record.lacks)
        if lacks.get(key) == lack.parts or (key not in lacks and len(lacks) >= _MOST_LACKS):
            return
        self._put({**lacks, key: lack.parts})
        with contextlib.suppress(JournalError):
            await self.store()

    def took(self, job: Job) -> None:
        """Note that it executes a run; what it lacked before, it lacks no more."""
        lacks = self._record.lacks
        self._times.pop(job.run_id, None)
        self.run_ids.discard(job.run_id)
        if job.run_id in lacks or job.needs in lacks:
            left = {k: v for k, v in lacks.items() if k not in (job.run_id, job.needs)}
            self._put(left)

    def forget(self, run_ids: Collection[str]) -> None:
        """Forget runs that wait no more."""
        lacks = self._record.lacks
        self.run_ids.difference_update(run_ids)
        if not lacks.keys().isdisjoint(run_ids):
            self._put({key: parts for key, parts in lacks.items() if key not in run_ids})

    def note_problem(self, problem: str | None) -> None:
        """Note what it lacks for any run at all; None: it has what it needs again."""
        if problem != self._record.problem:
            self._record, self._is_stored = evolve(self._record, problem=problem), False

    def _put(self, lacks: Mapping[str, tuple[str, ...]]) -> None:
        self._record, self._is_stored = evolve(self._record, lacks=lacks), False

    async def store(self, *, again: bool = False) -> None:
        """Store what was not stored yet.

        Args:
            again: Whether it is gone from the store.
        Raises:
            JournalError: The database cannot be used.
        """
        if again or not self._is_stored:
            await self._state.put(_WORKER + self._record.name, self._record.to_text())
            self._is_stored = True

    async def remove(self, name: str | None = None) -> None:
        """Remove what a worker stored that has ended; None: this one.

        Raises:
            JournalError: The database cannot be used.
        """
        await self._state.remove(_WORKER + (name or self._record.name))
