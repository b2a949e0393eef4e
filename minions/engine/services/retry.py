"""The only layer that retries: which errors, how often, and after which delay.

Calls of models and tools and steps of agents are all tried here; models, adapters and their clients
say of a failure whether another attempt can help, and never make one. What a recipe and its steps
state about it is a `RetryConfig`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from returns.result import Result, Success

from minions.contracts.retry_config import ExceptionTypes, RetryConfig, may_pass
from minions.data.errors import CIRCUIT_OPEN, MinionsError, ToolError
from minions.engine.services.run_services import Services

V = TypeVar("V")

_NEVER = (SyntaxError, TypeError, AttributeError, NameError, MemoryError, ToolError, MinionsError)
"""Programming errors, too little memory and explicit refusals: the same call fails the same way."""


def is_retryable_error(
    error: BaseException, *, unless_known: bool, retryable: ExceptionTypes | None = None
) -> bool:
    """Whether a retry can help.

    Errors that never succeed come first, then HTTP errors by their status, then transient errors by
    their class. Validation errors are recognized by name, so that no library is imported.

    Args:
        unless_known: The result for an error that matches none of these.
        retryable: The classes of `RetryConfig.retryable_exceptions`: they alone count as transient,
            and every other error is known not to be; None: the default ones.
    """
    if isinstance(error, _NEVER) or type(error).__name__ == "ValidationError":
        return False
    status = http_status_of(error)
    if status is not None:
        return may_pass(status)
    if retryable is not None:
        return isinstance(error, retryable)
    return isinstance(error, TimeoutError | ConnectionError) or unless_known


def http_status_of(error: BaseException) -> int | None:
    """`status_code` of the error or of its response, as HTTP libraries name it; None: none."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int):
                return status
    return None


def is_being_cancelled() -> bool:
    """Whether the task was asked to cancel; else a CancelledError escaped from the called code."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


_LONGEST_WAIT_S = 600.0
"""A server that asks for a longer wait has refused: the failure says how long it asked for."""


class Retryable(Protocol):
    """A failure that knows whether a retry can help."""

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later."""


RF = TypeVar("RF", bound=Retryable)


class AttemptsOutcome(Struct, Generic[V, RF], frozen=True):
    """An outcome and how many attempts it took."""

    outcome: Result[V, RF]
    attempts: int


def checked_result(function: Callable[..., object], outcome: Result[V, RF]) -> Result[V, RF]:
    """The outcome, checked to be a `Result`: an application may forget to wrap a value.

    Raises:
        TypeError: It is something else; the message says what to return.
    """
    if isinstance(outcome, Result):
        return outcome
    raise TypeError(
        f"{function.__qualname__} returned {type(outcome).__name__}; wrap an answer in "
        "returns.result.Success, a failure in returns.result.Failure"
    )


async def with_retries(
    attempt: Callable[[], Awaitable[Result[V, RF]]],
    *,
    most: int,
    config: RetryConfig,
    services: Services,
    on_retry: Callable[[int, float, RF], None],
    longest_wait_s: float | None = None,
) -> AttemptsOutcome[V, RF]:
    """Try until the call succeeds, cannot succeed, or was tried `most` times.

    Cancellation during the wait passes through at once. A failure's own `retry_after_s` replaces
    the computed delay. An open circuit is final: flow control has waited as long as the call may.

    Args:
        on_retry: Called before each wait with the number of attempts so far, the delay in
            seconds, and the failure.
        longest_wait_s: Seconds; where a failure asks for a longer delay, it is the outcome. None:
            ten minutes.
    """
    attempts = 0
    longest_s = _LONGEST_WAIT_S if longest_wait_s is None else longest_wait_s
    while True:
        outcome = await attempt()
        attempts += 1
        if isinstance(outcome, Success) or attempts >= most:
            return AttemptsOutcome(outcome, attempts)
        failure = outcome.failure()
        if not failure.is_retryable or getattr(failure, "code", None) == CIRCUIT_OPEN:
            return AttemptsOutcome(outcome, attempts)
        delay_s = getattr(failure, "retry_after_s", None)
        if delay_s is None:
            delay_s = config.delay_s(attempts, services.random())
        elif delay_s > longest_s:
            return AttemptsOutcome(outcome, attempts)
        on_retry(attempts, delay_s, failure)
        await services.sleep(delay_s)
