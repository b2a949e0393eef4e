"""The circuit breaker of one server, as a state machine without a clock of its own."""

from __future__ import annotations

from msgspec import Struct

from minions.contracts.flow import CircuitState


class CircuitConfig(Struct, frozen=True, kw_only=True):
    """When a circuit opens, and for how long. Times are in seconds."""

    failures: int = 10
    """Failures in a row that open it: no answer, a broken connection, a status of 500 or above."""
    first_s: float = 5.0
    """How long it stays open; twice as long after each probe that failed."""
    longest_s: float = 60.0


class CircuitBreaker:
    """Closed, open, or half open with a single probe. The time is handed to each method.

    Only failures of the server count. Refusals (4xx) and rate limits show that it answers: they
    close the circuit as a success does.
    """

    def __init__(self, config: CircuitConfig) -> None:
        """A closed circuit."""
        self._config = config
        self._failures = 0
        self._open_until: float | None = None
        """When a probe may be sent; None: the circuit is closed."""
        self._open_s = config.first_s
        self.is_probed = False
        """Whether a probe is on its way."""

    def state(self, now: float) -> CircuitState:
        """The state at that time."""
        if self._open_until is None:
            return CircuitState.CLOSED
        return CircuitState.OPEN if now < self._open_until else CircuitState.HALF_OPEN

    def open_for_s(self, now: float) -> float:
        """Seconds until a probe may be sent; 0: one may be, or none is needed."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - now)

    @property
    def failures(self) -> int:
        """Failures of the server since its last answer."""
        return self._failures

    def may_begin(self, now: float) -> bool:
        """Whether a call may be sent."""
        if self._open_until is None:
            return True
        return now >= self._open_until and not self.is_probed

    def begin(self) -> bool:
        """A call that may begin is sent; returns whether it is the probe."""
        if self._open_until is None:
            return False
        self.is_probed = True
        return True

    def answered(self) -> None:
        """The server answered a call, whatever it said: the circuit closes."""
        self._failures = 0
        self._open_until = None
        self._open_s = self._config.first_s
        self.is_probed = False

    def failed(self, now: float, *, is_probe: bool) -> None:
        """A call failed for a reason that is the server's."""
        self._failures += 1
        if is_probe:
            self._open_s = min(self._open_s * 2, self._config.longest_s)
            self._open(now)
        elif self._open_until is None and self._failures >= self._config.failures:
            self._open(now)

    def abandoned(self, *, is_probe: bool) -> None:
        """Nothing is known of the outcome of a call; another one may be the probe."""
        if is_probe:
            self.is_probed = False

    def _open(self, now: float) -> None:
        self._open_until = now + self._open_s
        self.is_probed = False
