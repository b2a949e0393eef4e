"""Bodies about what works in a project, as classes: workers, queues and their runs, schedules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from attrs import field, frozen

from minions.app.evaluating.evaluation_records import CaseRecord, EvaluationRecord, VariantRecord
from minions.app.runs.batch_records import BatchProgress
from minions.app.runs.deployments import Deployment
from minions.app.runs.schedule_store import ListedSchedule
from minions.app.runs.work_lists import ListedQueue, ListedWorker, QueuedRun
from minions.contracts.executions import OPEN_STATES, RunState
from minions.interfaces.server.documents.shared_documents import MAYBE_TEXT, STATE, JsonObject, Page


@frozen(kw_only=True)
class WorkerRow:
    """A worker, as it last said of itself."""

    name: str
    is_alive: bool
    queues: tuple[str, ...]
    version: str | None
    """That of the package; null: not known."""
    slots: int | None
    """The most runs at a time; null: not known."""
    taken: int | None
    """Runs that it has."""
    started_at: datetime | None
    seen_at: datetime | None
    """When it last gave a sign of life; null: its process is on the server's machine, which is
    looked at, or it gives none."""
    lacks: tuple[str, ...]
    """What it lacks, for any run or for queued runs that it met."""
    problem: str | None
    """What it lacks for any run at all, such as its folder; null: nothing that is known."""

    @classmethod
    def of(cls, worker: ListedWorker) -> WorkerRow:
        """The worker for a response."""
        return cls(
            name=worker.name,
            is_alive=worker.is_alive,
            queues=worker.queues,
            version=worker.version or None,
            slots=worker.slots,
            taken=worker.taken,
            started_at=worker.started_at,
            seen_at=worker.seen_at,
            lacks=worker.lacks,
            problem=worker.problem,
        )


@frozen(kw_only=True)
class Workers:
    """A part of the list of workers that are or were alive lately, by name."""

    workers: tuple[WorkerRow, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class RateView:
    """How many runs of a queue may begin in a time."""

    starts: int
    period_s: float


@frozen(kw_only=True)
class QueueRow:
    """A queue, with its limits over all workers and the number of its runs."""

    name: str
    has_limits: bool
    """False: its limits are not obeyed, as the journal is an SQLite file."""
    concurrency: int | None
    """The most runs at a time; null: unlimited."""
    per_worker: int | None
    """The most runs at a time of one worker; null: as many as it has slots."""
    rate: RateView | None
    """The most runs that begin in a time; null: unlimited."""
    waiting: int
    delayed: int
    """Runs that may not begin yet."""
    taken: int | None
    """Runs that workers have; null: not known, as the journal is an SQLite file."""
    is_partial: bool
    """Whether more runs are queued than were counted."""
    oldest_at: datetime | None
    """Since when the run waits that waits longest; null: none waits."""
    workers: int
    """Living workers that take its runs."""
    paused: str | None
    """Since when and why no worker takes its runs; null: they do."""

    @classmethod
    def of(cls, queue: ListedQueue) -> QueueRow:
        """The queue for a response."""
        view, has_limits = queue.view, queue.has_limits
        limits, rate = view.limits, view.limits.rate
        return cls(
            name=limits.name,
            has_limits=has_limits,
            concurrency=limits.concurrency if has_limits else None,
            per_worker=limits.per_worker if has_limits else None,
            rate=None if rate is None else RateView(starts=rate.starts, period_s=rate.period_s),
            waiting=view.waiting,
            delayed=view.delayed,
            taken=view.taken if has_limits else None,
            is_partial=queue.is_partial,
            oldest_at=queue.oldest_at,
            paused=None if queue.pause is None else queue.pause.words,
            workers=queue.workers,
        )


@frozen(kw_only=True)
class Queues:
    """A part of the list of queues, by name."""

    queues: tuple[QueueRow, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class QueuedRow:
    """A run that waits in a queue, and why no worker has begun with it."""

    run_id: str
    recipe: str
    queue: str
    since: datetime
    not_before: datetime | None
    """Before this time no worker begins with it; null: it may begin at once."""
    reason: str
    """A clause for a person."""
    lacks: tuple[str, ...]
    """What workers of its queue lack for it, each part once."""

    @classmethod
    def of(cls, queued: QueuedRun) -> QueuedRow:
        """The run for a response."""
        run = queued.run
        return cls(
            run_id=run.run_id,
            recipe=run.recipe,
            queue=run.queue,
            since=run.since,
            not_before=run.not_before,
            reason=queued.reason,
            lacks=run.parts,
        )


@frozen(kw_only=True)
class QueuedRuns:
    """A part of the runs that wait in queues, those that wait longest first."""

    runs: tuple[QueuedRow, ...]
    total: int
    limit: int
    offset: int


# --- batches --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class BatchRow:
    """A batch with what came of its lines."""

    id: str
    title: str
    """Where its lines are from: the name of a file, or the name that was given."""
    recipe: str
    lines: int
    begun: int
    """Lines that have a run."""
    ended: int
    """Those whose run has ended."""
    failed: int
    """Those whose run failed or reached a limit."""
    states: Mapping[str, int]
    """How many of its runs are in each state."""
    tokens: int
    cost_usd: float
    """US dollars, as far as they are known."""
    began_at: datetime
    project: str | None

    @classmethod
    def of(cls, progress: BatchProgress) -> BatchRow:
        """The batch for a response."""
        record, states = progress.record, progress.states
        return cls(
            id=record.id,
            title=record.title,
            recipe=record.recipe,
            lines=record.lines,
            begun=progress.begun,
            ended=progress.begun - sum(states.get(each, 0) for each in _NOT_ENDED),
            failed=sum(states.get(each, 0) for each in _FAILED),
            states=dict(states),
            tokens=progress.spent.tokens,
            cost_usd=progress.spent.cost_usd,
            began_at=record.began_at,
            project=record.project,
        )


_NOT_ENDED: Final = (*OPEN_STATES, RunState.NEEDS_DECISION)
_FAILED: Final = (RunState.FAILED, RunState.LIMIT_REACHED, RunState.REJECTED)


@frozen(kw_only=True)
class Batches:
    """A part of the list of batches, the newest first."""

    batches: tuple[BatchRow, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class BatchItemsPage(Page):
    """Which part of the runs of a batch to return, and a filter."""

    status: str | None = field(default=None, metadata=STATE)


@frozen(kw_only=True)
class BatchItem:
    """A run of a batch."""

    line: int | None
    """The number of its line, from 0; null: not known."""
    run_id: str
    status: str = field(metadata=STATE)
    about: str | None
    """The first words of its inputs."""
    started_at: datetime
    finished_at: datetime | None
    usage: JsonObject
    problem: str | None


@frozen(kw_only=True)
class BatchItems:
    """A batch with a part of its runs, those that started last first."""

    batch: BatchRow
    items: tuple[BatchItem, ...]
    total: int
    limit: int
    offset: int


# --- costs ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class CostsQuery:
    """Of which runs figures are asked for, and by what they are told apart."""

    period: Literal["day", "week", "month"] = "day"
    """Up to now: 24 hours, 28 quarters of days, or 30 days in UTC."""
    by: Literal["recipe", "model", "user", "project"] = "recipe"
    recipe: str | None = field(default=None, metadata=MAYBE_TEXT)
    project: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The folder of the project in which the runs were started."""


# --- schedules ------------------------------------------------------------------------------------

_MOST_TIMES: Final = 3


@frozen(kw_only=True)
class EvaluationRow:
    """An evaluation, without its cases."""

    id: str
    title: str
    """What was evaluated on what."""
    ended_at: datetime
    project: str | None
    case_count: int
    samples: int
    """How often each case was asked."""
    at_least: float | None
    """The pass rate that each variant should reach; null: none was wanted."""
    is_passed: bool
    stopped: str | None
    """Why not all was asked; null: all was."""
    variants: tuple[VariantRecord, ...]
    comparisons: tuple[JsonObject, ...]
    """Each further variant beside the first one, with the interval of the difference at 95 %."""

    @classmethod
    def of(cls, record: EvaluationRecord) -> EvaluationRow:
        """The evaluation for a response."""
        return cls(
            id=record.id,
            title=record.title,
            ended_at=record.ended_at,
            project=record.project,
            case_count=record.case_count,
            samples=record.samples,
            at_least=record.at_least,
            is_passed=record.is_passed,
            stopped=record.stopped,
            variants=record.variants,
            comparisons=tuple(dict(each) for each in record.comparisons),
        )


@frozen(kw_only=True)
class Evaluations:
    """A part of the list of evaluations, the newest first."""

    evaluations: tuple[EvaluationRow, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class EvaluationCasesPage(Page):
    """Which part of the cases of an evaluation to return."""

    show: Literal["all", "failed", "different"] = "all"
    """`failed`: those that a variant did not pass; `different`: those in which variants differ."""

    def shows(self, case: CaseRecord) -> bool:
        """Whether that case is wanted."""
        if self.show == "failed":
            return case.is_failed
        return self.show == "all" or case.is_different


@frozen(kw_only=True)
class EvaluationCases:
    """An evaluation with a part of its cases."""

    evaluation: EvaluationRow
    cases: tuple[CaseRecord, ...]
    total: int
    """How many cases are wanted."""
    limit: int
    offset: int


@frozen(kw_only=True)
class ScheduleRow:
    """A schedule with what came of it; of a damaged one no more is known than `problem`."""

    name: str
    recipe: str | None
    cron: str | None
    timezone: str | None
    queue: str | None
    is_paused: bool
    missed: str | None
    """What becomes of times at which no worker was there: `skip`, `once` or `all`."""
    overlap: str | None
    """What becomes of a time at which the run before is still executed."""
    next: tuple[datetime, ...]
    """When it is due next, three times at most; empty: it is paused or never due."""
    last_run: str | None
    """The id of its last run; null: it has none."""
    last_status: str | None
    """The state of that run."""
    waiting: tuple[datetime, ...]
    """Due times whose runs start when earlier ones have ended."""
    skipped: datetime | None
    """The last due time that was left out; null: none was."""
    reason: str | None
    """Why it was left out."""
    skipped_count: int
    """How many due times were left out since it was added."""
    problem: str | None
    """Why it is damaged, or why a worker could not carry it out; null: neither."""

    @classmethod
    def of(cls, listed: ListedSchedule, now: datetime) -> ScheduleRow:
        """The schedule for a response."""
        schedule, progress, run = listed.schedule, listed.progress, listed.last_run
        spec = None if schedule is None else schedule.spec
        skipped = progress.skipped[-1] if progress.skipped else None
        return cls(
            name=listed.name,
            recipe=None if schedule is None else schedule.recipe_id,
            cron=None if spec is None else spec.cron,
            timezone=None if spec is None else spec.timezone,
            queue=None if schedule is None else schedule.place.name,
            is_paused=schedule is not None and schedule.is_paused,
            missed=None if spec is None else spec.missed.value,
            overlap=None if spec is None else spec.overlap.value,
            next=tuple(listed.next_times(now, _MOST_TIMES)),
            last_run=None if run is None else run.run_id,
            last_status=None if run is None else run.status,
            waiting=progress.waiting,
            skipped=None if skipped is None else skipped.due,
            reason=None if skipped is None else skipped.reason,
            skipped_count=sum(progress.skip_counts.values()),
            problem=listed.problem,
        )


@frozen(kw_only=True)
class Schedules:
    """A part of the list of schedules, by name."""

    schedules: tuple[ScheduleRow, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class VersionRow:
    """A version of a deployment."""

    number: int
    version: str | None
    """As its author counts it; null: the recipe says none."""
    digest: str
    """The fingerprint of its text."""


@frozen(kw_only=True)
class CanaryRow:
    """A version that gets a share of the new runs until it is decided about."""

    number: int
    share: float
    """Of new runs, above 0 and at most 1."""
    runs: int | None
    """How many of its runs have to end before it is decided; null: a person decides."""
    bars: tuple[str, ...]
    """What has to hold then."""
    since: datetime


@frozen(kw_only=True)
class DeploymentRow:
    """Which versions of a recipe new runs get; of a damaged one no more is known than `problem`."""

    name: str
    recipe: str | None
    live: int | None
    """The number of the version that new runs get."""
    canary: CanaryRow | None
    versions: tuple[VersionRow, ...]
    changed_at: datetime | None
    """When it was last decided about."""
    change: str | None
    """What was decided: `deployed`, `canary`, `promoted` or `withdrawn`."""
    changed_by: str | None
    """Who decided; null: its bars did, or nobody was named."""
    reason: str | None
    problem: str | None
    """Why it is damaged; null: it is not."""

    @classmethod
    def of(cls, deployment: Deployment) -> DeploymentRow:
        """The deployment for a response, without the texts of its versions."""
        canary, last = deployment.canary, next(iter(deployment.history[-1:]), None)
        return cls(
            name=deployment.name,
            recipe=deployment.recipe,
            live=deployment.live,
            canary=None
            if canary is None
            else CanaryRow(
                number=canary.number,
                share=canary.share,
                runs=canary.runs,
                bars=canary.bars,
                since=canary.since,
            ),
            versions=tuple(
                VersionRow(number=each.number, version=each.version, digest=each.digest)
                for each in deployment.versions
            ),
            changed_at=None if last is None else last.at,
            change=None if last is None else last.what,
            changed_by=None if last is None else last.by,
            reason=(last.reason or None) if last is not None else None,
            problem=None,
        )

    @classmethod
    def damaged(cls, name: str, problem: str) -> DeploymentRow:
        """One that cannot be read."""
        return cls(
            name=name,
            recipe=None,
            live=None,
            canary=None,
            versions=(),
            changed_at=None,
            change=None,
            changed_by=None,
            reason=None,
            problem=problem,
        )


@frozen(kw_only=True)
class Deployments:
    """A part of the list of deployments, by name."""

    deployments: tuple[DeploymentRow, ...]
    total: int
    limit: int
    offset: int
