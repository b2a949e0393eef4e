"""The recipe that a command names (a path, an id, JSON text, or `-` for standard input), and the
inputs that it is given.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minions.data.bounded_files import read_regular
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.interfaces.cli.options import MOST_INPUT_BYTES, CommandContext, StandardInput
from minions.recipe.expressions.values import type_name
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import LoadedRecipe, check_recipe, check_recipe_text
from minions.recipe.recipe_files import find_recipe, is_file, is_recipe_text
from minions.recipe.text.yaml_reader import read_source

if TYPE_CHECKING:
    from minions.app.wiring.configured_runtime import Runtime
    from minions.recipe.catalog import Catalog


STANDARD_INPUT: Final = "-"
"""The argument that means a recipe on standard input."""
_TEXT_FILE: Final = "<recipe>"
"""How places in a recipe are called that is the argument itself."""
_FILE: Final = "stdin.yaml"
"""How places in it are called, and of what its id is made if it has none."""


def recipe_path(name: str) -> Path | None:
    """The file of that path, or of that id under `recipes`; None: standard input is meant, or the
    argument is the recipe's text.

    Raises:
        NotFoundError: There is none.
    """
    if name == STANDARD_INPUT or is_recipe_text(name):
        return None
    return find_recipe(name, [Path("recipes")])


def editable_path(name: str) -> Path:
    """The file of that path or id, whose text a command may change.

    Raises:
        NotFoundError: There is none.
        UsageError: `no-file`; standard input is meant.
    """
    path = recipe_path(name)
    if path is None:
        raise UsageError(
            f"A recipe on standard input ({STANDARD_INPUT}), or given as text, has no file whose "
            "runs and text could be found again: name its file.",
            code="no-file",
        )
    return path


def recipe_text(path: Path) -> str:
    """The text of a recipe file.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It cannot be read.
    """
    try:
        return read_source(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: {error}.", code="unreadable") from error


def registered_recipe(name: str, runtime: Runtime) -> AgentRecipe | None:
    """The recipe that is registered under that name; None: there is none, or a file has the name.

    Raises:
        RecipeError, UsageError: It cannot be read.
    """
    if is_file(Path(name)) or name not in runtime.extensions.recipes:
        return None
    return runtime.extensions.recipes[name]


def checked_recipe(name: str, context: CommandContext, catalog: Catalog) -> LoadedRecipe:
    """The recipe with its faults and warnings.

    Raises:
        NotFoundError, UsageError: There is none, or it cannot be read.
    """
    if name in catalog.recipes and not is_file(Path(name)):
        return LoadedRecipe(recipe=catalog.recipes[name])
    if is_recipe_text(name):
        return check_recipe_text(name, _TEXT_FILE, catalog)
    path = recipe_path(name)
    if path is not None:
        return check_recipe(path, catalog)
    return check_recipe_text(context.stdin.read("the recipe -"), _FILE, catalog)


def named_recipe(name: str, context: CommandContext, runtime: Runtime) -> AgentRecipe:
    """The recipe of that path, registered name or id, read once for the runtime.

    Raises:
        RecipeError: It has faults.
        NotFoundError, UsageError: There is none, or it cannot be read.
    """
    if (registered := registered_recipe(name, runtime)) is not None:
        return registered
    if is_recipe_text(name):
        return runtime.recipes.get(name)
    path = recipe_path(name)
    if path is not None:
        return runtime.recipes.get(path)
    return checked_recipe(name, context, runtime.catalog).unwrap()


# --- recipes that a command writes ---------------------------------------------------------------


def refuse_target(target: Path | None, *, force: bool | None) -> None:
    """Check the target before a model is paid for a recipe that cannot be written.

    Args:
        force: Whether a file may be overwritten; None: the command has no option that says so.
    Raises:
        UsageError: It is no file; it exists, or its folder does not, or cannot be written into.
    """
    if target is None:
        return
    if str(target) == "-":
        raise UsageError("'-' is no file, and this is not printed. Name a file.", code="usage")
    if target.is_dir():
        raise UsageError(f"{target} is a folder. Name a file.", code="already-there")
    if os.path.lexists(target) and not force:
        remedy = "" if force is None else ", or overwrite it with --force"
        raise UsageError(
            f"{target} exists already and was not changed. Name another file{remedy}.",
            code="already-there",
        )
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.", code="not-writable")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{target} cannot be written: you have no right to write into its folder.",
            code="not-writable",
        )


def write_recipe(target: Path, text: str, *, force: bool) -> None:
    """Write the file; without `force` refuse one that was written meanwhile.

    Raises:
        UsageError: It exists by now, or cannot be written.
    """
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(
            f"{target} exists by now and was not changed.", code="already-there"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written: {error.strerror}.", code="not-writable"
        ) from error


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
        return _decode_content(stdin.read(argument), argument)
    try:
        content = _read(Path(value[1:]).expanduser())
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{argument}: {why}. A value that begins with @ names a file; write "
            f"{plain}@{value:.40} for the text itself.",
            code="bad-input",
        ) from error
    return _decode_content(content, argument)


def _whole(value: str, before: str) -> str:
    """The value, unless the shell gave bytes that are no text; a path may have them."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        if not os.path.lexists(value):
            raise UsageError(f"{before}…: the value is not UTF-8.", code="bad-input") from error
    return value


def _decode_content(content: bytes, argument: str) -> str:
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
