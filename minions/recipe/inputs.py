"""The inputs of a run: validated against the inputs that the recipe declares."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import get_ident
from typing import Final

from msgspec import Struct, field

from minions.contracts.secrets import InputValue, SecretRef
from minions.data.errors import UsageError, did_you_mean, near_names
from minions.data.json_values import JsonValue, as_object, as_text, dumps, parse_json
from minions.data.schema import JsonSchema, SchemaValidator
from minions.recipe.model import AgentRecipe, InputSpec


def resolve_inputs(
    recipe: AgentRecipe,
    given: Mapping[str, InputValue],
    *,
    from_text: frozenset[str] | bool = False,
    base: Path,
    is_partial: bool = False,
) -> dict[str, JsonValue]:
    """Every declared input with its value: given, or the default; a secret as its marker.

    Args:
        from_text: Which of `given` were typed as text (all: True) and become numbers, booleans,
            lists or mappings where the schema allows it. A text stays a text everywhere else.
        base: The folder that given relative paths start from; those of defaults start at the
            recipe.
        is_partial: Whether the values are those of `given` alone; others are known elsewhere.

    Raises:
        UsageError: With one line for each input that is unknown, missing or does not fit
            (`bad-input`; `literal-secret` if the only faults are secrets given as plain values).
    """
    problems = list(_unknown(recipe, given))
    literal = 0
    values: dict[str, JsonValue] = {}
    for name, spec in recipe.inputs.items():
        if is_partial and name not in given:
            continue
        is_text = from_text if isinstance(from_text, bool) else name in from_text
        if name not in given and not spec.has_default:
            problems.append(_missing(name, spec, is_typed=from_text is not False))
            continue
        outcome = _resolve(name, spec, given, is_text=is_text, base=base, recipe=recipe)
        problems.extend(outcome.problems)
        literal += outcome.is_literal_secret
        if not outcome.problems:
            values[name] = outcome.value
    problems.extend(_find_smuggled(recipe, values))
    if problems:
        code = "literal-secret" if literal == len(problems) else "bad-input"
        raise UsageError("\n".join(problems), code=code, suggestions=_near(recipe, given))
    return values


def operators_inputs(recipe: AgentRecipe, inputs: Mapping[str, JsonValue]) -> frozenset[str]:
    """The names of the inputs whose values the recipe itself offers, whoever gave them.

    Args:
        inputs: Checked.
    """
    return frozenset(
        name
        for name, spec in recipe.inputs.items()
        if name not in inputs or is_operators_value(recipe, spec, inputs[name])
    )


def is_operators_value(recipe: AgentRecipe, spec: InputSpec, value: InputValue) -> bool:
    """Whether the recipe offers the value: under `enum` or `const`, or as the default, as it is
    written or as a run has it. Secrets have rules of their own.
    """
    if spec.is_secret or "enum" in spec.schema or "const" in spec.schema:
        return True
    if not spec.has_default:
        return False
    default = spec.default
    if not isinstance(value, SecretRef) and value == default:
        return dumps(value) == dumps(default)  # for `==`, 1 equals True
    if not isinstance(default, str) or recipe.directory is None:
        return False
    home = Path(recipe.directory).absolute()
    return value == str(home / os.path.expanduser(default))  # noqa: PTH111  # never fails


class _Outcome(Struct, frozen=True, kw_only=True):
    value: JsonValue = None
    problems: tuple[str, ...] = field(default=())
    is_literal_secret: bool = False


def _unknown(recipe: AgentRecipe, given: Mapping[str, InputValue]) -> Iterator[str]:
    known = tuple(recipe.inputs)
    for name in given:
        if name not in recipe.inputs:
            yield (
                f"There is no input '{name}'.{did_you_mean(name, known)} "
                f"Inputs are: {', '.join(known) or 'none'}."
            )


def _near(recipe: AgentRecipe, given: Mapping[str, InputValue]) -> tuple[str, ...]:
    unknown = [name for name in given if name not in recipe.inputs]
    return tuple(near for name in unknown for near in near_names(name, recipe.inputs, limit=1))


def _resolve(
    name: str,
    spec: InputSpec,
    given: Mapping[str, InputValue],
    *,
    is_text: bool,
    base: Path,
    recipe: AgentRecipe,
) -> _Outcome:
    if spec.is_secret:
        return _secret(name, given.get(name, spec.default))
    if name not in given:
        home = Path(recipe.directory) if recipe.directory else base
        return _Outcome(value=_absolute(spec.default, spec.schema, home))
    value = given[name]
    if isinstance(value, SecretRef):
        problem = (
            f"The input '{name}' is given as a reference to a secret, but the recipe does not "
            "declare it as one. Declare it with `{type: string, secret: true}`."
        )
        return _Outcome(problems=(problem,))
    if is_text and isinstance(value, str):
        value = _from_text(value, spec.schema)
    errors = _validator_of(dumps(spec.schema), get_ident()).errors(value)
    if errors:
        return _Outcome(problems=tuple(f"The input '{name}' does not fit: {e}" for e in errors))
    return _Outcome(value=_absolute(value, spec.schema, base))


@lru_cache(maxsize=256)
def _validator_of(schema: str, _caller: int) -> SchemaValidator:
    """The compiled schema, kept for the next inputs. A check has a state, so each thread has its
    own.
    """
    return SchemaValidator(as_object(parse_json(schema)))


def _missing(name: str, spec: InputSpec, *, is_typed: bool) -> str:
    about = f" ({spec.description})" if spec.description else ""
    takes, example = _takes(spec.schema), "…"
    if spec.is_secret:
        takes, example = "a reference to a secret", f"env:{_variable(name)}"
    found = f"The input '{name}' is missing{about}. It takes {takes}"
    if is_typed:  # on a command line; other callers have no options
        return f"{found}: -p {name}={example}"
    return f"{found}, such as {example}." if spec.is_secret else f"{found}."


def _variable(name: str) -> str:
    """A likely name of the environment variable that holds the secret `name`."""
    return name.upper().replace("-", "_")


def _secret(name: str, value: InputValue) -> _Outcome:
    """The marker of a reference. Anything else is never shown: it may be the secret itself."""
    try:
        text = value if isinstance(value, str) else ""
        ref = value if isinstance(value, SecretRef) else SecretRef.parse(text)
    except UsageError:
        problem = (
            f"The input '{name}' is secret: it takes a reference, not the value itself. Put the "
            f"value into an environment variable or a file and write env:{_variable(name)} or "
            "file:/absolute/path."
        )
        return _Outcome(problems=(problem,), is_literal_secret=True)
    return _Outcome(value=ref.marker)


def _find_smuggled(recipe: AgentRecipe, values: Mapping[str, JsonValue]) -> Iterator[str]:
    """Markers in inputs that are not secret: only the recipe decides where a secret is used."""
    names = [name for name in values if recipe.inputs[name].is_secret]
    markers = [as_text(values[name]) for name in names]
    for name, value in values.items():
        if name not in names and any(
            marker in text for text in _texts(value) for marker in markers
        ):
            yield (
                f"The input '{name}' holds the marker of a secret of this run. Only the recipe "
                "says where a secret goes: take the marker out."
            )


def _texts(value: JsonValue) -> Iterator[str]:
    """Every text in the value, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _takes(schema: JsonSchema) -> str:
    """A short description of what fits the schema."""
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
    """The typed text as a value of the first declared type that it can be parsed as; else as
    text.

    A text stays a text where the schema allows one.
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
        value = int(value)  # 3.0 for a schema of whole numbers
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
    """Text of `format: path` as an absolute path; links are not followed
    and the file is not accessed.
    """
    if schema.get("format") != "path" or not isinstance(value, str):
        return value
    return str(Path(base).absolute() / Path(value).expanduser())


# --- the input of a recipe that takes a text -----------------------------------------------------


TEXT_INPUTS: Final = ("requirements", "task", "message")
"""Names of inputs that take the text where none is required, best first."""


def text_input(recipe: AgentRecipe) -> str | None:
    """The name of the input that takes the text; None: there is none.

    It is the only required input, or, where none is required, one of `TEXT_INPUTS`.
    """
    required = [name for name, spec in recipe.inputs.items() if not spec.has_default]
    names = required or [name for name in TEXT_INPUTS if name in recipe.inputs]
    if len(required) > 1 or not names:
        return None
    return names[0] if _takes_text(recipe.inputs[names[0]]) else None


def _takes_text(spec: InputSpec) -> bool:
    if spec.is_secret:
        return False
    kind = spec.schema.get("type", "string")
    return kind == "string" or (isinstance(kind, list | tuple) and "string" in kind)


def no_text_input(recipe: AgentRecipe) -> str:
    """Why a recipe without such an input cannot be run with a text alone."""
    inputs = ", ".join(
        name if spec.has_default else f"{name} (required)" for name, spec in recipe.inputs.items()
    )
    return (
        f"'{recipe.id}' cannot be run with a text alone: it needs exactly one required input, a "
        f"text, or an input called {', '.join(TEXT_INPUTS[:-1])} or {TEXT_INPUTS[-1]} and no "
        f"required one. Its inputs are: {inputs or 'none'}."
    )
