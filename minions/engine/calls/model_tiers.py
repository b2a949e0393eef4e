"""The models of one step, smallest first: which of them is asked, and when the next one is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from minions.contracts.call_executors import ModelCallExecutorFactory
from minions.contracts.calls import ChatModel, ModelCapabilities, ModelOptions
from minions.engine.calls.model_executors import ModelCallExecutors, capabilities_of, model_of
from minions.engine.calls.output_modes import OutputModes
from minions.engine.services.services import Services

__all__ = ["ModelTier", "ModelTiers"]

_COOLDOWN_S: Final = 60.0
"""Seconds for which a model that failed is passed over by steps that have another one."""

_OF_SERVER: Final = frozenset(
    {
        "model-unreachable",
        "model-unavailable",
        "model-timeout",
        "model-not-found",
        "rate-limited",
        "quota-exhausted",
        "circuit-open",
        "stream-interrupted",
        "malformed-response",
        "auth-rejected",
    }
)
"""Failures of a server, after which another model is asked the same."""


@frozen(kw_only=True)
class ModelTier:
    """One model of a step, and how it is asked."""

    factory: ModelCallExecutorFactory
    options: ModelOptions
    capabilities: ModelCapabilities
    modes: OutputModes


class ModelTiers:
    """Which model a step asks now. It moves to the next one and never back, so it has an end."""

    def __init__(self, tiers: Sequence[ModelTier], services: Services) -> None:
        """Begin with the first model that did not fail a short time ago; else with the first."""
        self._tiers = tuple(tiers)
        self._services = services
        self.index = next((at for at in range(len(tiers)) if not self._is_cooling(at)), 0)
        """The number of the model that is asked, from 0."""

    @classmethod
    def of(
        cls,
        factory: ModelCallExecutorFactory,
        options: ModelOptions,
        capabilities: ModelCapabilities,
        services: Services,
    ) -> ModelTiers:
        """The factory's model with its tiers."""

        def tier(
            each: ModelCallExecutorFactory, own: ModelOptions, can: ModelCapabilities
        ) -> ModelTier:
            modes = OutputModes(model_of(each), can, services.profiles, services.clock)
            return ModelTier(factory=each, options=own, capabilities=can, modes=modes)

        more = factory.tiers if isinstance(factory, ModelCallExecutors) else ()
        return cls(
            (
                tier(factory, options, capabilities),
                *(tier(each, each.options or options, capabilities_of(each)) for each in more),
            ),
            services,
        )

    @property
    def current(self) -> ModelTier:
        """The model that is asked."""
        return self._tiers[min(self.index, len(self._tiers) - 1)]

    @property
    def next_model(self) -> ChatModel | None:
        """The model after the present one; None: there is none, or an application's own way."""
        left = self._tiers[self.index + 1 :]
        return model_of(left[0].factory) if left else None

    def advance(self) -> bool:
        """Ask the next model from now on; False: there is none."""
        if self.index + 1 >= len(self._tiers):
            return False
        self.index += 1
        return True

    def fall_back(self, code: str) -> bool:
        """Ask the next model after a failure of the present one's server; False: it is none, or
        there is no other model.
        """
        if code not in _OF_SERVER or len(self._tiers) == 1:
            return False
        now = self._services.clock.monotonic()
        self._services.cooldowns[self._key(self.index)] = now + _COOLDOWN_S
        return self.advance()

    def _is_cooling(self, at: int) -> bool:
        until = self._services.cooldowns.get(self._key(at)) if len(self._tiers) > 1 else None
        return until is not None and self._services.clock.monotonic() < until

    def _key(self, at: int) -> tuple[str, str]:
        model = model_of(self._tiers[min(at, len(self._tiers) - 1)].factory)
        return (model.base_url or "", model.name) if model is not None else ("", "own")
