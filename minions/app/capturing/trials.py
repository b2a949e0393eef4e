"""Trials: the agent and the recipe that was captured from its runs, asked the same new cases."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from minions.app.capturing.recorded_traces import RecordedTrace, captured_of
from minions.app.evaluating.evaluation_runs import EvaluatedRecipe
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, as_text
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import BundledRecipes
from minions.recipe.reading.load import recipe_from_document

_AGENT: Final = "agent"


def tried_recipes(
    captured: AgentRecipe, agent: RecordedTrace, catalog: Catalog
) -> tuple[EvaluatedRecipe, EvaluatedRecipe]:
    """The agent as a recipe with the inputs of the captured one, and the captured one.

    Raises:
        UsageError: `recipe-needed`; the agent was made by code.
        RecipeError: The agent's recipe has faults by now.
    """
    document = agent.recorded.document
    if document is None:
        raise UsageError(
            "The agent was made by code, which no trial can run.", code="recipe-needed"
        )
    given: dict[str, JsonValue] = {
        name: f"{{{{ inputs.{name} }}}}" for name in agent.recipe.inputs if name in captured.inputs
    }
    if agent.task_input is not None:
        given[agent.task_input] = as_text(captured_of(captured)["task"])
    kept = {key: document[key] for key in ("tools", "permissions", "model") if key in document}
    wrapper: dict[str, JsonValue] = {
        "id": f"{agent.recipe.id}-agent",
        "inputs": (captured.document or {}).get("inputs", {}),
        **kept,
        "steps": [{"id": _AGENT, "recipe": _AGENT, "with": given}],
    }
    bundle: dict[str, JsonValue] = {
        _AGENT: {
            "document": document,
            "directory": agent.recipe.directory,
            "recipes": agent.recorded.bundle,
        }
    }
    catalog = replace(catalog, find_recipe=BundledRecipes(bundle))
    recipe = recipe_from_document(wrapper, catalog, directory=agent.recipe.directory)
    return (
        EvaluatedRecipe(name=f"the agent {agent.recipe.id}", recipe=recipe),
        EvaluatedRecipe(name=f"the recipe {captured.id}", recipe=captured),
    )
