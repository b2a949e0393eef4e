"""How `minions.run` waits: on an event loop that the main thread keeps, or on a thread of its own.

The loop and the application that the main thread keeps are the one thing here that lives as long
as the process: without them each call would make and close both.
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
from typing import Any, Final, Generic, TypeVar

from minions.adapters.stores.state_store import MemoryState
from minions.interfaces.application import Minions

__all__ = ["has_running_loop", "kept_application", "wait_for"]

T = TypeVar("T")

_POLL_S: Final = 0.1
"""How soon a request to stop is seen while another thread works."""


def has_running_loop() -> bool:
    """Whether this thread is inside an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def wait_for(work: Coroutine[Any, Any, T]) -> T:  # Any: what a coroutine yields is asyncio's
    """What it returns; inside a running event loop it runs on a thread of its own.

    Raises:
        KeyboardInterrupt: After what goes on was cancelled, and what was done is recorded.
    """
    if has_running_loop():
        return _OwnThread(work).wait()
    door = _DOORS.here()
    if door is None:
        return asyncio.run(work)
    return door.run(work)


def kept_application() -> Minions | None:
    """The application that the main thread keeps; None: this is no place where one is kept."""
    door = None if has_running_loop() else _DOORS.here()
    return door.application() if door is not None else None


class _Door:
    """One event loop with the application that belongs to it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._state = MemoryState()
        self._application: Minions | None = None

    def application(self) -> Minions:
        """For one run, which finds no values that another one saved."""
        self._state.clear()
        if self._application is None:
            self._application = Minions(approve="deny", state=self._state)
        return self._application

    def run(self, work: Coroutine[Any, Any, T]) -> T:  # Any: as above
        """As `asyncio.run`, on the loop that is kept; one that was interrupted is not.

        Not an `asyncio.Runner`: the way it installs its handler of Ctrl-C writes out the whole
        task each time, which takes as long as a fifth of a small run.
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
            _DOORS.close()
            if interrupt.was_asked_for and isinstance(error, asyncio.CancelledError):
                raise KeyboardInterrupt from error
            raise

    def close(self) -> None:
        """Close the application and the loop."""
        application, self._application = self._application, None
        with contextlib.suppress(Exception):  # the end of the process, or of what was interrupted
            self._loop.run_until_complete(_end(application))
        self._loop.close()


class _Doors:
    """The main thread's door; a forked process has its own."""

    def __init__(self) -> None:
        self._door: _Door | None = None
        self._inherited: list[_Door] = []
        """Of a parent process: to close them here would reach into its sockets."""

    def here(self) -> _Door | None:
        """The one of this thread; None: it is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return None
        if self._door is not None and self._door.process != os.getpid():
            self._inherited.append(self._door)
            self._door = None
        if self._door is None:
            self._door = _Door()
            atexit.register(self.close)
        return self._door

    def close(self) -> None:
        """Close it; the next call opens another one."""
        door, self._door = self._door, None
        atexit.unregister(self.close)
        if door is not None and door.process == os.getpid():
            door.close()


_DOORS: Final = _Doors()


class _Interrupt:
    """While a run goes on, the first Ctrl-C cancels it; the next one raises at once."""

    def __init__(self, task: asyncio.Task[Any]) -> None:  # Any: whatever it returns
        self._task = task
        self._before: object = None
        self.was_asked_for = False

    def __enter__(self) -> None:
        """Only in place of Python's own handler: another one is the application's."""
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler:
            self._before = handler
            signal.signal(signal.SIGINT, self)

    def __exit__(self, *_: object) -> None:
        """Put Python's own back."""
        if self._before is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __repr__(self) -> str:
        """Short: `signal` asks for it at each call."""
        return "<interrupt>"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self.was_asked_for or self._task.done():
            raise KeyboardInterrupt
        self.was_asked_for = True
        self._task.cancel()
        # Wakes the loop where it waits for something else.
        self._task.get_loop().call_soon_threadsafe(lambda: None)


async def _end(application: Minions | None) -> None:
    """Close all that lives on this loop."""
    await _cancel_others()
    if application is not None:
        await application.aclose()
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _alone(work: Coroutine[Any, Any, T]) -> T:  # Any: as above
    """The work; tasks that it leaves behind end with it, as `asyncio.run` has it."""
    try:
        return await work
    finally:
        await _cancel_others()


async def _cancel_others() -> None:
    """Tasks of this loop but the one that asks."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.gather(*left, return_exceptions=True)


class _OwnThread(Generic[T]):
    """Runs a coroutine on a loop of its own while the caller's loop stands still."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:  # Any: as above
        self._work = work
        self._context = contextvars.copy_context()
        self._done = threading.Event()
        self._stop: Callable[[], object] | None = None
        self._is_unwanted = False
        """Whether the caller was stopped; it may be before there is a task to stop."""
        self._result: list[T] = []
        self._error: BaseException | None = None

    def wait(self) -> T:
        """What it returns.

        Raises:
            KeyboardInterrupt, CancelledError: As the caller was stopped.
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

    def _wait_until_done(
        self, task: asyncio.Task[Any] | None, before: int
    ) -> None:  # Any: as above
        """Raises CancelledError where the caller's own task is to stop, as Ctrl-C asks for it.

        Args:
            before: Requests to stop that it had before the work began.
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
