"""The budget of a run: the limits on steps, tokens and cost, and what is spent."""

from __future__ import annotations

from collections.abc import Callable

from minions.contracts.context import Limits
from minions.contracts.errors import FailureInfo, StepFailedError
from minions.contracts.messages import TokenUsage

__all__ = ["RunBudget"]


class RunBudget:
    """Counts steps, tokens and US dollars. Once a limit is reached, nothing new starts."""

    def __init__(self, limits: Callable[[], Limits], parent: RunBudget | None = None) -> None:
        """Start with nothing spent.

        Args:
            limits: Called at each check: an application may change the limits during the run.
            parent: The budget of the enclosing run, for a recipe that is a step; everything that is
                spent here is spent there as well.
        """
        self._limits = limits
        self._parent = parent
        self.usage = TokenUsage()
        self.steps = 0
        """Steps that were executed so far; skipped steps do not count."""
        self._allowed: object = None
        self._reached: str | None = None
        self.has_refused = False
        """Whether something was prevented from starting: only then is the run `limit_reached`."""

    @property
    def reached(self) -> str | None:
        """The limit that was reached, by its name, here or in an enclosing run; None: none was."""
        return self._reached or (self._parent.reached if self._parent is not None else None)

    @property
    def whose(self) -> str:
        """Whose limit was reached, for a message: `recipe's` or `run's`."""
        return "recipe's" if self.is_own else "run's"

    @property
    def is_own(self) -> bool:
        """Whether the limit that was reached is that of a recipe step, not of the run."""
        return self._reached is not None and self._parent is not None

    @property
    def is_spent(self) -> bool:
        """Whether no more calls may begin. At `max_steps`, steps that have begun may finish."""
        return self.reached not in (None, "max_steps")

    def count_step(self) -> None:
        """Count one executed step."""
        self.steps += 1
        if self._parent is not None:
            self._parent.count_step()

    def _has_step_left(self) -> bool:
        if self._reached is None and self.steps == self._limits().max_steps:
            self._reached = "max_steps"
        return self._reached is None and (self._parent is None or self._parent.may_start_step())

    def may_start_step(self) -> bool:
        """Whether another step may start; the caller then counts it."""
        if not self._has_step_left():
            self.refuse()
            return False
        return True

    def spend(self, usage: TokenUsage) -> None:
        """Add the usage of a model call. It is known only afterwards, so a limit may be
        exceeded.
        """
        self.usage += usage
        if self._reached in (None, "max_steps"):
            self._reached = self._used_up() or self._reached
        if self._parent is not None:
            self._parent.spend(usage)

    def _used_up(self) -> str | None:
        """The limit that is used up; None: none is. An unknown cost uses up any limit on cost."""
        limits, used = self._limits(), self.usage
        if limits.max_tokens is not None and used.total_tokens >= limits.max_tokens:
            return "max_tokens"
        most, cost = limits.max_cost_usd, used.cost_usd
        if most is None or (cost is None and not used.total_tokens):
            return None
        return "max_cost_usd" if cost is None or cost >= most else None

    @property
    def max_cost_usd(self) -> float | None:
        """The lowest cost limit of this budget and the enclosing ones; None: unlimited."""
        own = self._limits().max_cost_usd
        outer = self._parent.max_cost_usd if self._parent is not None else None
        return min((most for most in (own, outer) if most is not None), default=None)

    def check(self) -> None:
        """Refuse to start a model call when the budget is spent.

        Raises:
            StepFailedError: Code `limit-reached`.
        """
        if self.is_spent:
            self.refuse()
            raise StepFailedError(self.failure())

    def refuse(self) -> None:
        """Note that something was prevented from starting, here and where the limit belongs."""
        self.has_refused = True
        if self._reached is None and self._parent is not None:
            self._parent.refuse()

    def stop_at(self, name: str, allowed: object) -> None:
        """Note a limit that is not among the run's own limits as reached."""
        self._reached, self._allowed, self.has_refused = name, allowed, True

    def run_out_of_time(self) -> None:
        """Note that the run's `timeout_s` has passed."""
        if self._parent is not None:
            self._parent.run_out_of_time()
            return
        self._reached = "timeout_s"
        self.has_refused = True

    def failure(self) -> FailureInfo:
        """The failure `limit-reached`, with the limit, what was spent, and what to do."""
        if self._reached is None and self._parent is not None:
            return self._parent.failure()
        name = self._reached or "limit"
        spent = {
            "max_steps": f"{self.steps} steps were run",
            "max_tokens": f"{self.usage.total_tokens} tokens were used",
            "max_cost_usd": self._spent_words(),
            "timeout_s": "the run took too long",
        }.get(name, "the run's limit was reached")
        allowed = self._allowed or getattr(self._limits(), name, None)
        return FailureInfo(
            code="limit-reached",
            message=f"The {self.whose} limit {name}={allowed} is reached: {spent}. "
            "What was done is recorded; raise the limit to resume the run."
            " (It is set under `limits:` or by a flag.)",
        )

    def _spent_words(self) -> str:
        cost = self.usage.cost_usd
        return (
            "the cost of what was done is not known" if cost is None else f"${cost:.6g} was spent"
        )
