"""The operator's limits, which replace those of a recipe."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import attrs

from minions.app.settings.settings import Settings
from minions.contracts.context import Limits, snake_case
from minions.data.texts import seconds_of
from minions.recipe.model import AgentRecipe


def bounded(recipe: AgentRecipe, settings: Settings) -> AgentRecipe:
    """The recipe with the operator's limits; of two limits on cost the lower one counts."""
    if settings.max_parallel is not None:
        recipe = attrs.evolve(recipe, max_parallel=settings.max_parallel)
    if settings.timeout is not None:
        recipe = _limited(recipe, "timeout_s", seconds_of(str(settings.timeout)))
    if settings.max_cost_usd is not None:
        own = Limits.from_metadata(recipe.limits).max_cost_usd
        most = settings.max_cost_usd if own is None else min(own, settings.max_cost_usd)
        recipe = _limited(recipe, "max_cost_usd", most)
    return recipe


def within_share(recipe: AgentRecipe, share: Mapping[str, float]) -> AgentRecipe:
    """The recipe with the part of the limits that a child run has; of two the lower one counts."""
    own = Limits.from_metadata(recipe.limits)
    if (tokens := share.get("max_tokens")) is not None:
        most = min(int(tokens), own.max_tokens or sys.maxsize)
        recipe = _limited(recipe, "max_tokens", max(1, most))
    if (cost := share.get("max_cost_usd")) is not None:
        recipe = _limited(recipe, "max_cost_usd", min(cost, own.max_cost_usd or math.inf))
    return recipe


def _limited(recipe: AgentRecipe, name: str, value: float) -> AgentRecipe:
    """The recipe with that limit instead of its own, whose name may be written in another case."""
    limits = {key: limit for key, limit in recipe.limits.items() if snake_case(key) != name}
    return attrs.evolve(recipe, limits={**limits, name: value})
