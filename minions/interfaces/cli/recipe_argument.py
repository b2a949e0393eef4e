"""The recipe that a command names: a path, an id, JSON text, or `-` for standard input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minions.data.errors import UsageError
from minions.interfaces.cli.options import CommandContext
from minions.recipe.reading.load import LoadedRecipe, check_recipe, check_recipe_text
from minions.recipe.recipe_files import find_recipe, is_file, is_recipe_text
from minions.recipe.text.yaml_reader import read_source

if TYPE_CHECKING:
    from minions.app.wiring.configured_runtime import Runtime
    from minions.recipe.catalog import Catalog
    from minions.recipe.model import AgentRecipe

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


def refuse_target(target: Path | None, *, force: bool) -> None:
    """Check the target before a model is paid for a recipe that cannot be written.

    Raises:
        UsageError: The file exists, or its folder does not, or cannot be written into.
    """
    if target is None:
        return
    if target.is_dir():
        raise UsageError(f"{target} is a folder. Name a file.", code="already-there")
    if os.path.lexists(target) and not force:
        raise UsageError(
            f"{target} exists already and was not changed. Name another file, or overwrite it "
            "with --force.",
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
