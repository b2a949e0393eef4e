"""How a thread beside the event loop hands over what its function returned or raised."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def settle_with(call: Callable[[], T], future: asyncio.Future[T]) -> None:
    """Call the function in this thread, and give its future the result in the loop's own.

    The future raises RuntimeError for what no future can carry: `SystemExit` and the like. Where it
    is done, or its loop is closed, nobody waits any more, and the result is dropped.
    """
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  # whoever awaits decides, not this thread
        failure = _as_exception(error)
        _settle(future, lambda: future.set_exception(failure))
    else:
        _settle(future, lambda: future.set_result(result))


def _settle(future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the caller is gone
        future.get_loop().call_soon_threadsafe(lambda: None if future.done() else settle())


def _as_exception(error: BaseException) -> Exception:
    """SystemExit would end the event loop, StopIteration the awaiting coroutine."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
