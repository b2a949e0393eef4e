"""Executes a batch: one run per line, several at a time, with results in the order of the lines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from attrs import evolve, field, frozen, mutable
from attrs.validators import ge

from minions.contracts.context import Limits
from minions.contracts.executions import AgentResult, RunState, RunStatus, StepStatus
from minions.contracts.journal.facts import given
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.messages import TokenUsage
from minions.data.errors import (
    CIRCUIT_OPEN,
    LIMIT_REACHED,
    UNREACHABLE,
    BudgetSpentError,
    FailureInfo,
    LeaseHeldError,
    UsageError,
)
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.batches.lines import BatchLine, RunNames
from minions.engine.batches.result import NOT_STARTED, BatchResult
from minions.engine.history.recorded_calls import (
    recorded_end,
    recorded_error,
    recorded_step_failures,
    recorded_usage,
)
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recipe_changes import is_same_json
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.run_services import room_for_more
from minions.engine.services.spending import Spending
from minions.engine.step.work import lacks_memory
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import bundle_of

OnResult: TypeAlias = Callable[[BatchResult], None]
Execute: TypeAlias = Callable[[AgentRun[object]], Awaitable[AgentResult[object]]]
"""Executes a prepared run."""
Enqueue: TypeAlias = Callable[[AgentRun[object]], Awaitable[object]]
"""Records a prepared run as queued, and submits it."""

_MOST_AHEAD: Final = 1_000
"""How many lines after the first unfinished one may be started, if no more are to run at a time:
their results are in memory."""
_PAGE: Final = 500
_QUEUED_MARK: Final = "queue"
_OF_ALL_LINES: Final = frozenset(
    {
        *("bad-cassette", "bad-model-name", "bad-script", "key-not-allowed", "no-model"),
        *("unknown-model", "unknown-provider"),
    }
)
"""Codes of refusals of a model: no line could be asked."""
_RESUMED: Final = frozenset((RunState.INTERRUPTED, RunState.CANCELLED, RunState.LIMIT_REACHED))
_RETRIED: Final = frozenset((RunState.FAILED, RunState.PARTIAL))


@frozen(kw_only=True)
class BatchPlan:
    """How a batch is executed."""

    name: str
    """Batches of one name are one batch: recorded lines are not run again."""
    concurrency: int = field(default=8, validator=ge(1))
    """Runs at a time."""
    max_cost_usd: float | None = None
    """US dollars of all runs together, those of earlier processes too; None: unlimited."""
    worst_case_usd: float | None = None
    """What one run may cost at most; None: not known."""
    retry_failed: bool = False
    """Whether lines that failed, wholly or in part, are retried."""
    retry_outages: bool = False
    """Whether lines are retried that failed, wholly or in part, without an answer of the model: see
    `BatchResult.outage`."""
    note: Mapping[str, JsonValue] = field(factory=dict)
    """Stored with the start of each run."""
    user: str | None = None
    """The label of the user for whom new runs are executed; None: none."""


class Batch:
    """One execution of a batch; `async for` over it gives the results in the order of the lines.

    Leaving the loop early cancels what is under way; what was done is recorded.
    """

    def __init__(
        self,
        executor: AgentExecutor,
        recipe: AgentRecipe,
        lines: Iterable[BatchLine],
        plan: BatchPlan,
        *,
        execute: Execute | None = None,
        enqueue: Enqueue | None = None,
        on_begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Nothing is read and nothing has begun.

        Args:
            recipe: With `plan.max_cost_usd` among its limits, so that prices are checked.
            lines: Read once, as far as they are needed.
            execute: Executes a run; None: `run.execute()`.
            enqueue: Queues a run for a worker instead; None: runs are executed here.
            on_begin: Called once before the first line; None: nothing.
        """
        self._executor = executor
        self._journal = executor.services.journal
        self._clock = executor.services.clock
        self._recipe = recipe
        self._lines = lines
        self._plan = plan
        self._execute = execute or _execute
        self._enqueue = enqueue
        self._on_begin = on_begin
        self._names = RunNames(plan.name)
        self._budget = BatchBudget(plan.max_cost_usd, plan.worst_case_usd)
        self._has_earlier = False
        self._active: dict[str, AgentRun[object]] = {}
        self._listeners: list[OnResult] = []
        self.stopped_by: FailureInfo | None = None
        """Why no further line was started; None: all were."""

    def listen(self, on_result: OnResult) -> None:
        """Call `on_result` with each result as soon as it is there, in no particular order."""
        self._listeners.append(on_result)

    def cancel(self) -> None:
        """Start no further line and cancel the runs under way; the results then end soon."""
        self._stop(FailureInfo(code="cancelled", message="The batch was cancelled."))
        for run in list(self._active.values()):
            run.cancel()

    def is_own(self, run_id: str) -> bool:
        """Whether a run with that id is one of the batch."""
        return run_id.startswith(self._names.start)

    async def earlier_start(self) -> Mapping[str, JsonValue] | None:
        """The note of the newest run of the batch; None: nothing of it is recorded."""
        rows = await self._journal.runs(RunFilter(id_start=self._names.start), limit=1)
        if not rows:
            return None
        run = rows[0]
        entries = await self._journal.entries(run.session_id, run_id=run.run_id, limit=1)
        body = entries[0].body if entries else {}
        note = body.get("note")
        return note if isinstance(note, Mapping) else {}

    async def __aiter__(self) -> AsyncIterator[BatchResult]:
        """Execute the batch.

        Raises:
            EnvironmentRefusedError: There is no model, a secret is missing, or the journal refuses.
            UsageError: The model is refused, for every line.
        """
        await self._look_back()
        if self._on_begin is not None:
            await self._on_begin()
        tasks: deque[asyncio.Task[BatchResult]] = deque()
        running: set[asyncio.Task[BatchResult]] = set()
        lines = iter(self._lines)
        try:
            while self._fill(lines, tasks, running) or running:
                if running:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        self._tell(task.result())
                while tasks and tasks[0].done():
                    yield tasks.popleft().result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, *tasks, return_exceptions=True)

    def _fill(
        self,
        lines: Iterator[BatchLine],
        tasks: deque[asyncio.Task[BatchResult]],
        running: set[asyncio.Task[BatchResult]],
    ) -> bool:
        """Start lines as far as there is room; whether one was started."""
        count = 0
        most = max(_MOST_AHEAD, self._plan.concurrency)
        while len(running) < self._plan.concurrency and len(tasks) < most:
            line = next(lines, None)
            if line is None:
                break
            task = asyncio.ensure_future(self._result(line))
            tasks.append(task)
            running.add(task)
            count += 1
        return count > 0

    def _tell(self, result: BatchResult) -> None:
        for listener in self._listeners:
            listener(result)

    def _stop(self, reason: FailureInfo) -> None:
        self.stopped_by = self.stopped_by or reason

    async def _look_back(self) -> None:
        """Whether anything of the batch is recorded, and under a limit what it cost."""
        after: RunRow | None = None
        wanted = RunFilter(id_start=self._names.start)
        limit = _PAGE if self._budget.is_limited else 1
        while rows := await self._journal.runs(wanted, limit=limit, after=after):
            self._has_earlier = True
            for row in rows:
                self._budget.count_recorded(row.usage.get("cost_usd"))
            if len(rows) < _PAGE:
                return
            after = rows[-1]

    # --- one line -----------------------------------------------------------------------------

    async def _result(self, line: BatchLine) -> BatchResult:
        earlier = await self._earlier(line)
        run_id = self._names.run_id(line)
        row = next((row for row in earlier if row.run_id == run_id), None)
        if row is not None and not self._is_to_run(row):
            recorded = await self._recorded_result(line, row)
            if not self._is_outage(recorded):
                return recorded
        result = await self._execute_line(line, row)
        if result is None and row is not None:
            return await self._recorded_result(line, row)
        if result is None:
            result = BatchResult(index=line.index, run_id=None, status=NOT_STARTED)
        return evolve(result, is_changed=row is None and bool(earlier), kept=line.kept)

    async def _earlier(self, line: BatchLine) -> list[RunRow]:
        """The runs of that line in earlier executions of the batch."""
        if not self._has_earlier:
            return []
        return list(await self._journal.runs(RunFilter(id_start=self._names.start_of(line))))

    def _is_to_run(self, row: RunRow) -> bool:
        if row.mark == _QUEUED_MARK and row.status == RunState.INTERRUPTED:
            return False  # a worker has it, or gets it again
        return row.status in _RESUMED or (self._plan.retry_failed and row.status in _RETRIED)

    def _is_outage(self, recorded: BatchResult) -> bool:
        is_over = recorded.status in _RETRIED
        return self._plan.retry_outages and is_over and recorded.outage is not None

    async def _recorded_result(self, line: BatchLine, row: RunRow) -> BatchResult:
        """The recorded result; nothing is done."""
        output, error = None, None
        failures: tuple[FailureInfo, ...] = ()
        if row.problem is not None:
            error = FailureInfo(code="corrupt-entry", message=row.problem)
        elif row.ended_at is not None:
            end = await recorded_end(self._journal, row)
            if end is not None:
                output = given(end.output)
                found = given(end.error)
                error = recorded_error(found) if isinstance(found, Mapping) else None
            if row.status == RunState.PARTIAL:
                failures = await recorded_step_failures(self._journal, row)
        return BatchResult(
            index=line.index,
            run_id=row.run_id,
            status=row.status,
            kept=line.kept,
            output=output,
            error=error,
            step_failures=failures,
            usage=recorded_usage(row.usage),
            duration_ms=_duration_ms(row),
            is_recorded=True,
        )

    async def _execute_line(self, line: BatchLine, row: RunRow | None) -> BatchResult | None:
        """The result of running the line; None: it may not start."""
        await room_for_more(self._executor.services)
        if self.stopped_by is not None:
            return None
        async with self._budget.share() as share:
            if share is None:
                self._stop(self._spent_failure())
            if share is None or self.stopped_by is not None:
                return None
            try:
                run = await self._prepare_run(line, row)
                await run.check_budgets()
                if self._enqueue is not None:
                    await self._enqueue(run)
                    return BatchResult(index=line.index, run_id=run.run_id, status=RunState.QUEUED)
                return await self._finish_line(line, run, share, row)
            except BudgetSpentError as error:
                share.cost = 0.0
                self._stop(error.info())
                return None
            except LeaseHeldError as error:  # another process executes this very line
                return BatchResult(
                    index=line.index,
                    run_id=self._names.run_id(line),
                    status=RunState.RUNNING,
                    error=error.info(),
                )
            except UsageError as error:
                if error.error_code in _OF_ALL_LINES:
                    raise
                share.cost = 0.0  # of this line alone, such as a folder that is not there
                return BatchResult(
                    index=line.index,
                    run_id=row.run_id if row is not None else None,
                    status=RunState.FAILED,
                    error=error.info(),
                )

    async def _prepare_run(self, line: BatchLine, row: RunRow | None) -> AgentRun[object]:
        """The run of the line: new, resumed or retried."""
        if row is None:
            return await match_beside_loop(
                lambda: self._executor.prepare(
                    self._recipe,
                    line.inputs,
                    run_id=self._names.run_id(line),
                    session_id=self._names.session_id(line),
                    note=self._plan.note,
                    user=self._plan.user,
                )
            )
        recorded = await load_recorded_run(self._journal, row.run_id)
        recipe, is_edited = self._recipe_for(recorded)
        note = {**recorded.note, **self._plan.note}
        if row.status in (RunState.INTERRUPTED, RunState.CANCELLED):
            own = recorded.recipe(self._executor.catalog) if is_edited else recipe
            return self._executor.prepare_resume(recorded, recipe=own, note=note)
        return self._executor.prepare_retry(recorded, recipe=recipe, is_edited=is_edited, note=note)

    def _recipe_for(self, recorded: RecordedRun) -> tuple[AgentRecipe, bool]:
        """The batch's recipe, and whether it differs from the one that the run has."""
        if recorded.document is None:
            return self._recipe, False
        is_same = is_same_json(recorded.document, self._recipe.document or {})
        return self._recipe, not (
            is_same and is_same_json(recorded.bundle, bundle_of(self._recipe))
        )

    async def _finish_line(
        self, line: BatchLine, run: AgentRun[object], share: Share, row: RunRow | None
    ) -> BatchResult:
        if self._budget.is_limited:
            is_counted = row is not None and bool(row.usage.get("cost_usd"))
            run.context.progress.budget.share(self._budget.spending, counts_replayed=not is_counted)
        self._active[run.run_id] = run
        begin = self._clock.monotonic()
        try:
            result = await self._execute(run)
        finally:
            del self._active[run.run_id]
        duration_ms = round((self._clock.monotonic() - begin) * 1000, 3)
        share.cost = _new_cost(result, row)
        finds_no_model = result.error is not None and (
            result.error.code in (UNREACHABLE, CIRCUIT_OPEN)
            or any(map(lacks_memory, result.executions))
        )
        if finds_no_model and result.error is not None:
            self._stop(result.error)
        return BatchResult(
            index=line.index,
            run_id=result.run_id,
            status=result.status,
            output=result.output,
            error=result.error,
            step_failures=_step_failures(result),
            usage=result.usage,
            duration_ms=duration_ms,
        )

    def _spent_failure(self) -> FailureInfo:
        budget, most = self._budget, self._plan.max_cost_usd
        return FailureInfo(
            code=LIMIT_REACHED,
            message=f"${budget.spent:.6g} of the batch's ${most:g} are spent, and one more line "
            f"may cost ${budget.expected or 0:.2g}. What was done is recorded.",
        )


async def _execute(run: AgentRun[object]) -> AgentResult[object]:
    return await run.execute()


def _step_failures(result: AgentResult[object]) -> tuple[FailureInfo, ...]:
    if result.status is not RunStatus.PARTIAL:
        return ()
    ended = (each for each in result.executions if each.status is StepStatus.FAILED)
    return tuple(each.error for each in ended if each.error is not None)


def _duration_ms(row: RunRow) -> float | None:
    if row.ended_at is None:
        return None
    return round((row.ended_at - row.started_at).total_seconds() * 1000, 3)


def _new_cost(result: AgentResult[object], row: RunRow | None) -> float | None:
    """What this execution of the run cost; None: not known.

    The sum of a retry may lack what failed before it, so that all of the sum counts.
    """
    cost = result.usage.cost_usd
    if cost is None:
        return None if result.usage.total_tokens else 0.0
    before = row.usage.get("cost_usd") if row is not None and row.status in _RESUMED else None
    return max(0.0, cost - (before or 0.0))


# --- the cost limit of a batch: a run starts only if what it may cost is left --------------------


_ROUNDING = 1e-9
"""US dollars by which sums of costs may differ."""


@mutable(eq=False)
class Share:
    """The part of the budget that is reserved for one run."""

    reserved: float
    """US dollars that it is expected to cost at most."""
    cost: float | None = None
    """What it cost, in US dollars; None: not known, so that the reserved amount counts."""


class BatchBudget:
    """The US dollars that a batch may cost in total, with those of earlier processes.

    A running run counts with what it may cost at most. Where that is not known, it counts with the
    cost of the dearest run so far, and the first run is executed alone. The calls of all runs spend
    from `spending`, so that runs that are dearer than expected do not exceed the limit together.
    """

    def __init__(self, most: float | None, worst_case: float | None) -> None:
        """Start with nothing spent.

        Args:
            most: The limit; None: unlimited.
            worst_case: What one run may cost at most; None: not known.
        """
        self._most = most
        known = worst_case is not None and most is not None and worst_case <= most
        self._worst_case = worst_case if known else None
        self._dearest: float | None = None
        self._shares: list[Share] = []
        self._changed = asyncio.Condition()
        self.spending = Spending(lambda: Limits(max_cost_usd=most), whose="batch's")
        self.spent = 0.0
        self.is_spent = False
        """Whether a run could not start because too little is left."""

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._most is not None

    @property
    def expected(self) -> float | None:
        """What one further run is expected to cost at most; None: not known yet."""
        return self._dearest if self._worst_case is None else self._worst_case

    @property
    def left(self) -> float:
        """What is neither spent nor reserved."""
        reserved = sum(share.reserved for share in self._shares)
        return (self._most or 0.0) - self.spent - reserved

    def count_recorded(self, cost: float | None) -> None:
        """Count a run that an earlier process executed; None: its cost is not known."""
        self.count(cost)
        if cost:
            self.spending.add(TokenUsage(cost_usd=cost))

    def count(self, cost: float | None) -> None:
        """Count the cost of a run; None: it is not known, and nothing is counted."""
        if cost:  # a run that cost nothing says nothing about the others
            self.spent += cost
            self._dearest = max(self._dearest or 0.0, cost)

    @asynccontextmanager
    async def share(self) -> AsyncIterator[Share | None]:
        """The share of one run, as soon as it is left; None: it will not be."""
        share = await self._reserve()
        try:
            yield share
        finally:
            if share is not None:
                await self._settle(share)

    async def _reserve(self) -> Share | None:
        async with self._changed:
            while not self.is_spent:
                if self._fits():
                    share = Share(reserved=min(self.expected or 0.0, self.left))
                    self._shares.append(share)
                    return share
                if not self._shares:
                    self.is_spent = True
                    break
                await self._changed.wait()
            return None

    def _fits(self) -> bool:
        if self._most is None:
            return True
        if self.left <= _ROUNDING:
            return False
        if self.expected is None:
            return not self._shares
        return self.expected <= self.left + _ROUNDING

    async def _settle(self, share: Share) -> None:
        async with self._changed:
            self._shares.remove(share)
            self.count(share.reserved if share.cost is None else share.cost)
            self._changed.notify_all()
