"""What the model calls of a recipe use at most: tokens and US dollars. Values, no words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from attrs import frozen

from minions.contracts.context import Limits
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import TokenUsage
from minions.recipe.model import ModelConfig

__all__ = [
    "Asking",
    "AskingRecipe",
    "KnowModel",
    "KnownModel",
    "Spending",
    "UpperBound",
    "nothing_known",
    "spending",
]


@frozen(kw_only=True)
class KnownModel:
    """What can be said of a model before it is asked."""

    name: str | None
    """None: whichever is configured."""
    context_tokens: int | None = None
    """Its longest prompt."""
    cost_usd: Callable[[TokenUsage], float | None] = lambda _: None
    """None: its price is not known."""


KnowModel: TypeAlias = Callable[[ModelConfig], KnownModel]


def nothing_known(config: ModelConfig) -> KnownModel:
    """No context and no price."""
    return KnownModel(name=config.name)


@frozen(kw_only=True)
class Asking:
    """A step that asks a model."""

    config: ModelConfig
    calls: int | None
    """Logical ones, at most; None: nobody can tell."""
    unbounded: tuple[str, ...] = ()
    """Why not."""
    at_once: int | None = 1
    """Calls that may be under way together; None: nobody can tell."""
    attempts: int = 1
    """Of each call."""


@frozen(kw_only=True)
class AskingRecipe:
    """A recipe whose steps ask models: a whole run, or a step of one."""

    parts: Sequence[Asking | AskingRecipe]
    limits: Limits
    """Of one run of it."""
    max_parallel: int = 1
    """Steps that are done together."""
    times: int | None = 1
    """How often it is run in the recipe around it; None: nobody can tell."""
    unbounded: tuple[str, ...] = ()
    """Why not."""
    at_once: int = 1
    """Runs of it that may be under way together."""


@frozen(kw_only=True)
class UpperBound:
    """At most so much, or why nobody can tell."""

    at_most: float | None = 0
    """With what calls use that are under way when the limit is reached, and with retries."""
    unbounded: tuple[str, ...] = ()
    limit: float | None = None
    """The run's own: when it is reached no call begins any more."""

    def to_json(self) -> dict[str, JsonValue]:
        """As `Bound.to_json`, and the limit."""
        return {
            "at_most": self.at_most,
            "unbounded_because": list(self.unbounded),
            "limit": self.limit,
        }


@frozen(kw_only=True)
class Spending:
    """Of one run."""

    tokens: UpperBound
    """Input and output."""
    cost_usd: UpperBound
    calls_in_flight: int | None
    """Calls that may be under way when a limit is reached; each may use as much as any. None:
    nobody can tell."""


def spending(asked: AskingRecipe, know: KnowModel) -> Spending:
    """Of one run of the recipe."""
    tokens = _Measure(lambda each: _tokens(each, know), lambda limits: limits.max_tokens)
    costs = _Measure(lambda each: _cost(each, know), lambda limits: limits.max_cost_usd)
    return Spending(
        tokens=tokens.most(asked), cost_usd=costs.most(asked), calls_in_flight=_in_flight(asked)
    )


@frozen(kw_only=True)
class _Use:
    """Of some calls together."""

    at_most: float | None
    largest: float | None
    """Of one of these calls, with its retries; None: nobody can tell."""
    unbounded: tuple[str, ...] = ()


@frozen
class _Measure:
    """Tokens, or dollars."""

    of_attempt: Callable[[Asking], _Use]
    limit_of: Callable[[Limits], float | None]

    def most(self, asked: AskingRecipe) -> UpperBound:
        """Of one run."""
        use, limit = self._of_run(asked), self.limit_of(asked.limits)
        if use.at_most is not None:
            return UpperBound(at_most=use.at_most, limit=limit)
        return UpperBound(at_most=None, unbounded=tuple(dict.fromkeys(use.unbounded)), limit=limit)

    def _of_run(self, asked: AskingRecipe) -> _Use:
        """By the number of calls; by the limit and what is in flight when it is reached."""
        parts = [self._of_part(part) for part in asked.parts if _count(part) != 0]
        largest = _if_all_known([part.largest for part in parts], max)
        bounds = [_if_all_known([part.at_most for part in parts], sum)]
        limit, in_flight = self.limit_of(asked.limits), _in_flight(asked)
        if limit is not None and largest is not None and in_flight is not None:
            bounds.append(limit + in_flight * largest)
        known = [bound for bound in bounds if bound is not None]
        reasons = tuple(reason for part in parts for reason in part.unbounded)
        return _Use(at_most=min(known, default=None), largest=largest, unbounded=reasons)

    def _of_part(self, part: Asking | AskingRecipe) -> _Use:
        """Of all its calls, or of all its runs."""
        if isinstance(part, AskingRecipe):
            each = self._of_run(part)
        else:
            each = _retried(self.of_attempt(part), part.attempts)
        count = _count(part)
        if count is not None and each.at_most is not None:
            return _Use(at_most=each.at_most * count, largest=each.largest)
        own = each.unbounded if each.at_most is None else ()
        return _Use(at_most=None, largest=each.largest, unbounded=(*part.unbounded, *own))


def _count(part: Asking | AskingRecipe) -> int | None:
    return part.calls if isinstance(part, Asking) else part.times


def _retried(use: _Use, attempts: int) -> _Use:
    most = None if use.at_most is None else use.at_most * attempts
    return _Use(at_most=most, largest=most, unbounded=use.unbounded)


def _if_all_known(
    numbers: Sequence[float | None], together: Callable[[list[float]], float]
) -> float | None:
    known = [number for number in numbers if number is not None]
    return together([0, *known]) if len(known) == len(numbers) else None


def _in_flight(asked: AskingRecipe) -> int | None:
    """Calls that may be under way together in one run of it."""
    widths: list[int] = []
    for part in asked.parts:
        if _count(part) == 0:
            continue
        each = _in_flight(part) if isinstance(part, AskingRecipe) else 1
        if each is None or part.at_once is None:
            return None
        widths.append(each * part.at_once)
    return sum(sorted(widths, reverse=True)[: asked.max_parallel])


# --- one attempt at a call ----------------------------------------------------------------------


def _tokens(asking: Asking, know: KnowModel) -> _Use:
    model = know(asking.config)
    whole, unknown = _whole(asking, model)
    tokens = whole.total_tokens if whole is not None else None
    return _Use(at_most=tokens, largest=tokens, unbounded=unknown)


def _cost(asking: Asking, know: KnowModel) -> _Use:
    model = know(asking.config)
    whole, unknown = _whole(asking, model)
    price = model.cost_usd(TokenUsage(input_tokens=1, output_tokens=1))
    unpriced = () if price is not None else (f"the price of {_name(model)} is not known",)
    cost = model.cost_usd(whole) if whole is not None else None
    return _Use(at_most=cost, largest=cost, unbounded=(*unpriced, *unknown))


def _whole(asking: Asking, model: KnownModel) -> tuple[TokenUsage | None, tuple[str, ...]]:
    """The largest call, or why there is none."""
    output, context = asking.config.max_output_tokens, model.context_tokens
    if output is not None and context is not None:
        return TokenUsage(input_tokens=context, output_tokens=output), ()
    missing = [] if output is not None else ["no max_output_tokens"]
    missing += [] if context is not None else ["no known context"]
    return None, (f"{_name(model)} has {' and '.join(missing)}",)


def _name(model: KnownModel) -> str:
    return model.name or "the configured model"
