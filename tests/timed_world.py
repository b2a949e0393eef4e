"""Workers of one journal in virtual time, and a model whose server may ask to be left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from attrs import evolve, field, mutable
from returns.result import Failure, Result, Success

from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.runs.work_lists import WorkLists
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime, make_runtime
from minions.contracts.calls import ChatModel, DeltaSink, ModelCallResponse, ModelFailure, Prompt
from minions.contracts.dispatch import WorkerPlan
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.messages import TokenUsage, assistant
from minions.contracts.model_endpoints import ModelEndpoint
from minions.engine.compile.extensions import Extensions
from minions.engine.services.flow.flow_control import SharedFlowControl
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.engine.views.lookup import find_run
from minions.interfaces.http.metrics_page import metrics_page
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.worker.worker import Worker, WorkerRuntime
from minions.testing.virtual_time import VirtualTime

__all__ = ["LimitedServer", "World", "look_rarely"]


class LimitedServer(ChatModel):
    """A model whose server answers, or asks to be left alone."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.asked: list[tuple[str, float]] = []
        self.refuses: Callable[[str], float | None] = lambda _said: None
        """The seconds that it asks for; None: it answers."""

    @property
    def name(self) -> str:
        return "fake/limited"

    @property
    def endpoint(self) -> ModelEndpoint:
        return ModelEndpoint(origin="http://server")

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        said = prompt.messages[-1].content or ""
        self.asked.append((said, round(self._time.monotonic())))
        if (seconds := self.refuses(said)) is not None:
            return Failure(
                ModelFailure(
                    code="rate-limited",
                    message="slow down",
                    is_retryable=True,
                    retry_after_s=seconds,
                )
            )
        usage = TokenUsage(input_tokens=2, output_tokens=1)
        return Success(ModelCallResponse(message=assistant(f"done {said}"), usage=usage))


def look_rarely(monkeypatch: pytest.MonkeyPatch, every_s: float) -> None:
    """Let workers look so often at what may have changed: each look is a moment of virtual time,
    which takes real time, too.
    """
    looks = [f"_LOOK_{each}_S" for each in ("LOCAL", "TIMED", "SCHEDULES", "PAUSED", "OLD", "LEFT")]
    for name in (*looks, "LOOK_AT_RUNS_S", "REMINDERS_S"):
        monkeypatch.setattr(f"minions.interfaces.worker.worker.{name}", every_s)


@mutable
class World:
    """One journal and one model, in virtual time."""

    folder: Path
    time: VirtualTime = field(factory=VirtualTime)
    services: Services = field(init=False)
    server: LimitedServer = field(init=False)
    worker_number: int = 0
    state: MemoryState = field(factory=MemoryState)
    """Where schedules are stored."""
    patience_s: float | None = None
    """As of its workers."""

    def __attrs_post_init__(self) -> None:
        time = self.time
        self.server = LimitedServer(time)
        self.services = Services(
            clock=time,
            sleep=time.sleep,
            random=lambda: 0.0,
            journal=MemoryJournal(time),
            flow=SharedFlowControl(time, time.sleep, lambda: 0.0),
        )

    def runtime(self, name: str) -> Runtime:
        return make_runtime(
            Settings(no_store=True),
            Extensions(),
            environ={},
            folder_of=lambda _: self.folder,
            log=NullLog(),
            services=evolve(self.services, worker_id=name),
        ).evolve(models=self.server)

    async def queued(self, text: str) -> str:
        (self.folder / "r.yaml").write_text(text, "utf-8")
        runtime = self.runtime("submitter")
        recipe = runtime.recipes.get(str(self.folder / "r.yaml"))
        run = runtime.executor(recipe).prepare(recipe)
        return (await RunQueue(None, self.time).put(run, QueuePlace())).run_id

    def worker(self, *, once: bool = False) -> Worker:
        self.worker_number += 1
        name = f"host:{self.worker_number}:1+w"
        return Worker(
            WorkerRuntime(Settings(no_store=True), self.runtime(name), name=name, folder=None),
            LocalDispatch(self.time, self.time.sleep),
            WorkerPlan(name=name, ends_when_idle=once),
            NullLog(),
            notices=WaitingNotices((), self.services.journal, MemoryState(), NullLog(), page=None),
            schedules=ScheduleStore(self.state),
            state=self.state,
            patience_s=self.patience_s,
        )

    async def work(self, seconds: float | None = None) -> None:
        """Let a worker execute what is queued, or serve for that time."""
        worker = self.worker(once=seconds is None)
        working = asyncio.ensure_future(worker.run())
        if seconds is not None:
            await asyncio.sleep(seconds)
            worker.stop()
        await working

    async def status(self, run_id: str) -> str:
        return (await find_run(self.services.journal, run_id)).status

    async def metrics(self) -> str:
        """What Prometheus reads of these workers."""
        work = WorkLists(self.services.journal, self.state, None, lambda _: False)
        return (await metrics_page(self.services, self.state, work)).decode()

    async def facts(self, run_id: str, *kinds: str) -> list[JournalEntry]:
        return list(await self.services.journal.entries(run_id=run_id, kinds=set(kinds)))

    async def place(self, run_id: str) -> QueuePlace:
        """Where the run is queued, by its newest start or resume."""
        facts = [each.fact for each in await self.facts(run_id, "run")]
        newest = [each for each in facts if isinstance(each, RunBeginning)][-1]
        return RunPolicy.recorded(newest.note or {}).queue or QueuePlace(name="none")

    def run(self, work: Coroutine[object, object, None]) -> None:
        self.time.run(work)
