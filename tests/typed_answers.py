"""A worker in this process whose model says words one by one, when a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import evolve, field, mutable
from returns.result import Result, Success

from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime, make_runtime
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelDelta,
    ModelFailure,
    Prompt,
)
from minions.contracts.dispatch import DispatchEngine, WorkerPlan
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.messages import assistant
from minions.contracts.runtime import Clock, SystemClock
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.interfaces.http.token_file import FileTokens
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.worker.delta_streams import DeltaStreams
from minions.interfaces.worker.health import DeltaAccess, serving_health
from minions.interfaces.worker.worker import Worker, WorkerRuntime
from patience import HANG_S

TOKEN = "a-token-of-the-tests"
RECIPE = """
id: says
model: typing/model
steps:
  - {id: talk, goal: Say something.}
output: "{{ talk }}"
"""


class Typing(ChatModel):
    """Says words one by one, when it is told to; None ends the answer."""

    name = "typing/model"
    capabilities = ScriptedModel([]).capabilities

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()
        self.is_asked = asyncio.Event()
        self.is_streamed = False

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        self.is_streamed = on_delta is not None
        self.is_asked.set()
        text = ""
        while (word := await self.words.get()) is not None:
            text += word
            if on_delta is not None:
                on_delta(ModelDelta(content=word))
        return Success(ModelCallResponse(message=assistant(text)))

    def say(self, *words: str | None) -> None:
        """Say these words next."""
        for word in words:
            self.words.put_nowait(word)


@mutable
class TypedAnswers:
    """A journal, and a worker whose runs say what a test tells them to."""

    folder: Path
    journal: Journal = field(factory=lambda: MemoryJournal(SystemClock()))
    engine: DispatchEngine = field(factory=lambda: LocalDispatch(SystemClock()))
    streams: DeltaStreams = field(factory=DeltaStreams)
    tokens: FileTokens = field(factory=lambda: FileTokens(token=TOKEN))
    model: Typing = field(factory=Typing)
    clock: Clock = field(factory=SystemClock)
    """By which tokens expire."""
    port: int = 0
    """Of the HTTP server of the worker, while it is at work."""

    @property
    def url(self) -> str:
        """The base URL of the worker."""
        return f"http://127.0.0.1:{self.port}"

    def _runtime(self, name: str) -> Runtime:
        return make_runtime(
            Settings(no_store=True),
            Extensions(models={"typing/model": self.model}),
            environ={},
            folder_of=lambda _: self.folder,
            log=NullLog(),
            services=Services(journal=self.journal, lease_ttl_s=60, worker_id=name),
        )

    async def queued(self) -> tuple[str, str]:
        """The ids of the session and of the run, which waits for a worker."""
        (self.folder / "says.yaml").write_text(RECIPE, "utf-8")
        runtime = self._runtime("submitter")
        recipe = runtime.recipes.get(str(self.folder / "says.yaml"))
        run = runtime.executor(recipe).prepare(recipe)
        await RunQueue(None, SystemClock()).put(run, QueuePlace())
        return run.session_id, run.run_id

    @asynccontextmanager
    async def working(
        self, name: str = "host:1:1+w", *, is_open: bool = True
    ) -> AsyncIterator[Worker]:
        """A worker, which is stopped at the end of the block.

        Args:
            is_open: Whether it offers the pieces of answers.
        """
        worker = Worker(
            WorkerRuntime(Settings(no_store=True), self._runtime(name), name=name, folder=None),
            self.engine,
            evolve(WorkerPlan(name=name), drain_s=0.05),
            NullLog(),
            notices=WaitingNotices((), self.journal, MemoryState(), NullLog(), page=None),
            schedules=ScheduleStore(MemoryState()),
            deltas=self.streams if is_open else None,
        )
        access = DeltaAccess(self.streams, self.tokens, self.clock.now) if is_open else None
        async with contextlib.AsyncExitStack() as stack:
            served = serving_health(worker, "127.0.0.1", 0, NullLog(), deltas=access)
            self.port = await stack.enter_async_context(served)
            if is_open:
                worker.publish_stream(self.url)
            task = asyncio.ensure_future(worker.run())
            try:
                yield worker
            finally:
                worker.stop()
                await asyncio.wait_for(task, HANG_S)

    async def asked(self) -> None:
        """Wait until the model is asked."""
        await asyncio.wait_for(self.model.is_asked.wait(), HANG_S)

    async def followers(self, count: int) -> None:
        """Wait until there are so many followers."""
        async with asyncio.timeout(HANG_S):
            while self.streams.count != count:  # noqa: ASYNC110  # a count, not one event
                await asyncio.sleep(0.002)
