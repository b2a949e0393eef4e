"""pytest fixtures for applications: `run_recipe` and `scripted_model`. No heavy imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from minions.adapters.models.script_items import Answer
    from minions.adapters.models.scripted import ScriptedModel
    from minions.testing.recipe_runner import RecipeRunner
    from minions.testing.scripts import MakeScriptedModel

__all__ = ["run_recipe", "scripted_model"]


def pytest_configure() -> None:
    """Rewrite assertions in the suites, so that failures show values."""
    pytest.register_assert_rewrite("minions.testing.journal_suite")


@pytest.fixture
def scripted_model() -> MakeScriptedModel:
    """Makes a scripted model of its answers: `scripted_model("first", {"second": 2})`."""
    from minions.adapters.models.scripted import ScriptedModel

    def make(*answers: Answer) -> ScriptedModel:
        return ScriptedModel(answers)

    return make


@pytest.fixture
def run_recipe() -> RecipeRunner:
    """Runs a recipe with scripted answers, a clock that only sleeps move, and ids that count up."""
    from minions.testing.recipe_runner import RecipeRunner

    return RecipeRunner()
