"""Workers in one process that execute runs with distributed steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen, mutable

from builders import fake_tool
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.calls import ChatModel
from minions.contracts.dispatch import Job, JobEnd, WorkerPlan
from minions.contracts.executions import RunState
from minions.contracts.journal.child_run_links import child_runs_start
from minions.contracts.journal.facts import RunFinished, given
from minions.contracts.journal.journal import EntryDraft, Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.runtime import SystemClock
from minions.contracts.tools import Effect, Toolbox
from minions.data.json_values import JsonValue
from minions.engine.calls.pending_decisions import pending_decisions
from minions.engine.compile.extensions import Extensions
from minions.engine.history.recorder import acquire_lease
from minions.engine.history.replay import Replay
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.engine.views.lookup import find_run
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.worker.worker import Worker, WorkerRuntime
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text
from patience import HANG_S

__all__ = ["Site", "Work", "double"]

Work = Callable[[Mapping[str, JsonValue]], Awaitable[object]]
_PLACE: Final = QueuePlace()


async def double(arguments: Mapping[str, JsonValue]) -> object:
    number = arguments["n"]
    assert isinstance(number, int)
    return number * 2


@frozen(kw_only=True)
class Ended:
    """What became of a run."""

    row: RunRow
    output: JsonValue
    usage: Mapping[str, JsonValue]


@mutable
class Site:
    """One journal, one queue, and what tools did."""

    recipe_text: str
    folder: Path = Path("/nowhere")
    work: Work = double
    model: ChatModel = field(factory=lambda: ScriptedModel([]))
    journal: Journal = field(factory=lambda: MemoryJournal(SystemClock()))
    engine: LocalDispatch = field(factory=lambda: LocalDispatch(SystemClock()))
    calls: Counter[str] = field(factory=Counter)
    """By their arguments."""
    _numbers: int = 0

    @property
    def recipe(self) -> AgentRecipe:
        return load_recipe_text(
            self.recipe_text, str(self.folder / "parts.yaml"), self.extensions.catalog()
        )

    @property
    def extensions(self) -> Extensions:
        async def work(arguments: Mapping[str, JsonValue]) -> object:
            self.calls[str(dict(arguments))] += 1
            return await self.work(arguments)

        schema: Mapping[str, JsonValue] = {"type": "object"}
        tool = fake_tool("work", work, effect=Effect.PURE, parameters=schema)
        return Extensions(tools=Toolbox((tool,)))

    def runtime(self) -> Runtime:
        services = Services(journal=self.journal)
        return Runtime(
            models=lambda _recipe, _choice: self.model,
            extensions=self.extensions,
            services=services,
        )

    def worker(self, *, slots: int = 4, once: bool = True) -> Worker:
        self._numbers += 1
        name = f"host:1:1+w{self._numbers}"
        runtime = WorkerRuntime(Settings(), self.runtime(), name=name, folder=None)
        plan = WorkerPlan(name=name, slots=slots, ends_when_idle=once)
        log = NullLog()
        notices = WaitingNotices((), self.journal, MemoryState(), log, page=None)
        schedules = ScheduleStore(MemoryState())
        return Worker(runtime, self.engine, plan, log, notices=notices, schedules=schedules)

    async def queued(
        self,
        inputs: Mapping[str, JsonValue] | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> str:
        """The id of a run that waits for a worker."""
        recipe = self.recipe
        run = self.runtime().executor(recipe).prepare(recipe, inputs or {}, note=note)
        await RunQueue(self.engine, SystemClock()).put(run, _PLACE)
        return run.run_id

    async def worked(self, *, slots: int = 4, workers: int = 1) -> None:
        """Let workers work until nothing is queued."""
        both = [self.worker(slots=slots).run() for _ in range(workers)]
        await asyncio.wait_for(asyncio.gather(*both), HANG_S)

    async def run(self, inputs: Mapping[str, JsonValue] | None = None, *, slots: int = 4) -> Ended:
        """A run that is queued, and executed by one worker."""
        run_id = await self.queued(inputs)
        await self.worked(slots=slots)
        return await self.ended(run_id)

    async def alone(self, inputs: Mapping[str, JsonValue] | None = None) -> Ended:
        """The same run in one process without a queue."""
        recipe = self.recipe
        result = await self.runtime().executor(recipe).prepare(recipe, inputs or {}).execute()
        return await self.ended(result.run_id)

    async def again(
        self, run_id: str, prepare: Callable[[AgentExecutor, RecordedRun], AgentRun]
    ) -> None:
        """Queue a recorded run again, and let a worker execute it."""
        recorded = await load_recorded_run(self.journal, run_id)
        run = prepare(self.runtime().executor(self.recipe), recorded)
        await RunQueue(self.engine, SystemClock()).put(run, _PLACE)
        await self.worked()

    async def resumed(self, run_id: str) -> None:
        """By the recipe as it is now, which may differ in its limits."""
        note = {"max_cost_usd": None}
        await self.again(run_id, lambda e, r: e.prepare_resume(r, recipe=self.recipe, note=note))

    async def retried(
        self,
        run_id: str,
        inputs: Mapping[str, JsonValue] | None = None,
        from_step: str | None = None,
    ) -> None:
        await self.again(
            run_id, lambda e, r: e.prepare_retry(r, inputs=inputs, from_step=from_step)
        )

    async def answered(self, run_id: str, answer: str) -> None:
        """Answer the one question of a run, and queue it again."""
        recorded = await load_recorded_run(self.journal, run_id)
        (decision,) = pending_decisions(Replay(recorded.entries, recorded.generation + 1))
        decisions = {decision.key: f"answer:{answer}"}
        run = self.runtime().executor(self.recipe).prepare_resume(recorded, decisions=decisions)
        await RunQueue(self.engine, SystemClock()).put(run, _PLACE)

    async def until_waiting(self, run_id: str) -> None:
        """Execute the run up to its distributed step; no child run is begun."""
        assert (await self.executed(run_id)).again is not None

    async def executed(self, run_id: str) -> JobEnd:
        """Execute the run once, and nothing else."""
        engine, self.engine = self.engine, LocalDispatch(SystemClock())
        worker = self.worker(slots=1)
        runtime = worker._runtime  # its parts, without its queue
        execution = worker._execution  # as above
        row = await self.row(run_id)
        job = Job(run_id=run_id, session_id=row.session_id, submission="1")
        end = await execution.execute(job)
        await runtime.aclose()
        self.engine = engine
        return end

    async def cancelled_alone(self, run_id: str) -> None:
        """Record that the run was cancelled, as one whose canceller died before its child runs."""
        services = self.runtime().services
        run = await find_run(self.journal, run_id)
        lease = await acquire_lease(services, run.session_id, run_id)
        finished = RunFinished(status="cancelled", output=None, usage={}, error=None)
        await self.journal.append(lease, EntryDraft(key="run", fact=finished))
        await self.journal.release(lease)

    async def row(self, run_id: str) -> RunRow:
        (row,) = await self.journal.runs(RunFilter(run_ids={run_id}))
        return row

    async def ended(self, run_id: str) -> Ended:
        row = await self.row(run_id)
        entries = await self.journal.entries(row.session_id, run_id=run_id, kinds={"run"})
        fact = entries[-1].fact
        is_over = isinstance(fact, RunFinished)
        output = given(fact.output) if isinstance(fact, RunFinished) else None
        return Ended(row=row, output=output, usage=(fact.usage or {}) if is_over else {})  # type: ignore[union-attr]

    async def children(self, run_id: str) -> Sequence[RunRow]:
        """In the order of their items."""
        rows = await self.journal.runs(RunFilter(id_start=child_runs_start(run_id)))
        return sorted(rows, key=lambda row: row.run_id)

    async def open(self) -> int:
        states = {RunState.QUEUED, RunState.INTERRUPTED}
        return await self.journal.count_runs(RunFilter(statuses=states))
