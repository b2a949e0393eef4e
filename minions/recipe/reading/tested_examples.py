"""`examples: {from: tests}`: tests that give the whole output of a step are its examples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve, frozen
from msgspec import structs
from msgspec.structs import replace

from minions.contracts.executions import RunStatus
from minions.data.json_values import JsonValue, as_objects, dumps
from minions.data.schema import SchemaValidator
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.examples import (
    Example,
    ExampleCandidate,
    ExampleChoice,
    ExampleOrigin,
    ExampleSource,
    ExampleStepSpec,
    candidates_problem,
    choose_examples,
    name_of,
    question_of,
)
from minions.recipe.expressions.template import Template, Templates
from minions.recipe.expressions.terms import Path as ValuePath
from minions.recipe.expressions.values import EvaluationError, TemplateError
from minions.recipe.model import AgentRecipe, InputSpec, RecipeTest
from minions.recipe.text.nodes import MappingNode, Place
from minions.recipe.text.sections import Report

_MOST_NAMED: Final = 5
"""Tests that a message names."""


def link_tested_examples(draft: RecipeDraft, report: Report) -> None:
    """Give each step that takes examples from tests those that are chosen; faults are reported."""
    for step in draft.steps:
        source = step.goal.examples_from
        if source is not None and source.origin is ExampleOrigin.TESTS:
            candidates = _candidates_of(draft, step, report)
            is_nearest = step.goal.nearest is not None
            examples = _choose_examples(candidates, step.goal.schema, source, is_nearest=is_nearest)
            size = sum(each.size for each in examples)
            if is_nearest and (problem := candidates_problem(count=len(examples), size=size)):
                report(step.section.place_of("examples").fault("no-examples", problem))
            step.goal = structs.replace(step.goal, examples=examples)


def _choose_examples(
    candidates: Sequence[ExampleCandidate],
    schema: Mapping[str, JsonValue] | None,
    source: ExampleSource,
    *,
    is_nearest: bool,
) -> tuple[Example, ...]:
    """Those that are shown; all, where they are chosen for each question."""
    free = [each for each in candidates if dumps(each.inputs) not in source.held_out]
    if is_nearest:
        return tuple(each.example for each in free)
    chosen = choose_examples(free, schema, most=source.most, max_tokens=source.max_tokens)
    return tuple(each.example for each in chosen)


def _candidates_of(
    draft: RecipeDraft, step: StepDraft, report: Report
) -> tuple[ExampleCandidate, ...]:
    place = step.section.place_of("examples")
    goal = _goal_of(step.goal.question, draft.templates)
    if goal is None:
        return ()  # reported with the goal
    problem = _problem_of_step(draft, step, goal)
    if problem is not None:
        message, help_ = problem
        report(place.fault("no-examples", message, help=help_))
        return ()
    found, reasons = _candidates(goal, draft.inputs, draft.tests)
    if not found:
        named = "; ".join(reasons[:_MOST_NAMED])
        message = f"no test gives an input and the whole output of {step.title}"
        help_ = "write inputs: {…} and expect: {output: …} in a test"
        report(place.fault("no-examples", message, label=named or None, help=help_))
    return tuple(_fitting(draft, step, found, report))


def _fitting(
    draft: RecipeDraft, step: StepDraft, found: Iterable[ExampleCandidate], report: Report
) -> Iterator[ExampleCandidate]:
    """The candidates whose answer fits the step; the others are reported at their test."""
    places = _output_places(draft)
    validator = SchemaValidator(step.goal.schema) if step.goal.schema is not None else None
    for each in found:
        answer = each.example.answer
        problems = list(validator.errors(answer)) if validator is not None else []
        if validator is None and not isinstance(answer, str):
            problems = ["the step answers with a text, since it declares no output"]
        for problem in problems:
            message = f"as an example of {step.title} it does not fit: {problem}"
            report(places[each.origin].fault("bad-example", message))
        if not problems:
            yield each


def _output_places(draft: RecipeDraft) -> Mapping[str, Place]:
    """By test, the place of the output that it expects."""
    places = {}
    for test, node in zip(draft.tests, draft.section.items("tests"), strict=True):
        entry = node.find("expect") if isinstance(node, MappingNode) else None
        places[_origin(test)] = entry.value.place if entry is not None else node.place
    return places


def _problem_of_step(draft: RecipeDraft, step: StepDraft, goal: Template) -> tuple[str, str] | None:
    """Why no test can give an example of that step, and what to do; None: it can."""
    elsewhere = "take the examples from a file, or write them down"
    if step.has_loop or step.has_while:
        return f"{step.title} is repeated, and a test gives one output of it", elsewhere
    for reference in goal.references:
        path = reference.path
        if path[0] != "inputs" or len(path) < 2:
            return f"{step.title} reads '{reference.text}', which no test gives", (
                f"{elsewhere}; a test gives inputs only"
            )
    output = draft.section.plain("output")
    is_last = draft.steps[-1] is step and not draft.has_graph
    if is_last if output is None else _is_output_of(output, step.id, step.save_as, draft.templates):
        return None
    return f"a test gives the recipe's output, which is not that of {step.title}", (
        f"write output: '{{{{ {step.id} }}}}', or {elsewhere}"
    )


def _is_output_of(
    output: JsonValue, step_id: str, save_as: str | None, compiled: Templates
) -> bool:
    """Whether the recipe's output is the whole output of that step."""
    template = _goal_of(output, compiled) if isinstance(output, str) else None
    term = template.term if template is not None else None
    if not isinstance(term, ValuePath):
        return False
    return term.reference.path in ((step_id,), (save_as,), ("steps", step_id, "output"))


def _goal_of(text: str, compiled: Templates) -> Template | None:
    try:
        return compiled.compile(text)
    except TemplateError:
        return None


def _origin(test: RecipeTest) -> str:
    return f"test '{test.name}' (line {test.where.line})"


def _candidates(
    goal: Template, inputs: Mapping[str, InputSpec], tests: Iterable[RecipeTest]
) -> tuple[list[ExampleCandidate], list[str]]:
    """What the tests give, in their order, and why others give nothing.

    Args:
        goal: Reads inputs only.
    """
    found: list[ExampleCandidate] = []
    reasons: list[str] = []
    for test in tests:
        given = _with_defaults(inputs, test.inputs)
        named = dict.fromkeys(name_of(each) for each in goal.references)
        values = {name: given[name] for name in named if name in given}
        if test.status is not RunStatus.COMPLETED or not test.has_output:
            reasons.append(f"'{test.name}' expects no whole output")
            continue
        if any(inputs[name].is_secret for name in values if name in inputs):
            reasons.append(f"'{test.name}' gives a secret")
            continue
        try:
            question = question_of(goal, values)
        except EvaluationError as error:
            reasons.append(f"'{test.name}': {error}")
            continue
        found.append(
            ExampleCandidate(
                example=Example(question, test.output),
                input=values,
                origin=_origin(test),
                inputs=given,
            )
        )
    return found, reasons


def _with_defaults(
    inputs: Mapping[str, InputSpec], given: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    defaults = {name: spec.default for name, spec in inputs.items() if spec.has_default}
    return {name: {**defaults, **given}[name] for name in sorted({**defaults, **given})}


# --- cases as examples ----------------------------------------------------------------------------


@frozen(kw_only=True)
class CaseExamples:
    """What cases with known answers give as examples of a step."""

    candidates: tuple[ExampleCandidate, ...] = ()
    problem: str | None = None
    """Why they give none; None: they may."""


def case_examples(
    recipe: AgentRecipe,
    step: ExampleStepSpec,
    cases: Sequence[RecipeTest],
    *,
    asked: Iterable[Mapping[str, JsonValue]],
) -> CaseExamples:
    """The examples that these cases give, as tests: inputs, and the whole output.

    An answer that does not fit the step's output gives none, and neither does a question that is
    asked in a case under evaluation.

    Args:
        asked: The inputs of each case under evaluation, with defaults.
    """
    goal = recipe.templates.compile(step.example_question)
    problem = _problem_of_spec(recipe, step, goal)
    if problem is not None:
        return CaseExamples(problem=problem)
    found, _ = _candidates(goal, recipe.inputs, cases)
    questions = asked_questions(recipe, step, asked)
    validator = SchemaValidator(step.output) if step.output is not None else None
    fitting = tuple(
        each
        for each in found
        if each.example.question not in questions and _fits(each.example.answer, validator)
    )
    return CaseExamples(candidates=fitting)


def asked_questions(
    recipe: AgentRecipe, step: ExampleStepSpec, asked: Iterable[Mapping[str, JsonValue]]
) -> frozenset[str]:
    """The questions of cases to a step, as far as their inputs say them.

    Args:
        asked: The inputs of each case, with defaults.
    """
    return frozenset(_questions(recipe.templates.compile(step.example_question), asked))


def _problem_of_spec(recipe: AgentRecipe, step: ExampleStepSpec, goal: Template) -> str | None:
    if step.loop is not None or step.repeat is not None:
        return "it is repeated, and a case says one output"
    for reference in goal.references:
        if reference.path[0] != "inputs" or len(reference.path) < 2:
            return f"it reads '{reference.text}', which no case says"
    is_last = recipe.steps[-1] is step and recipe.graph is None
    is_own = _is_output_of(recipe.output, step.id, step.save_as, recipe.templates)
    if is_last if recipe.output is None else is_own:
        return None
    return "a case says the output of the recipe, which is not that of the step"


def _fits(answer: JsonValue, validator: SchemaValidator | None) -> bool:
    if validator is None:
        return isinstance(answer, str)
    return not list(validator.errors(answer))


# --- data under evaluation ------------------------------------------------------------------------


def without_cases(recipe: AgentRecipe, cases: Collection[Mapping[str, JsonValue]]) -> AgentRecipe:
    """The recipe without examples that are taken from these cases, to evaluate it by them.

    Left out are examples from tests and recorded runs with the same inputs, and all whose question
    is that of a case, wherever they stand: else a model would read the answer that it is asked for.

    Args:
        cases: The inputs of each case under evaluation, without defaults or with them.
    """
    whole = [_with_defaults(recipe.inputs, case) for case in cases]
    steps = tuple(
        _without(step, recipe, whole) if isinstance(step, ExampleStepSpec) else step
        for step in recipe.steps
    )
    if all(new is old for new, old in zip(steps, recipe.steps, strict=True)):
        return recipe
    pairs = zip(steps, recipe.steps, strict=True)
    changed = {
        new.id: new for new, old in pairs if new is not old and isinstance(new, ExampleStepSpec)
    }
    return evolve(recipe, steps=steps, document=_document_with(recipe, changed))


def _without(
    step: ExampleStepSpec, recipe: AgentRecipe, cases: Sequence[Mapping[str, JsonValue]]
) -> ExampleStepSpec:
    source, examples = step.examples_from, step.examples
    goal = recipe.templates.compile(step.example_question)
    if source is not None:
        held_out = tuple(sorted({*source.held_out, *map(dumps, cases)}))
        asked = tuple(sorted({*source.asked, *_questions(goal, cases)}))
        source = replace(source, held_out=held_out, asked=asked)
        if source.origin is ExampleOrigin.TESTS:
            found, _ = _candidates(goal, recipe.inputs, recipe.tests)
            is_nearest = step.nearest is not None
            examples = _choose_examples(found, step.output, source, is_nearest=is_nearest)
    questions = set(_questions(goal, cases)) if examples else set()
    kept = tuple(each for each in examples if each.question not in questions)
    nearest = step.nearest
    if nearest is not None:
        # Questions that no inputs say, such as those about an earlier output, are known when they
        # are asked: the nearest example would be their answer.
        nearest = replace(nearest, shows_asked=False)
    if source == step.examples_from and kept == step.examples and nearest == step.nearest:
        return step
    return evolve(step, examples=kept, examples_from=source, nearest=nearest)


def _questions(goal: Template, cases: Iterable[Mapping[str, JsonValue]]) -> Iterator[str]:
    """The questions of the cases, as far as inputs say them."""
    if all(each.path[0] == "inputs" for each in goal.references):
        for case in cases:
            try:
                yield question_of(goal, case)
            except EvaluationError:
                continue


def _document_with(
    recipe: AgentRecipe, changed: Mapping[str, ExampleStepSpec]
) -> Mapping[str, JsonValue] | None:
    """The recipe as it travels with a run, where the same is left out of its examples."""
    if recipe.document is None:
        return None
    steps = as_objects(recipe.document["steps"])
    return {
        **recipe.document,
        "steps": [_with_examples(step, changed.get(str(step.get("id")))) for step in steps],
    }


def _with_examples(document: Mapping[str, JsonValue], spec: ExampleStepSpec | None) -> JsonValue:
    if spec is None or spec.recorded_examples is not None:  # these are pinned when the run starts
        return document
    examples: JsonValue = [
        {"input": each.question, "output": each.answer} for each in spec.examples
    ]
    if spec.nearest is not None:
        examples = {
            "items": examples,
            "choose": ExampleChoice.NEAREST.value,
            "max": spec.nearest.most,
            "max_tokens": spec.nearest.max_tokens,
        }
    return {**document, "examples": examples}
