"""Flow control of model calls: which call may begin when, and who waits for whom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.model_endpoints import ModelEndpoint
from minions.contracts.retry_config import CircuitPolicy

if TYPE_CHECKING:
    from returns.result import Result


STARTED_TOGETHER: Final = 32
"""Parts of a run that start before it is looked whether very many calls wait."""


class Priority(IntEnum):
    """Who is served first where calls wait for the same server; the lower number goes first."""

    INTERACTIVE = 0
    """A person waits for the answer: a turn of a conversation."""
    NORMAL = 1
    """A run of its own."""
    BACKGROUND = 2
    """One of many: an item of a batch."""


def _no_tokens() -> int:
    return 0


class CallHistory(Struct, eq=False):
    """What flow control remembers of one model call between its attempts; made by its caller
    for each call, and changed by flow control alone.
    """

    asked_at: float | None = None
    """When it asked first, by the clock of the flow control: its place in the line. None: it did
    not ask yet."""
    first_failed_at: float | None = None
    """When an attempt first failed for a reason that is the server's; None: none did."""
    failures: int = 0
    """How many did."""
    answers: int = 0
    """How many calls the server had answered, or had under way, when the first one did."""
    refusals: int = 0
    """How many calls it had refused then, and this one since."""
    answered: int = -1
    """How many it had answered when the last one did."""
    in_row: int = 0
    """How many did without an answer to any call between them."""
    taken: int = -1
    """How many calls it had taken when the last one did."""
    contrasts: int = 0
    """How many did while it took others since the one before."""
    is_alone: bool = False
    """Whether the server answered others while it refused this one: the reason is the call's."""


class CallAsk(Struct, frozen=True, kw_only=True, eq=False):
    """One model call that wants to begin."""

    endpoint: ModelEndpoint
    model: str
    """`provider/model`: servers count per model, and messages name it."""
    priority: Priority = Priority.NORMAL
    history: CallHistory = field(default_factory=CallHistory)
    """The same object for each attempt at the call: a retry goes before calls that came later."""
    circuit: CircuitPolicy | None = None
    """What the call does where the circuit is open; None: it waits where that takes at most ten
    seconds in all, and no longer than it has time."""
    time_left_s: float | None = None
    """Seconds that are left to the step of the call; a longer wait is a failure at once. None: it
    has no limit."""
    longest_hold_s: float | None = None
    """Seconds; a server that is left alone for longer is a failure of this call. None: as the flow
    control is configured."""
    tokens: Callable[[], int] = _no_tokens
    """Estimates the tokens of the call; asked only where tokens are limited."""
    on_wait: Callable[[float], None] | None = None
    """Told for how many seconds, at least one, the server is not asked while the call waits; again
    where that changes. None: nobody wants to know."""


class Admission(ABC):
    """A model call that may begin now. Whoever got it ends it, exactly once."""

    waited_s: float
    """Seconds that the call waited for its turn."""

    @abstractmethod
    def end(self, outcome: ModelCallResponse | ModelFailure | None) -> float | None:
        """Note what came of the call; calls that wait may now begin.

        Args:
            outcome: None: it was cut off, or raised; nothing is learned of the server.
        Returns:
            Seconds after which the call asks again without that being a further attempt: it was
            refused because of the calls beside it, or it waits for a server that is down. None: the
            outcome counts.
        """


class CircuitState(StrEnum):
    """Whether calls are sent to a server."""

    CLOSED = "closed"
    """They are."""
    OPEN = "open"
    """It failed too often in a row: no call is sent for a while."""
    HALF_OPEN = "half_open"
    """One call finds out whether it answers again; the others wait for its outcome."""


class EndpointState(Struct, frozen=True, kw_only=True):
    """What happens at one server now, for metrics and pages."""

    origin: str
    in_flight: int
    waiting: int
    circuit: CircuitState
    held_s: float
    """Seconds for which the server asked to be left alone, from now on; 0: it did not."""


class FlowControl(ABC):
    """Decides when a model call may begin. One is shared by all runs of a process.

    Calls of a higher priority go first, and calls of one priority in the order in which they asked
    first. None waits for ever: each wait ends with a place, a failure, or the caller's own time
    limit; cancelling it gives the place up at once.
    """

    @abstractmethod
    async def admit(self, ask: CallAsk) -> Result[Admission, ModelFailure]:
        """Wait until the call may begin.

        Returns:
            The admission; or a failure where it makes no sense to wait: `circuit-open`,
            `rate-limited`, `queue-full`. Nothing was sent then.
        """

    def is_congested(self, priority: Priority) -> bool:
        """Whether so many calls wait that nothing new of that priority should be started."""
        return False

    async def room(self, priority: Priority) -> None:
        """Wait until it is not congested any more; returns at once where it is not."""

    def states(self) -> Sequence[EndpointState]:
        """The servers that were called; those of one origin are one."""
        return ()
