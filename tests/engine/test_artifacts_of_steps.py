"""Artifacts in a run: later steps read them, and a step may declare what its answer has to hold."""

from __future__ import annotations

import pytest

from builders import Ran, fake_tool, run_of
from minions.adapters.models.script_items import Answer, AnswerFunction, tool_request
from minions.contracts.calls import Prompt
from minions.contracts.executions import RunStatus
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

FILE = "a/b.py\n```python\nx = 1\n```\n"


def recipe_with(*steps: JsonValue, **settings: JsonValue) -> AgentRecipe:
    return recipe_from_document({"id": "recipe", "steps": list(steps), **settings}, Catalog())


async def ran(answer: AnswerFunction, *steps: JsonValue, **settings: JsonValue) -> Ran:
    return await run_of(recipe_with(*steps, **settings), answer)


async def test_later_steps_read_what_an_answer_holds() -> None:
    done = await ran(
        lambda _: FILE,
        {"id": "write", "goal": "Write."},
        {"id": "taken", "set": {"files": "{{ steps.write.artifacts.files }}"}},
        output="{{ steps.write.artifacts.files[0].text }}",
    )
    assert done.result.step("taken").output == {"files": [{"path": "a/b.py", "text": "x = 1\n"}]}
    assert done.result.output == "x = 1\n"


async def test_a_recipe_may_read_them_of_any_kind_of_step() -> None:
    done = await ran(
        lambda _: "",
        {"id": "made", "set": {"text": FILE}},
        output="{{ steps.made.artifacts.file_paths }}",
    )
    assert done.result.output == ["a/b.py"]


def test_a_path_that_artifacts_never_have_is_refused_before_the_run() -> None:
    with pytest.raises(RecipeError, match="fils"):
        recipe_with({"id": "a", "goal": "b"}, {"id": "c", "goal": "{{ steps.a.artifacts.fils }}"})


# --- declared artifacts -------------------------------------------------------------------------

WRITE: dict[str, JsonValue] = {"id": "write", "goal": "Write.", "artifacts": ["a/b.py"]}


async def test_an_answer_with_the_declared_artifacts_completes_the_step() -> None:
    done = await ran(lambda _: FILE, WRITE)
    completion = done.result.step("write").completion
    assert completion is not None
    assert (completion.decided_by, completion.evidence) == ("ArtifactsLink", "a/b.py")


async def test_an_answer_without_them_fails_the_step_and_names_them() -> None:
    done = await ran(lambda _: "I wrote a/b.py. status: done", WRITE)
    assert done.result.status is RunStatus.FAILED
    error = done.result.step("write").error
    assert error is not None
    assert error.code == "missing-artifacts"
    assert error.message == (
        "The answer lacks a/b.py. Give each file in a fenced code block, its path alone on the "
        "line before."
    )


async def test_going_back_to_the_step_tells_the_model_what_was_missing() -> None:
    def answer(prompt: Prompt) -> str:
        said = " ".join(message.content or "" for message in prompt.messages)
        return FILE if "The answer lacks a/b.py." in said else "Done."

    done = await ran(answer, {**WRITE, "on_error": {"goto": "write", "max": 1}})
    assert done.result.status is RunStatus.COMPLETED
    assert len(done.prompts) == 2


async def test_a_tool_does_not_complete_a_step_that_declares_artifacts() -> None:
    finish = fake_tool("finish", lambda _: {"step_complete": True})
    recipe = recipe_from_document(
        {"id": "recipe", "tools": ["finish"], "steps": [{**WRITE, "tools": ["finish"]}]},
        Catalog(tools={"finish": finish.spec}),
    )
    asked: list[Prompt] = []

    def answer(prompt: Prompt) -> Answer:
        asked.append(prompt)
        return tool_request("finish") if len(asked) == 1 else FILE

    done = await run_of(recipe, answer, tools=[finish])
    assert done.result.status is RunStatus.COMPLETED
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("artifacts", "message"),
    [
        (["validaton"], "'validaton' is no artifact"),
        (["../a.py"], "'../a.py' is no artifact"),
        (["a b"], "'a b' is no artifact"),
    ],
)
def test_what_is_no_artifact_is_refused(artifacts: list[JsonValue], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_with({**WRITE, "artifacts": artifacts})
    assert caught.value.faults[0].message == message


def test_artifacts_and_a_declared_output_exclude_each_other() -> None:
    with pytest.raises(RecipeError, match="'output' declares another"):
        recipe_with({**WRITE, "output": {"text": "string"}})
