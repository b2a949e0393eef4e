"""What the model calls of a recipe use at most: tokens and US dollars. Values, no words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from attrs import frozen

from minions.contracts.context import Limits
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import TokenUsage
from minions.recipe.model import ModelConfig

__all__ = ["Asking", "KnowModel", "KnownModel", "Most", "Spending", "nothing_known", "spending"]


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
    at_once: int = 1
    """Calls that may be under way together."""


@frozen(kw_only=True)
class Most:
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

    tokens: Most
    """Input and output."""
    cost_usd: Most
    calls_in_flight: int
    """Calls that may be under way when a limit is reached; each may use as much as any."""


def spending(
    askings: Sequence[Asking],
    know: KnowModel,
    *,
    limits: Limits,
    attempts: int,
    max_parallel: int,
) -> Spending:
    """Of one run of these steps.

    Args:
        limits: Of the run.
        attempts: Of each call.
        max_parallel: Steps that are done together.
    """
    asked = [one for one in askings if one.calls != 0]
    widest = sorted((one.at_once for one in asked), reverse=True)
    in_flight = sum(widest[:max_parallel])
    calls = [_Call.of(one, know(one.config)) for one in asked]
    tokens = [(call, call.tokens) for call in calls]
    costs = [(call, call.cost_usd) for call in calls]
    return Spending(
        tokens=_most(tokens, limits.max_tokens, attempts, in_flight),
        cost_usd=_most(costs, limits.max_cost_usd, attempts, in_flight),
        calls_in_flight=in_flight,
    )


@frozen(kw_only=True)
class _Use:
    """Of one attempt at a call."""

    most: float | None
    unbounded: tuple[str, ...] = ()


@frozen(kw_only=True)
class _Call:
    asking: Asking
    tokens: _Use
    cost_usd: _Use

    @classmethod
    def of(cls, asking: Asking, model: KnownModel) -> _Call:
        name = model.name or "the configured model"
        output, context = asking.config.max_output_tokens, model.context_tokens
        price = model.cost_usd(TokenUsage(input_tokens=1, output_tokens=1))
        unpriced = () if price is not None else (f"the price of {name} is not known",)
        if output is None or context is None:
            missing = [] if output is not None else ["no max_output_tokens"]
            missing += [] if context is not None else ["no known context"]
            unknown = (f"{name} has {' and '.join(missing)}",)
            tokens = _Use(most=None, unbounded=unknown)
            cost = _Use(most=None, unbounded=(*unpriced, *unknown))
            return cls(asking=asking, tokens=tokens, cost_usd=cost)
        whole = TokenUsage(input_tokens=context, output_tokens=output)
        return cls(
            asking=asking,
            tokens=_Use(most=whole.total_tokens),
            cost_usd=_Use(most=model.cost_usd(whole), unbounded=unpriced),
        )


def _most(
    uses: Sequence[tuple[_Call, _Use]], limit: float | None, attempts: int, in_flight: int
) -> Most:
    bounds = list(_bounds(uses, limit, attempts, in_flight))
    if bounds:
        return Most(at_most=min(bounds), limit=limit)
    reasons = [(*call.asking.unbounded, *use.unbounded) for call, use in uses]
    return Most(
        at_most=None,
        unbounded=tuple(dict.fromkeys(reason for each in reasons for reason in each)),
        limit=limit,
    )


def _bounds(
    uses: Sequence[tuple[_Call, _Use]], limit: float | None, attempts: int, in_flight: int
) -> Iterator[float]:
    """By the number of calls; by the limit and what is in flight when it is reached."""
    each = [use.most * attempts for _, use in uses if use.most is not None]
    if len(each) < len(uses):
        return
    calls = [call.asking.calls for call, _ in uses if call.asking.calls is not None]
    if len(calls) == len(uses):
        yield sum(most * count for most, count in zip(each, calls, strict=True))
    if limit is not None:
        yield limit + in_flight * max(each, default=0)
