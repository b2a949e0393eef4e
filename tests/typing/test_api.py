"""The application of `api.py` runs, and what it gets is of the type that mypy was told."""

from __future__ import annotations

from pathlib import Path

import api
from api import Report

from minions import AgentRecipe, DefaultStep, MessageBundle, ScriptedModel
from minions.recipes import JsonValue
from minions.testing import tool_request

REPORT: dict[str, JsonValue] = {"title": "Tides", "pages": 3}


def recipe_of_one() -> AgentRecipe:
    return AgentRecipe(id="one", steps=[api.WriteReport("tides")])


def test_run_gives_the_class_that_was_asked_for() -> None:
    model = ScriptedModel([tool_request("lookup", {"word": "tide"}), REPORT])
    assert api.run_typed(recipe_of_one(), model) == Report(title="Tides", pages=3)
    assert model.prompts[1].messages[-1].content == '{"word":"tide","step":"write"}'


async def test_the_executor_gives_the_class_that_was_asked_for() -> None:
    model = ScriptedModel([REPORT, REPORT])
    assert await api.execute_typed(recipe_of_one(), model) == Report(title="Tides", pages=3)


def test_without_a_class_the_output_is_json() -> None:
    step = DefaultStep(id="say", messages=MessageBundle.of(goal="Speak."))
    recipe = AgentRecipe(id="plain", steps=[step])
    assert api.run_untyped(recipe, api.EchoModel()) == "status: done. Speak."


async def test_an_application_names_its_servers(tmp_path: Path) -> None:
    async with api.application_with_servers() as application:
        assert "mcp.docs" in application.extensions.toolsets
    assert await api.changes_of_servers(tmp_path / "mcp.lock.json") == {}


async def test_a_step_execution_holds_the_declared_type() -> None:
    execution = await api.execute_step(ScriptedModel([REPORT]))
    assert execution.output == Report(title="Tides", pages=3)
    assert execution.model_call_limit == 5


async def test_own_output_instructions_refuse_and_the_model_repairs() -> None:
    model = ScriptedModel([{"title": "Tides", "pages": 300}, REPORT])
    execution = await api.execute_step(model)
    assert execution.output == Report(title="Tides", pages=3)
    assert "at most 10 pages, not 300" in (model.prompts[1].messages[-1].content or "")


async def test_an_own_link_completes_and_the_output_still_has_to_fit() -> None:
    execution = await api.execute_step(ScriptedModel(["over and out", "no JSON either"]))
    assert execution.error is not None
    assert execution.error.code == "invalid-output"
    assert execution.completion is not None
    assert execution.completion.decided_by == "PhraseLink"


def test_a_python_step_asks_models_and_calls_tools() -> None:
    assert api.execute_python_step(ScriptedModel([REPORT, "No."])) == 3


def test_own_executors_take_the_place_of_model_and_tools() -> None:
    execution = api.execute_default_step()
    assert execution.output == "status: done model"
    assert execution.model_call_limit == 5


async def test_a_function_is_a_step_and_a_function() -> None:
    assert await api.use_function_steps() == 3


async def test_agents_answer_by_name() -> None:
    """A-101."""
    model = ScriptedModel(["fine"])
    assert await api.use_agents(recipe_of_one(), model) == ["42", "fine", "Nobody knows."]
