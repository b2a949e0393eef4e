"""How `minions.run` waits: on the main thread's event loop, or on a thread of its own.

The main thread's loop and application live as long as the process: else each call would open and
close both.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Final, Generic, Never, TypeVar

from minions.adapters.stores.memory_stores import MemoryState
from minions.app.application.application import Minions

T = TypeVar("T")

_POLL_S: Final = 0.1
"""How often a request to stop is checked while another thread works, in seconds."""


def has_running_loop() -> bool:
    """Whether this thread is inside an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def wait_for(work: Coroutine[object, Never, T]) -> T:
    """Run a coroutine and return its result; inside a running event loop on a thread of its own.

    Raises:
        KeyboardInterrupt: Ctrl-C; the run was cancelled, and what was done is recorded.
    """
    if has_running_loop():
        return _OwnThread(work).wait()
    kept = _LOOPS.loop()
    if kept is None:
        return asyncio.run(work)
    return kept.run(work)


def shared_application() -> Minions | None:
    """The application of the main thread; None: this is another thread, or a loop is running."""
    kept = None if has_running_loop() else _LOOPS.loop()
    return kept.application() if kept is not None else None


class _KeptLoop:
    """One event loop, and the application that belongs to it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._state = MemoryState()
        self._application: Minions | None = None

    def application(self) -> Minions:
        """The application for one run, which finds no values that another run saved."""
        self._state.clear()
        if self._application is None:
            self._application = Minions(approve="deny", state=self._state)
        return self._application

    def run(self, work: Coroutine[object, Never, T]) -> T:
        """Run a coroutine as `asyncio.run` does, on the kept loop; an interrupted loop is dropped.

        This is no `asyncio.Runner`: the way it installs its handler of Ctrl-C formats the whole
        task each time, which takes a fifth of the time of a small run.
        """
        context = contextvars.copy_context()
        task = self._loop.create_task(_alone(work), context=context)
        interrupt = _Interrupt(task)
        try:
            with interrupt:
                return self._loop.run_until_complete(task)
        except Exception:
            raise
        except BaseException as error:
            _LOOPS.close()
            if interrupt.was_asked_for and isinstance(error, asyncio.CancelledError):
                raise KeyboardInterrupt from error
            raise

    def close(self) -> None:
        """Close the application and the loop."""
        application, self._application = self._application, None
        with contextlib.suppress(Exception):  # the end of the process, or of what was interrupted
            self._loop.run_until_complete(_end(application))
        self._loop.close()


class _KeptLoops:
    """The kept loop of the main thread; a forked process has its own."""

    def __init__(self) -> None:
        self._loop: _KeptLoop | None = None
        self._inherited: list[_KeptLoop] = []
        """Loops of a parent process: closing them here would reach into its sockets."""

    def loop(self) -> _KeptLoop | None:
        """The loop, opened if there is none; None: this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return None
        if self._loop is not None and self._loop.process != os.getpid():
            self._inherited.append(self._loop)
            self._loop = None
        if self._loop is None:
            self._loop = _KeptLoop()
            atexit.register(self.close)
        return self._loop

    def close(self) -> None:
        """Close the loop; the next call opens another one."""
        loop, self._loop = self._loop, None
        atexit.unregister(self.close)
        if loop is not None and loop.process == os.getpid():
            loop.close()


_LOOPS: Final = _KeptLoops()


class _Interrupt:
    """During a run the first Ctrl-C cancels it; the next one raises at once."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._before: object = None
        self.was_asked_for = False

    def __enter__(self) -> None:
        """Replace Python's own handler; another handler is the application's, and stays."""
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler:
            self._before = handler
            signal.signal(signal.SIGINT, self)

    def __exit__(self, *_: object) -> None:
        """Restore Python's own handler."""
        if self._before is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __repr__(self) -> str:
        """A short text: `signal` asks for it at each call."""
        return "<interrupt>"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C: cancel the task, or raise if that was done before."""
        if self.was_asked_for or self._task.done():
            raise KeyboardInterrupt
        self.was_asked_for = True
        self._task.cancel()
        # Wakes the loop where it waits for something else.
        self._task.get_loop().call_soon_threadsafe(lambda: None)


async def _end(application: Minions | None) -> None:
    """Close everything that lives on this loop."""
    await _cancel_others()
    if application is not None:
        await application.aclose()
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _alone(work: Coroutine[object, Never, T]) -> T:
    """Run the work; tasks that it leaves behind are cancelled, as by `asyncio.run`."""
    try:
        return await work
    finally:
        await _cancel_others()


async def _cancel_others() -> None:
    """Cancel the other tasks of this loop."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.gather(*left, return_exceptions=True)


class _OwnThread(Generic[T]):
    """Runs a coroutine on a new thread and loop while the caller is blocked."""

    def __init__(self, work: Coroutine[object, Never, T]) -> None:
        self._work = work
        self._context = contextvars.copy_context()
        self._done = threading.Event()
        self._stop: Callable[[], object] | None = None
        self._is_unwanted = False
        """Whether the caller was stopped, perhaps before there was a task to cancel."""
        self._result: list[T] = []
        self._error: BaseException | None = None

    def wait(self) -> T:
        """Start the thread, and return the coroutine's result.

        Raises:
            KeyboardInterrupt, CancelledError: The caller was stopped in this way.
        """
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0  # a request may come at once
        thread = threading.Thread(target=self._run, name="minions.run", daemon=True)
        thread.start()
        try:
            self._wait_until_done(task, before)
        except BaseException:
            self._is_unwanted = True
            if self._stop is not None:
                self._stop()
            self._done.wait()
            raise
        finally:
            if self._done.is_set():
                thread.join()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _wait_until_done(self, task: asyncio.Task[object] | None, before: int) -> None:
        """Wait for the thread.

        Args:
            before: How many cancellation requests the task had before the work began.
        Raises:
            CancelledError: The caller's own task was asked to stop, as Ctrl-C does.
        """
        while not self._done.wait(_POLL_S):
            if task is not None and task.cancelling() > before:
                raise asyncio.CancelledError

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self._result.append(runner.run(self._stoppable(), context=self._context))
        except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
            self._error = error
        finally:
            self._done.set()

    async def _stoppable(self) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  # a runner runs tasks
        self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._is_unwanted:
            task.cancel()
        return await self._work
