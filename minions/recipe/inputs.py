"""What a run is given, checked against what the recipe declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import field, frozen

from minions.contracts.errors import UsageError, did_you_mean, near_names
from minions.contracts.json_values import JsonValue, dumps, parse_json
from minions.contracts.schema import JsonSchema, SchemaValidator
from minions.recipe.model import AgentRecipe, InputSpec

__all__ = ["resolve_inputs"]


def resolve_inputs(
    recipe: AgentRecipe,
    given: Mapping[str, JsonValue],
    *,
    from_text: frozenset[str] | bool = False,
    base: Path,
) -> dict[str, JsonValue]:
    """Every declared input with its value: given, or the default.

    Args:
        from_text: Which of `given` were typed as text (all: True) and become numbers, booleans,
            lists or mappings where the schema says so. Text stays text everywhere else.
        base: Where relative paths that were given start; those of defaults start at the recipe.

    Raises:
        UsageError: With one line for each input that is unknown, missing or does not fit
            (`bad-input`).
    """
    problems = list(_unknown(recipe, given))
    values: dict[str, JsonValue] = {}
    for name, spec in recipe.inputs.items():
        is_text = from_text if isinstance(from_text, bool) else name in from_text
        outcome = _resolved(name, spec, given, is_text=is_text, base=base, recipe=recipe)
        problems.extend(outcome.problems)
        if not outcome.problems:
            values[name] = outcome.value
    if problems:
        raise UsageError("\n".join(problems), code="bad-input", suggestions=_near(recipe, given))
    return values


@frozen(kw_only=True)
class _Outcome:
    value: JsonValue = None
    problems: tuple[str, ...] = field(default=())


def _unknown(recipe: AgentRecipe, given: Mapping[str, JsonValue]) -> Iterator[str]:
    known = tuple(recipe.inputs)
    for name in given:
        if name not in recipe.inputs:
            yield (
                f"There is no input '{name}'.{did_you_mean(name, known)} "
                f"Inputs are: {', '.join(known) or 'none'}."
            )


def _near(recipe: AgentRecipe, given: Mapping[str, JsonValue]) -> tuple[str, ...]:
    unknown = [name for name in given if name not in recipe.inputs]
    return tuple(near for name in unknown for near in near_names(name, recipe.inputs, limit=1))


def _resolved(
    name: str,
    spec: InputSpec,
    given: Mapping[str, JsonValue],
    *,
    is_text: bool,
    base: Path,
    recipe: AgentRecipe,
) -> _Outcome:
    if name not in given:
        if not spec.has_default:
            about = f" ({spec.description})" if spec.description else ""
            problem = (
                f"The input '{name}' is missing{about}. It takes {_takes(spec.schema)}: -p {name}=…"
            )
            return _Outcome(problems=(problem,))
        home = Path(recipe.directory) if recipe.directory else base
        return _Outcome(value=_absolute(spec.default, spec.schema, home))
    value = given[name]
    if is_text and isinstance(value, str):
        value = _from_text(value, spec.schema)
    errors = SchemaValidator(spec.schema).errors(value)
    if errors:
        return _Outcome(problems=tuple(f"The input '{name}' does not fit: {e}" for e in errors))
    return _Outcome(value=_absolute(value, spec.schema, base))


def _takes(schema: JsonSchema) -> str:
    """What fits, in a few words."""
    choices = schema.get("enum")
    if isinstance(choices, list | tuple):
        return f"one of {', '.join(dumps(choice) for choice in choices)}"
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list | tuple) else [kind]
    return " or ".join(_WORDS.get(str(name), "any value") for name in kinds)


_WORDS: Final[Mapping[str, str]] = {
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


def _from_text(text: str, schema: JsonSchema) -> JsonValue:
    """What was typed, as the first declared type that it can be read as; else the text itself.

    Where the schema takes text too, text it stays.
    """
    kind = schema.get("type")
    kinds = [str(name) for name in kind] if isinstance(kind, list | tuple) else [str(kind)]
    if "string" in kinds:
        return text
    try:
        value = parse_json(text.strip())
    except ValueError:
        return text
    if isinstance(value, float) and value.is_integer() and "number" not in kinds:
        value = int(value)  # 3.0 where a whole number is wanted
    return value if any(_is_of(value, name) for name in kinds) else text


def _is_of(value: JsonValue, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    wanted = _JSON_TYPES.get(kind)
    return wanted is not None and isinstance(value, wanted)


_JSON_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "number": (int, float),
    "integer": int,
    "array": list,
    "object": dict,
    "null": type(None),
}


def _absolute(value: JsonValue, schema: JsonSchema, base: Path) -> JsonValue:
    """Text of `format: path` as an absolute path; no links are followed, nothing is touched."""
    if schema.get("format") != "path" or not isinstance(value, str):
        return value
    return str(Path(base).absolute() / Path(value).expanduser())
