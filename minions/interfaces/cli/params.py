"""The inputs of a run: from a file, then from `-p`, checked against the recipe's declarations."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from minions.data.bounded_files import read_regular
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.interfaces.cli.options import MOST_INPUT_BYTES, CommandContext, StandardInput
from minions.recipe.expressions.values import type_name
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe

_STANDARD_INPUT: Final = "-"


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
    texts = _texts(pairs, context.stdin)
    given.update(texts)
    return resolve_inputs(recipe, given, from_text=frozenset(texts), base=Path.cwd())


def stored_inputs(
    recipe: AgentRecipe,
    pairs: tuple[str, ...],
    context: CommandContext,
    *,
    before: Mapping[str, JsonValue],
) -> Mapping[str, JsonValue]:
    """As `given_inputs`, to be stored for later runs: secrets stay references."""
    texts = _texts(pairs, context.stdin)
    given = {**before, **_file_inputs(context), **texts}
    resolved = resolve_inputs(recipe, given, from_text=frozenset(texts), base=Path.cwd())
    return {
        name: given[name] if recipe.inputs[name].is_secret else value
        for name, value in resolved.items()
        if name in given or not recipe.inputs[name].is_secret
    }


def common_inputs(
    recipe: AgentRecipe, pairs: tuple[str, ...], context: CommandContext
) -> Mapping[str, JsonValue]:
    """The inputs from the file, then from `-p`, checked; others of the recipe may be missing."""
    texts = _texts(pairs, context.stdin)
    given = {**_file_inputs(context), **texts}
    resolved = resolve_inputs(
        recipe, given, from_text=frozenset(texts), base=Path.cwd(), is_partial=True
    )
    return {
        name: given[name] if recipe.inputs[name].is_secret else value
        for name, value in resolved.items()
    }


def _file_inputs(context: CommandContext) -> Mapping[str, JsonValue]:
    if context.settings.params is None:
        return {}
    named = context.settings.params
    if named == _STANDARD_INPUT and "params" in context.flags:
        return _params(context.stdin.read("--params -"), Path(named))
    return _params_file(context.folder_of("params") / named)


def some_inputs(
    recipe: AgentRecipe, pairs: tuple[str, ...], context: CommandContext
) -> Mapping[str, JsonValue]:
    """The inputs of `-p` alone, checked; others of the recipe may be missing."""
    texts = _texts(pairs, context.stdin)
    return resolve_inputs(
        recipe, texts, from_text=frozenset(texts), base=Path.cwd(), is_partial=True
    )


def _texts(pairs: tuple[str, ...], stdin: StandardInput) -> dict[str, str]:
    """The values by name; `@file` is the text of a file, `@-` standard input, `@@…` is `@…`."""
    texts: dict[str, str] = {}
    for name, value in map(_pair, pairs):
        if name in texts:
            raise UsageError(f"-p {name}=… is given twice. Give it once.", code="bad-input")
        texts[name] = text_argument(value, stdin, f"-p {name}=", plain=f"{name}=")
    return texts


def _pair(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise UsageError(f"-p {pair!r}: write it as NAME=VALUE.", code="bad-input")
    return name, value


def text_argument(value: str, stdin: StandardInput, before: str, *, plain: str = "") -> str:
    """The text that an argument names: `@file` is that of a file, `@-` of standard input, `@@…` is
    `@…` itself, and any other is the text.

    Args:
        before: What stands before the value on the command line, for messages.
        plain: What stands before it where a message says how to give the text itself.
    Raises:
        UsageError: `bad-input`: no such file, or no UTF-8 text.
    """
    argument = f"{before}{value:.200}"
    if not value.startswith("@"):
        return _whole(value, before)
    if value.startswith("@@"):
        return value[1:]
    if value == "@-":
        return _decoded(stdin.read(argument), argument)
    try:
        content = _read(Path(value[1:]).expanduser())
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{argument}: {why}. A value that begins with @ names a file; write "
            f"{plain}@{value:.40} for the text itself.",
            code="bad-input",
        ) from error
    return _decoded(content, argument)


def _whole(value: str, before: str) -> str:
    """The value, unless the shell gave bytes that are no text; a path may have them."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        if not os.path.lexists(value):
            raise UsageError(f"{before}…: the value is not UTF-8.", code="bad-input") from error
    return value


def _decoded(content: bytes, argument: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{argument}: not UTF-8 text: {error.reason} at byte {error.start}.", code="bad-input"
        ) from error


def _params_file(path: Path) -> Mapping[str, JsonValue]:
    if path.name.lstrip().startswith(("{", "[")) and not path.exists():
        raise UsageError(
            f"--params takes a file, and this is its text: {path.name:.80}. Write -p NAME=VALUE "
            "for each input, or --params - and send the text to standard input.",
            code="bad-input",
        )
    try:
        content = _read(path)
    except OSError as error:
        raise UsageError(f"--params {path}: {error.strerror}.", code="bad-input") from error
    return _params(content, path)


def _read(path: Path) -> bytes:
    """The bytes of the file.

    Raises:
        OSError: It cannot be read, is no file, or is too long.
    """
    content = read_regular(path, MOST_INPUT_BYTES)
    if len(content) > MOST_INPUT_BYTES:
        words = f"it has more than {MOST_INPUT_BYTES // 1_048_576} MiB"
        raise OSError(errno.EFBIG, words, str(path))
    return content


def _params(content: bytes, path: Path) -> Mapping[str, JsonValue]:
    """The inputs in YAML or JSON text.

    Args:
        path: Where it is from; `-` is standard input.
    """
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
