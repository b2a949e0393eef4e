"""A proof: the recorded calls are made and no others, and another argument would be noticed."""

from __future__ import annotations

import pytest
from attrs import evolve

from builders import deterministic_services
from minions import tool
from minions.adapters.models.scripted import ScriptedModel
from minions.app.capturing.proofs import Proof, ProvedTest, prove_recipe
from minions.app.evaluating.recipe_tests import ArgumentMutation, run_test
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.tools import Toolbox
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

CALLED: list[str] = []


@tool(effect="pure", reads="trusted")
def look(at: str = "here") -> JsonValue:
    """Something of our own."""
    CALLED.append("look")
    return {"at": at}


@tool(effect="once", reads="trusted")
def send(to: JsonValue = None, count: float = 3, text: str = "") -> JsonValue:
    """Sends it; no proof may."""
    CALLED.append("send")
    return "sent"


@tool(effect="idempotent", reads="trusted")
def put(key: str) -> JsonValue:
    """Writes it; no proof may."""
    CALLED.append("put")
    return "put"


@pytest.fixture
def runtime() -> Runtime:
    """A runtime with the tools, and no model."""
    CALLED.clear()
    return Runtime(
        models=lambda _recipe, _choice: lambda _config: ScriptedModel([]),
        extensions=Extensions(tools=Toolbox([look, send, put])),
        services=deterministic_services(),
    )


def step(name: str, **params: JsonValue) -> JsonValue:
    """A step that calls the tool of its name; `send_2` calls `send`."""
    return {"id": name, "tool": name.partition("_")[0], "params": params}


def recorded(name: str, result: JsonValue = "ok", **arguments: JsonValue) -> JsonValue:
    """A recorded call."""
    return {"tool": name, "arguments": arguments, "result": result}


def recipe_of(
    runtime: Runtime,
    *steps: JsonValue,
    calls: list[JsonValue] | None = None,
    **test: JsonValue,
) -> AgentRecipe:
    """A recipe with one test."""
    document: dict[str, JsonValue] = {
        "id": "r",
        "permissions": {"allow_write": True},
        "steps": list(steps),
        "tests": [{"name": "t", **({"calls": calls} if calls else {}), **test}],
    }
    return recipe_from_document(document, runtime.catalog)


async def faults(runtime: Runtime, *steps: JsonValue, calls: list[JsonValue]) -> tuple[str, ...]:
    """In what the recipe differs from the recorded calls."""
    recipe = recipe_of(runtime, *steps, calls=calls)
    return (await run_test(recipe, recipe.tests[0], runtime)).faults


# --- what is changed -----------------------------------------------------------------------------


async def test_each_argument_of_each_effect_is_changed_once_and_noticed(runtime: Runtime) -> None:
    arguments: dict[str, JsonValue] = {
        "to": {"names": ["Eva", "Jon"], "copies": [], "more": {}, "at": None, "now": True},
        "count": 4,
        "text": "Hello",
    }
    recipe = recipe_of(
        runtime,
        step("look", at="there"),
        step("send", **arguments),
        step("put", key="a"),
        calls=[
            recorded("look", at="there"),
            recorded("send", **arguments),
            recorded("put", key="a"),
        ],
    )
    proof = await prove_recipe(recipe, runtime)
    assert proof == Proof(tests=(ProvedTest(name="t", faults=(), effects=2),))
    assert (proof.is_proved, proof.differences) == (True, ())
    assert CALLED == []


async def test_arguments_that_no_test_compares_are_told(runtime: Runtime) -> None:
    arguments: dict[str, JsonValue] = {
        "to": {"names": ["Eva"], "copies": [], "at": None},
        "count": 4,
    }
    recipe = recipe_of(
        runtime, step("send", **arguments), step("put", key="a"), tools={"send": "ok", "put": "ok"}
    )
    proof = await prove_recipe(recipe, runtime)
    (tested,) = proof.tests
    assert not proof.is_proved
    assert tested.unnoticed == (
        "send.to.names.0 of send",
        "send.to.copies of send",
        "send.to.at of send",
        "send.count of send",
        "put.key of put",
    )
    assert proof.differences[0] == "t: another send.to.names.0 of send would not be noticed"
    assert proof.to_json() == {
        "proved": False,
        "tests": [
            {"name": "t", "faults": [], "effects": 2, "unnoticed": list(tested.unnoticed)},
        ],
    }


async def test_the_arguments_of_a_question_are_not_changed(runtime: Runtime) -> None:
    recipe = recipe_of(runtime, step("look", at="there"), tools={"look": "x"})
    proof = await prove_recipe(recipe, runtime)
    assert proof.tests == (ProvedTest(name="t", faults=(), effects=0),)


async def test_one_place_of_a_loop_is_changed_once(runtime: Runtime) -> None:
    loop: JsonValue = {
        "id": "send",
        "tool": "send",
        "loop": [1, 2, 3],
        "params": {"to": "{{ loop.item }}"},
    }
    proof = await prove_recipe(recipe_of(runtime, loop, tools={"send": "ok"}), runtime)
    assert proof.tests[0].unnoticed == ("send.to of send",)
    assert proof.tests[0].effects == 3


async def test_a_recipe_whose_test_fails_is_not_proved_and_says_why(runtime: Runtime) -> None:
    recipe = recipe_of(runtime, step("send", to="Eva"), calls=[recorded("send", to="Jon")])
    proof = await prove_recipe(recipe, runtime)
    assert not proof.is_proved
    assert len(proof.tests[0].faults) == len(proof.differences) == 2
    assert proof.tests[0].unnoticed == ()
    assert proof.differences[0].startswith("t: the run is failed, not completed")


async def test_a_recipe_without_tests_is_not_proved(runtime: Runtime) -> None:
    document: dict[str, JsonValue] = {"id": "r", "steps": [step("look")]}
    proof = await prove_recipe(recipe_from_document(document, runtime.catalog), runtime)
    assert (proof.is_proved, proof.differences) == (False, ("the recipe has no tests",))


async def test_one_test_that_proves_nothing_is_enough_for_no_proof(runtime: Runtime) -> None:
    good, bad = (
        recipe_of(runtime, step("send", to="Eva"), calls=calls, tools=tools)
        for calls, tools in (([recorded("send", to="Eva")], {}), (None, {"send": "ok"}))
    )
    proof = await prove_recipe(evolve(good, tests=(*good.tests, *bad.tests)), runtime)
    assert [bool(each.unnoticed) for each in proof.tests] == [False, True]
    assert not proof.is_proved


async def test_two_hundred_arguments_are_changed_at_most(runtime: Runtime) -> None:
    numbers: JsonValue = list(range(205))
    recipe = recipe_of(runtime, step("send", to=numbers), tools={"send": "ok"})
    (tested,) = (await prove_recipe(recipe, runtime)).tests
    assert len(tested.unnoticed) == 200


async def test_an_effect_without_arguments_has_none_to_change(runtime: Runtime) -> None:
    recipe = recipe_of(runtime, step("send"), calls=[recorded("send")])
    assert (await prove_recipe(recipe, runtime)).is_proved


@pytest.mark.parametrize(
    ("at", "path", "sent"),
    [
        (0, ("to", "names", 1), {"names": ["Eva", "~"], "at": 0}),
        (0, ("to", "at"), {"names": ["Eva", "Jon"], "at": "~"}),
        (0, ("to",), "~"),
        (1, ("to",), {"names": ["Eva", "Jon"], "at": 0}),
    ],
)
async def test_one_argument_of_one_effect_is_another(
    runtime: Runtime, at: int, path: tuple[str | int, ...], sent: JsonValue
) -> None:
    given: JsonValue = {"names": ["Eva", "Jon"], "at": 0}
    recipe = recipe_of(runtime, step("send", to=given), calls=[recorded("send", to=sent)])
    tampering = ArgumentMutation(at=at, path=path, value="~")
    outcome = await run_test(recipe, recipe.tests[0], runtime, tampering=tampering)
    assert outcome.faults == ()
    assert [(name, json) for _, name, json in tampering.effects] == [
        ("send", '{"to":{"names":["Eva","Jon"],"at":0}}')
    ]


# --- recorded calls ------------------------------------------------------------------------------


async def test_the_recorded_calls_give_their_results_and_nothing_is_called(
    runtime: Runtime,
) -> None:
    recipe = recipe_of(
        runtime,
        step("look"),
        step("send", to="{{ look.name }}"),
        calls=[recorded("look", {"name": "Eva"}), recorded("send", "sent", to="Eva")],
        expect={"output": "sent"},
    )
    assert recipe.tests[0].has_output
    assert (await run_test(recipe, recipe.tests[0], runtime)).faults == ()
    assert CALLED == []


async def test_numbers_of_one_value_defaults_and_orders_of_keys_are_the_same_call(
    runtime: Runtime,
) -> None:
    pair: JsonValue = {"b": 1.0, "a": [2]}
    same: JsonValue = {"a": [2.0], "b": 1}
    sent = recorded("send", to=pair, text="x")
    assert await faults(runtime, step("send", to=same, count=3.0, text="x"), calls=[sent]) == ()
    other = await faults(runtime, step("send", to=same, count=4, text="x"), calls=[sent])
    assert "recorded is" in other[0]


async def test_a_recorded_failure_fails_again(runtime: Runtime) -> None:
    failure: JsonValue = {"tool": "send", "arguments": {"to": "Eva"}, "error": "no such person"}
    (fault,) = await faults(runtime, step("send", to="Eva"), calls=[failure])
    assert "no such person" in fault


async def test_a_call_that_is_none_of_the_recorded_ones_is_told_with_the_nearest(
    runtime: Runtime,
) -> None:
    calls = [recorded("send", to="Jon", text="x"), recorded("send", to="Eva", text="y")]
    found = await faults(runtime, step("send", to="Eva", text="z"), calls=calls)
    assert 'recorded is {"to":"Eva","text":"y"}' in found[0]
    (fault, *_) = await faults(runtime, step("put", key="a"), calls=calls)
    assert "no such call is left among the recorded ones" in fault


async def test_another_call_is_told_though_the_recipe_goes_on_after_its_failure(
    runtime: Runtime,
) -> None:
    tried: JsonValue = {"id": "put", "tool": "put", "params": {"key": "a"}, "on_error": "continue"}
    steps = [tried, step("send", to="Eva")]
    _, fault = await faults(runtime, *steps, calls=[recorded("send", to="Eva")])
    assert fault.startswith('\'put\' is called with {"key":"a"}, and no such call is left')


async def test_an_effect_that_is_not_made_is_told_and_a_question_is_none(runtime: Runtime) -> None:
    calls = [recorded("send", to="Eva"), recorded("look"), recorded("put", key="a")]
    assert await faults(runtime, step("put", key="a"), calls=calls) == (
        '\'send\' is not called with {"to":"Eva"}, as recorded',
    )


async def test_effects_in_another_order_are_told_and_questions_are_none(runtime: Runtime) -> None:
    put, send_it = step("put", key="a"), step("send", to="Eva")
    calls = [recorded("send", to="Eva"), recorded("look"), recorded("put", key="a")]
    assert await faults(runtime, put, send_it, step("look"), calls=calls) == (
        '\'put\' is called with {"key":"a"} where \'send\' with {"to":"Eva"} was, as recorded',
    )
    assert await faults(runtime, step("look"), send_it, put, calls=calls) == ()


async def test_a_question_may_be_asked_again_and_an_effect_may_not(runtime: Runtime) -> None:
    looks = [step("look"), step("look_2")]
    assert await faults(runtime, *looks, calls=[recorded("look")]) == ()
    sends = [step("send", to="Eva"), step("send_2", to="Eva")]
    found = await faults(runtime, *sends, calls=[recorded("send", to="Eva")])
    assert "no such call is left among the recorded ones" in found[0]


async def test_a_question_whose_tool_was_never_recorded_is_asked(runtime: Runtime) -> None:
    steps = [step("send", to="Eva"), step("look")]
    assert await faults(runtime, *steps, calls=[recorded("send", to="Eva")]) == ()
    assert CALLED == ["look"]


async def test_an_effect_without_any_result_in_the_test_is_refused(runtime: Runtime) -> None:
    recipe = recipe_of(runtime, step("send", to="Eva"))
    (fault,) = (await run_test(recipe, recipe.tests[0], runtime)).faults
    assert "The tool 'send' may change something, and the test does not give its result." in fault
    assert CALLED == []
