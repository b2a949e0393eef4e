"""Prices of models: the operator's own, then those bundled
with `genai-prices`. No network access.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from attrs import frozen
from msgspec import Struct
from msgspec.structs import replace

from minions.adapters.daemon_thread import IMPORTING
from minions.adapters.models.cache_rules import LONG_WRITES_AT
from minions.contracts.messages import TokenUsage
from minions.contracts.model_endpoints import is_loopback_url
from minions.contracts.runtime import PriceBook
from minions.data.field_repr import FieldsRepr

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice


class _BatchDiscount(Struct, frozen=True, kw_only=True):
    """What calls in a provider's batches cost, as a factor of what others cost."""

    factor: float
    cached_factor: float | None = None
    """Of input from the provider's cache; None: as other input."""

    @property
    def of_cached(self) -> float:
        return self.factor if self.cached_factor is None else self.cached_factor


_NO_DISCOUNT: Final = _BatchDiscount(factor=1.0)
_OPENAI: Final = _BatchDiscount(factor=0.5)
"""Source: https://platform.openai.com/docs/pricing, "Batch": half, and the discount of cached input
stacks. As of November 2026."""
_ANTHROPIC: Final = _BatchDiscount(factor=0.5)
"""Source: https://docs.claude.com/en/docs/build-with-claude/batch-processing: half of the standard
price of all usage, reads and writes of the prompt cache among it. As of November 2026."""
_GEMINI: Final = _BatchDiscount(factor=0.5, cached_factor=1.0)
"""Source: https://ai.google.dev/gemini-api/docs/optimization: half of the standard prices. It does
not say so of input from the cache, which counts in full: a sum is never too low. As of November
2026."""
_BATCH_DISCOUNTS: Final[Mapping[str, _BatchDiscount]] = {
    "openai": _OPENAI,
    "api.openai.com": _OPENAI,
    "anthropic": _ANTHROPIC,
    "api.anthropic.com": _ANTHROPIC,
    "gemini": _GEMINI,
    "google": _GEMINI,
    "generativelanguage.googleapis.com": _GEMINI,
}
"""By provider, and by the host of the provider's own server: another server has its own prices."""


@frozen(kw_only=True)
class OwnPrice(FieldsRepr):
    """The operator's price of one model, in US dollars per million tokens."""

    input_per_mtok: float
    output_per_mtok: float
    cached_input_per_mtok: float | None = None
    """Price of input from the provider's cache; None: as other input."""
    cache_write_per_mtok: float | None = None
    """Price of input that the provider stores in its cache; None: as other input."""
    long_cache_write_per_mtok: float | None = None
    """Price of input that it stores for an hour; None: `LONG_WRITES_AT` times other input."""
    batch_factor: float | None = None
    """What calls in batches cost, as a factor of these prices; None: the provider's own factor,
    else 1."""

    def cost_usd(self, usage: TokenUsage, discount: _BatchDiscount = _NO_DISCOUNT) -> float:
        """The price of these tokens in US dollars."""
        plain, cached, written, kept_long = _input_parts(usage)
        of_cached, of_written = self.cached_input_per_mtok, self.cache_write_per_mtok
        of_long = self.long_cache_write_per_mtok
        discounted = (
            plain * self.input_per_mtok
            + written * (self.input_per_mtok if of_written is None else of_written)
            + kept_long * (self.input_per_mtok * LONG_WRITES_AT if of_long is None else of_long)
            + usage.output_tokens * self.output_per_mtok
        )
        of_cache = cached * (self.input_per_mtok if of_cached is None else of_cached)
        return (discounted * discount.factor + of_cache * discount.of_cached) / _MTOK


def _input_parts(usage: TokenUsage) -> tuple[int, int, int, int]:
    """Input that is neither from the provider's cache nor stored in it; that from it; that stored
    as usual; that stored for an hour.

    Whatever a server counts, they add up to the input.
    """
    cached = min(usage.cached_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - cached)
    kept_long = min(usage.long_cache_write_tokens, written)
    return usage.input_tokens - cached - written, cached, written - kept_long, kept_long


_MTOK: Final = 1_000_000
_NEVER_LISTED: Final = ("scripted", "replay", "ollama", "local")
"""Providers that run on this machine: known to have no price without loading the data."""


class GenaiPriceBook(PriceBook):
    """The operator's prices, then bundled ones. Loads `genai-prices` when it is first needed.

    A bundled price is that of the provider's own server: the same model behind another URL has
    none, unless a provider in the data has that URL.
    """

    def __init__(self, own: Mapping[str, OwnPrice] | None = None) -> None:
        """Prepare the price book; nothing is loaded yet.

        Args:
            own: The operator's prices by `provider/name`.
        """
        self._own = dict(own or {})
        self._found: dict[tuple[str, str | None], ModelInfo | None] = {}
        self._is_loading = False

    def cost_usd(
        self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
    ) -> float | None:
        """The first look-up of a listed model loads the data, which
        takes more than half a second.
        """
        own = self._own.get(model)
        if own is not None:
            return own.cost_usd(usage)
        if _is_free(model, base_url):
            return 0.0
        info = self._info(model, base_url)
        return None if info is None else _listed_cost(info.get_prices(at), usage)

    def batch_cost_usd(
        self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
    ) -> float | None:
        """The price of other calls with the discount of the provider's batches, which the operator
        may have stated.
        """
        own = self._own.get(model)
        host = model.partition("/")[0] if base_url is None else urlsplit(base_url).hostname or ""
        discount = _BATCH_DISCOUNTS.get(host, _NO_DISCOUNT)
        if own is not None:
            factor = discount.factor if own.batch_factor is None else own.batch_factor
            return own.cost_usd(usage, replace(discount, factor=factor))
        info = None if _is_free(model, base_url) else self._info(model, base_url)
        if info is None:
            return self.cost_usd(model, usage, at=at, base_url=base_url)
        return _listed_cost(info.get_prices(at), usage, discount)

    def context_tokens(self, model: str, *, base_url: str | None = None) -> int | None:
        """Taken from the bundled data, also for a model with an operator's price."""
        info = self._info(model, base_url)
        return info.context_window if info is not None else None

    def expect(self, model: str, *, base_url: str | None = None) -> None:
        """Loads in a thread; only the end of the process waits for it."""
        if self._is_loading or model in self._own or not _may_be_listed(model, base_url):
            return
        self._is_loading = True

        def load() -> None:
            with contextlib.suppress(Exception):  # the look-up of the cost raises it again
                self._info(model, base_url)

        threading.Thread(target=load, name=f"{IMPORTING}-prices", daemon=True).start()

    def _info(self, model: str, base_url: str | None) -> ModelInfo | None:
        key = (model, base_url)
        if key not in self._found:
            self._found[key] = _look_up(model, base_url)
        return self._found[key]


def _is_free(model: str, base_url: str | None) -> bool:
    """Whether nobody is asked: the answers were recorded, or a process of ours computes them from
    a file.
    """
    if model.startswith("replay/"):
        return True
    is_local = model == "local" or model.startswith("local/")
    return is_local and (base_url is None or base_url.startswith("file:"))


def _may_be_listed(model: str, base_url: str | None) -> bool:
    """Whether the data may list the model; a cheap test that needs no import,
    and never False for a listed one.
    """
    provider, slash, name = model.partition("/")
    if base_url is not None:
        return base_url.startswith("https:") and not is_loopback_url(base_url) and bool(name)
    return bool(slash) and bool(name) and provider not in _NEVER_LISTED


def _look_up(model: str, base_url: str | None) -> ModelInfo | None:
    """The entry by the server's URL where it is known, else by the exact name of the provider."""
    if not _may_be_listed(model, base_url):
        return None
    from genai_prices import Usage, calc_price

    provider, _, name = model.partition("/")
    probe = Usage(input_tokens=1, output_tokens=1)
    try:
        if base_url is not None:
            return calc_price(probe, name, provider_api_url=base_url).model
        found = calc_price(probe, name, provider_id=provider)
    except (LookupError, ValueError):  # ValueError: the price is not per token
        return None
    return found.model if found.provider.id == provider else None


def _listed_cost(
    price: ModelPrice, usage: TokenUsage, discount: _BatchDiscount = _NO_DISCOUNT
) -> float | None:
    """The price by the library's rules, without the steps that repeat for every call.

    A model without a price per token has another kind of price; it is not free.
    """
    from genai_prices.types import calc_unit_price

    asked = usage.input_tokens
    if price.input_mtok is None or (price.output_mtok is None and usage.output_tokens):
        return None
    plain, cached, written, kept_long = _input_parts(usage)
    of_cached = price.input_mtok if price.cache_read_mtok is None else price.cache_read_mtok
    of_written = price.input_mtok if price.cache_write_mtok is None else price.cache_write_mtok
    discounted = float(
        calc_unit_price(price.input_mtok, plain, asked, _MTOK)
        + calc_unit_price(of_written, written, asked, _MTOK)
        + _long_writes(price, kept_long, asked)
        + calc_unit_price(price.output_mtok, usage.output_tokens, asked, _MTOK)
        + calc_unit_price(price.requests_kcount, 1, asked, 1000)
    )
    of_cache = float(calc_unit_price(of_cached, cached, asked, _MTOK))
    return discounted * discount.factor + of_cache * discount.of_cached


def _long_writes(price: ModelPrice, tokens: int, asked: int) -> Decimal:
    """The price of input that is stored for an hour."""
    from genai_prices.types import calc_unit_price

    listed = getattr(price, "cache_write_1h_mtok", None)  # newer data have it
    if listed is not None:
        return calc_unit_price(listed, tokens, asked, _MTOK)
    return calc_unit_price(price.input_mtok, tokens, asked, _MTOK) * Decimal(LONG_WRITES_AT)
