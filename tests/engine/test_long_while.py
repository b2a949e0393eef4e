"""A `while` of thousands of attempts: each costs as much as the first."""

from __future__ import annotations

import pytest

import minions.engine.step.iteration.while_loop as repeats
from builders import run_of
from minions.contracts.executions import RunStatus
from minions.data.json_values import JsonValue
from minions.data.json_values import dumps as real_dumps
from minions.engine.context.run_progress import Attempt
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document


def counting_to(most: int, step: dict[str, JsonValue]) -> AgentRecipe:
    whole: dict[str, JsonValue] = {"id": "count", "max_iterations": most + 1, **step}
    whole["while"] = f"loop.index < {most - 1}"
    return recipe_from_document({"id": "recipe", "steps": [whole]}, Catalog())


async def test_each_output_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[JsonValue] = []

    def dumps(value: JsonValue) -> str:
        seen.append(value)
        return real_dumps(value)

    monkeypatch.setattr(repeats, "dumps_in_parts", dumps)
    done = await run_of(counting_to(50, {"set": {"n": "{{ loop.index }}"}}))
    assert done.result.status is RunStatus.COMPLETED
    assert seen == [{"n": n} for n in range(49)]


async def test_what_gave_the_same_before_is_found_however_long_ago() -> None:
    recipe = counting_to(50, {"set": {"n": "{{ loop.index % 40 }}"}})
    done = await run_of(recipe)
    assert done.result.error is not None
    assert done.result.error.code == "while-stuck"
    assert "attempt 41 gave the same as attempt 1," in done.result.error.message


def test_an_attempt_sees_what_was_before_it_and_nothing_that_came_later() -> None:
    outputs: list[JsonValue] = ["a", "b"]
    attempt = Attempt(index=2, outputs=outputs)
    outputs.append("c")
    assert attempt.loop == {"index": 2, "last": "b", "attempts": ["a", "b"]}


async def test_attempts_that_are_kept_do_not_grow() -> None:
    done = await run_of(counting_to(3, {"set": {"tried": "{{ loop.attempts | length }}"}}))
    outputs = [each.output for each in done.result.step("count").iterations]
    assert outputs == [{"tried": 0}, {"tried": 1}, {"tried": 2}]
    done = await run_of(counting_to(3, {"set": {"all": "{{ loop.attempts }}"}}))
    outputs = [each.output for each in done.result.step("count").iterations]
    assert outputs == [
        {"all": []},
        {"all": [{"all": []}]},
        {"all": [{"all": []}, {"all": [{"all": []}]}]},
    ]
