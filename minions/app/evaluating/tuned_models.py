"""The models of a recipe that an application tunes: objects of its own stand beside names."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from minions.app.wiring.models import ModelChoice
from minions.app.wiring.runtime import ModelsOfRecipe, Runtime
from minions.contracts.calls import ChatModel, ModelOptions
from minions.engine.compile.extensions import ModelChooser, ModelSource
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig

__all__ = ["with_tuned_models"]


def with_tuned_models(
    runtime: Runtime, candidates: Mapping[str, ChatModel | None], own: ChatModel | str | None
) -> Runtime:
    """The runtime in which a step that names a candidate is answered by it, and others as before.

    Args:
        candidates: By name; None: the model of that name.
        own: The application's model, which answers instead of those that recipes name otherwise;
            None: it has none.
    """
    return evolve(runtime, models=_models_of(runtime.models, candidates, own))


def _models_of(
    models: ModelsOfRecipe, candidates: Mapping[str, ChatModel | None], own: ChatModel | str | None
) -> ModelsOfRecipe:
    def found(recipe: AgentRecipe, choice: ModelChoice) -> ModelSource | ChatModel:
        named = models(recipe, choice)
        if choice.override is not None or isinstance(named, ChatModel):
            return named
        other: ModelSource | ChatModel = named
        if own is not None:
            other = models(recipe, ModelChoice(override=own)) if isinstance(own, str) else own
        return _TunedModels(candidates, named, other)

    return found


@frozen
class _TunedModels(ModelChooser):
    """The candidates by name, and who answers for other names."""

    candidates: Mapping[str, ChatModel | None]
    named: ModelSource
    other: ModelSource | ChatModel

    def __call__(self, config: ModelConfig) -> ChatModel:
        if config.name is not None and config.name in self.candidates:
            own = self.candidates[config.name]
            return self.named(config) if own is None else own
        return self.other if isinstance(self.other, ChatModel) else self.other(config)

    def options(self, config: ModelConfig) -> ModelOptions:
        source = self.named if config.name in self.candidates else self.other
        return source.options(config) if isinstance(source, ModelChooser) else config.options()
