"""`Minions.evaluate`: evaluations of an application."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import cast

import pytest

from minions import Minions, Prompt, ScriptedModel, Services, UsageError
from minions.data.json_values import JsonValue
from minions.engine.sessions.marking import mark_run
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


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("two", "case 1: a mapping of inputs with `expected` was expected, not a text"),
        ({"text": "two", "expected": math.nan}, "case 1: `expected` cannot be JSON: nan is not"),
        ({"inputs": {"text": "two"}, "expected": object()}, "case 1: `expected` cannot be JSON"),
    ],
)
async def test_a_case_that_is_no_json_is_named(case: object, told: str) -> None:
    cases = cast("list[Mapping[str, object]]", [CASES[0], case])
    async with Minions(model=model([])) as app:
        with pytest.raises(UsageError, match=told) as refused:
            await app.evaluate(RECIPE, cases)
    assert refused.value.error_code == "bad-items"


async def test_a_date_may_be_expected() -> None:
    case = {"text": "2026", "expected": date(2026, 11, 23)}
    async with Minions(model=model([])) as app:
        report = await app.evaluate(RECIPE, [case])
    assert report.variants[0].cases[0].case.expected == "2026-11-23"


OWN = """
id: talks
inputs: {text: string}
steps:
  - id: talk
    goal: "{{ inputs.text }}"
    examples: EXAMPLES
tests:
  - {inputs: {text: one}, expect: {output: one!}}
  - {inputs: {text: three}, expect: {output: three!}}
"""


@pytest.mark.parametrize(
    "examples",
    [
        "{from: tests}",
        "{from: journal}",
        "[{input: {text: one}, output: one!}, {input: three, output: three!}]",
    ],
)
async def test_no_case_is_shown_the_answer_of_a_case_as_an_example(examples: str) -> None:
    """A-147: never taken from data under evaluation."""
    shown: list[str] = []

    def answer(prompt: Prompt) -> str:
        shown.extend(each.content or "" for each in prompt.messages if each.name == "example")
        return "?"

    recipe = OWN.replace("EXAMPLES", examples)
    services = Services()
    async with Minions(model=ScriptedModel(answer), services=services) as app:
        for text in ("one", "three"):
            run = await app.arun(recipe, {"text": text})
            await mark_run(services, run.run_id, "good")
        shown.clear()
        await app.evaluate(recipe, CASES)
    assert [each for each in shown if each in ("one", "two")] == []
    assert "three" in shown
