"""`Minions.evaluate`: evaluations of an application."""

from __future__ import annotations

from pathlib import Path

import pytest

from minions import Minions, Prompt, ScriptedModel, UsageError
from minions.contracts.json_values import JsonValue
from minions.evaluations import Case, Exact, Score, Scorer

RECIPE = "id: talks\ninputs: {text: string}\nsteps:\n  - {id: talk, goal: '{{ inputs.text }}'}\n"
CASES = [{"text": "one", "expected": "one!"}, {"text": "two", "expected": "two?"}]


def model(calls: list[str], name: str = "scripted/echo") -> ScriptedModel:
    def answer(prompt: Prompt) -> str:
        calls.append((prompt.messages[-1].content or "").splitlines()[-1])
        return f"{calls[-1]}!"

    return ScriptedModel(answer, name=name)


class Loud(Scorer):
    """Wants an exclamation mark."""

    @property
    def name(self) -> str:
        return "loud"

    def score(self, case: Case, output: JsonValue) -> Score:
        is_loud = str(output).endswith("!")
        return Score(scorer="loud", value=float(is_loud), is_passed=is_loud, reason=None)


async def test_a_scorer_of_the_applications_own_counts() -> None:
    calls: list[str] = []
    async with Minions(model=model(calls)) as app:
        report = await app.evaluate(RECIPE, CASES, scorers=[Exact(), Loud()])
    (variant,) = report.variants
    assert dict(variant.rates_by_scorer) == {"exact": 0.5, "loud": 1.0}
    assert (variant.score, report.is_passed) == (0.75, True)


async def test_an_evaluation_of_the_same_name_asks_nothing_again(tmp_path: Path) -> None:
    """A-138."""
    calls: list[str] = []
    for _ in range(2):
        async with Minions(model=model(calls), journal=tmp_path / "j.sqlite") as app:
            report = await app.evaluate(RECIPE, CASES, name="mine")
    assert len(calls) == 2
    assert report.variants[0].cases[0].samples[0].output == "one!"


async def test_models_that_are_objects_are_compared() -> None:
    first: list[str] = []
    second: list[str] = []
    async with Minions() as app:
        report = await app.evaluate(
            RECIPE, CASES, models=[model(first), model(second, "scripted/other")]
        )
    assert [each.variant.label for each in report.variants] == ["scripted/echo", "scripted/other"]
    assert (len(first), len(second)) == (2, 2)
    assert report.comparisons[0].difference.value == 0


async def test_a_case_that_does_not_fit_is_named() -> None:
    async with Minions(model=model([])) as app:
        with pytest.raises(UsageError, match="case 1: There is no input 'txt'"):
            await app.evaluate(RECIPE, [{"text": "a"}, {"txt": "b"}])
