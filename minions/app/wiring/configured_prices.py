"""Prices and context lengths of models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from minions.app.settings.settings import Settings
from minions.app.wiring.configured_models import is_local, operator_models
from minions.contracts.messages import TokenUsage
from minions.contracts.runtime import PriceBook
from minions.data.errors import UsageError
from minions.recipe.model_config import ModelConfig

if TYPE_CHECKING:
    from minions.analysis.bounds import KnowModel, KnownModel
    from minions.contracts.prompt_caches import PromptCache


def make_prices(settings: Settings) -> PriceBook:
    """The price book: the operator's own prices over the bundled ones. Loads nothing yet."""
    from minions.adapters.models.price_books import GenaiPriceBook, OwnPrice

    own = {
        name: OwnPrice(
            input_per_mtok=price.input_per_mtok,
            output_per_mtok=price.output_per_mtok,
            cached_input_per_mtok=price.cached_input_per_mtok,
            cache_write_per_mtok=price.cache_write_per_mtok,
            long_cache_write_per_mtok=price.long_cache_write_per_mtok,
            batch_factor=price.batch_factor,
        )
        for name, price in settings.prices.items()
    }
    return GenaiPriceBook(own)


def knowledge_of_models(
    settings: Settings, environ: Mapping[str, str], *, in_batches: bool = False
) -> KnowModel:
    """Context length and price of each model that a recipe would use; no key is needed.

    Args:
        in_batches: Whether prices are those of calls that go through batches of the provider.
    """
    from minions.analysis.bounds import KnownModel

    prices, now = make_prices(settings), datetime.now(UTC)

    def know(config: ModelConfig) -> KnownModel:
        name = config.name or settings.model
        if name is None:
            return KnownModel(name=None)
        url = _server_of(name, config, settings, environ)

        def cost_usd(usage: TokenUsage) -> float | None:
            look_up = prices.batch_cost_usd if in_batches else prices.cost_usd
            return look_up(name, usage, at=now, base_url=url)

        if config.base_url is None and is_local(name, settings):
            from minions.app.wiring.local_models import most_context

            context: int | None = most_context(settings)
        else:
            context = prices.context_tokens(name, base_url=url)
        return KnownModel(
            name=name,
            context_tokens=context,
            cost_usd=cost_usd,
            cache=_cache_of(name, config, settings, environ),
        )

    return know


def _cache_of(
    name: str, config: ModelConfig, settings: Settings, environ: Mapping[str, str]
) -> PromptCache | None:
    """How the model's server keeps beginnings of prompts; None: that is not known.

    Raises:
        UsageError: `no-long-retention`, `no-such-cache`.
    """
    from minions.adapters.models.endpoints import prompt_cache_for

    try:
        return prompt_cache_for(name, config, environ, operator_models(settings))
    except UsageError as error:
        if error.error_code in ("no-long-retention", "no-such-cache"):
            raise
        return None


def _server_of(
    name: str, config: ModelConfig, settings: Settings, environ: Mapping[str, str]
) -> str | None:
    """The base URL of the model's server; None: there is none, or none is configured."""
    from minions.adapters.models.endpoints import base_url_of

    try:
        return base_url_of(name, config, environ, operator_models(settings))
    except UsageError:
        return config.base_url
