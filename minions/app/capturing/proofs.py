"""Proofs of recipes: their tests pass, and would not pass with another argument of an effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.app.evaluating.recipe_tests import ArgumentMutation, run_test
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.executions import address_of
from minions.data.json_values import JsonValue, parse_json
from minions.recipe.model import AgentRecipe, RecipeTest

_MOST_TRIED: Final = 200
"""Changed arguments that are tried of one test."""


@frozen(kw_only=True)
class ProvedTest:
    """What one test proves."""

    name: str
    faults: tuple[str, ...]
    """In what the recipe differs from the recorded run; empty: in nothing."""
    effects: int
    """Calls with an effect that it made."""
    unnoticed: tuple[str, ...] = ()
    """Arguments of effects that could be others without the test failing."""


@frozen(kw_only=True)
class Proof:
    """What the tests of a recipe prove."""

    tests: tuple[ProvedTest, ...]

    @property
    def is_proved(self) -> bool:
        """Whether there is a test, all pass, and none would pass with another argument of an
        effect.
        """
        return bool(self.tests) and not any(each.faults or each.unnoticed for each in self.tests)

    @property
    def differences(self) -> tuple[str, ...]:
        """Why it is not proved, in words for people."""
        if not self.tests:
            return ("the recipe has no tests",)
        return tuple(
            f"{each.name}: {words}"
            for each in self.tests
            for words in (
                *each.faults,
                *(f"another {place} would not be noticed" for place in each.unnoticed),
            )
        )

    def to_json(self) -> dict[str, JsonValue]:
        """The proof as `--json` prints it."""
        return {
            "proved": self.is_proved,
            "tests": [
                {
                    "name": each.name,
                    "faults": list(each.faults),
                    "effects": each.effects,
                    "unnoticed": list(each.unnoticed),
                }
                for each in self.tests
            ],
        }


async def prove_recipe(recipe: AgentRecipe, runtime: Runtime) -> Proof:
    """Run the tests of a recipe, and run them with each argument of an effect changed.

    Nothing is stored, no model is asked, and tools with an effect are not called.
    """
    return Proof(tests=tuple([await _prove(recipe, test, runtime) for test in recipe.tests]))


async def _prove(recipe: AgentRecipe, test: RecipeTest, runtime: Runtime) -> ProvedTest:
    seen = ArgumentMutation()
    outcome = await run_test(recipe, test, runtime, tampering=seen)
    if outcome.faults:
        return ProvedTest(name=test.name, faults=outcome.faults, effects=len(seen.effects))
    unnoticed: list[str] = []
    tried: set[str] = set()
    for number, (key, tool, arguments) in enumerate(seen.effects):
        for path, value in _places(parse_json(arguments or "{}")):
            place = f"{address_of(key).partition('[')[0]}.{'.'.join(map(str, path))} of {tool}"
            if place in tried or len(tried) >= _MOST_TRIED:
                continue
            tried.add(place)
            changed = ArgumentMutation(at=number, path=path, value=_other(value))
            again = await run_test(recipe, test, runtime, tampering=changed)
            if not again.faults:
                unnoticed.append(place)
    return ProvedTest(
        name=test.name, faults=(), effects=len(seen.effects), unnoticed=tuple(unnoticed)
    )


def _places(
    value: JsonValue, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], JsonValue]]:
    """Every plain value of the arguments, and every empty list or object, with its path."""
    parts: Sequence[tuple[str | int, JsonValue]] = ()
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, list | tuple):
        parts = list(enumerate(value))
    if not parts and path:
        yield path, value
    for key, part in parts:
        yield from _places(part, (*path, key))


def _other(value: JsonValue) -> JsonValue:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}~"
        case Mapping():
            return {"~": None}
        case list() | tuple():
            return [*value, None]
        case _:
            return "~"
