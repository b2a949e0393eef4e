"""Scorers are checked against cases and recipes before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.evaluation.cases import NOT_GIVEN, Case, NotGiven
from minions.evaluation.scorer_checks import check_scorers
from minions.evaluation.scorers import AnyScorer, Fields
from minions.evaluation.suite_file import read_suite_text
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text

RECIPE = """
id: triage
inputs: {text: string}
steps:
  - {id: label, goal: "{{ inputs.text }}", output: {class: string, score: number}}
output: "{{ label }}"
"""


def recipe(text: str = RECIPE) -> AgentRecipe:
    return load_recipe_text(text, "triage.yaml", Catalog())


def cases(*expected: JsonValue | NotGiven) -> list[Case]:
    return [
        Case(index=at, name="c", inputs={"text": "x"}, expected=each, place=f"c.jsonl:{at + 1}")
        for at, each in enumerate(expected)
    ]


def scorers(*texts: str) -> Sequence[AnyScorer]:
    lines = "".join(f"  - {text}\n" for text in texts)
    return read_suite_text(f"scorers:\n{lines}", "s.eval.yaml", Path()).scorers


BUG: JsonValue = {"class": "bug"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{exact: , of: clas}", "The scorer 'exact clas' reads 'clas', and the output has only"),
        ("{fields: [class.deep]}", "'class' never has 'deep': it is text"),
        ("{regex: '.', of: nosuch}", "reads 'nosuch', and the output has only 'class', 'score'."),
        ("{holds: 'output.clas == 1'}", "reads 'clas'"),
        ("{holds: 'inputs.txt'}", "the input 'txt', and the recipe has no such input. Did you"),
        ("{number: 1, of: score}", "c.jsonl:1: the scorer 'number score' compares with 'score'"),
        ("{holds: 'expected.clas'}", "does not say what is expected of it (and 1 more). Did you"),
        ("{exact: , of: score}", "the case does not say what is expected of it (and 1 more)."),
    ],
)
def test_a_scorer_that_can_say_nothing_is_refused(text: str, told: str) -> None:
    """A-138."""
    with pytest.raises(UsageError) as refused:
        check_scorers(scorers(text), cases(BUG, BUG), [recipe()])
    assert told in refused.value.message
    assert refused.value.error_code == "bad-items"


@pytest.mark.parametrize(
    "text",
    [
        "{holds: 'expected.score is defined and output.score == expected.score'}",
        "{holds: \"output.class == (expected.score | default('bug'))\"}",
        "{holds: 'output.class == expected.class or inputs.text'}",
        "{exact: , of: class}",
        "{regex: '.'}",
    ],
)
def test_a_scorer_that_may_pass_is_asked(text: str) -> None:
    wanted = scorers(text)
    assert check_scorers(wanted, cases(BUG), [recipe()]) == tuple(wanted)


def test_what_one_of_the_recipes_has_is_no_fault() -> None:
    other = recipe(RECIPE.replace("class: string", "kind: string"))
    wanted = scorers("{regex: '.', of: kind}")
    assert check_scorers(wanted, cases(BUG), [recipe(), other]) == tuple(wanted)


def test_recorded_outputs_may_be_others_than_those_of_today() -> None:
    wanted = cases({"class": 3})
    assert check_scorers((), wanted, [recipe()], are_recorded=True) == (Fields(),)
    with pytest.raises(UsageError, match="of type number and can only be string"):
        check_scorers((), wanted, [recipe()])


def test_cases_that_expect_nothing_need_no_scorer() -> None:
    assert check_scorers((), cases(NOT_GIVEN, NOT_GIVEN), [recipe()]) == ()


def test_without_scorers_each_case_or_none_says_what_is_expected() -> None:
    with pytest.raises(UsageError, match=r"c\.jsonl:2: the scorer 'fields' compares with what is"):
        check_scorers((), cases(BUG, NOT_GIVEN), [recipe()])


def test_the_faults_of_all_cases_are_told_together() -> None:
    with pytest.raises(UsageError) as refused:
        check_scorers((), cases({"class": 1}, BUG, *[{"class": 2}] * 12), [recipe()])
    lines = refused.value.message.splitlines()
    assert [line[:10] for line in lines[:2]] == ["c.jsonl:1:", "c.jsonl:3:"]
    assert (len(lines), lines[-1]) == (11, "… and 3 more.")
