"""The fixtures that applications test their recipes with."""

from __future__ import annotations

import subprocess
import sys

from attrs import frozen

import minions as m
from minions.events import RunCompleted
from minions.testing import Answer, FakeClock, MakeScriptedModel, RecipeRunner, tool_request

RECIPE = """\
id: greet
inputs: {name: string}
steps:
  - id: greeting
    goal: "Greet {{ inputs.name }}."
    output: {words: string}
"""


@frozen
class Greeting:
    """What comes back."""

    words: str


@m.tool(effect="once")
def send(text: str) -> str:
    """Send it."""
    return f"sent {text}"


def test_a_recipe_runs_with_scripted_answers(run_recipe: RecipeRunner) -> None:
    result = run_recipe(
        RECIPE, {"name": "Ann"}, answers=[{"words": "Hello, Ann"}], output_class=Greeting
    )
    assert result.unwrap() == Greeting(words="Hello, Ann")
    assert isinstance(run_recipe.events[-1], RunCompleted)


async def test_a_recipe_runs_inside_an_event_loop(run_recipe: RecipeRunner) -> None:
    assert run_recipe(RECIPE, {"name": "Ann"}, answers=[{"words": "Hi"}]).unwrap() == {
        "words": "Hi"
    }


def test_two_runs_of_one_test_are_the_same() -> None:
    def once() -> object:
        runner = RecipeRunner()
        runner(RECIPE, {"name": "Ann"}, answers=[{"words": "Hi"}])
        return runner.events

    assert once() == once()


def test_calls_that_need_approval_are_made_unless_the_test_says_otherwise(
    run_recipe: RecipeRunner,
) -> None:
    step = m.DefaultStep(
        id="tell",
        messages=m.MessageBundle.of(goal="Send hello."),
        available_tools=frozenset({"send"}),
        completion_criteria=m.CompletionCriteria(mode=m.CompletionMode.TEXT),
    )
    rights = m.Permissions(allow_write=True, requires_approval=("send",))
    recipe = m.AgentRecipe(id="tell", steps=[step], permissions=rights)
    answers: list[Answer] = [tool_request("send", {"text": "hello"}), "Done."]
    assert run_recipe(recipe, answers=answers, tools=[send]).unwrap() == "Done."
    waits = run_recipe(recipe, answers=answers, tools=[send], approve="wait")
    assert waits.status is m.RunStatus.NEEDS_DECISION


def test_a_scripted_model_is_made_of_its_answers(
    run_recipe: RecipeRunner, scripted_model: MakeScriptedModel
) -> None:
    model = scripted_model({"words": "Hi"})
    run_recipe(RECIPE, {"name": "Ann"}, model=model)
    assert any("Greet Ann." in (each.content or "") for each in model.prompts[0].messages)


def test_retries_wait_no_time(run_recipe: RecipeRunner) -> None:
    busy = m.ModelFailure(code="busy", message="Later.", is_retryable=True, retry_after_s=30)
    result = run_recipe(RECIPE, {"name": "Ann"}, answers=[busy, {"words": "Hi"}])
    assert result.status is m.RunStatus.COMPLETED
    assert run_recipe.clock.monotonic() >= 30


async def test_a_fake_clock_moves_only_when_something_sleeps() -> None:
    clock = FakeClock()
    before = clock.now()
    await clock.sleep(90)
    assert (clock.now() - before).total_seconds() == 90


def test_the_plugin_loads_nothing_heavy() -> None:
    code = "import sys, minions.testing.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"minions.engine", "minions.contracts", "attrs", "aiohttp", "yaml"}
    assert heavy & set(done.stdout.split()) == set()
