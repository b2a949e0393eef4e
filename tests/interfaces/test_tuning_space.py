"""What a tuner can choose for a step, and what each choice writes into the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from minions.app.evaluating.tuning_space import (
    HeldOutCases,
    RecipeVersion,
    SpaceOptions,
    TuningSpace,
    takes_cases,
    tuning_space,
)
from minions.data.errors import NotFoundError
from minions.data.json_values import JsonValue
from minions.evaluation.cases import Case
from minions.evaluation.tuning import Configuration, Dimension, Setting
from minions.interfaces.cli.console.evaluation_tables import closed_lines
from minions.planning.step_edit import step_keys
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text

GOAL = """
id: triage
inputs: {text: string, note: {type: string, default: none}}
MODEL
steps:
  - id: label
    goal: "{{ inputs.text }}"
    output: {kind: {enum: [bug, other]}}
"""
NOTHING = HeldOutCases(cases=(), asked=())


def space_of(
    text: str,
    *models: str,
    held_out: HeldOutCases = NOTHING,
    configured: str | None = None,
    versions: Sequence[RecipeVersion] = (),
    steps: Sequence[str] = (),
) -> TuningSpace:
    recipe = load_recipe_text(text, "r.yaml", Catalog())
    options = SpaceOptions(
        models=models, configured=configured, versions=tuple(versions), steps=tuple(steps)
    )
    return tuning_space(recipe, text, "r.yaml", options, held_out)


def values(space: TuningSpace, dimension: Dimension, step: str = "label") -> list[str]:
    found = next(each for each in space.steps if each.step == step)
    return [each.value for each in found.of(dimension)]


def closed(space: TuningSpace, dimension: Dimension, step: str = "label") -> str:
    return next(each for each in space.steps if each.step == step).closed[dimension]


def written(space: TuningSpace, step: str = "label", **chosen: str) -> Mapping[str, JsonValue]:
    settings = (
        Setting(step=step, dimension=Dimension(name), value=value) for name, value in chosen.items()
    )
    text = space.text_of(Configuration(frozenset(settings)))
    load_recipe_text(text, "r.yaml", Catalog())
    return step_keys(text, "r.yaml", step)


def goal(model: str = "", more: str = "") -> str:
    return GOAL.replace("MODEL", model) + more


def test_models_are_those_that_are_given_but_for_the_one_that_answers_now() -> None:
    assert values(space_of(goal("model: a/b"), "a/b", "c/d"), Dimension.MODEL) == ["c/d"]
    assert values(space_of(goal(), "a/b", "c/d", configured="c/d"), Dimension.MODEL) == ["a/b"]
    assert written(space_of(goal("model: a/b"), "c/d"), model="c/d")["model"] == "c/d"


def test_each_of_several_models_is_tried_alone() -> None:
    model = "model: [a/small, {name: a/large, max_output_tokens: 9, fallbacks: [b/large]}]"
    space = space_of(goal(model))
    assert values(space, Dimension.MODEL) == ["a/small", "a/large", "b/large"]
    large: JsonValue = {"name": "a/large", "max_output_tokens": 9, "fallbacks": ["b/large"]}
    assert written(space, model="a/large")["model"] == large


OPTIONS = (
    "{name: a/b, temperature: 0, seed: 7, top_p: 0.5, max_output_tokens: 50, stop: [x],"
    " timeout_s: 30, output_mode: tools, context_tokens: 900, reasoning_effort: low"
)
KEPT: Mapping[str, JsonValue] = {
    "temperature": 0,
    "seed": 7,
    "top_p": 0.5,
    "max_output_tokens": 50,
    "stop": ("x",),
    "timeout_s": 30,
    "output_mode": "tools",
    "context_tokens": 900,
    "reasoning_effort": "low",
}


def plain(written: JsonValue) -> JsonValue:
    """The value with tuples for lists."""
    if isinstance(written, Mapping):
        return {key: plain(value) for key, value in written.items()}
    return tuple(written) if isinstance(written, list | tuple) else written


@pytest.mark.parametrize(
    "text",
    [
        goal(f"model: {OPTIONS}}}"),
        goal(more=f"    model: {OPTIONS}}}\n"),
        goal("model: {name: a/b, temperature: 1}", f"    model: {OPTIONS}}}\n"),
        goal("model: {name: x/y, max_output_tokens: 9}", f"    model: {OPTIONS}}}\n"),
        goal(f"model: [{OPTIONS}}}, x/y]"),
    ],
    ids=["recipe", "step", "both", "another model of the recipe", "several"],
)
def test_options_of_the_model_hold_for_another_one(text: str) -> None:
    """A-142."""
    space = space_of(text, "c/d")
    assert plain(written(space, model="c/d")["model"]) == {"name": "c/d", **KEPT}
    assert not space.steps[0].notes


def test_options_without_a_name_hold_for_another_model() -> None:
    space = space_of(goal("model: {seed: 3}"), "c/d", configured="a/b")
    assert written(space, model="c/d")["model"] == {"name": "c/d", "seed": 3}


def test_what_belongs_to_a_provider_stays_with_it_and_else_it_is_told() -> None:
    """A-142."""
    own = "extra: {foo: 1}, base_url: 'http://127.0.0.1:1/v1'"
    space = space_of(goal(f"model: {{name: a/b, {own}, fallbacks: [x/y]}}"), "a/small", "c/d")
    same = written(space, model="a/small")["model"]
    assert same == {"name": "a/small", "extra": {"foo": 1}, "base_url": "http://127.0.0.1:1/v1"}
    assert written(space, model="c/d")["model"] == "c/d"
    notes = {setting.value: note for setting, note in space.steps[0].notes.items()}
    assert notes == {
        "a/small": "`fallbacks` of a/b left out: it is tried alone",
        "c/d": "`base_url`, `extra` of a/b left out: another provider's; "
        "`fallbacks` of a/b left out: it is tried alone",
    }
    lines = list(closed_lines(space.steps))
    assert "label: a/small: `fallbacks` of a/b left out: it is tried alone" in lines


def test_where_the_model_that_is_given_answers_already_it_says_so() -> None:
    space = space_of(goal("model: a/b"), "a/b")
    assert closed(space, Dimension.MODEL).startswith("a/b answers it already")


def test_an_output_mode_is_written_beside_the_model_that_answers() -> None:
    space = space_of(goal("model: a/b"), "c/d")
    assert values(space, Dimension.OUTPUT) == ["json", "md_json", "tools"]
    assert written(space, output="tools")["model"] == {"output_mode": "tools"}
    both = written(space, model="c/d", output="json")["model"]
    assert both == {"name": "c/d", "output_mode": "json"}
    tiers = space_of(goal(more="    model: [a/b, c/d]\n"))
    assert written(tiers, output="json")["model"] == [
        {"name": "a/b", "output_mode": "json"},
        "c/d",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (goal().replace("    output: {kind: {enum: [bug, other]}}\n", ""), "declares no output"),
        (goal("model: {name: a/b, output_ladder: [json, repair]}"), "`output_ladder`"),
    ],
)
def test_where_a_step_cannot_choose_how_output_is_asked_for_it_says_so(text: str, why: str) -> None:
    assert why in closed(space_of(text), Dimension.OUTPUT)


def held_out(*kinds: str, asked: Sequence[str] = ()) -> HeldOutCases:
    inputs: list[dict[str, JsonValue]] = [
        {"text": f"t{at}", "note": "none"} for at in range(len(kinds))
    ]
    return HeldOutCases(
        cases=[
            (Case(index=at, name=str(at), inputs=own, expected={"kind": kind}), own)
            for at, (kind, own) in enumerate(zip(kinds, inputs, strict=True))
        ],
        asked=[{"text": text, "note": "other"} for text in asked],
    )


def test_examples_are_cases_that_are_held_out_and_nothing_that_is_asked() -> None:
    """A-142."""
    space = space_of(goal(), held_out=held_out("bug", "other", "bug", asked=["t0"]))
    assert values(space, Dimension.EXAMPLES) == ["1", "2"]
    examples = written(space, examples="2")["examples"]
    assert examples == [
        {"input": {"text": "t1"}, "output": {"kind": "other"}},
        {"input": {"text": "t2"}, "output": {"kind": "bug"}},
    ]


def test_a_case_whose_answer_does_not_fit_the_step_is_no_example() -> None:
    space = space_of(goal(), held_out=held_out("strange", "bug"))
    assert values(space, Dimension.EXAMPLES) == ["1"]
    assert "no case held out" in closed(
        space_of(goal(), held_out=held_out("strange")), Dimension.EXAMPLES
    )


OWN = """    examples:
      - {input: {text: t0}, output: {kind: bug}}
      - {input: {text: mine}, output: {kind: other}}
      - {input: {text: yours}, output: {kind: bug}}
"""


def test_examples_of_the_step_come_first_without_those_that_are_asked() -> None:
    space = space_of(goal(more=OWN), held_out=held_out("bug", "other", asked=["t0"]))
    assert values(space, Dimension.EXAMPLES) == ["0", "1", "2"]
    assert "examples" not in written(space, examples="0")
    assert written(space, examples="2")["examples"] == [
        {"input": {"text": "mine"}, "output": {"kind": "other"}},
        {"input": {"text": "yours"}, "output": {"kind": "bug"}},
    ]


def test_texts_of_csv_become_what_the_schema_declares() -> None:
    text = goal().replace("{kind: {enum: [bug, other]}}", "{urgent: boolean, count: integer}")
    own: dict[str, JsonValue] = {"text": "x", "note": "none"}
    given: JsonValue = {"urgent": "yes", "count": "3"}
    case = Case(index=0, name="x", inputs=own, expected=given, is_text=True)
    space = space_of(text, held_out=HeldOutCases(cases=[(case, own)], asked=()))
    assert written(space, examples="1")["examples"] == [
        {"input": {"text": "x"}, "output": {"urgent": True, "count": 3}}
    ]


TWO_STEPS = """
id: triage
inputs: {text: string}
steps:
  - {id: read, goal: "{{ inputs.text }}", output: {kind: string}}
  - {id: write, goal: "Say {{ read.kind }}", output: {said: string}}
  - {id: sum, analyze: How many?, input: "{{ write }}"}
output: "{{ write }}"
"""


def test_a_step_whose_answer_no_case_says_takes_no_cases_as_examples() -> None:
    space = space_of(TWO_STEPS, held_out=held_out("bug"))
    assert "the output of the recipe" in closed(space, Dimension.EXAMPLES, "read")
    assert "reads 'read.kind'" in closed(space, Dimension.EXAMPLES, "write")
    assert "reads 'write'" in closed(space, Dimension.EXAMPLES, "sum")
    options = SpaceOptions()
    recipe = load_recipe_text(TWO_STEPS, "r.yaml", Catalog())
    assert not takes_cases(recipe, TWO_STEPS, "r.yaml", options)


def test_prompts_of_other_versions_are_written_by_step() -> None:
    other = TWO_STEPS.replace("Say {{", "Tell\n        {{").replace(
        'goal: "Tell', 'system_prompt: Be brief., goal: "Tell'
    )
    version = RecipeVersion(name="brief", recipe=load_recipe_text(other, "b.yaml", Catalog()))
    space = space_of(TWO_STEPS, versions=[version])
    assert "no other version of the recipe has another prompt" in closed(
        space, Dimension.FORM, "read"
    )
    found = written(space, "write", form="brief")
    assert (found["goal"], found["system_prompt"]) == ("Tell {{ read.kind }}", "Be brief.")
    assert "no other version is given" in closed(space_of(TWO_STEPS), Dimension.FORM, "read")


def test_a_step_that_cannot_be_written_alone_is_told_and_left_as_it_is() -> None:
    text = goal(more="    model: &other a/b\n") + 'output: {a: *other, b: "{{ label }}"}\n'
    space = space_of(text, "c/d")
    assert "cannot be changed alone" in closed(space, Dimension.MODEL)


def test_only_the_steps_that_are_named_are_tuned() -> None:
    assert [each.step for each in space_of(TWO_STEPS, steps=["write"]).steps] == ["write"]
    with pytest.raises(NotFoundError, match="no step 'wirte' that a model answers") as unknown:
        space_of(TWO_STEPS, steps=["wirte"])
    assert unknown.value.suggestions == ("write",)
