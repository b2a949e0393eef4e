"""Walks a dependency graph: ready steps together or one at a time, failures kept from spreading.

A step that sends the run back to an earlier one (`BackEdges`) withdraws what came after that.
"""

from __future__ import annotations

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.flow import STARTED_TOGETHER
from minions.contracts.journal.facts import BackEdge, StepWithdrawn
from minions.contracts.steps import Step
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.selection import ChosenSteps, DependencyStepGraph
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.run_progress import Feedback
from minions.engine.step.work import CUT_OFF
from minions.recipe.model import OnError


class Skip(Struct, frozen=True):
    """Why a step is passed over."""

    reason: str


_FAILED: Final = StepStatus.FAILED


class BackEdges(ABC):
    """Where failures of steps lead."""

    @abstractmethod
    def target(self, step: Step[object]) -> str | None:
        """The id of the step that runs again because this one failed; None: none does."""

    @abstractmethod
    def is_passable(self, step: Step[object]) -> bool:
        """Whether steps that do not read it run although it failed."""

    @abstractmethod
    def leaves_results(self, step: Step[object]) -> bool:
        """Whether steps that read it run although it failed."""

    @abstractmethod
    async def withdraw(self, step: Step[object]) -> None:
        """The step runs again: its result, and what it waits for, count no more."""

    @abstractmethod
    async def follow(self, step: Step[object]) -> None:
        """The back edge of that failed step is followed; all that it leads over is withdrawn."""


class DependencyWalk:
    """One walk through one graph. Ready-counts, so a step costs the same however long the run."""

    def __init__(
        self,
        graph: DependencyStepGraph,
        *,
        run: Callable[[Step[object]], Awaitable[StepStatus]],
        skip: Callable[[Step[object], Skip], Awaitable[None]],
        stop_reason: Callable[[Step[object]], str | None],
        back_edges: BackEdges,
        is_brief: Callable[[Step[object]], bool],
        max_parallel: int,
        room: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Begin with the steps that depend on none.

        Args:
            run: Runs one step and gives its status (SKIPPED when its condition is false,
                IN_PROGRESS when it waits for a decision).
            skip: Records a step that is passed over.
            stop_reason: Asked before each start; a text means that the step does not start.
            back_edges: Where failures lead.
            is_brief: Whether a step waits for nothing: then a task of its own is not worth it.
            room: Awaited now and then before a further step starts; None: nothing is waited for.
        """
        self._graph = graph
        self._steps = graph.steps
        self._run = run
        self._skip = skip
        self._stop_reason = stop_reason
        self._back_edges = back_edges
        self._is_brief = is_brief
        self._returns: list[tuple[int, int]] = []
        """Pairs of target and failed step, followed as soon as no step runs."""
        self._max_parallel = max_parallel
        self._room = room
        self._waiting = graph.wait_counts()
        self._ready = [at for at, count in enumerate(self._waiting) if count == 0]  # a heap
        self._fate: dict[int, StepStatus] = {}
        self._is_spoilt: set[int] = set()
        """Steps that failed, or were skipped because of one that did."""
        self._readable: set[int] = set()
        """Steps that failed and may be read all the same."""
        self._has_gaps = False
        """Whether any step so far failed or was skipped: else all inputs are there."""
        self._running: dict[asyncio.Task[StepStatus], int] = {}
        self._ended: asyncio.Queue[asyncio.Task[StepStatus]] | None = None
        """None: no step had a task so far."""

    async def walk(self) -> None:
        """Until every step has ended or was passed over."""
        running, steps = self._running, self._steps
        try:
            while self._ready or running or self._returns:
                ready = self._ready
                while ready and len(running) < self._max_parallel and not self._returns:
                    position = heapq.heappop(ready)
                    skip = self._skip_for(position)
                    if skip is not None:
                        await self._skip(steps[position], skip)
                        self._settle(position, StepStatus.SKIPPED)
                    elif self._is_brief(steps[position]) or (
                        not running and (self._max_parallel == 1 or not ready)
                    ):
                        # No task: it takes no time, or nothing else could become ready meanwhile.
                        self._settle_or_leave(position, await self._run(steps[position]))
                    else:
                        await self._start(position)
                if running:
                    await self._wait_for_one()
                elif self._returns:
                    await self._go_back()
        except BaseException:
            await self._stop_the_others()
            raise

    async def _start(self, position: int) -> None:
        """Run the step in a task of its own."""
        task = asyncio.ensure_future(self._run(self._steps[position]))
        if self._ended is None:
            self._ended = asyncio.Queue()
        task.add_done_callback(self._ended.put_nowait)
        self._running[task] = position
        if self._room is not None and len(self._running) % STARTED_TOGETHER == 0:
            await asyncio.sleep(0)  # what has begun can join the line of its server
            await self._room()

    async def _wait_for_one(self) -> None:
        ended = self._ended
        assert ended is not None  # noqa: S101  # asked only while tasks run
        self._take(await ended.get())
        while not ended.empty():
            self._take(ended.get_nowait())

    def _take(self, task: asyncio.Task[StepStatus]) -> None:
        # Out of the list only after its result: what raises is gathered with the others.
        self._settle_or_leave(self._running[task], task.result())
        del self._running[task]

    async def _stop_the_others(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _skip_for(self, position: int) -> Skip | None:
        """A failed dependency, one passed over that it reads, all passed over, or a stopped run."""
        if not self._has_gaps:
            stopped = self._stop_reason(self._steps[position])
            return Skip(stopped) if stopped is not None else None
        needs = self._graph.needs(position)
        steps = self._steps
        for other in needs:
            if other in self._is_spoilt:
                word = "failed" if self._fate[other] is StepStatus.FAILED else "was skipped"
                self._is_spoilt.add(position)
                return Skip(f"its dependency '{steps[other].id}' {word}")
        skipped = [other for other in needs if self._fate[other] is StepStatus.SKIPPED]
        reads = self._graph.reads(position)
        for other in needs:
            if self._fate[other] is _FAILED and other in reads - self._readable:
                return Skip(f"its dependency '{steps[other].id}' failed")
        for other in skipped:
            # A join goes on with the branch that was taken; what reads the other one cannot.
            if other in reads or len(skipped) == len(needs):
                return Skip(f"its dependency '{steps[other].id}' was skipped")
        stopped = self._stop_reason(steps[position])
        return Skip(stopped) if stopped is not None else None

    def _settle_or_leave(self, position: int, status: StepStatus) -> None:
        """A step that waits for a person has no end: what depends on it does not begin."""
        if status is StepStatus.IN_PROGRESS:
            return
        target = self._back_edges.target(self._steps[position]) if status is _FAILED else None
        if target is not None:
            self._returns.append((self._graph.index(target), position))
            return
        self._settle(position, status)
        if status is not _FAILED:
            return
        step = self._steps[position]
        if self._back_edges.leaves_results(step):
            self._readable.add(position)
            self._is_spoilt.discard(position)
        elif self._back_edges.is_passable(step):
            self._is_spoilt.discard(position)

    async def _go_back(self) -> None:
        """Steps to which failures lead back, with all that depends on them, are to be done."""
        affected: set[int] = set()
        failed = [position for _, position in self._returns]
        pending = [position for pair in self._returns for position in pair]
        self._returns.clear()
        while pending:
            position = pending.pop()
            if position not in affected:
                affected.add(position)
                pending.extend(self._graph.dependents(position))
        counts = self._graph.wait_counts()
        for settled in self._fate.keys() - affected:
            for other in self._graph.dependents(settled):
                counts[other] -= 1
        for position in affected:
            self._fate.pop(position, None)
            self._is_spoilt.discard(position)
            self._readable.discard(position)
            self._waiting[position] = counts[position]
            await self._back_edges.withdraw(self._steps[position])
        for position in failed:
            await self._back_edges.follow(self._steps[position])
        await asyncio.sleep(0)  # steps may take no time, and others wait: a timeout, a person
        again = [position for position in affected if counts[position] == 0]
        self._ready = [*(at for at in self._ready if at not in affected), *again]
        heapq.heapify(self._ready)

    def _settle(self, position: int, status: StepStatus) -> None:
        self._fate[position] = status
        if status is not StepStatus.COMPLETED:
            self._has_gaps = True
        if status is StepStatus.FAILED:
            self._is_spoilt.add(position)
        for other in self._graph.dependents(position):
            self._waiting[other] -= 1
            if self._waiting[other] == 0:
                heapq.heappush(self._ready, other)


WITHDRAWN: Final = "the run went back before somebody decided"
"""Why a step that waited counts no more."""


class RecipeBackEdges(BackEdges):
    """Those of one recipe in one run.

    A failure is planned as a back edge when it happens; the fact is recorded only after the steps
    that the edge leads over are withdrawn, so that after a crash between the two nobody is asked
    to decide about a call that will not be made.
    """

    def __init__(
        self, context: AgentContext, built: BuiltRecipe, chosen: ChosenSteps | None
    ) -> None:
        """Begin without any failure.

        Args:
            chosen: The steps that run: no edge leads to another one. None: all run.
        """
        self._context = context
        self._scope = context.scope
        self._step_manager = context.step_manager
        self._values = context.run_values
        self._built = built
        self._chosen = chosen
        self.waiting: list[StepExecution[object]] = []
        """Executions that wait for a person's decision."""
        self.readable: set[str] = set()
        """Ids of failed loops whose results later steps read."""
        self._counts: dict[str, int] = {}
        """How often each step's edge was followed since the run began or was retried."""
        self._planned: dict[str, BackEdge] = {}
        """By the id of the step that failed just now."""

    def plan(self, step: Step[object], execution: StepExecution[object]) -> bool:
        """Whether the step's failure leads back; if so, later steps read it as feedback."""
        rule, error = self._built.control(step.id).on_error, execution.error
        if rule.goto is None or error is None or error.code in CUT_OFF:
            return False
        replay, words = self._scope.replay, self._context.words
        visit = self._step_manager.visits(step.id)
        key = self._scope.base_key(step.id, visit)
        before, retried_at = None, 0
        if replay is not None:
            before, retried_at = replay.back_edges(key), replay.retried_at
        # Edges that were followed before a retry do not count against the retry's own.
        is_past = before is not None and before.position < retried_at
        times = self._counts.get(step.id, 0)
        if times >= rule.max_times and not is_past:
            return False
        if self._chosen is not None and rule.goto not in self._chosen.runs:
            return False
        if not is_past:
            self._counts[step.id] = times + 1
        feedback = Feedback(
            step_id=step.id,
            to=rule.goto,
            code=error.code,
            message=error.message,
            attempt=times + 1 if before is None else before.attempt,
        )
        self._planned[step.id] = self._fact(feedback)
        self._step_manager.take_back_failure()
        self._values.give_feedback(feedback)
        if words is not None:
            words.keep(step.id)
        return True

    def _fact(self, feedback: Feedback) -> BackEdge:
        scope = self._scope
        return BackEdge(
            step=feedback.step_id,
            to=scope.path_of(feedback.to),
            code=feedback.code,
            message=feedback.message,
            attempt=feedback.attempt,
            step_id=scope.path_of(feedback.step_id),
        )

    def target(self, step: Step[object]) -> str | None:
        """The `goto` of its `on_error`, where that is planned."""
        return self._built.control(step.id).on_error.goto if step.id in self._planned else None

    def keep_results(self, step: Step[object]) -> None:
        """It is a failed loop whose results later steps read."""
        self.readable.add(step.id)

    def add_waiting(self, execution: StepExecution[object]) -> None:
        """It waits for a person's decision."""
        self.waiting.append(execution)

    def leaves_results(self, step: Step[object]) -> bool:
        """Whether it is a loop whose failure the recipe allows."""
        return step.id in self.readable

    def is_passable(self, step: Step[object]) -> bool:
        """Whether its `on_error` is `continue`."""
        return self._built.control(step.id).on_error.action is OnError.CONTINUE

    async def withdraw(self, step: Step[object]) -> None:
        """Nobody reads its result any more, and nobody is asked to decide about it."""
        scope = self._scope
        self.readable.discard(step.id)
        for execution in [each for each in self.waiting if each.step_id == step.id]:
            self.waiting.remove(execution)
            withdrawn = StepWithdrawn(
                step_id=scope.path_of(step.id), status=StepStatus.SKIPPED.value, reason=WITHDRAWN
            )
            await scope.recorder.record(execution.id.removeprefix(f"{scope.run_id}/"), withdrawn)
        self._values.withdraw(step.id, self._built.control(step.id).save_as)

    async def follow(self, step: Step[object]) -> None:
        """Record the edge that the step's failure was planned as."""
        edge, scope = self._planned.pop(step.id), self._scope
        key = scope.execution_key(step.id, self._step_manager.visits(step.id))
        await scope.recorder.record(f"{key}/goto", edge)
        target = self._built.control(step.id).on_error.goto
        scope.log_info("went_back", step_id=step.id, to=target)
