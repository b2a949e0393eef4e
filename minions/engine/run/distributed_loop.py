"""A step whose items are runs of their own: queued in windows, waited for, and put in order.

Nothing of an item is held here but what its run came to. The run that has the step ends its
execution while child runs are open, and begins the step again when enough of them have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from attrs import evolve, field, frozen, mutable

from minions.contracts.executions import RunState, StepExecution, StepStatus
from minions.contracts.journal.child_run_links import (
    OPEN_STATES,
    WAITS_FOR_RUNS,
    ChildLink,
    ChildRunNames,
    ChildWait,
)
from minions.contracts.journal.facts import RunFinished, StepFailed, StepFinished, given
from minions.contracts.journal.run_rows import RunRow
from minions.contracts.messages import TokenUsage
from minions.data.errors import FailureInfo, JournalError, LeaseHeldError, MinionsError
from minions.data.json_values import JsonValue
from minions.engine.compile.build import LoopControl
from minions.engine.compile.recipe_step import WrittenStep
from minions.engine.compile.selection import ChildItem
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.recorded_calls import recorded_error, recorded_usage
from minions.engine.history.step_rows import StepRows
from minions.engine.run.child_runs import ChildRuns, SharedValues
from minions.engine.step.iteration.iterated_step import MakeExecutor, MayReuse
from minions.engine.step.iteration.loop import LOOP_FAILED, StepLoop
from minions.engine.step.work import cut_off
from minions.recipe.expressions.template import compile_template

_USUAL_WINDOW: Final = 256
"""Child runs of one step that wait or run at the same time, where the recipe says nothing."""
_AT_ONCE: Final = 200
"""Items that are worked on before other tasks get their turn."""
_MARGIN: Final = 1.25
"""By which a child run may use more than the one that used the most so far."""
_AGAIN: Final = frozenset((RunState.FAILED, RunState.PARTIAL))
_STOPPED: Final = frozenset((RunState.CANCELLED, RunState.LIMIT_REACHED))
_NO_LOOP: Final = LoopControl(
    over=compile_template([None]), aggregate=True, max_parallel=1, collects=False, min_successful=1
)
"""Of a step without a loop: it has one item."""


@mutable
class _ChildRunStates:
    """Where the child runs of a step stand."""

    ids: list[str]
    """Of the runs of all items, in their order."""
    rows: dict[int, RunRow] = field(factory=dict)
    """By index, of those that did not simply complete or are open."""
    known: bytearray = field(factory=bytearray)
    """For each item whether it has a run."""
    open: int = 0
    usage: TokenUsage = field(factory=TokenUsage)
    most: dict[str, float] = field(factory=dict)
    """The most that one of them used, by the name of the limit."""

    @property
    def ended(self) -> int:
        """How many items have a run that has ended."""
        return sum(self.known) - self.open


@frozen(kw_only=True)
class _Since:
    """From when on the ends of child runs count."""

    began: int
    """The position where the step was begun, for the first time or by a retry."""
    continued: int
    """The position of the last end of the run: what was cancelled before continues."""
    is_again: bool
    """Whether a retry began the step again."""


@frozen(kw_only=True)
class _Room:
    """Room for further child runs."""

    runs: int
    limits: Mapping[str, float] = field(factory=dict)
    """The part of each in what is left of the run's limits; {}: it has none."""


class DistributedLoop(StepLoop):
    """One execution of a distributed step, with a loop or without one."""

    def __init__(
        self,
        step: WrittenStep[object],
        control: LoopControl | None,
        context: AgentContext,
        make_executor: MakeExecutor,
        may_reuse: MayReuse,
        children: ChildRuns,
    ) -> None:
        """Take what was prepared.

        Args:
            control: None: the step has no loop.
        """
        super().__init__(step, control or _NO_LOOP, context, make_executor, may_reuse)
        self._is_single = control is None
        self._spec_step = step
        self._children = children
        self._journal = self._services.journal
        self._window = (control or _NO_LOOP).most_queued or _USUAL_WINDOW
        self._start = ""
        self._has_more = False
        """Whether items are left that found no room."""

    async def execute(self) -> StepExecution[object]:
        """As a loop within the run; with `WAITS_FOR_RUNS` as long as child runs are open.

        Raises:
            JournalError: A fact could not be stored.
            CancelledError: Passes through, after the step was recorded as cut off.
        """
        if (ended := self._replayed()) is not None:
            return ended
        try:
            items = await self._items()
        except MinionsError as problem:
            return await self._end((), problem.info(), None)
        try:
            return await self._executed(items)
        except asyncio.CancelledError:
            await self._end((), cut_off(self._step.id, self._context), None)
            raise

    async def _executed(self, items: Sequence[JsonValue]) -> StepExecution[object]:
        since = await self._begun(len(items))
        shared = await self._children.shared(self._spec_step)
        standing = await self._standing(items, shared)
        self._budget.count_children(standing.usage)
        try:
            is_refused = not await self._fill(items, shared, standing, since)
        except JournalError:
            raise  # nothing is known to have failed but the journal
        except MinionsError as problem:
            return await self._end((), problem.info(), None, child_usage=standing.usage)
        if standing.open:
            return await self._waiting(standing, len(items))
        if is_refused:
            self._budget.refuse()
            return await self._end((), self._budget.failure(), None, child_usage=standing.usage)
        return await self._collected(items, standing)

    # --- what an earlier execution recorded -------------------------------------------------------

    def _replayed(self) -> StepExecution[object] | None:
        """The recorded end; None: there is none, or what the step reads may have changed."""
        rows, replay = self._rows(), self._scope.replay
        if rows is None or rows.ended is None or replay is None or replay.checks_inputs:
            return None
        fact = rows.ended.fact
        if not isinstance(fact, StepFinished | StepFailed):
            return None
        usage, output = recorded_usage(fact.usage), given(fact.output)
        self._budget.count_children(usage)
        for entry in rows.until_end:
            self._recorder.note_replayed(entry)
        error = recorded_error(fact.error) if isinstance(fact, StepFailed) else None
        self.output_json = output
        execution: StepExecution[object] = StepExecution(
            id=f"{self._context.run_id}/{self._key}",
            step_id=self._step.id,
            status=StepStatus.FAILED if error is not None else StepStatus.COMPLETED,
            reason=error.message if error is not None else None,
            output=output if error is None else None,
            error=error,
            optional=self._step.is_optional,
            started_at=rows.rows[0].at,
            completed_at=rows.ended.at,
            duration_ms=fact.duration_ms or 0.0,
            is_partial=isinstance(fact, StepFinished) and fact.partial,
        )
        self._step_manager.record(execution)
        return execution

    def _rows(self) -> StepRows | None:
        replay = self._scope.replay
        return replay.execution(self._base) if replay is not None else None

    @property
    def _base(self) -> str:
        return self._key.partition("@")[0]

    async def _begun(self, total: int) -> _Since:
        """Record once that the step was begun: how many items it has, and where they go."""
        queue = self._services.children
        rows = self._rows()
        if rows is None or rows.started is None:
            begun = await self._record_start(
                total=total, distributed=queue.queue if queue is not None else None
            )
            began = begun.position
        else:
            began = rows.started.position
        return _Since(
            began=began,
            continued=max(began, await self._last_end()),
            is_again="@" in self._key,
        )

    async def _last_end(self) -> int:
        context = self._context
        if self._scope.replay is None:
            return 0
        entries = await self._journal.entries(
            context.session_id, run_id=context.run_id, kinds={"run"}, newest_first=True
        )
        return next((e.position for e in entries if isinstance(e.fact, RunFinished)), 0)

    # --- child runs -------------------------------------------------------------------------------

    async def _standing(self, items: Sequence[JsonValue], shared: SharedValues) -> _ChildRunStates:
        replay = self._scope.replay
        again = replay.reruns(self._base) if replay is not None else 0
        key = ChildRunNames.key_of(self._base, again)
        names = ChildRunNames(run_id=self._context.run_id, key=key, work=shared.work)
        self._start = names.start
        standing = _ChildRunStates([], known=bytearray(len(items)))
        for index, item in enumerate(items):
            standing.ids.append(names.run(index, item))
            if index % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        async for row in self._children.rows(names.start):
            at = names.index_of(row.run_id)
            if at is not None and at < len(items) and standing.ids[at] == row.run_id:
                self._note(standing, at, row)  # else of an item that has changed
        return standing

    @staticmethod
    def _note(standing: _ChildRunStates, index: int, row: RunRow) -> None:
        standing.known[index] = 1
        usage = recorded_usage(row.usage)
        standing.usage += usage
        if row.status in OPEN_STATES:
            standing.open += 1
        elif row.status != RunState.COMPLETED:
            standing.rows[index] = row
        for name, amount in _amounts(usage).items():
            standing.most[name] = max(standing.most.get(name, 0.0), amount)

    async def _fill(
        self,
        items: Sequence[JsonValue],
        shared: SharedValues,
        standing: _ChildRunStates,
        since: _Since,
    ) -> bool:
        """Queue items as far as there is room; False: there is nothing left to spend on others."""
        left = self._budget.left
        to_do = self._to_do(standing, since, is_limited=bool(left))
        if left and standing.open:  # what they will use is not known: see `_room`
            self._has_more = True
            return True
        room, count = self._room(left, standing), 0
        async for index in to_do:
            if room is None:
                return False
            if count >= room.runs:
                self._has_more = True
                break
            link = self._link(since, room)
            await self._queue(index, items[index], shared, standing, link)
            count += 1
        return True

    def _link(self, since: _Since, room: _Room) -> ChildLink:
        return ChildLink(
            run_id=self._context.run_id,
            session_id=self._context.session_id,
            step_id=self._path,
            since=since.continued,
            share=room.runs if room.limits else 1,
            limits=room.limits,
        )

    async def _to_do(
        self, standing: _ChildRunStates, since: _Since, *, is_limited: bool
    ) -> AsyncIterator[int]:
        """The items without a run, and those whose run is to be continued, in their order."""
        for index, is_known in enumerate(standing.known):
            row = standing.rows.get(index)
            is_again = row is not None and await self._is_to_do(row, since, is_limited=is_limited)
            if is_again or not is_known:
                yield index

    async def _is_to_do(self, row: RunRow, since: _Since, *, is_limited: bool) -> bool:
        """Whether an item whose run ended is executed again; costs a look-up only where it may be.

        A retry executes failed ones, a resume those that were cancelled with the run, and one that
        used up its share gets another one.
        """
        may_be = since.is_again or (row.status in _STOPPED and since.continued > since.began)
        has_share = is_limited and row.status == RunState.LIMIT_REACHED
        if not (may_be or has_share):
            return False
        link = await self._children.link(row)
        if link is None:
            return False
        if row.status in _AGAIN:
            return link.since < since.began
        return link.since < since.continued or (has_share and link.share > 1)

    def _room(self, left: Mapping[str, float], standing: _ChildRunStates) -> _Room | None:
        """How many child runs are queued now; None: nothing is left for them.

        Under a limit each of them has an equal part of what is left. The first one is alone: what
        one uses is not known yet.
        """
        window = self._window - standing.open
        if not left:
            return _Room(runs=window)
        if any(amount <= 0 for amount in left.values()):
            return None
        fits = [
            int(amount / (most * _MARGIN))
            for name, amount in left.items()
            if (most := standing.most.get(name, 0.0)) > 0
        ]
        count = min(window, standing.known.count(0) + len(standing.rows))
        runs = max(1, min([count, *fits])) if any(standing.known) else 1
        return _Room(runs=runs, limits={name: amount / runs for name, amount in left.items()})

    async def _queue(
        self,
        index: int,
        item: JsonValue,
        shared: SharedValues,
        standing: _ChildRunStates,
        link: ChildLink,
    ) -> None:
        queue = self._services.children
        assert queue is not None  # noqa: S101  # else nothing is distributed
        row = standing.rows.get(index)
        if row is not None and link.limits:  # what it used before counts against its limits
            used = _amounts(recorded_usage(row.usage))
            limits = {name: amount + used[name] for name, amount in link.limits.items()}
            link = evolve(link, limits=limits)
        if row is None:
            own = ChildItem() if self._is_single else ChildItem(index=index, value=item)
            run = self._children.new(shared, own, standing.ids[index], link)
        else:
            run = await self._children.again(row, link)
        with contextlib.suppress(LeaseHeldError):  # else another process queued or executes it
            await queue.put(run)
        standing.rows.pop(index, None)
        standing.known[index] = 1
        standing.open += 1

    async def _waiting(self, standing: _ChildRunStates, total: int) -> StepExecution[object]:
        """The end of this execution of the step, which is no end of the step."""
        is_limited = bool(self._budget.left)
        most_open = standing.open // 2 if self._has_more and not is_limited else 0
        wait = ChildWait(start=self._start, most_open=most_open)
        self._progress.add_child_wait(wait)
        error = FailureInfo(
            code=WAITS_FOR_RUNS,
            message=f"Step '{self._step.id}' waits for child runs: {standing.ended} of {total} "
            "have ended.",
            where=self._path,
        )
        return await self._end((), error, None, child_usage=standing.usage)

    # --- the end ----------------------------------------------------------------------------------

    async def _collected(
        self, items: Sequence[JsonValue], standing: _ChildRunStates
    ) -> StepExecution[object]:
        """What all child runs came to, in the order of the items."""
        executions: list[StepExecution[object]] = []
        outputs: list[JsonValue] = []
        for index, run_id in enumerate(standing.ids):
            row = standing.rows.get(index)
            execution = await self._children.execution(self._step, run_id, row)
            self._weigh(output := _as_json(execution))
            executions.append(execution)
            outputs.append(output)
            if index % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if self._is_too_large:
                break
        error = self._failure(executions, len(items))
        if self._is_single:
            return await self._single(executions[0], standing.usage)
        if error is None or error.code == LOOP_FAILED:
            self.output_json = self._output(executions, items, outputs)
        typed = self._typed_output(executions) if error is None else None
        is_partial = error is None and any(
            not each.is_complete or each.is_partial for each in executions
        )
        return await self._end(
            tuple(executions), error, typed, is_partial=is_partial, child_usage=standing.usage
        )

    async def _single(
        self, execution: StepExecution[object], usage: TokenUsage
    ) -> StepExecution[object]:
        error = execution.error
        if error is None:
            self.output_json = _as_json(execution)
        return await self._end(
            (),
            evolve(error, where=error.where or self._path) if error is not None else None,
            execution.output,
            is_partial=execution.is_partial,
            child_usage=usage,
        )


def _as_json(execution: StepExecution[object]) -> JsonValue:
    return execution.output  # type: ignore[return-value]  # it was read from the journal


def _amounts(usage: TokenUsage) -> Mapping[str, float]:
    """What counts against limits, by their names."""
    return {"max_tokens": float(usage.total_tokens), "max_cost_usd": usage.cost_usd or 0.0}
