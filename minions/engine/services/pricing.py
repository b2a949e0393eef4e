"""The cost of model calls by the run's price book. An unknown price leaves the cost unknown."""

from __future__ import annotations

from attrs import evolve

from minions.contracts.calls import ChatModel, ModelOptions
from minions.contracts.messages import TokenUsage
from minions.data.errors import EnvironmentRefusedError, StepFailedError, words_of
from minions.engine.services.budget import RunBudget
from minions.engine.services.run_services import Services

_ONE_OF_EACH = TokenUsage(input_tokens=1, output_tokens=1)


def with_cost(
    usage: TokenUsage, model: ChatModel | None, services: Services, *, in_batch: bool = False
) -> TokenUsage:
    """The usage with its cost in US dollars; a cost that the server reported is not changed.

    Args:
        in_batch: Whether it was used in a batch of the provider, which has another price.
    """
    if usage.cost_usd is not None or not usage.total_tokens:
        return usage
    cost = _cost(usage, model, services, in_batch=in_batch)
    return usage if cost is None else evolve(usage, cost_usd=cost)


def check_price(model: ChatModel, budget: RunBudget, services: Services) -> None:
    """Refuse a model without a price where the cost is limited.

    Raises:
        EnvironmentRefusedError: Code `unknown-price`.
    """
    limit = budget.cost_limit
    if limit is None and services.budgets is not None:
        limit = services.budgets.cost_limit
    if limit is not None:
        refuse_unknown_price(model, limit, services)


def refuse_unknown_price(model: ChatModel, limit: tuple[float, str], services: Services) -> None:
    """Refuse a model without a price.

    Args:
        limit: US dollars that a run may cost, and what says so.
    Raises:
        EnvironmentRefusedError: Code `unknown-price`.
    """
    if _cost(_ONE_OF_EACH, model, services) is not None:
        return
    most, name = limit
    raise EnvironmentRefusedError(
        f"The run may cost ${most:g} ({name}), and the price of the model "
        f"'{model.name}' is not known. Give it in minions.toml, in US dollars per million tokens:\n"
        f'  [prices."{model.name}"]\n'
        "  input_per_mtok = 1.0\n"
        "  output_per_mtok = 2.0\n"
        "or leave the limit out.",
        code="unknown-price",
    )


def expect_price(model: ChatModel | None, budget: RunBudget, services: Services) -> None:
    """Prepare the price of a model before a call; under a cost limit it must be known.

    Raises:
        StepFailedError: Code `unknown-price`; the models that code asks are known only here.
    """
    if model is None:
        return
    try:
        check_price(model, budget, services)
    except EnvironmentRefusedError as error:
        raise StepFailedError(error.info()) from error
    if services.prices is not None:
        services.prices.expect(model.name, base_url=model.base_url)


def context_tokens_of(
    model: ChatModel | None, options: ModelOptions, services: Services
) -> int | None:
    """The most tokens of a prompt that the model takes, as configured or listed; None: unknown."""
    own = own_context_tokens(model, services)
    configured = own if options.context_tokens is None else options.context_tokens
    if configured is not None or model is None or services.prices is None:
        return configured
    try:
        return services.prices.context_tokens(model.name, base_url=model.base_url)
    except Exception as error:  # noqa: BLE001  # as for prices
        services.log.warning("context_unknown", model=model.name, error=words_of(error))
        return None


def own_context_tokens(model: ChatModel | None, services: Services) -> int | None:
    """What the operator says of the model's context, else what its server told a probe."""
    if model is None:
        return None
    own = model.capabilities.context_tokens
    if own is not None or (profile := services.profiles.find(model)) is None:
        return own
    return profile.context_tokens


def _cost(
    usage: TokenUsage, model: ChatModel | None, services: Services, *, in_batch: bool = False
) -> float | None:
    prices = services.prices
    if model is None or prices is None:
        return None
    look_up = prices.batch_cost_usd if in_batch else prices.cost_usd
    try:
        return look_up(model.name, usage, at=services.clock.now(), base_url=model.base_url)
    except Exception as error:  # noqa: BLE001  # an application's book raises anything, and a call that was paid for must be kept
        services.log.warning("price_unknown", model=model.name, error=words_of(error))
        return None
