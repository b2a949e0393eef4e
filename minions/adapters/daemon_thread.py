"""Blocking work beside the event loop, in a thread that exit does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

__all__ = ["run_in_daemon_thread"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def run_in_daemon_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """What `function(*args)` gives or raises; context variables are those of the caller.

    A thread of its own, not asyncio's pool: at exit that pool is waited for, so one hung
    function would keep the process alive. Cancelled, the thread is left to itself and its
    result dropped.

    Raises:
        RuntimeError: The function raised what a future cannot carry: `SystemExit` and the like.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else callback())

    def work() -> None:
        try:
            result = context.run(function, *args)
        except BaseException as error:  # noqa: BLE001  # whoever awaits decides, not this thread
            failure = _as_exception(error)
            tell(lambda: future.set_exception(failure))
        else:
            tell(lambda: future.set_result(result))

    name = getattr(function, "__name__", type(function).__name__)
    threading.Thread(target=work, name=f"minions-{name}", daemon=True).start()
    return await future


def _as_exception(error: BaseException) -> Exception:
    """SystemExit would end the event loop, StopIteration the awaiting coroutine."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
