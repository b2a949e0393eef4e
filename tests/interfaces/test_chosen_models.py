"""Options of a recipe's model where `-m` lets another one answer."""

from __future__ import annotations

import pytest

from builders import deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.app.wiring.chosen_models import ChosenModels
from minions.contracts.calls import ModelOptions
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.catalog import Catalog
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import recipe_from_document

TUNED = ModelConfig(
    name="openai/gpt-5",
    temperature=0.2,
    top_p=0.5,
    seed=7,
    reasoning_effort="low",
    context_tokens=1000,
    extra={"service_tier": "flex"},
    max_output_tokens=50,
    stop=("END",),
    timeout_s=9,
)


def options(config: ModelConfig, override: str | None) -> ModelOptions:
    return ChosenModels(lambda _: ScriptedModel([]), override).options(config)


def test_another_model_gets_none_of_what_is_tuned_for_the_named_one() -> None:
    """A seed or an effort that one server takes, another refuses."""
    assert options(TUNED, "ollama/llama3.2") == ModelOptions(
        max_output_tokens=50, stop=("END",), timeout_s=9, idle_timeout_s=9
    )


@pytest.mark.parametrize("override", [None, "openai/gpt-5"])
def test_the_named_model_gets_all_of_it(override: str | None) -> None:
    assert options(TUNED, override) == TUNED.options()


def test_options_of_no_named_model_are_for_any() -> None:
    config = ModelConfig(temperature=0.0, seed=7)
    assert options(config, "ollama/llama3.2") == config.options()


async def test_a_run_asks_the_chosen_model_with_those_options() -> None:
    """The prompt that is sent has them."""
    model = ScriptedModel(["Hello"])
    step: JsonValue = {"id": "a", "goal": "Greet"}
    recipe = recipe_from_document(
        {"id": "r", "model": {"name": "openai/gpt-5", "seed": 7}, "steps": [step]}, Catalog()
    )
    source = ChosenModels(lambda _: model, "ollama/llama3.2")
    await AgentExecutor(source, services=deterministic_services()).execute(recipe)
    assert [prompt.options.seed for prompt in model.prompts] == [None]
