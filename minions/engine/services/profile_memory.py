"""`MemoryProfiles`: what was learned of servers, for as long as the process lives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from minions.contracts.calls import ChatModel
from minions.contracts.model_profiles import Feature, ModelProfile, ProfileBook

_LOGGER: Final = logging.getLogger("minions.models")

__all__ = ["MemoryProfiles"]


class MemoryProfiles(ProfileBook):
    """The newest profile of each model and server; stores nothing."""

    def __init__(self) -> None:
        """Know no model yet."""
        self._known: dict[tuple[str, str], ModelProfile] = {}

    def find(self, model: ChatModel) -> ModelProfile | None:
        if model.base_url is None:
            return None
        return self._known.get((model.base_url, model.name))

    def keep(self, profile: ModelProfile) -> None:
        self._known[profile.base_url, profile.model] = profile

    def learn(self, profile: ModelProfile, changed: Feature, *, is_told: bool) -> None:
        self._known[profile.base_url, profile.model] = profile
        if is_told:
            _LOGGER.warning("%s", profile.words_of(changed))

    def profiles(self) -> Sequence[ModelProfile]:
        return sorted(self._known.values(), key=lambda each: (each.model, each.base_url))
