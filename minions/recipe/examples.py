"""Examples of a step: questions with their answers, which its model sees as earlier turns.

They are constants of the recipe. As a rule all are shown, in one order, so that the start of a
prompt stays the same from call to call and a server's prefix cache holds; `choose: nearest` shows
those that are nearest to each question.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from attrs import frozen
from msgspec import Struct

from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema, SchemaValidator
from minions.recipe.expressions.template import Template, Templates
from minions.recipe.expressions.values import EvaluationError, Reference, TemplateError, as_text
from minions.recipe.model import StepSpec
from minions.recipe.text.key_types import Key, Table, choice_key
from minions.recipe.text.nodes import MappingNode, Node, to_plain
from minions.recipe.text.sections import Report, Section, read_section, suggestion

MOST_EXAMPLES: Final = 4
"""Examples that are taken, unless `max` says otherwise: more than four gain little."""
MOST_EXAMPLE_TOKENS: Final = 400
"""Their tokens, unless `max_tokens` says otherwise."""
MOST_CANDIDATES: Final = 1_000
"""Examples among which those nearest to a question are chosen."""
MOST_CANDIDATE_SIZE: Final = 1_048_576
"""Their characters, or the bytes of their file: they are stored with each run."""
MOST_RECORDED: Final = 100
"""Of recorded runs, the examples among which those nearest to a question are chosen."""
MOST_RECORDED_TOKENS: Final = 8_000
"""Their tokens, estimated: they are stored with each run, which has no file to name."""
CHARACTERS_PER_TOKEN: Final = 4
"""The estimate of tokens, which no server has counted yet."""


class ExampleChoice(StrEnum):
    """How those that are shown are chosen among many."""

    FIXED = "fixed"
    """Once, for all questions."""
    NEAREST = "nearest"
    """For each question those that share most words with it."""


EXAMPLES_FROM: Final = Table(
    "a choice of examples",
    (
        Key(
            name="from",
            description="A file with a JSON object `{input, output}` in each line; `tests`: the "
            "recipe's tests that expect a whole output; `journal`: recorded runs of the recipe, "
            "where a person marked the step's output good or approved it.",
            types=("string",),
        ),
        Key(
            name="items",
            description="Instead of `from`, with `choose: nearest`: the examples, written here.",
            types=("array",),
            shape={"items": {"$ref": "#/$defs/example"}},
        ),
        choice_key(
            "choose",
            "`nearest`: for each question those that share most words with it, and first one for "
            "each value that the output lists. Default: `fixed`, the same for all questions.",
            ExampleChoice,
        ),
        Key(
            name="max",
            description="Most examples that are shown; of a file the first ones. Default: "
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


class ExampleOrigin(StrEnum):
    """Where examples are taken from that stand neither in the recipe nor in a file."""

    TESTS = "tests"
    """The tests of the recipe: known when the recipe is loaded."""
    JOURNAL = "journal"
    """Recorded runs: known, and pinned, when a run starts."""


class ExampleSource(Struct, frozen=True, kw_only=True):
    """`examples: {from: tests}` or `{from: journal}`."""

    origin: ExampleOrigin
    most: int = MOST_EXAMPLES
    """Examples that are taken."""
    max_tokens: int = MOST_EXAMPLE_TOKENS
    """Their tokens, estimated."""
    held_out: tuple[str, ...] = ()
    """Inputs, as JSON, of the cases that are being evaluated: no example is taken from them."""
    asked: tuple[str, ...] = ()
    """The questions of these cases, as far as inputs say them."""


class ExampleBounds(Struct, frozen=True, kw_only=True):
    """How many of the examples are shown with one question."""

    most: int = MOST_EXAMPLES
    max_tokens: int = MOST_EXAMPLE_TOKENS
    """Their tokens, estimated."""
    shows_asked: bool = True
    """Whether an example with the very question that is asked is shown: it is none of a case that
    is being evaluated."""


class Example(Struct, frozen=True):
    """A question and its answer."""

    question: str
    """What the user says: the goal with the example's values."""
    answer: JsonValue
    """What the model is to answer; it fits the step's output."""

    @property
    def size(self) -> int:
        """The characters of its two turns."""
        return len(self.question) + len(as_text(self.answer))


@frozen(kw_only=True)
class ExampleStepSpec(StepSpec):
    """A step whose model sees examples."""

    output: JsonSchema | None = None
    """The declared output; None: the answer is a text."""
    examples: tuple[Example, ...] = ()
    """Questions with their answers, which its model sees as earlier turns."""
    examples_from: ExampleSource | None = None
    """Where they are taken from; None: they stand in the recipe. Those of tests are in `examples`;
    those of recorded runs are known when a run starts."""
    nearest: ExampleBounds | None = None
    """Within which bounds those of `examples` are shown that are nearest to a question; None: all
    are shown."""

    @property
    @abstractmethod
    def example_question(self) -> str:
        """What it asks, which examples give with their values; a template."""

    @property
    def recorded_examples(self) -> ExampleSource | None:
        """How examples are taken from recorded runs; None: they are not."""
        source = self.examples_from
        return source if source is not None and source.origin is ExampleOrigin.JOURNAL else None

    @property
    def declared_output(self) -> JsonSchema | None:
        return self.output


EXAMPLES_KEY: Final = Key(
    name="examples",
    description="Questions with their answers, which the model sees as earlier turns: "
    "`{input: …, output: …}`, or `{from: …}` a file, `tests` or `journal`. Two to four help small "
    "models most; `choose: nearest` shows those nearest to each question.",
    types=("array", "object"),
    shape={
        "anyOf": [
            {"type": "array", "items": {"$ref": "#/$defs/example"}},
            {
                "$ref": "#/$defs/examples_from",
                "oneOf": [
                    {"required": ["from"], "not": {"required": ["items"]}},
                    {"required": ["items", "choose"], "not": {"required": ["from"]}},
                ],
            },
        ]
    },
)
EXAMPLE: Final = Table(
    "an example",
    (
        Key(
            name="input",
            description="The question: a text, or what the step reads, by the names of inputs, "
            "steps and `item`; its goal, or its question with the data, is rendered with them.",
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
    nodes: Sequence[Node],
    goal: str,
    schema: JsonSchema | None,
    report: Report,
    compiled: Templates,
) -> tuple[Example, ...]:
    """The examples of a step, checked; one with a fault is left out.

    Args:
        goal: What the step asks; a template.
        schema: The declared output; None: the answer is a text.
        compiled: Compiles the texts of the recipe.
    """
    found = (_example(node, goal, schema, report, compiled) for node in nodes)
    return tuple(each for each in found if each is not None)


class ExampleKeys(Struct, frozen=True, kw_only=True):
    """What a mapping under `examples` says."""

    items: tuple[Node, ...] = ()
    """Examples that are written in it."""
    source: ExampleSource | None = None
    nearest: ExampleBounds | None = None


def read_example_keys(node: MappingNode, report: Report) -> ExampleKeys:
    """The keys of a mapping under `examples`, where files were read before; faults are reported."""
    section = read_example_section(node, report)
    name, most = section.text("from"), section.plain("max", MOST_EXAMPLES)
    max_tokens = section.plain("max_tokens", MOST_EXAMPLE_TOKENS)
    if not (isinstance(most, int) and isinstance(max_tokens, int)):
        return ExampleKeys()
    source = nearest = None
    if name in list(ExampleOrigin) and section.node("items") is None:
        source = ExampleSource(origin=ExampleOrigin(name), most=most, max_tokens=max_tokens)
    if chooses_nearest(section):
        nearest = ExampleBounds(most=most, max_tokens=max_tokens)
    items = section.items("items")
    if problem := candidates_problem(count=len(items)):
        report(section.place_of("items").fault("bad-value", problem))
        items = ()
    return ExampleKeys(items=items, source=source, nearest=nearest)


def read_example_section(node: MappingNode, report: Report) -> Section:
    """A mapping under `examples`, checked: it names one place, and what can be chosen from it."""
    section = read_section(node, EXAMPLES_FROM, report)
    given = {*section.entries, *section.refused}
    if not given & {"from", "items"}:
        message = "a choice of examples needs the key 'from', or 'items'"
        report(section.place.fault("missing-key", message))
    elif {"from", "items"} <= given:
        message = "examples are taken from one place, and here are 'from' and 'items'"
        report(section.place_of("items").fault("kind-conflict", message, help="leave one out"))
    elif "items" in given and not chooses_nearest(section) and "choose" not in section.refused:
        message = "of written examples all are shown, so that there is nothing to choose"
        help_ = "add choose: nearest, or write the list under 'examples' itself"
        report(section.place_of("items").fault("bad-value", message, help=help_))
    return section


def chooses_nearest(section: Section) -> bool:
    """Whether a mapping under `examples` says `choose: nearest`."""
    return section.text("choose") == ExampleChoice.NEAREST


def candidates_problem(*, count: int = 0, size: int = 0) -> str | None:
    """Why `nearest` does not choose among so many examples, or bytes of them; None: it does."""
    if count <= MOST_CANDIDATES and size <= MOST_CANDIDATE_SIZE:
        return None
    most = f"{MOST_CANDIDATES:,} examples"
    if size > MOST_CANDIDATE_SIZE:
        most = f"{MOST_CANDIDATE_SIZE:,} bytes of examples"
    return f"'nearest' chooses among {most} at the most; leave out those that resemble others"


def _example(
    node: Node, goal: str, schema: JsonSchema | None, report: Report, compiled: Templates
) -> Example | None:
    section = read_section(node, EXAMPLE, report)
    asked, answered = section.node("input"), section.node("output")
    if asked is None or answered is None:
        return None
    question = _question(asked, goal, report, compiled)
    problems = list(_problems(to_plain(answered), schema))
    for problem in problems:
        report(answered.place.fault("bad-example", f"the example does not fit: {problem}"))
    return None if question is None or problems else Example(question, to_plain(answered))


def _problems(answer: JsonValue, schema: JsonSchema | None) -> Iterator[str]:
    if schema is not None:
        yield from SchemaValidator(schema).errors(answer)
    elif not isinstance(answer, str):
        yield "the step answers with a text, since it declares no output"


def _question(asked: Node, goal: str, report: Report, compiled: Templates) -> str | None:
    if not isinstance(asked, MappingNode):
        return str(to_plain(asked))
    try:
        template = compiled.compile(goal)
    except TemplateError:  # reported where it stands
        return None
    known = dict.fromkeys(name_of(each) for each in template.references)
    for entry in asked.entries:
        if entry.key not in known:
            report(
                entry.key_node.place.fault(
                    "bad-example",
                    f"the step reads no '{entry.key:.60}'",
                    label=suggestion(entry.key, tuple(known)),
                    help=f"it reads: {', '.join(known) or 'nothing; write the question as a text'}",
                )
            )
            return None
    values = {entry.key: to_plain(entry.value) for entry in asked.entries}
    return _render(template, values, asked, report)


def _render(
    template: Template, values: Mapping[str, JsonValue], asked: Node, report: Report
) -> str | None:
    try:
        return question_of(template, values)
    except EvaluationError as error:
        report(
            asked.place.fault("bad-example", f"the question cannot be rendered with it: {error}")
        )
        return None


def question_of(goal: Template, values: Mapping[str, JsonValue]) -> str:
    """The goal with these values, by the names of inputs, steps and `item`.

    Raises:
        EvaluationError: A value is missing, or of the wrong type.
    """
    return as_text(goal.render(_scope(values)))


def _scope(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """What the goal's templates read, under every name by which they may."""
    steps = {name: {"output": value} for name, value in values.items()}
    return {
        **values,
        "inputs": dict(values),
        "steps": steps,
        "loop": {"item": values.get("item"), "index": 0},
    }


def name_of(reference: Reference) -> str:
    """The name by which an example gives what a template reads."""
    path = reference.path
    is_within = path[0] in ("inputs", "steps", "loop") and len(path) > 1
    return str(path[1] if is_within else path[0])


# --- which of many examples a step's model is shown ----------------------------------------------


_DEEPEST: Final = 20
"""Levels of an answer in which listed words are looked for."""

ListedValue: TypeAlias = tuple[str, str]
"""A place in answers, and one of the values that the schema lists for it, as JSON."""


class ExampleCandidate(Struct, frozen=True, kw_only=True):
    """A question with its answer that could be an example."""

    example: Example
    input: JsonValue
    """As `input` of an example in a recipe: what the goal reads, by name."""
    origin: str
    """Where it comes from, for people: a test, or a step of a run."""
    inputs: Mapping[str, JsonValue]
    """The inputs of the run or test."""
    because: str = ""
    """Why it counts as good; empty: its author wrote it."""

    @property
    def size(self) -> int:
        """The characters of its two turns."""
        return self.example.size


def turn_tokens(candidates: Sequence[ExampleCandidate]) -> int:
    """The tokens of their turns, estimated."""
    return -(-sum(each.size for each in candidates) // CHARACTERS_PER_TOKEN)


def choose_examples(
    candidates: Sequence[ExampleCandidate],
    schema: JsonSchema | None,
    *,
    most: int,
    max_tokens: int,
    shown: Sequence[Example] = (),
) -> tuple[ExampleCandidate, ...]:
    """The examples that are shown, in the order of the candidates.

    Every value of the output that the schema lists (`enum`, `const`, true and false) is covered
    first, each with the shortest candidate that has the most of them; then others follow, with new
    answers before known ones and later candidates before earlier ones. Of several candidates with
    one question the last counts. The same candidates give the same examples.

    Args:
        candidates: Oldest first.
        schema: The declared output of the step; None: a text.
        most: Examples at most.
        max_tokens: Tokens of all their turns at most, estimated.
        shown: Examples that the step has already: they count against both, what they cover is
            covered, and their questions are not asked again.
    """
    asked = {each.question for each in shown}
    last = {
        each.example.question: at
        for at, each in enumerate(candidates)
        if each.example.question not in asked
    }
    left = {at: candidates[at] for at in sorted(last.values())}
    covered = {choice for each in shown for choice in listed_values(each.answer, schema)}
    answers = {dumps(each.answer) for each in shown}
    room = max_tokens * CHARACTERS_PER_TOKEN - sum(each.size for each in shown)
    chosen = list[int]()
    choices = {
        at: frozenset(listed_values(each.example.answer, schema)) for at, each in left.items()
    }
    while len(shown) + len(chosen) < most:
        fitting = [at for at, each in left.items() if each.size <= room]
        if not fitting:
            break
        best = max(
            fitting,
            key=lambda at: _worth(left[at], len(choices[at] - covered), answers, at),
        )
        found = left.pop(best)
        covered |= choices[best]
        answers.add(dumps(found.example.answer))
        room -= found.size
        chosen.append(best)
    return tuple(candidates[at] for at in sorted(chosen))


def newest_examples(
    candidates: Sequence[ExampleCandidate], schema: JsonSchema | None
) -> tuple[ExampleCandidate, ...]:
    """Those among which the nearest to a question are chosen, in the order of the candidates: for
    each value that the output lists the newest one that has it, then the newest others, as far as
    there is room. Of several candidates with one question the last counts.

    Args:
        candidates: Oldest first.
        schema: The declared output of the step; None: a text.
    """
    last = {each.example.question: at for at, each in enumerate(candidates)}
    newest = sorted(last.values(), reverse=True)
    room = MOST_RECORDED_TOKENS * CHARACTERS_PER_TOKEN
    covered: set[ListedValue] = set()
    chosen: set[int] = set()
    for covers_first in (True, False):
        for at in newest:
            each = candidates[at]
            if at in chosen or each.size > room or len(chosen) == MOST_RECORDED:
                continue
            values = set(listed_values(each.example.answer, schema)) if covers_first else set()
            if covers_first and values <= covered:
                continue
            chosen.add(at)
            covered |= values
            room -= each.size
    return tuple(candidates[at] for at in sorted(chosen))


def _worth(
    candidate: ExampleCandidate, uncovered: int, answers: set[str], at: int
) -> tuple[int, bool, int, int]:
    """More is better. The length counts only while there is something to cover."""
    is_new = dumps(candidate.example.answer) not in answers
    return (uncovered, is_new, -candidate.size if uncovered else 0, at)


def listed_values(
    answer: JsonValue, schema: JsonValue, place: str = "", depth: int = 0
) -> Iterator[ListedValue]:
    """The listed values that an answer has, with their places; items of a list share one."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    types = schema.get("type")
    if "enum" in schema or "const" in schema or (isinstance(answer, bool) and types == "boolean"):
        yield place, dumps(answer)
    if isinstance(answer, Mapping):
        properties = schema.get("properties")
        for name, own in properties.items() if isinstance(properties, Mapping) else ():
            if name in answer:
                yield from listed_values(answer[name], own, f"{place}.{name}", depth + 1)
    elif isinstance(answer, list | tuple):
        for item in answer:
            yield from listed_values(item, schema.get("items"), f"{place}[]", depth + 1)
    for name in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(name)
        for branch in branches if isinstance(branches, list | tuple) else ():
            yield from listed_values(answer, branch, place, depth + 1)
