"""A run of the library: awaited for its result, or iterated for its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Generic, Self, TypeAlias

from minions.contracts.executions import AgentResult
from minions.contracts.instructions import T_co
from minions.contracts.run_events import RunEvent
from minions.data.errors import UsageError
from minions.engine.run.agent_run import AgentRun

OpenRun: TypeAlias = Callable[[], Awaitable[AgentRun[T_co]]]
ExecuteRun: TypeAlias = Callable[[AgentRun[T_co]], Awaitable[AgentResult[T_co]]]


class RunStream(AsyncIterator[RunEvent], Generic[T_co]):
    """One run: `await` it, or use `async for` on its events and then read `result`.

    The run begins only then. Leaving the loop early cancels it; what was done is recorded. `async
    with stream:` around the loop waits until the end is recorded, too.
    """

    def __init__(self, begin: OpenRun[T_co], execute: ExecuteRun[T_co]) -> None:
        """Nothing is prepared yet.

        Args:
            begin: Returns the prepared run, or raises why it is refused.
            execute: Executes the run to its end.
        """
        self._begin = begin
        self._execute = execute
        self._has_begun = False
        self._result: AgentResult[T_co] | None = None
        self._task: asyncio.Task[AgentResult[T_co]] | None = None
        self._is_stopped = False
        self._events: AsyncGenerator[RunEvent, None] | None = None
        """The events, where they are asked for one by one."""

    @property
    def result(self) -> AgentResult[T_co]:
        """The result; available after the last event.

        Raises:
            UsageError: The run is not over, or was cancelled by leaving its loop.
        """
        if self._result is None:
            raise UsageError(
                "The run is not over: iterate over its events to the end, or await it.",
                code="run-not-over",
            )
        return self._result

    def __await__(self) -> Generator[object, None, AgentResult[T_co]]:
        """Run to the end without events; after the events were read, return their result."""
        return self._wait().__await__()

    async def _wait(self) -> AgentResult[T_co]:
        if self._result is None:
            self._begin_once()
            self._result = await self._execute(await self._begin())
        return self._result

    def __aiter__(self) -> AsyncIterator[RunEvent]:
        """Yield every event as it happens; the last one is `run_completed`, `run_waiting` or
        `run_failed`.
        """
        self._begin_once()
        return self._run()

    async def __anext__(self) -> RunEvent:
        """The next event. A run that is read so ends with the stream: call `aclose`."""
        if self._events is None:
            self._begin_once()
            self._events = self._run()
        return await anext(self._events)

    def _begin_once(self) -> None:
        if self._has_begun:
            raise UsageError(
                "This run has begun already. Call the method again for another run.",
                code="run-has-begun",
            )
        self._has_begun = True

    async def _run(self) -> AsyncGenerator[RunEvent, None]:
        run = await self._begin()
        queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        run.listen(queue.put_nowait)
        self._task = task = asyncio.ensure_future(self._execute(run))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            self._result = await task
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Cancel the run if it is active, and wait until that is recorded."""
        task = self._task
        if task is None or task.done():
            return
        if not self._is_stopped:  # once: another cancellation would end the writing of the first
            self._is_stopped = True
            task.cancel()
        await asyncio.wait([task])

    async def __aenter__(self) -> Self:
        """Return the stream."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call `aclose`."""
        await self.aclose()
