"""`Runtime`: one value for the parts that runs of a process share, and changed ones made of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from attrs import evolve

import minions.app
from builders import deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime, make_runtime
from minions.contracts.decision_types import Deny
from minions.contracts.tools import Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text

TALK = "id: talk\nsteps: [{id: a, goal: Speak.}]\n"


@pytest.fixture
def recipe() -> AgentRecipe:
    return load_recipe_text(TALK, "talk.yaml", Catalog())


def _makes_an_executor(path: Path) -> bool:
    calls = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "AgentExecutor"
        for node in calls
    )


def test_executors_are_made_in_one_place_of_application_and_interfaces() -> None:
    root = Path(minions.app.__path__[0]).parent
    files = [path for room in ("app", "interfaces") for path in (root / room).rglob("*.py")]
    places = [path for path in files if _makes_an_executor(path)]
    assert [str(path.relative_to(root)) for path in places] == ["app/wiring/configured_runtime.py"]


def runtime_of(*answers: str, extensions: Extensions | None = None) -> Runtime:
    model = ScriptedModel(list(answers))
    return Runtime(
        models=lambda _recipe, _choice: model,
        extensions=extensions or Extensions(),
        services=deterministic_services(),
    )


async def test_a_changed_runtime_answers_with_the_models_it_was_given(recipe: AgentRecipe) -> None:
    runtime = runtime_of("from the first")
    changed = runtime.evolve(models=ScriptedModel(["from the second"]))
    assert (await changed.executor(recipe).execute(recipe)).output == "from the second"
    assert (await runtime.executor(recipe).execute(recipe)).output == "from the first"


async def test_a_changed_runtime_differs_in_the_services_that_were_named(
    recipe: AgentRecipe,
) -> None:
    runtime, decider = runtime_of("one"), Deny()
    journal = MemoryJournal(runtime.services.clock)
    changed = runtime.evolve(journal=journal, decider=decider, cache=None)
    await changed.executor(recipe).execute(recipe)
    assert (await journal.count_runs(), await runtime.services.journal.count_runs()) == (1, 0)
    assert changed.services.decider is decider
    assert changed.services.ids is runtime.services.ids


def test_executors_of_one_runtime_compile_a_recipe_once(recipe: AgentRecipe) -> None:
    """Whatever else they differ in: the server makes one for each run."""
    runtime = runtime_of()
    changed = runtime.evolve(decider=Deny(), worker_id="other")
    tools = Toolbox()
    assert runtime.preparation.built(recipe, tools) is changed.preparation.built(recipe, tools)


def test_with_other_extensions_recipes_are_read_and_compiled_anew() -> None:
    runtime = runtime_of()
    changed = runtime.evolve(extensions=Extensions(models={"scripted/x": ScriptedModel([])}))
    assert (runtime.catalog.models, changed.catalog.models) == (
        frozenset(),
        frozenset({"scripted/x"}),
    )
    assert changed.recipes is not runtime.recipes
    assert changed.preparation is not runtime.preparation


def test_models_are_told_how_the_run_was_asked_for(recipe: AgentRecipe) -> None:
    asked: list[tuple[str, ModelChoice]] = []

    def models(recipe: AgentRecipe, choice: ModelChoice) -> ScriptedModel:
        asked.append((recipe.id, choice))
        return ScriptedModel([])

    services = deterministic_services()
    runtime = Runtime(models=models, extensions=Extensions(), services=services)
    choice = ModelChoice(override="scripted/a.yaml", folder=Path("here"))
    runtime.executor(recipe, choice)
    runtime.executor(recipe)
    assert asked == [("talk", choice), ("talk", ModelChoice())]


async def test_what_was_opened_for_a_runtime_is_closed_with_it_in_order() -> None:
    closed: list[str] = []

    async def close_models() -> None:
        closed.append("models")
        raise OSError("gone")

    async def close_journal() -> None:
        closed.append("journal")

    runtime = Runtime(
        models=lambda _recipe, _choice: ScriptedModel([]),
        extensions=Extensions(),
        services=deterministic_services(),
        closers=(close_models, close_journal),
    )
    with pytest.raises(OSError, match="gone"):
        await runtime.aclose()
    assert closed == ["models", "journal"]


async def test_services_that_were_given_stay_open(tmp_path: Path) -> None:
    """Whoever made them closes them."""
    services = deterministic_services()
    runtime = make_runtime(
        Settings(no_store=True),
        Extensions(),
        environ={},
        folder_of=lambda _: tmp_path,
        log=NullLog(),
        services=services,
    )
    assert evolve(runtime.services, operator=None) == services  # but for the operator's rules
    closers = [getattr(close, "__self__", None) for close in runtime.closers]
    assert services.journal not in closers
    await runtime.aclose()
