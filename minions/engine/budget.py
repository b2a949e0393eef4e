"""The ledger of a run: what it may spend in all, and what it has spent."""

from __future__ import annotations

from collections.abc import Callable

from minions.contracts.context import Limits
from minions.contracts.errors import FailureInfo, StepFailedError
from minions.contracts.messages import TokenUsage

__all__ = ["Ledger"]


class Ledger:
    """Counts steps and tokens. When a limit is reached nothing new starts."""

    def __init__(self, limits: Callable[[], Limits]) -> None:
        """`limits` are asked at each look: an application may change them during the run."""
        self._limits = limits
        self.usage = TokenUsage()
        self.steps = 0
        """Executed so far; those that were passed over do not count."""
        self._allowed: object = None
        self.reached: str | None = None
        """The limit that was reached, by its name."""
        self.has_refused = False
        """Whether something was kept from starting: only then the run is limited."""

    def may_start_step(self) -> bool:
        """Whether the run still has one; whoever starts it counts it."""
        if self.reached is None and self.steps == self._limits().max_steps:
            self.reached = "max_steps"
        if self.reached is not None:
            self.has_refused = True
            return False
        return True

    def spend(self, usage: TokenUsage) -> None:
        """Add what a model call used; found out only afterwards, so the limit may be overshot."""
        self.usage += usage
        most = self._limits().max_tokens
        if self.reached is None and most is not None and self.usage.total_tokens >= most:
            self.reached = "max_tokens"

    def check(self) -> None:
        """Refuse to start a model call when the ledger is spent.

        Raises:
            StepFailedError: Code `limit-reached`.
        """
        if self.reached is not None:
            self.has_refused = True
            raise StepFailedError(self.failure())

    def stop_at(self, name: str, allowed: object) -> None:
        """A bound that is not among the run's own limits was reached."""
        self.reached, self._allowed, self.has_refused = name, allowed, True

    def run_out_of_time(self) -> None:
        """The run's `timeout_s` has passed."""
        self.reached = "timeout_s"
        self.has_refused = True

    def failure(self) -> FailureInfo:
        """What a person reads."""
        name = self.reached or "limit"
        spent = {
            "max_steps": f"{self.steps} steps were run",
            "max_tokens": f"{self.usage.total_tokens} tokens were used",
            "timeout_s": "the run took too long",
        }.get(name, "the run's limit was reached")
        allowed = self._allowed or getattr(self._limits(), name, None)
        return FailureInfo(
            code="limit-reached",
            message=f"The run's limit {name}={allowed} is reached: {spent}. "
            "What was done is kept; raise the limit to go further."
            " (It stands under `limits:` or in a flag.)",
        )
