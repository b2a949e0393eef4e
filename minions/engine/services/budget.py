"""The budget of a run: the limits on steps, model calls, tokens and cost, and what is spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import field, frozen

from minions.contracts.context import Limits
from minions.contracts.journal.run_rows import Spent
from minions.contracts.messages import NO_USAGE, TokenUsage
from minions.data.errors import LIMIT_REACHED, FailureInfo, StepFailedError
from minions.data.failure_categories import FailureCategory
from minions.engine.services.spending import CallEstimate, CallHold, EarlierUsage, Spending


class ThresholdReachedError(Exception):
    """A call may begin only after a person was asked."""

    def __init__(self, spending: Spending) -> None:
        """Args: spending: The budget at its threshold."""
        super().__init__()
        self.spending = spending


class RunBudget:
    """Counts steps, calls, tokens and US dollars. Once a limit is reached, nothing new starts."""

    def __init__(
        self,
        limits: Callable[[], Limits],
        parent: RunBudget | None = None,
        *,
        earlier: EarlierUsage | None = None,
    ) -> None:
        """Start with nothing spent.

        Args:
            limits: Called at each check: an application may change the limits during the run.
            parent: The budget of the enclosing run, for a recipe that is a step; everything that is
                spent here is spent there as well.
            earlier: What earlier executions of the run used; None: nothing.
        """
        self._limits = limits
        self._parent = parent
        whose = "run's" if parent is None else "recipe's"
        self._own = Spending(limits, whose=whose, earlier=earlier)
        self._shared: tuple[Spending, ...] = ()
        self._counted_before: tuple[Spending, ...] = ()
        """Shared budgets that count what is replayed already."""
        self.children = NO_USAGE
        """The part of `usage` that child runs used: their own rows count in budgets of many runs.
        """
        self.steps = 0
        """Steps that were executed so far; skipped steps do not count."""
        self._allowed: object = None
        self._stopped_at: str | None = None
        """The limit that was reached, of those that are not on model calls."""
        self.has_refused = False
        """Whether something was prevented from starting: only then is the run `limit_reached`."""

    def share(self, spending: Spending, *, counts_replayed: bool = True) -> None:
        """Spend from that budget, too: of a batch, a session, a day.

        Args:
            counts_replayed: Whether calls that are replayed are to be counted there; False: what
                earlier executions of the run used is counted already.
        """
        self._shared = (*self._shared, spending)
        if not counts_replayed:
            self._counted_before = (*self._counted_before, spending)

    @property
    def usage(self) -> TokenUsage:
        """What the calls of all executions of the run used."""
        own = self._own
        return own.usage + own.earlier.usage if own.earlier.tokens else own.usage

    @property
    def discarded(self) -> TokenUsage:
        """The part of `usage` that earlier executions used and this one did not replay."""
        earlier = self._own.earlier
        return earlier.usage if earlier.tokens else NO_USAGE

    @property
    def spent(self) -> Spent:
        """What all executions of the run used, as far as the cost is known; not its child runs."""
        own, children = self._own, self.children
        known = (own.usage.cost_usd or 0.0) + own.earlier.cost_usd
        return Spent(
            own.tokens - children.total_tokens, max(0.0, known - (children.cost_usd or 0.0))
        )

    def count_children(self, usage: TokenUsage) -> None:
        """Add what child runs of the run used."""
        self._own.add_children(usage)
        self.children += usage

    @property
    def left(self) -> Mapping[str, float]:
        """What is left of the run's limits on tokens and cost, by name; {}: it has no such limit.

        Of a limit on cost nothing is left once the cost of a call is not known.
        """
        limits, own = self._limits(), self._own
        left: dict[str, float] = {}
        if limits.max_tokens is not None:
            left["max_tokens"] = limits.max_tokens - own.tokens
        if limits.max_cost_usd is not None:
            cost = own.cost_usd
            left["max_cost_usd"] = 0.0 if cost is None else limits.max_cost_usd - cost
        return left

    @property
    def _levels(self) -> tuple[Spending, ...]:
        """Whatever is spent from by a call, the innermost first."""
        outer = self._parent._levels if self._parent is not None else ()  # noqa: SLF001  # its own kind
        return (self._own, *self._shared, *outer)

    @property
    def _replay_levels(self) -> tuple[Spending, ...]:
        """What counts a call that is replayed."""
        outer = self._parent._replay_levels if self._parent is not None else ()  # noqa: SLF001  # its own kind
        shared = (each for each in self._shared if each not in self._counted_before)
        return (self._own, *shared, *outer)

    @property
    def _own_reached(self) -> str | None:
        stopped = self._stopped_at
        if stopped is not None and stopped != "max_steps":
            return stopped
        for each in (self._own, *self._shared):
            if each.reached is not None and not each.is_asking:
                return each.reached
        return stopped

    @property
    def asking(self) -> Spending | None:
        """The budget at whose threshold a person is asked, here or in an enclosing run."""
        return next((each for each in self._levels if each.reached and each.is_asking), None)

    @property
    def reached(self) -> str | None:
        """The limit that was reached, by its name, here or in an enclosing run; None: none was."""
        return self._own_reached or (self._parent.reached if self._parent is not None else None)

    @property
    def is_shared(self) -> bool:
        """Whether the reached limit bounds many runs: no edit of a recipe raises it."""
        if self._own_reached is None:
            return self._parent is not None and self._parent.is_shared
        is_own = self._stopped_at not in (None, "max_steps") or self._own.reached is not None
        return not is_own and any(each.reached and not each.is_asking for each in self._shared)

    @property
    def whose(self) -> str:
        """Whose limit was reached, for a message: such as `recipe's` or `batch's`."""
        reached = (each for each in self._levels if each.reached and not each.is_asking)
        return next((each.whose for each in reached), self._own_whose)

    @property
    def _own_whose(self) -> str:
        return "recipe's" if self.is_own else "run's"

    @property
    def is_own(self) -> bool:
        """Whether the limit that was reached is that of a recipe step, not of the run."""
        return self._own_reached is not None and self._parent is not None

    @property
    def is_spent(self) -> bool:
        """Whether no more calls may begin. At `max_steps`, steps that have begun may finish."""
        return self.reached not in (None, "max_steps")

    def count_step(self) -> None:
        """Count one executed step."""
        self.steps += 1
        if self._parent is not None:
            self._parent.count_step()

    def may_start_step(self) -> bool:
        """Whether another step may start; the caller then counts it."""
        reached = self._own_reached
        if reached is None and self.steps == self._limits().max_steps:
            reached = self._stopped_at = "max_steps"
        if reached is None and (self._parent is None or self._parent.may_start_step()):
            return True
        self.refuse()
        return False

    def spend_replayed(self, key: str, usage: TokenUsage) -> None:
        """Add what a recorded call used: it counted as earlier usage until now.

        Args:
            key: The key of the call.
        """
        for level in self._replay_levels:
            level.replay(key, usage)

    def spend_beside_calls(self, usage: TokenUsage, *, is_replayed: bool = False) -> None:
        """Add what was used and is no call: beginnings of prompts that a provider stores.

        Args:
            is_replayed: Whether an earlier execution of the run recorded it.
        """
        for level in self._replay_levels if is_replayed else self._levels:
            level.add_children(usage)

    def has_room_beside_calls(self, usage: TokenUsage) -> bool:
        """Whether that may be spent beside the calls in flight."""
        return all(level.has_room_for(usage) for level in self._levels)

    @property
    def max_cost_usd(self) -> float | None:
        """The lowest cost limit of this budget and the enclosing ones; None: unlimited."""
        return self.cost_limit[0] if self.cost_limit is not None else None

    @property
    def cost_limit(self) -> tuple[float, str] | None:
        """The lowest cost limit of this budget and the enclosing ones, and its name.

        None: unlimited.
        """
        lowest: tuple[float, str] | None = None
        for level in self._levels:
            most = level.limits().max_cost_usd
            if most is not None:
                named = (most, level.names["max_cost_usd"])
                lowest = named if lowest is None else min(lowest, named)
        return lowest

    @property
    def overrun(self) -> str | None:
        """How far a limit was exceeded, for a person; None: none was."""
        for level in self._levels:
            if (overrun := level.overrun) is not None:
                return f"the {level.whose} limit: {overrun}"
        return None

    @property
    def warnings(self) -> Sequence[str]:
        """What is said of budgets that are at a threshold, for a person."""
        found = (each.warning for each in self._levels)
        return [text for text in found if text is not None]

    def reserve_unlimited(self, *, refuses: bool = True) -> CallReservation | None:
        """What a model call spends from, where no limit is set on calls: it waits for nothing.

        Args:
            refuses: As of `check`.
        Returns:
            None: there is a limit, and `reserve` looks at it.
        Raises:
            StepFailedError: Code `limit-reached`.
        """
        levels = self._levels
        for level in levels:
            if level.is_limited:
                return None
        self.check(refuses=refuses)
        for level in levels:
            level.calls += 1
        return CallReservation(levels, 0)

    async def reserve(
        self, estimate: Callable[[], CallEstimate], *, refuses: bool = True
    ) -> CallReservation:
        """Hold what a model call may use; it waits while calls in flight may still need it.

        Args:
            estimate: What it may use; asked only where a limit is set.
            refuses: As of `check`.
        Returns:
            What is held; the caller releases it.
        Raises:
            StepFailedError: Code `limit-reached`.
            ThresholdReachedError: A person has to be asked before the call may begin.
        """
        self.check(refuses=refuses)
        levels = self._levels
        limited = [level for level in levels if level.is_limited]
        for level in levels:
            level.calls += level not in limited
        if not limited:
            return CallReservation(levels, 0)
        wanted = estimate()
        reservation = CallReservation(levels, wanted.characters)
        try:
            for level in limited:
                if (hold := await level.reserve(wanted)) is not None:
                    reservation.holds.append((level, hold))
                self.check(refuses=refuses)
                if hold is None and level.is_asking:
                    raise ThresholdReachedError(level)
        except BaseException:
            await reservation.release()
            raise
        return reservation

    def last_call(self) -> CallReservation:
        """What one more call spends from, although the budget is spent."""
        levels = self._levels
        for level in levels:
            level.calls += 1
        return CallReservation(levels, 0)

    def check(self, *, refuses: bool = True) -> None:
        """Refuse to start a model call when the budget is spent.

        Args:
            refuses: Whether the run is `limit_reached` by that; False: the caller has another way.
        Raises:
            StepFailedError: Code `limit-reached`.
        """
        reached = self._own_reached
        if reached is None and self._parent is not None:
            reached = self._parent.reached
        if reached is not None and reached != "max_steps":
            if refuses:
                self.refuse()
            raise StepFailedError(self.failure())

    def refuse(self) -> None:
        """Note that something was prevented from starting, here and where the limit belongs."""
        self.has_refused = True
        if self._own_reached is None and self._parent is not None:
            self._parent.refuse()

    def stop_at(self, name: str, allowed: object) -> None:
        """Note a limit that is not among the run's own limits as reached."""
        self._stopped_at, self._allowed, self.has_refused = name, allowed, True

    def run_out_of_time(self) -> None:
        """Note that the run's `timeout_s` has passed."""
        if self._parent is not None:
            self._parent.run_out_of_time()
            return
        self._stopped_at = "timeout_s"
        self.has_refused = True

    def failure(self) -> FailureInfo:
        """The failure `limit-reached`, with the limit, what was spent, and what to do."""
        if self._own_reached is None and self._parent is not None:
            return self._parent.failure()
        name = self._own_reached or "limit"
        reached = (each for each in self._levels if each.reached == name and not each.is_asking)
        level = next(reached, self._own)
        allowed = self._allowed or getattr(level.limits(), name, None)
        return FailureInfo(
            code=LIMIT_REACHED,
            message=f"The {self.whose} limit {level.names.get(name, name)}={allowed} is reached: "
            f"{self._spent_words(name, level)}. What was done is recorded; {level.advice}",
            category=FailureCategory.TIMEOUT if name == "timeout_s" else None,
        )

    def _spent_words(self, name: str, level: Spending) -> str:
        return {
            "max_steps": f"{self.steps} steps were run",
            "max_model_calls": f"{level.calls} model calls were made",
            "max_tokens": f"{level.tokens} tokens were used",
            "max_cost_usd": _cost_words(level.cost_usd),
            "timeout_s": "the run took too long",
        }.get(name, "the run's limit was reached")


@frozen(eq=False, repr=False)
class CallReservation:
    """What one model call spends from."""

    _levels: tuple[Spending, ...]
    _characters: int
    """Of its prompt; 0: not counted."""
    holds: list[tuple[Spending, CallHold]] = field(factory=list, init=False)
    """What is held of each limited budget, the innermost first."""

    async def release(self) -> None:
        """Give back what is held, once; what the call used is spent before."""
        while self.holds:
            level, hold = self.holds.pop()
            level.release(hold)
            if level.is_published:
                await level.publish()

    def spend(self, usage: TokenUsage) -> None:
        """Add what an attempt at the call used; the last one may exceed a limit."""
        for level in self._levels:
            level.add(usage, self._characters)


def _cost_words(cost: float | None) -> str:
    return "the cost of what was done is not known" if cost is None else f"${cost:.6g} was spent"
