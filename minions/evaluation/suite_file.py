"""Reads evaluation suites, `*.eval.yaml`: every fault with its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from attrs import evolve

from minions.data.errors import Fault, RecipeError
from minions.data.patterns import compiled_pattern
from minions.evaluation.cases import CaseRow
from minions.evaluation.scorers import (
    ROOTS,
    AnyScorer,
    Exact,
    Fields,
    GradedBy,
    Holds,
    Matches,
    Near,
    Schema,
    Suite,
    ToolScorer,
)
from minions.recipe.expressions.template import compile_condition
from minions.recipe.expressions.values import TemplateError
from minions.recipe.text.key_types import Key, Table
from minions.recipe.text.nodes import MappingNode, Node, Place, ScalarNode, to_plain
from minions.recipe.text.schemas import read_output_schema
from minions.recipe.text.sections import Report, Section, read_section, suggestion
from minions.recipe.text.yaml_reader import read_document, read_source

_OF: Final = Key(
    name="of",
    description="The value of the output that is scored, as a path: `total`, `items.0.name`; "
    "default: the whole.",
    types=("string",),
)
SUITE: Final = Table(
    "an evaluation",
    (
        Key(
            name="recipe",
            description="Path of the recipe from this file, or its id; the command may name it.",
            types=("string",),
        ),
        Key(
            name="against",
            description="Further recipes, or versions of it, that are asked the same.",
            types=("string", "array"),
            shape={"items": {"type": "string"}},
        ),
        Key(
            name="data",
            description="A file of cases, `.jsonl` or `.csv`, from this file.",
            types=("string",),
        ),
        Key(
            name="cases",
            description="`{inputs, expected, name}` each, or inputs beside `expected` and `name`.",
            types=("array",),
            shape={"items": {"type": "object"}},
        ),
        Key(
            name="models",
            description="Models that are compared, `provider/name`; default: the recipe's own.",
            types=("string", "array"),
            shape={"items": {"type": "string"}},
        ),
        Key(
            name="samples",
            description="How often each case is asked; default 1.",
            types=("integer",),
            minimum=1,
            maximum=1_000,
        ),
        Key(
            name="inputs",
            description="Inputs of every case that does not give them itself.",
            types=("object",),
        ),
        Key(
            name="scorers",
            description="How outputs are scored; all must pass. Default: `fields`.",
            types=("array",),
        ),
        Key(
            name="at_least",
            description="The pass rate that each variant must reach, from 0 to 1; below it the "
            "command's exit code is 1.",
            types=("number",),
            minimum=0.0,
            maximum=1.0,
        ),
    ),
)


def _number_of(name: str, description: str) -> Key:
    return Key(name=name, description=description, types=("number", "string"))


_KINDS: Final[Mapping[str, Table]] = {
    "exact": Table("the scorer exact", (Key(name="exact", types=("boolean", "null")), _OF)),
    "fields": Table(
        "the scorer fields",
        (
            Key(
                name="fields",
                description="Paths of the fields that must be as expected; default: all of them.",
                types=("array", "string"),
                shape={"items": {"type": "string"}},
            ),
        ),
    ),
    "regex": Table(
        "the scorer regex",
        (Key(name="regex", description="A regular expression.", types=("string",)), _OF),
    ),
    "number": Table(
        "the scorer number",
        (
            _number_of("number", "The largest difference: 0.5, or `2%` of the expected number."),
            _OF,
        ),
    ),
    "schema": Table("the scorer schema", (Key(name="schema", types=("object",)), _OF)),
    "holds": Table(
        "the scorer holds",
        (
            Key(
                name="holds",
                description="A condition over `output`, `expected` and `inputs`.",
                types=("string",),
            ),
        ),
    ),
    "graded": Table(
        "the scorer graded",
        (
            Key(
                name="graded",
                description="A rubric, by which a model grades the output from 0 to 1.",
                types=("string",),
            ),
            Key(name="model", description="The model that grades.", types=("string",)),
            Key(
                name="at_least",
                description="The grade from which an output passes; default 0.7.",
                types=("number",),
                minimum=0.0,
                maximum=1.0,
            ),
        ),
    ),
    "tool": Table(
        "the scorer tool",
        (Key(name="tool", description="The name of a registered tool.", types=("string",)),),
    ),
}
SCORERS: Final = tuple(_KINDS)
"""The words for scorers."""
_PLAIN: Final[Mapping[str, Callable[[], AnyScorer]]] = {"exact": Exact, "fields": Fields}


def read_suite(path: Path) -> Suite:
    """The suite of a file.

    Raises:
        RecipeError: It has faults; each with its place.
        NotFoundError, UsageError: It cannot be read.
    """
    return read_suite_text(read_source(path), str(path), path.absolute().parent)


def read_suite_text(text: str | bytes, file: str, folder: Path) -> Suite:
    """The suite of a text.

    Raises:
        RecipeError: It has faults; each with its place.
    """
    faults: list[Fault] = []
    section = read_section(read_document(text, file), SUITE, faults.append)
    if section.node("cases") is not None and section.node("data") is not None:
        message = "the cases are stated twice, by 'cases' and by 'data'"
        faults.append(section.place_of("cases").fault("kind-conflict", message))
    scorers = read_scorers(section, faults.append)
    rows = tuple(_row(node, faults.append) for node in section.items("cases"))
    if faults:
        raise RecipeError(tuple(faults))
    samples, at_least = section.plain("samples", 1), section.plain("at_least")
    inputs = section.plain("inputs")
    return Suite(
        file=file,
        folder=folder,
        recipe=section.text("recipe"),
        against=_texts(section, "against"),
        data=section.text("data"),
        rows=rows,
        models=_texts(section, "models"),
        samples=samples if isinstance(samples, int) else 1,
        inputs=inputs if isinstance(inputs, Mapping) else {},
        scorers=scorers,
        at_least=float(at_least) if isinstance(at_least, int | float) else None,
    )


def read_scorers(
    section: Section, report: Report, check: Callable[[AnyScorer, Node], None] | None = None
) -> tuple[AnyScorer, ...]:
    """The scorers under the key `scorers`; those that cannot be read are reported and left out.

    Args:
        check: Is given each scorer with its node.
    """
    found: list[AnyScorer] = []
    for node in section.items("scorers"):
        if (scorer := _scorer(node, report)) is not None:
            found.append(scorer)
            if check is not None:
                check(scorer, node)
    return _with_names(section, found, report)


def scorer_named(word: str) -> AnyScorer | None:
    """The scorer that a word alone stands for; None: none."""
    make = _PLAIN.get(word)
    return None if make is None else make()


def _texts(section: Section, name: str) -> tuple[str, ...]:
    value = section.plain(name)
    if isinstance(value, str):
        return (value,)
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _row(node: Node, report: Report) -> CaseRow:
    place = f"{node.place.source.file}:{node.place.line}"
    if not isinstance(node, MappingNode):
        report(node.place.fault("wrong-type", "a case is a mapping"))
        return CaseRow(place=place, values={})
    value = to_plain(node)
    return CaseRow(place=place, values=value if isinstance(value, Mapping) else {})


def _with_names(
    section: Section, scorers: Sequence[AnyScorer], report: Report
) -> tuple[AnyScorer, ...]:
    """The scorers; those of one kind that would have one name get numbers, to be told apart."""
    found: list[AnyScorer] = []
    for at, each in enumerate(scorers):
        names = [other.name for other in found]
        if each.name not in names:
            found.append(each)
        elif each not in scorers[:at] and isinstance(each, Matches | Near | Schema | Holds):
            number = next(n for n in count(2) if f"{each.name} ({n})" not in names)
            found.append(evolve(each, label=f"{each.name} ({number})"))
        else:
            place = section.place_of("scorers")
            report(place.fault("duplicate-id", f"the scorer '{each.name}' is there twice"))
    return tuple(found)


# --- scorers -------------------------------------------------------------------------------------


def _scorer(node: Node, report: Report) -> AnyScorer | None:
    if isinstance(node, ScalarNode):
        return _plain_scorer(node, report)
    if not isinstance(node, MappingNode):
        report(node.place.fault("wrong-type", "a scorer is a word or a mapping"))
        return None
    kinds = [entry.key for entry in node.entries if entry.key in _KINDS]
    if len(kinds) != 1:
        what = "none of its kinds" if not kinds else f"several kinds: {', '.join(kinds)}"
        message = f"a scorer has one of {', '.join(_KINDS)}; this one has {what}"
        report(node.place.fault("unknown-scorer", message))
        return None
    section = read_section(node, _KINDS[kinds[0]], report)
    return _READ[kinds[0]](section, report) if section.node(kinds[0]) is not None else None


def _plain_scorer(node: ScalarNode, report: Report) -> AnyScorer | None:
    word = str(node.value)
    found = scorer_named(word)
    if found is None:
        report(
            node.place.fault(
                "unknown-scorer",
                f"there is no scorer '{word:.60}' that needs no more words",
                label=suggestion(word, SCORERS),
                help=f"there are: {', '.join(_PLAIN)}; and with a value: "
                f"{', '.join(name for name in SCORERS if name not in _PLAIN)}",
            )
        )
    return found


def _exact(section: Section, _report: Report) -> AnyScorer:
    return Exact(of=section.text("of") or "")


def _fields(section: Section, _report: Report) -> AnyScorer:
    return Fields(names=_texts(section, "fields"))


def _regex(section: Section, report: Report) -> AnyScorer | None:
    pattern = section.text("regex") or ""
    place = section.place_of("regex")
    try:
        compiled_pattern(pattern)
    except ValueError as error:
        report(place.fault("bad-schema", f"not a regular expression: {error}"))
        return None
    return Matches(pattern=pattern, of=section.text("of") or "")


def _number(section: Section, report: Report) -> AnyScorer | None:
    value, of = section.plain("number"), section.text("of") or ""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return Near(within=float(value), of=of)
    if isinstance(value, str) and value.endswith("%"):
        share = _share(value.removesuffix("%").strip())
        if share is not None:
            return Near(within=share, is_share=True, of=of)
    place = section.place_of("number")
    message = "the largest difference is a number from 0, or a share such as '2%'"
    report(place.fault("wrong-type", message))
    return None


def _share(text: str) -> float | None:
    try:
        share = float(text) / 100
    except ValueError:
        return None
    return share if 0 <= share < float("inf") else None


def _schema(section: Section, report: Report) -> AnyScorer | None:
    node = section.node("schema")
    schema = read_output_schema(node, report) if isinstance(node, MappingNode) else None
    return None if schema is None else Schema.of_schema(schema, section.text("of") or "")


def _holds(section: Section, report: Report) -> AnyScorer | None:
    node = section.scalar("holds")
    text = section.text("holds") or ""
    try:
        condition = compile_condition(text)
    except TemplateError as error:
        place: Place = section.place if node is None else node.part(error.offset, error.length)
        report(place.fault("bad-template", error.problem, help=error.hint))
        return None
    unknown = [each for each in condition.references if each.path[0] not in ROOTS]
    for each in unknown:
        place = section.place if node is None else node.part(each.offset, len(each.text))
        report(
            place.fault(
                "unknown-reference",
                f"unknown name '{each.path[0]!s:.60}'",
                label=suggestion(str(each.path[0]), ROOTS),
                help=f"names are: {', '.join(ROOTS)}",
            )
        )
    return None if unknown else Holds(text=text, condition=condition)


def _grade(section: Section, report: Report) -> AnyScorer | None:
    rubric = (section.text("graded") or "").strip()
    if not rubric:
        message = "the rubric says in words what a good output is"
        report(section.place_of("graded").fault("wrong-type", message))
        return None
    least = section.plain("at_least", 0.7)
    return GradedBy(
        rubric=rubric,
        model=section.text("model"),
        at_least=float(least) if isinstance(least, int | float) else 0.7,
    )


def _tool(section: Section, _report: Report) -> AnyScorer:
    return ToolScorer(tool=section.text("tool") or "")


_READ: Final[Mapping[str, Callable[[Section, Report], AnyScorer | None]]] = {
    "exact": _exact,
    "fields": _fields,
    "regex": _regex,
    "number": _number,
    "schema": _schema,
    "holds": _holds,
    "graded": _grade,
    "tool": _tool,
}
