"""Upper bounds of the tokens and US dollars of a recipe's model calls. Values, no texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from attrs import evolve, frozen

from minions.contracts.context import Limits
from minions.contracts.messages import TokenUsage
from minions.data.json_values import JsonValue
from minions.recipe.model_config import ModelConfig


@frozen(kw_only=True)
class KnownModel:
    """What is known about a model before it is called."""

    name: str | None
    """`provider/model`; None: the configured model."""
    context_tokens: int | None = None
    """The longest prompt in tokens; None: not known."""
    cost_usd: Callable[[TokenUsage], float | None] = lambda _: None
    """The price of a usage in US dollars; None: the price is not known."""


KnowModel: TypeAlias = Callable[[ModelConfig], KnownModel]


def nothing_known(config: ModelConfig) -> KnownModel:
    """A model of which neither context length nor price is known."""
    return KnownModel(name=config.name)


@frozen(kw_only=True)
class Asking:
    """The model calls of one step."""

    config: ModelConfig
    calls: int | None
    """Upper bound of logical calls; None: there is none."""
    unbounded: tuple[str, ...] = ()
    """Why there is no bound."""
    at_once: int | None = 1
    """Calls that may be in flight at the same time; None: not known."""
    attempts: int = 1
    """Attempts at each call."""


@frozen(kw_only=True)
class AskingRecipe:
    """The model calls of a recipe: the outermost one, or that of a step."""

    parts: Sequence[Asking | AskingRecipe]
    limits: Limits
    """The limits of one run of the recipe."""
    max_parallel: int = 1
    """Steps that are executed at the same time."""
    times: int | None = 1
    """How often the outer recipe runs it; None: not known."""
    unbounded: tuple[str, ...] = ()
    """Why that is not known."""
    at_once: int = 1
    """Runs of it that may be in flight at the same time."""


@frozen(kw_only=True)
class UpperBound:
    """An upper bound, or the reasons why there is none."""

    at_most: float | None = 0
    """The bound, including retries and the calls in flight when a limit
    is reached; None: there is none.
    """
    unbounded: tuple[str, ...] = ()
    limit: float | None = None
    """The limit of the run itself, after which no call starts; None: there is none."""

    def to_json(self) -> dict[str, JsonValue]:
        """`{"at_most": null where there is no bound, "unbounded_because":
        [reason], "limit": …}`.
        """
        return {
            "at_most": self.at_most,
            "unbounded_because": list(self.unbounded),
            "limit": self.limit,
        }


@frozen(kw_only=True)
class Spending:
    """The upper bounds of one run."""

    tokens: UpperBound
    """Input and output tokens together."""
    cost_usd: UpperBound
    calls_in_flight: int | None
    """Calls that may be in flight when a limit is reached, each as large as
    the largest call; None: not known.
    """


def spending(asked: AskingRecipe, know: KnowModel) -> Spending:
    """The upper bounds of one run of the recipe."""
    tokens = _Measure(lambda each: _tokens(each, know), lambda limits: limits.max_tokens)
    costs = _Measure(lambda each: _cost(each, know), lambda limits: limits.max_cost_usd)
    return Spending(
        tokens=tokens.most(asked), cost_usd=costs.most(asked), calls_in_flight=_in_flight(asked)
    )


@frozen(kw_only=True)
class _Use:
    """The usage of some calls together."""

    at_most: float | None
    largest: float | None
    """The largest of these calls with its retries; None: not known."""
    unbounded: tuple[str, ...] = ()


@frozen
class _Measure:
    """A unit of spending: tokens or dollars."""

    of_attempt: Callable[[Asking], _Use]
    limit_of: Callable[[Limits], float | None]

    def most(self, asked: AskingRecipe) -> UpperBound:
        """The upper bound of one run."""
        use, limit = self._of_run(asked), self.limit_of(asked.limits)
        if use.at_most is not None:
            return UpperBound(at_most=use.at_most, limit=limit)
        return UpperBound(at_most=None, unbounded=tuple(dict.fromkeys(use.unbounded)), limit=limit)

    def _of_run(self, asked: AskingRecipe) -> _Use:
        """The smaller of two bounds: by the number of calls, and by the limit plus the calls
        in flight when it is reached.
        """
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
        """The usage of all calls of a step, or of all runs of a nested recipe."""
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
    """Calls that may be in flight at the same time in one run; None: not known."""
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
    return _largest([_tokens_of(each, know(each.config)) for each in _by_model(asking)])


def _by_model(asking: Asking) -> Iterator[Asking]:
    """The calls as if each of the models of the step made all of them."""
    for config in (asking.config, *asking.config.others):
        yield evolve(asking, config=config)


def _largest(uses: Sequence[_Use]) -> _Use:
    """The use that is none of them less than: which model is asked is not known before."""
    known = [each.at_most for each in uses if each.at_most is not None]
    most = max(known) if len(known) == len(uses) else None
    why = dict.fromkeys(reason for each in uses for reason in each.unbounded)
    return _Use(at_most=most, largest=most, unbounded=tuple(why))


def _tokens_of(asking: Asking, model: KnownModel) -> _Use:
    whole, unknown = _whole(asking, model)
    tokens = whole.total_tokens if whole is not None else None
    return _Use(at_most=tokens, largest=tokens, unbounded=unknown)


def _cost(asking: Asking, know: KnowModel) -> _Use:
    return _largest([_cost_of(each, know(each.config)) for each in _by_model(asking)])


def _cost_of(asking: Asking, model: KnownModel) -> _Use:
    whole, unknown = _whole(asking, model)
    price = model.cost_usd(TokenUsage(input_tokens=1, output_tokens=1))
    unpriced = () if price is not None else (f"the price of {_name(model)} is not known",)
    cost = model.cost_usd(whole) if whole is not None else None
    return _Use(at_most=cost, largest=cost, unbounded=(*unpriced, *unknown))


def _whole(asking: Asking, model: KnownModel) -> tuple[TokenUsage | None, tuple[str, ...]]:
    """The usage of the largest possible call, or the reasons why there is no bound."""
    output, context = asking.config.max_output_tokens, model.context_tokens
    if output is not None and context is not None:
        return TokenUsage(input_tokens=context, output_tokens=output), ()
    missing = [] if output is not None else ["no max_output_tokens"]
    missing += [] if context is not None else ["no known context"]
    return None, (f"{_name(model)} has {' and '.join(missing)}",)


def _name(model: KnownModel) -> str:
    return model.name or "the configured model"
