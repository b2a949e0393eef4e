"""Examples that a tuner may give a step: those that it has, and cases that are held out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.app.evaluating.learning import examples_problem, shows_key
from minions.data.json_values import JsonValue, parse_json
from minions.data.schema import JsonSchema, SchemaValidator
from minions.evaluation.cases import Case
from minions.recipe.example_choice import ExampleCandidate, choose_examples
from minions.recipe.examples import MOST_EXAMPLE_TOKENS, ExampleStepSpec
from minions.recipe.model import AgentRecipe, RecipeTest, StepSpec
from minions.recipe.reading.tested_examples import asked_questions, case_examples

EXAMPLE_COUNTS: Final = (0, 1, 2, 4)
"""How many examples a step is given: more than four gain little."""
_WORDS: Final[Mapping[str, JsonValue]] = {"yes": True, "true": True, "no": False, "false": False}


@frozen(kw_only=True)
class HeldOutCases:
    """The cases that may become examples, and what is asked in the others."""

    cases: Sequence[tuple[Case, Mapping[str, JsonValue]]]
    """Each with its inputs as the recipe takes them."""
    asked: Collection[Mapping[str, JsonValue]]
    """The inputs of each case that is asked."""


@frozen(kw_only=True)
class ExampleSets:
    """Sets of examples that are tried, by their number; the present number is not among them."""

    sets: Mapping[int, Sequence[Mapping[str, JsonValue]]]
    """`{input, output}` each, as in a recipe."""
    problem: str | None = None
    """Why there is none; None: there is one."""


def case_problem(recipe: AgentRecipe, step: StepSpec, written: JsonValue) -> str | None:
    """Why cases cannot become examples of a step; None: they can.

    Args:
        written: What stands under its `examples`; None: nothing.
    """
    if not isinstance(step, ExampleStepSpec):
        return f"a step of the kind `{step.kind}` takes none"
    problem = examples_problem(step, written)
    return problem or case_examples(recipe, step, (), asked=()).problem


def example_sets(
    recipe: AgentRecipe, step: StepSpec, written: JsonValue, held_out: HeldOutCases
) -> ExampleSets:
    """The sets that are tried: as many as 0, 1, 2 and 4, of those that the step has and, beyond
    them, of the cases held out. No question that is asked in a case is among them.

    Args:
        written: What stands under its `examples`; None: nothing.
    """
    problem = case_problem(recipe, step, written)
    if not isinstance(step, ExampleStepSpec):
        return ExampleSets(sets={}, problem=problem)
    own = list(_own(recipe, step, written, held_out))
    if problem is not None and not own:
        return ExampleSets(sets={}, problem=problem)
    tests = [_as_test(*each, step.output) for each in held_out.cases if each[0].has_expected]
    found = case_examples(recipe, step, tests, asked=held_out.asked).candidates
    free = [each for each in found if not shows_key(each)]
    sets: dict[int, Sequence[Mapping[str, JsonValue]]] = {}
    for count in EXAMPLE_COUNTS:
        chosen = _chosen(step, own, free, count)
        if len(chosen) == count != len(step.examples):
            sets[count] = [{"input": each.input, "output": each.example.answer} for each in chosen]
    if not sets:
        return ExampleSets(sets={}, problem="no case held out gives a whole output that fits")
    return ExampleSets(sets=sets)


def _chosen(
    step: ExampleStepSpec,
    own: Sequence[ExampleCandidate],
    free: Sequence[ExampleCandidate],
    count: int,
) -> Sequence[ExampleCandidate]:
    """So many examples: of those that the step has, then of the cases."""
    kept = choose_examples(own, step.output, most=count, max_tokens=MOST_EXAMPLE_TOKENS)
    more = choose_examples(
        free,
        step.output,
        most=count,
        max_tokens=MOST_EXAMPLE_TOKENS,
        shown=[each.example for each in kept],
    )
    return (*kept, *more)


def _own(
    recipe: AgentRecipe, step: ExampleStepSpec, written: JsonValue, held_out: HeldOutCases
) -> Iterator[ExampleCandidate]:
    """The examples that stand in the step, without those whose question is asked in a case."""
    if not isinstance(written, list | tuple):
        return
    asked = asked_questions(recipe, step, held_out.asked)
    for example, each in zip(step.examples, written, strict=True):
        given = each.get("input") if isinstance(each, Mapping) else None
        if example.question not in asked:
            yield ExampleCandidate(example=example, input=given, origin="the recipe", inputs={})


def _as_test(case: Case, inputs: Mapping[str, JsonValue], schema: JsonSchema | None) -> RecipeTest:
    return RecipeTest(name=case.name, inputs=inputs, output=_answer(case, schema), has_output=True)


def _answer(case: Case, schema: JsonSchema | None) -> JsonValue:
    """What is expected; texts of CSV become what the schema declares, where it declares no text."""
    wanted = case.wanted
    if not case.is_text or schema is None or not SchemaValidator(schema).errors(wanted):
        return wanted
    properties = schema.get("properties")
    if not isinstance(wanted, Mapping) or not isinstance(properties, Mapping):
        return _meant(wanted, schema)
    return {name: _meant(value, properties.get(name)) for name, value in wanted.items()}


def _meant(value: JsonValue, schema: JsonValue) -> JsonValue:
    if not isinstance(value, str) or not isinstance(schema, Mapping):
        return value
    if not SchemaValidator(schema).errors(value):
        return value
    try:
        return parse_json(value.strip())
    except ValueError:
        return _WORDS.get(value.strip().casefold(), value)
