"""What errors say to people who write the short forms of other tools, and that it is right."""

from __future__ import annotations

import pytest

from minions.recipe.reading.load import check_recipe_text
from recipe.sample_catalog import CATALOG, shown

STEP = "id: r\ninputs: {t: string}\nsteps:\n  - id: a\n    goal: Look\n    output: {kind: string}\n"

REMEDIES = [
    "id: r\nsteps: [{id: a, goal: x, output: {kind: {enum: [bug, feature]}}}]",
    'id: r\nsteps: [{id: a, goal: x, output: {kind: {type: [string, "null"]}}}]',
    'id: r\ninputs: {t: {type: [string, "null"], default: null}}\nsteps: [{id: a, goal: x}]',
    "id: r\ninputs: {kind: {enum: [bug, feature]}}\nsteps: [{id: a, goal: x}]",
    "id: r\nsteps: [{id: a, goal: x, tools: [add]}]",
    "id: r\nmodel: {temperature: 0.2}\nsteps: [{id: a, goal: x}]",
    "id: r\nsteps: [{id: a, goal: x, model: {max_output_tokens: 500}}]",
    "id: r\nlimits: {max_tokens: 50000}\nsteps: [{id: a, goal: x}]",
    "id: r\nsteps: [{id: a, ask: Which?, form: {enum: [red, blue]}}]",
    STEP + "  - {id: b, goal: x, when: a.kind == 'bug' and not a.kind}",
    STEP + "  - {id: b, goal: x, when: \"a.kind == 'bug' or a.kind | length > 3\"}",
    STEP + "  - {id: b, set: {x: \"{{ 'A' if a.kind == 'bug' else 'B' }}\"}}",
    STEP + "  - {id: b, goal: 'Of {{ inputs.t }}'}",
]


@pytest.mark.parametrize("recipe", REMEDIES)
def test_what_the_errors_say_to_write_is_right(recipe: str) -> None:
    loaded = check_recipe_text(recipe, "r.yaml", CATALOG)
    assert [shown(fault) for fault in loaded.faults] == []


@pytest.mark.parametrize("key", ["max_tokens", "options"])
def test_a_word_of_others_is_not_taken_for_a_near_key(key: str) -> None:
    loaded = check_recipe_text(f"id: r\nsteps: [{{id: a, goal: x, {key}: 1}}]", "r.yaml", CATALOG)
    (fault,) = loaded.faults
    assert "did you mean" not in shown(fault)
    assert "write model: {" in shown(fault)


@pytest.mark.parametrize(
    "goal",
    [
        "{{ inputs.t }} and {{ {'t': 1} }}",
        "costs $5, {json: 1}, {none}, ${HOME} and $PATH",
        "a{t}",
        "{{ '{t}' }}",
    ],
)
def test_braces_that_name_nothing_of_the_recipe_are_no_templates(goal: str) -> None:
    recipe = f'id: r\ninputs: {{t: string}}\nsteps:\n  - {{id: a, goal: "{goal}"}}\n'
    loaded = check_recipe_text(recipe, "r.yaml", CATALOG)
    assert [shown(fault) for fault in loaded.faults] == []


def test_a_template_of_others_is_a_warning_and_the_recipe_runs() -> None:
    recipe = "id: r\ninputs: {t: string}\nsteps: [{id: a, goal: 'Of {t} and $t'}]"
    loaded = check_recipe_text(recipe, "r.yaml", CATALOG)
    assert loaded.recipe is not None
    assert [(fault.code, fault.is_warning) for fault in loaded.faults] == [
        ("foreign-template", True)
    ] * 2
