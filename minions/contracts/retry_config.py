"""How often, after which delay and after which failures a call is retried, as data."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeAlias, cast

import attrs
from attrs import field, frozen
from attrs.validators import ge

from minions.data.field_repr import FieldsRepr

ExceptionTypes: TypeAlias = tuple[type[Exception], ...]
"""Classes of exceptions, as `except` and `isinstance` take them."""


def may_pass(status: int) -> bool:
    """Whether the same request may succeed later, although it was answered with that HTTP status;
    for servers of models and of tools, and for errors that carry a status.
    """
    return status >= 500 or status in (408, 409, 425, 429)


class CircuitPolicy(StrEnum):
    """What a model call does while its server is not asked because it failed too often in a row."""

    WAIT = "wait"
    """It waits until the server is back, as long as its step has time; at most ten minutes where
    that has no limit."""
    FAIL = "fail"
    """It fails at once."""


def _as_types(types: Iterable[type[Exception]] | None) -> ExceptionTypes | None:
    """The classes as a tuple; a converter for fields.

    Raises:
        ValueError: One of them is no class of exceptions.
    """
    if types is None:
        return None
    classes: tuple[object, ...] = tuple(types)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ValueError(f"retryable_exceptions are classes of exceptions, not {each!r}")
    return cast("ExceptionTypes", classes)


@frozen(kw_only=True)
class RetryConfig(FieldsRepr):
    """Retries of model and tool calls, never of whole steps. Delays are in seconds."""

    max_attempts: int = field(default=3, validator=ge(1))
    """Attempts at a model call, the first included. Tool calls: `max_tool_call_retries` + 1."""
    initial_delay: float = field(default=1.0, validator=ge(0))
    max_delay: float = field(default=60.0, validator=ge(0))
    exponential_base: float = field(default=2.0, validator=ge(1))
    jitter: bool = True
    """Whether each delay is multiplied by a random factor in [0.5,
    1.5), then capped at `max_delay`.
    """
    circuit: CircuitPolicy | None = field(
        default=None, converter=attrs.converters.optional(CircuitPolicy)
    )
    """What a call does while its server is down; None: it waits where the server is tried again
    within the time that is left of the step, or, without a limit of that, within ten seconds."""
    retryable_exceptions: ExceptionTypes | None = field(default=None, converter=_as_types)
    """Classes of exceptions after which a call is tried again, besides HTTP errors of a status that
    may pass (408, 409, 425, 429, 5xx); programming errors and refusals never are. None: lost
    connections and timeouts, and of tools that may be repeated every other exception, too.
    """
    stated: frozenset[str] | None = field(default=None, eq=False, repr=False)
    """Names of the fields that were stated, as by a recipe: where they are used, the others are
    those of the policy around it, see `over`. None: all are.
    """

    def over(self, base: RetryConfig) -> RetryConfig:
        """This policy where it states something, and `base` elsewhere.

        A step's is over its recipe's, that of a recipe within a run over that of the step that
        runs it, and the outermost recipe's over that of the executor.
        """
        own = self.stated
        if own is None or (base.stated is not None and base.stated <= own):
            return self
        stated = None if base.stated is None else base.stated | own
        return attrs.evolve(base, stated=stated, **{name: getattr(self, name) for name in own})

    def delay_s(self, failures: int, random: float) -> float:
        """Seconds to wait before the next attempt.

        Args:
            failures: Number of failed attempts, from 1.
            random: In [0, 1); used only with jitter.
        """
        try:
            grown = self.initial_delay * self.exponential_base ** (failures - 1)
        except OverflowError:  # the exponential exceeds a float after about a thousand failures
            grown = self.max_delay
        delay = min(self.max_delay, grown)
        if self.jitter:
            delay = min(self.max_delay, delay * (0.5 + random))
        return delay


NOTHING_STATED: Final = RetryConfig(stated=frozenset())
"""The policy of a recipe that says nothing of retries."""
