"""Which model answers, with its settings, and how settings of a step override the recipe's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import attrs
from attrs import field, frozen

from minions.contracts.calls import ModelOptions
from minions.contracts.instructions import OutputMode
from minions.contracts.model_endpoints import is_loopback_url
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

LOCAL_MODEL: Final = "local"
"""The one name of a model that needs no slash: the model that comes with the extra `local`."""


@frozen(kw_only=True, cache_hash=True)
class ModelConfig(FieldsRepr):
    """Which model answers, and its settings."""

    name: str | None = None
    base_url: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    context_tokens: int | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    stop: tuple[str, ...] | None = None
    extra: Mapping[str, JsonValue] | None = field(default=None, hash=False)
    """Further fields of each request, as the server names them."""
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    min_confidence: float | None = None
    """The least probability of each value with which its output is taken; None: none is needed."""
    cache: bool | None = None
    """Whether answers to the same request are taken from the run's cache."""
    api_key_env: str | None = None
    output_mode: OutputMode | None = None
    tiers: tuple[ModelConfig, ...] | None = None
    """Models that are asked after this one where its output does not fit or its server fails."""
    output_ladder: tuple[str, ...] | None = None
    """How output is asked for, in this order, and what is done with an answer that does not fit:
    words of `OutputMode` and `OutputRung`; None: as the server's profile says.
    """
    fallbacks: tuple[ModelConfig, ...] | None = None
    """Models that are asked instead while the server of this one is unavailable."""
    cooldown_s: float | None = None
    """Seconds for which it is not asked again after its server failed, where there is another
    model; None: 60."""

    @property
    def others(self) -> tuple[ModelConfig, ...]:
        """All models that may be asked besides it, in the order in which they are."""
        found = [*(self.fallbacks or ())]
        for tier in self.tiers or ():
            found += [tier, *(tier.fallbacks or ())]
        return tuple(found)

    @property
    def provider(self) -> str | None:
        """The provider; None: the configured model answers, or one that is registered here."""
        provider, slash, _ = (self.name or "").partition("/")
        return provider if slash else None

    @property
    def party(self) -> tuple[str | None, str | None]:
        """Who reads its prompts: the provider, and the address if another one is named."""
        return self.provider, self.base_url

    @property
    def is_here(self) -> bool:
        """Whether its prompts stay with the operator: on this machine, or with the configured model
        or code of theirs.
        """
        if self.base_url is not None:
            return is_loopback_url(self.base_url)
        return self.provider is None or self.provider in _HERE

    def is_among(self, named: Collection[str]) -> bool:
        """Whether it is one of these models, each `provider` or `provider/name`."""
        return self.provider is not None and (self.provider in named or self.name in named)

    def overlaid(self, own: ModelConfig) -> ModelConfig:
        """These settings overridden by `own`. If `own` names another model, `own` alone counts."""
        if own.name is not None and own.name != self.name:
            return own
        values = {name: getattr(own, name) for name in _MODEL_SETTINGS}
        for name, value in values.items():
            if value is None:
                values[name] = getattr(self, name)
        return ModelConfig(**values)  # spelled out: `evolve` takes four times as long

    def options(self) -> ModelOptions:
        """The sampling parameters and time limits of each call."""
        defaults = ModelOptions()
        return ModelOptions(
            temperature=self.temperature,
            top_p=self.top_p,
            max_output_tokens=self.max_output_tokens,
            context_tokens=self.context_tokens,
            seed=self.seed,
            reasoning_effort=self.reasoning_effort,
            stop=self.stop or (),
            extra=self.extra or {},
            min_confidence=self.min_confidence,
            cache=bool(self.cache),
            timeout_s=self.timeout_s or defaults.timeout_s,
            idle_timeout_s=self.idle_timeout_s or self.timeout_s or defaults.idle_timeout_s,
        )


_HERE: Final = frozenset({"local", "scripted"})
"""Providers whose models have no server."""
_MODEL_SETTINGS: Final = tuple(each.name for each in attrs.fields(ModelConfig))
