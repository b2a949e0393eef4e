"""The models of one run where a command may have chosen another one than the recipe names."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from minions.contracts.calls import ChatModel, ModelOptions
from minions.engine.compile.extensions import ModelChooser
from minions.recipe.model_config import ModelConfig


@frozen
class ChosenModels(ModelChooser):
    """The models of a recipe, or the one model that answers instead of them."""

    find: Callable[[ModelConfig], ChatModel]
    override: str | None

    def __call__(self, config: ModelConfig) -> ChatModel:
        """The model of that configuration, or the chosen one."""
        return self.find(config)

    def options(self, config: ModelConfig) -> ModelOptions:
        """For another model than the named one without what is tuned for that: sampling, thinking,
        context and further fields. Bounds of length and time, and `stop`, stay.
        """
        options = config.options()
        if self.override is None or config.name in (None, self.override):
            return options
        own = ModelOptions()
        return evolve(
            options,
            temperature=own.temperature,
            top_p=own.top_p,
            seed=own.seed,
            reasoning_effort=own.reasoning_effort,
            context_tokens=own.context_tokens,
            extra=own.extra,
        )
