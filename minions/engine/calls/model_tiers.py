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

COOLDOWN_S: Final = 60.0
"""Seconds for which a model that failed is passed over by steps that have another one, unless the
recipe says `cooldown_s`."""

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
    is_fallback: bool = False
    """Whether it takes the place of the model before it, where that one's server fails."""
    cooldown_s: float = COOLDOWN_S
    """Seconds for which it is not asked after its server failed, where there is another one."""

    @property
    def name(self) -> str:
        """The name of the model; `own`: an application carries out the calls."""
        model = model_of(self.factory)
        return model.name if model is not None else "own"

    @property
    def key(self) -> tuple[str, str]:
        """The server and the model, to remember that it failed."""
        model = model_of(self.factory)
        return (model.base_url or "", model.name) if model is not None else ("", "own")


@frozen(kw_only=True)
class Replacement:
    """A model whose server failed, and the one that is asked instead."""

    failed: str
    instead: str
    code: str
    """The code of the failure."""
    cooldown_s: float
    """Seconds for which the one that failed is not asked by steps that have another one."""

    @property
    def words(self) -> str:
        """What a person is told."""
        return (
            f"{self.failed} is unavailable ({self.code}): {self.instead} is asked instead, and "
            f"{self.failed} again after {self.cooldown_s:g} s"
        )


def _tier(
    factory: ModelCallExecutorFactory,
    options: ModelOptions,
    capabilities: ModelCapabilities,
    services: Services,
) -> ModelTier:
    known = factory if isinstance(factory, ModelCallExecutors) else None
    model = known.model if known is not None else None
    cooldown_s = known.cooldown_s if known is not None else None
    return ModelTier(
        factory=factory,
        options=options,
        capabilities=capabilities,
        modes=OutputModes(model, capabilities, services.profiles, services.clock),
        is_fallback=known is not None and known.is_fallback,
        cooldown_s=COOLDOWN_S if cooldown_s is None else cooldown_s,
    )


class ModelTiers:
    """Which model a step asks now. It moves to a later one and never back, so it has an end."""

    def __init__(self, tiers: Sequence[ModelTier], services: Services) -> None:
        """Begin with the first model that did not fail a short time ago; else with the first."""
        self._tiers = tuple(tiers)
        self._services = services
        self.current = self._tiers[0]
        """The model that is asked."""
        self.index = 0
        """The number of the model that is asked, from 0, in the order of all of them."""
        if len(self._tiers) > 1:
            self.move_to(next((at for at in range(len(tiers)) if not self._is_cooling(at)), 0))

    @classmethod
    def of(
        cls,
        factory: ModelCallExecutorFactory,
        options: ModelOptions,
        capabilities: ModelCapabilities,
        services: Services,
    ) -> ModelTiers:
        """The factory's model with its fallbacks and tiers."""
        tiers = [_tier(factory, options, capabilities, services)]
        if isinstance(factory, ModelCallExecutors) and factory.tiers:
            tiers += [
                _tier(each, each.options or options, capabilities_of(each), services)
                for each in factory.tiers
            ]
        return cls(tiers, services)

    def move_to(self, number: int) -> None:
        """Ask the model of that number."""
        self.index = number
        self.current = self._tiers[min(number, len(self._tiers) - 1)]

    @property
    def next_model(self) -> ChatModel | None:
        """The larger model that comes next; None: there is none, or an application's own way."""
        at = self._next_tier()
        return model_of(self._tiers[at].factory) if at is not None else None

    def advance(self) -> bool:
        """Ask the next larger model from now on; False: there is none.

        A fallback is none: it stands in for a server, and would be asked the same.
        """
        at = self._next_tier()
        if at is None:
            return False
        self.move_to(at)
        return True

    def fall_back(
        self, code: str, *, has_images: bool = False, is_replayed: bool = False
    ) -> Replacement | None:
        """Ask another model after a failure of the present one's server; None: it is no such
        failure, or there is no other model that can be asked.

        Args:
            has_images: Whether the prompt has images: a model that takes none is not asked.
            is_replayed: Whether it failed in an earlier execution of the run: its server may be
                back since.
        """
        if code not in _OF_SERVER or len(self._tiers) == 1:
            return None
        failed = self.current
        if not is_replayed:
            now = self._services.clock.monotonic()
            self._services.cooldowns[failed.key] = now + failed.cooldown_s
        able = self._able(has_images=has_images)
        if not able:
            return None
        self.move_to(next((at for at in able if not self._is_cooling(at)), able[0]))
        return Replacement(
            failed=failed.name,
            instead=self.current.name,
            code=code,
            cooldown_s=failed.cooldown_s,
        )

    def has_other(self, *, has_images: bool) -> bool:
        """Whether another model can be asked where the server of the present one fails."""
        return len(self._tiers) > 1 and bool(self._able(has_images=has_images))

    def _able(self, *, has_images: bool) -> Sequence[int]:
        others = range(self.index + 1, len(self._tiers))
        return [at for at in others if not has_images or self._tiers[at].capabilities.takes_images]

    def unfit(self, code: str) -> Sequence[str]:
        """The names of the models that could be asked after such a failure, but take no images."""
        others = self._tiers[self.index + 1 :] if code in _OF_SERVER else ()
        return [each.name for each in others if not each.capabilities.takes_images]

    def _next_tier(self) -> int | None:
        """The number of the first model behind the present one that is no fallback, or of its
        first fallback where its server failed a short time ago.
        """
        later = range(self.index + 1, len(self._tiers))
        first = next((at for at in later if not self._tiers[at].is_fallback), None)
        if first is None:
            return None
        behind = range(first + 1, len(self._tiers))
        end = next((at for at in behind if not self._tiers[at].is_fallback), len(self._tiers))
        return next((at for at in range(first, end) if not self._is_cooling(at)), first)

    def _is_cooling(self, at: int) -> bool:
        if len(self._tiers) == 1:
            return False
        until = self._services.cooldowns.get(self._tiers[at].key)
        return until is not None and self._services.clock.monotonic() < until
