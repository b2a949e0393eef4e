"""The models of one run where a command chose another one than the recipe names, and the profiles
of models of this user.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from attrs import evolve, frozen
from returns.pipeline import is_successful
from returns.result import Result, Success

from minions.app.settings.user_folders import user_data_folder
from minions.contracts.calls import ChatModel, ModelOptions
from minions.engine.compile.extensions import ModelChooser
from minions.recipe.model_config import ModelConfig

if TYPE_CHECKING:
    from minions.adapters.models.model_probe import ProbeOutcome
    from minions.contracts.calls import ModelFailure
    from minions.contracts.model_profiles import ProfileBook


def user_profiles(
    project: str | None = None, tell: Callable[[str], None] | None = None
) -> ProfileBook:
    """The profiles in the user's folder of data; nothing is read yet.

    Args:
        project: The folder of the project in which runs learn; None: none.
        tell: Called with a line when what runs told begins or ceases to count.
    """
    from minions.adapters.models.profile_files import ProfileFiles

    return ProfileFiles(user_data_folder() / "model-profiles", project=project, tell=tell)


async def probe_server(
    model: ChatModel, *, now: Callable[[], datetime], on_request: Callable[[str], None]
) -> Result[ProbeOutcome, ModelFailure]:
    """What the server does with the model, with the version and the context that it tells."""
    from minions.adapters.models.model_probe import probe_model
    from minions.adapters.models.openai import OpenAIModel
    from minions.adapters.models.server_facts import server_facts

    outcome = await probe_model(model, now=now, on_request=on_request)
    if not is_successful(outcome):
        return outcome
    probed = outcome.unwrap()
    if not isinstance(model, OpenAIModel):
        return outcome
    facts = await server_facts(model.base_url, model.server_name, model.open_get)
    profile = evolve(
        probed.profile, server_version=facts.version, context_tokens=facts.context_tokens
    )
    return Success(evolve(probed, profile=profile))


@frozen(eq=False, repr=False)
class ChosenModels(ModelChooser):
    """The models of a recipe, or the one model that answers instead of them."""

    find: Callable[[ModelConfig], ChatModel]
    override: str | None

    def __call__(self, config: ModelConfig) -> ChatModel:
        """The model of that configuration, or the chosen one."""
        return self.find(config)

    def options(self, config: ModelConfig) -> ModelOptions:
        """For another model than the named one without what is tuned for that: sampling, thinking,
        context, confidence and further fields. Bounds of length and time, and `stop`, stay.
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
            min_confidence=own.min_confidence,
        )
