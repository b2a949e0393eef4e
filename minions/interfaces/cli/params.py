"""The inputs of a run: from a file, then from `-p`, checked against the recipe's declarations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from minions.contracts.errors import RecipeError, UsageError
from minions.contracts.json_values import JsonValue, dumps, parse_json
from minions.interfaces.cli.options import CommandContext
from minions.recipe.expressions.values import type_name
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe

__all__ = ["common_inputs", "given_inputs", "some_inputs"]


def given_inputs(
    recipe: AgentRecipe,
    pairs: tuple[str, ...],
    context: CommandContext,
    *,
    before: Mapping[str, JsonValue] | None = None,
) -> Mapping[str, JsonValue]:
    """The inputs from the file, then from `-p`, checked against the recipe's declarations.

    Args:
        before: Inputs that count if neither has them.
    """
    given = {**(before or {}), **_file_inputs(context)}
    texts = dict(_pair(pair) for pair in pairs)
    given.update(texts)
    return resolve_inputs(recipe, given, from_text=frozenset(texts), base=Path.cwd())


def common_inputs(
    recipe: AgentRecipe, pairs: tuple[str, ...], context: CommandContext
) -> Mapping[str, JsonValue]:
    """The inputs from the file, then from `-p`, checked; others of the recipe may be missing."""
    texts = dict(_pair(pair) for pair in pairs)
    given = {**_file_inputs(context), **texts}
    known = {name: spec for name, spec in recipe.inputs.items() if name in given}
    among = evolve(recipe, inputs=known) if known.keys() == given.keys() else recipe
    resolved = resolve_inputs(among, given, from_text=frozenset(texts), base=Path.cwd())
    return {
        name: given[name] if known[name].is_secret else value for name, value in resolved.items()
    }


def _file_inputs(context: CommandContext) -> Mapping[str, JsonValue]:
    if context.settings.params is None:
        return {}
    return _params_file(context.folder_of("params") / context.settings.params)


def some_inputs(recipe: AgentRecipe, pairs: tuple[str, ...]) -> Mapping[str, JsonValue]:
    """The inputs of `-p` alone, checked; others of the recipe may be missing."""
    texts = dict(_pair(pair) for pair in pairs)
    known = {name: spec for name, spec in recipe.inputs.items() if name in texts}
    among = evolve(recipe, inputs=known) if known.keys() == texts.keys() else recipe
    return resolve_inputs(among, texts, from_text=frozenset(texts), base=Path.cwd())


def _pair(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise UsageError(f"-p {pair!r}: write it as NAME=VALUE.", code="bad-input")
    return name, value


def _params_file(path: Path) -> Mapping[str, JsonValue]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--params {path}: {error.strerror}.", code="bad-input") from error
    if not content.strip():
        raise _no_params(path)
    read = _json_params if path.suffix.lower() == ".json" else _yaml_params
    value = read(content, path)
    if not isinstance(value, Mapping):
        raise UsageError(
            f"--params {path}: a mapping of inputs was expected, not a {type_name(value)}.",
            code="bad-input",
        )
    return value


def _no_params(path: Path) -> UsageError:
    return UsageError(
        f"--params {path}: the file is empty; a mapping of inputs was expected, such as "
        "'name: value', or {} for none.",
        code="bad-input",
    )


def _json_params(content: bytes, path: Path) -> JsonValue:
    try:
        value = parse_json(content.decode("utf-8-sig"), unique_keys=True)
        dumps(value).encode()
    except UnicodeEncodeError as error:
        message = f"--params {path}: it holds half a character (a lone surrogate)."
        raise UsageError(message, code="bad-input") from error
    except ValueError as error:
        raise UsageError(f"--params {path}: not JSON: {error}.", code="bad-input") from error
    return value


def _yaml_params(content: bytes, path: Path) -> JsonValue:
    from minions.recipe.text.nodes import to_plain
    from minions.recipe.text.yaml_reader import read_document

    try:
        return to_plain(read_document(content, str(path)))
    except RecipeError as error:
        if error.faults[0].code == "empty-recipe":  # comments only
            raise _no_params(path) from error
        lines = (f"--params {fault.where}: {fault.message}" for fault in error.faults)
        raise UsageError("\n".join(lines), code="bad-input", where=error.where) from error
