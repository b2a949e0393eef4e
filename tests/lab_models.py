"""Models of one laboratory, by short names, for recipes that name more than one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import evolve
from returns.result import Failure, Result

from builders import deterministic_services
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelFailure,
    Prompt,
)
from minions.contracts.executions import AgentResult
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import recipe_from_document

__all__ = ["GOOD", "OUTPUT", "UnavailableModel", "executor_of", "lab_recipe", "run"]

GOOD: Final = '{"n": 1}'
"""An answer that fits `OUTPUT`."""
OUTPUT: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": {"type": "integer"}},
}


class UnavailableModel(ChatModel):
    """A model whose server fails; counts how often it was asked."""

    def __init__(
        self, name: str, code: str = "model-unreachable", retry_after_s: float | None = None
    ) -> None:
        self._name = name
        self._code = code
        self._retry_after_s = retry_after_s
        self.asked = 0

    @property
    def name(self) -> str:
        return self._name

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        self.asked += 1
        failure = ModelFailure(code=self._code, message="nobody is there")
        if self._retry_after_s is not None:
            failure = evolve(failure, is_retryable=True, retry_after_s=self._retry_after_s)
        return Failure(failure)


def lab_recipe(model: JsonValue, steps: int = 1, **more: JsonValue) -> AgentRecipe:
    """Steps that count, one after the other."""
    document: dict[str, JsonValue] = {
        "id": "r",
        "model": model,
        "steps": [{"id": f"s{n}", "goal": "Count.", "output": dict(OUTPUT)} for n in range(steps)],
        **more,
    }
    return recipe_from_document(document, Catalog())


def executor_of(services: Services, models: Mapping[str, ChatModel]) -> AgentExecutor:
    """Finds `lab/NAME` under its name."""

    def find(config: ModelConfig) -> ChatModel:
        assert config.name is not None
        return models[config.name.removeprefix("lab/")]

    return AgentExecutor(find, services=services)


async def run(
    recipe: AgentRecipe, services: Services | None = None, **models: ChatModel
) -> AgentResult[object]:
    """Execute it with these models."""
    return await executor_of(services or deterministic_services(), models).execute(recipe)
