"""Recipes, expressions, schemas and patterns: what a recipe's author hands in."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fuzz.target import Target, text_of
from minions.adapters.models.strict_schema import is_strict_schema
from minions.analysis.explanation import explain
from minions.analysis.pictures.picture import picture_of
from minions.analysis.pictures.svg import svg
from minions.analysis.pictures.text_pictures import mermaid, outline, picture_to_json
from minions.app.wiring.built_in_extensions import built_in_toolsets
from minions.contracts.tool_parameters import sent_parameters
from minions.data.errors import MinionsError, SchemaError, UsageError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.patterns import search
from minions.data.schema import SchemaValidator, check_schema
from minions.data.schema_words import schema_words
from minions.data.texts import seconds_of, spoken
from minions.engine.compile.dry_run import planned_prompts
from minions.engine.compile.extensions import Extensions
from minions.recipe.catalog import Catalog
from minions.recipe.expressions.filters import FILTERS, TESTS
from minions.recipe.expressions.template import compile_condition, compile_template
from minions.recipe.expressions.values import EvaluationError, MissingValueError, TemplateError
from minions.recipe.model import AgentRecipe
from minions.recipe.permissions import tool_specs
from minions.recipe.reading.load import check_recipe_text, recipe_from_document
from recipe.sample_catalog import CATALOG as SAMPLE
from recipe.test_reader_properties import places_are_inside

__all__ = ["recipe_targets"]

_ROOT: Final = Path(__file__).resolve().parents[2]


def recipe_targets(folder: Path) -> Sequence[Target]:
    """The targets.

    Args:
        folder: An empty one, in which the recipes are said to lie.
    """
    return (
        Target(
            name="recipe",
            check=_RecipeTarget(folder).check,
            seeds=_recipes,
            words=(*_YAML, *_KEYS),
            few=120,
        ),
        Target(
            name="expression",
            check=check_expression,
            seeds=lambda: [each.encode() for each in _EXPRESSIONS],
            words=(*_OPERATORS, *FILTERS, *TESTS),
            most_bytes=8_192,
            few=900,
        ),
        Target(
            name="schema",
            is_json=True,
            check=check_schema_and_value,
            seeds=lambda: [json.dumps(each).encode() for each in _SCHEMAS],
            words=_SCHEMA_WORDS,
            most_bytes=8_192,
            few=180,
        ),
        Target(
            name="pattern",
            check=check_pattern,
            seeds=lambda: [each.encode() for each in _PATTERNS],
            words=_PATTERN_WORDS,
            most_bytes=2_048,
            few=300,
        ),
        Target(
            name="duration",
            check=check_duration,
            seeds=lambda: [b"90", b"90s", b"10m", b"2h", b"30d", b"1.5 ms"],
            words=("ms", "s", "m", "h", "d", "."),
            few=600,
        ),
    )


# --- recipes ------------------------------------------------------------------------------------


def _recipes() -> Sequence[bytes]:
    files = [
        *(_ROOT / "recipes").glob("*.yaml"),
        *(_ROOT / "tests" / "bad_recipes").glob("*.yaml"),
        *(_ROOT / "minions" / "planning").glob("*.yaml"),
    ]
    return [each.read_bytes() for each in sorted(files)]


_YAML: Final = (
    *("- ", ": ", ":\n  ", "\n  - ", "&a ", "*a", "<<: *a", "!!str ", "|\n ", ">-\n ", "---\n"),
    *("...\n", "? ", "#", "%YAML 1.2\n", "'x'", '"\\u0041"', "{", "}", "[", "]", "~", "0o17"),
)
_KEYS: Final = (
    *("id", "name", "description", "steps", "inputs", "output", "tools", "tool", "params", "goal"),
    *("model", "limits", "retry", "permissions", "templates", "use", "tests", "metadata", "when"),
    *(
        "depends_on",
        "for_each",
        "while",
        "repeat",
        "max_parallel",
        "on_error",
        "set",
        "ask",
        "form",
    ),
    *("assert", "code", "analyze", "plan", "recipe", "uses", "with", "save_as", "cache", "goto"),
    *("transitions", "next", "completion", "timeout_s", "default", "secret", "type", "graph"),
    *(
        "memory",
        "conversation",
        "schedule",
        "on_failure",
        "strict",
        "enabled",
        "add",
        "files__read",
    ),
    *("{{ inputs.x }}", "{{ steps.a.output }}", "{{ loop.index }}", "feedback.text", "env.HOME"),
)


class _RecipeTarget:
    """Texts become a recipe or faults in the text; what is a recipe can be shown and explained."""

    def __init__(self, folder: Path) -> None:
        self._file = str(folder / "r.yaml")
        self._catalog = Catalog(
            toolsets=built_in_toolsets(),
            tools=SAMPLE.tools,
            links=SAMPLE.links,
            models=SAMPLE.models,
        )

    def check(self, data: bytes) -> None:
        """One text."""
        loaded = check_recipe_text(data, self._file, self._catalog)
        assert (loaded.recipe is None) is bool(loaded.errors)
        own = tuple(
            each
            for each in loaded.faults
            if each.file == self._file and each.code != "literal-secret"  # shows no value
        )
        text = data.decode("utf-8", "replace")
        assert not _is_utf_8(data) or places_are_inside(text, own), own
        if loaded.recipe is not None:
            self._check_recipe(loaded.recipe)

    def _check_recipe(self, recipe: AgentRecipe) -> None:
        # As a stored run has it: without its text.
        document = parse_json(dumps(dict(recipe.document or {})))
        assert isinstance(document, dict)
        again = recipe_from_document(document, self._catalog, self._file, recipe.directory)
        assert again.id == recipe.id
        tools = tool_specs(recipe, self._catalog)
        explain(recipe, tools, tools_within=lambda inner: tool_specs(inner, self._catalog))
        picture = picture_of(recipe, tools)
        dumps(picture_to_json(picture))
        for draw in (mermaid, outline, svg):
            draw(picture).encode("utf-8", "surrogatepass")
        with contextlib.suppress(MinionsError):  # it names what is not there
            planned_prompts(recipe, Extensions())


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- expressions --------------------------------------------------------------------------------

_SCOPE: Final[Mapping[str, JsonValue]] = {
    "a": [1, "x", None, 1.5, True, {"k": "v"}],
    "b": {"c": "text", "d": [[1, 2], [3]], "e": {}},
    "s": "x" * 1_000,
    "n": 10**15,
    "steps": {"one": {"status": "completed", "output": 1}},
}
_EXPRESSIONS: Final = (
    "{{ a[0] + 1 }}",
    "x {{ b.c | upper }} y {{ 'q' if a else n }}",
    "{{ b.d | map('first') | join(', ') }}",
    "{{ a | select('in', [1, 2]) | length > 0 and not b.e }}",
    "{{ s | replace('x', 'yy') | truncate(20) }}",
    "{{ {'k': [1, 2.5e3, null, true]}['k'][-1:] }}",
    "steps.one.status == 'completed' or steps.one.output is defined",
    "{{ n // 7 ** 2 % 3 - -1 * (2 / 3) }}",
    '{"k": ["{{ a }}", "-{{ b.c ~ n }}-"], "j": {"x": "{{ missing | default(1) }}"}}',
)
_OPERATORS: Final = (
    *(
        "{{",
        "}}",
        "{%",
        "{#",
        " + ",
        " ** ",
        " // ",
        " ~ ",
        " and ",
        " or ",
        " not ",
        " in ",
        " is ",
    ),
    *(
        " if ",
        " else ",
        "|",
        "==",
        "!=",
        "<=",
        "default",
        "[",
        "]",
        ".",
        "[0]",
        "[-1]",
        "[1:2]",
        ",",
    ),
    *("a", "b.c", "b.d", "s", "n", "'x'", '"', "1e308", "99999999999999999999", "defined"),
)
_REFUSED: Final = (TemplateError, EvaluationError, MissingValueError)


def check_expression(data: bytes) -> None:
    """Template errors, evaluation errors, or JSON."""
    text = text_of(data)
    for value in (text, _json_or_none(text)):
        if value is None:
            continue
        try:
            rendered = compile_template(value).render(_SCOPE)
        except _REFUSED:
            continue
        dumps(rendered)
    try:
        assert compile_condition(text).holds(_SCOPE) in (True, False)
    except _REFUSED:
        return


def _json_or_none(text: str) -> JsonValue:
    try:
        return parse_json(text)
    except ValueError:
        return None


# --- schemas and patterns -----------------------------------------------------------------------

_SCHEMAS: Final[Sequence[JsonValue]] = (
    {
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"$ref": "#/$defs/B"}},
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"B": {"type": "array", "items": {"$ref": "#/$defs/B"}, "maxItems": 3}},
        },
        "value": {"a": 1, "b": [[], [[]]]},
    },
    {
        "schema": {"type": "array", "uniqueItems": True, "contains": {"const": 1}, "minItems": 1},
        "value": [1, 2, 2.0, [1], {"a": 1}],
    },
    {
        "schema": {
            "anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"enum": [1, None, {"x": []}]}],
            "not": {"const": "no"},
        },
        "value": "yes",
    },
    {
        "schema": {
            "patternProperties": {"^x-": {"format": "date-time", "maxLength": 5}},
            "propertyNames": {"minLength": 1},
            "unevaluatedProperties": False,
            "dependentSchemas": {"x-a": {"minProperties": 2}},
            "if": {"required": ["x-a"]},
            "then": {"required": ["x-b"]},
            "else": {"maxProperties": 0},
        },
        "value": {"x-a": "1", "x-b": "2"},
    },
    {
        "schema": {
            "prefixItems": [{"type": ["number", "null"], "multipleOf": 0.1}, {"$ref": "#n"}],
            "items": False,
            "$defs": {"n": {"$anchor": "n", "exclusiveMaximum": 10}},
            "oneOf": [{"minItems": 2}, {"maxItems": 1}],
        },
        "value": [0.3, 5],
    },
)
_SCHEMA_WORDS: Final = (
    *("type", "properties", "items", "$ref", "#/$defs/B", "#", "$dynamicRef", "$anchor", "pattern"),
    *(
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "enum",
        "const",
        "required",
        "format",
    ),
    *(
        "uniqueItems",
        "multipleOf",
        "contains",
        "minContains",
        "unevaluatedItems",
        "dependentRequired",
    ),
    *("$schema", "https://json-schema.org/draft/2020-12/schema", "$id", "$dynamicAnchor", "object"),
    *(
        "additionalProperties",
        "propertyNames",
        "patternProperties",
        "date-time",
        "(a|b)*c",
        "default",
    ),
)


def check_schema_and_value(data: bytes) -> None:
    """Schema errors, or lines about the value; the same verdict as the library's without bounds."""
    document = _json_or_none(text_of(data))
    if not isinstance(document, dict) or not isinstance(document.get("schema"), dict):
        return
    schema, value = document["schema"], document.get("value")
    try:
        check_schema(schema)
    except SchemaError as error:
        assert error.message
        return
    errors = SchemaValidator(schema).errors(value)
    assert all(errors)
    schema_words(schema)
    sent_parameters(schema)
    is_strict_schema(schema)


_PATTERNS: Final = (
    "^[a-z]+$",
    r"(\d{1,3}\.){3}\d+",
    "(?i:a|b)*c(?=x)(?!y)",
    r"(?P<n>x)(?P=n)\1?",
    r"[^\w\s-]{2,}|\bword\b",
    "(?:-[a-z]+)*",
    r"(?<=a)(?(1)b|c)\Z",
)
_PATTERN_WORDS: Final = (
    *("(", ")", "(?:", "(?i)", "(?P<a>", "(?P=a)", "(?=", "(?<!", "(?>", "[", "]", "[^", "|", "*"),
    *("+", "?", "{2,3}", "{,5}", "{1000}", "*?", "++", "\\d", "\\w", "\\1", "\\b", "\\Z", "\\p{L}"),
    *(
        "(?(1)",
        "(?R)",
        "(?#",
        "[[:alpha:]]",
        "[a--b]",
        "\\N{DIGIT ONE}",
        "\\u00e9",
        "(?V1)",
        "(?e)",
    ),
)


def check_pattern(data: bytes) -> None:
    """Not a pattern, or one that is matched within its time."""
    pattern = text_of(data)
    try:
        search(pattern, f"{pattern} {'a-1 ' * 50}")
    except (ValueError, TimeoutError):
        return


def check_duration(data: bytes) -> None:
    """A usage error, or seconds that a clock can wait."""
    try:
        seconds = seconds_of(text_of(data))
    except UsageError:
        return
    assert seconds > 0
    assert math.isfinite(seconds)
    spoken(seconds * 1_000)
