"""Examples of a step: questions with their answers, which its model sees as earlier turns.

They are constants of the recipe, in one order, so that the start of a prompt stays the same from
call to call and a server's prefix cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema, SchemaValidator
from minions.recipe.expressions.template import (
    EvaluationError,
    Reference,
    Template,
    TemplateError,
    compile_template,
)
from minions.recipe.expressions.values import as_text
from minions.recipe.text.key_types import Key, Table
from minions.recipe.text.nodes import MappingNode, Node, ScalarNode, to_plain
from minions.recipe.text.sections import Report, read_section, suggestion

__all__ = [
    "EXAMPLE",
    "EXAMPLES_FROM",
    "MOST_EXAMPLES",
    "MOST_EXAMPLE_TOKENS",
    "Example",
    "read_examples",
]


MOST_EXAMPLES: Final = 4
"""Examples that are taken, unless `max` says otherwise: more than four gain little."""
MOST_EXAMPLE_TOKENS: Final = 400
"""Their tokens, unless `max_tokens` says otherwise."""
EXAMPLES_FROM: Final = Table(
    "examples from a file",
    (
        Key(
            name="from",
            description="A file with a JSON object `{input, output}` in each line.",
            types=("string",),
            is_required=True,
        ),
        Key(
            name="max",
            description="Most examples that are taken, in the order of the file; default: "
            f"{MOST_EXAMPLES}.",
            types=("integer",),
            minimum=1,
        ),
        Key(
            name="max_tokens",
            description="Most tokens of them, estimated at four characters each; one without room "
            f"is left out. Default: {MOST_EXAMPLE_TOKENS}.",
            types=("integer",),
            minimum=1,
        ),
    ),
)


@frozen
class Example:
    """A question and its answer."""

    question: str
    """What the user says: the goal with the example's values."""
    answer: JsonValue
    """What the model is to answer; it fits the step's output."""


EXAMPLE: Final = Table(
    "an example",
    (
        Key(
            name="input",
            description="The question: a text, or what the goal reads, by the names of inputs, "
            "steps and `item`; the goal is rendered with these values.",
            types=("string", "object"),
            is_required=True,
        ),
        Key(
            name="output",
            description="The answer; it fits the step's output.",
            is_required=True,
        ),
    ),
)


def read_examples(
    nodes: Sequence[Node], goal: ScalarNode | None, schema: JsonSchema | None, report: Report
) -> tuple[Example, ...]:
    """The examples of a step, checked; one with a fault is left out.

    Args:
        goal: The goal of the step.
        schema: The declared output; None: the answer is a text.
    """
    found = (_example(node, goal, schema, report) for node in nodes)
    return tuple(each for each in found if each is not None)


def _example(
    node: Node, goal: ScalarNode | None, schema: JsonSchema | None, report: Report
) -> Example | None:
    section = read_section(node, EXAMPLE, report)
    asked, answered = section.node("input"), section.node("output")
    if asked is None or answered is None:
        return None
    question = _question(asked, goal, report)
    problems = list(_problems(to_plain(answered), schema))
    for problem in problems:
        report(answered.place.fault("bad-example", f"the example does not fit: {problem}"))
    return None if question is None or problems else Example(question, to_plain(answered))


def _problems(answer: JsonValue, schema: JsonSchema | None) -> Iterator[str]:
    if schema is not None:
        yield from SchemaValidator(schema).errors(answer)
    elif not isinstance(answer, str):
        yield "the step answers with a text, since it declares no output"


def _question(asked: Node, goal: ScalarNode | None, report: Report) -> str | None:
    if not isinstance(asked, MappingNode):
        return str(to_plain(asked))
    try:
        template = compile_template(str(goal.value) if goal is not None else "")
    except TemplateError:  # reported with the goal
        return None
    known = dict.fromkeys(_name(each) for each in template.references)
    for entry in asked.entries:
        if entry.key not in known:
            report(
                entry.key_node.place.fault(
                    "bad-example",
                    f"the goal reads no '{entry.key:.60}'",
                    label=suggestion(entry.key, tuple(known)),
                    help=f"it reads: {', '.join(known) or 'nothing; write the question as a text'}",
                )
            )
            return None
    values = {entry.key: to_plain(entry.value) for entry in asked.entries}
    return _rendered(template, values, asked, report)


def _rendered(
    template: Template, values: Mapping[str, JsonValue], asked: Node, report: Report
) -> str | None:
    try:
        return as_text(template.render(_scope(values)))
    except EvaluationError as error:
        report(asked.place.fault("bad-example", f"the goal cannot be rendered with it: {error}"))
        return None


def _scope(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """What the goal's templates read, under every name by which they may."""
    steps = {name: {"output": value} for name, value in values.items()}
    return {
        **values,
        "inputs": dict(values),
        "steps": steps,
        "loop": {"item": values.get("item"), "index": 0},
    }


def _name(reference: Reference) -> str:
    """The name by which an example gives what a template reads."""
    path = reference.path
    is_within = path[0] in ("inputs", "steps", "loop") and len(path) > 1
    return str(path[1] if is_within else path[0])
