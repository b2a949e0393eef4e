"""`minions stubs`: a typed Python client of a recipe; nothing is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from minions.analysis.stubs.client import MARK, client_text
from minions.data.bounded_files import read_regular
from minions.data.errors import UsageError
from minions.interfaces.cli.console.console import say, tell
from minions.interfaces.cli.options import (
    ExtensionOptions,
    command_context,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import checked_recipe, recipe_path
from minions.interfaces.cli.written_recipe import refuse_target, write_recipe

_MOST_BYTES: Final = 16_777_216


@click.command("stubs")
@click.argument("recipe")
@click.option("-o", "--output", "file", metavar="FILE.py", help="Write there.")
@click.option("--check", is_flag=True, help="Only say whether FILE.py is what would be written.")
@click.option("--force", is_flag=True, help="Overwrite a file that `minions stubs` did not make.")
@takes_options(ExtensionOptions)
def command(
    options: ExtensionOptions, recipe: str, file: str | None, *, check: bool, force: bool
) -> int:
    """Write a typed client of RECIPE: a class whose `run` takes its inputs and gives its output.

    Type checkers then know the names and types of inputs, outputs and steps. With --check the exit
    code is 1 if FILE.py has to be written again.
    """
    context = command_context(options)
    target = Path(file) if file is not None else None
    if check and target is None:
        raise UsageError("--check needs the file to check: -o FILE.py.")
    loaded = checked_recipe(recipe, context, context.catalog())
    text = client_text(
        loaded.unwrap(),
        output=loaded.output,
        step_outputs=loaded.step_outputs,
        file=_path_between(recipe_path(recipe), target),
    )
    if target is None:
        say(text.rstrip("\n"))
        return 0
    before = _present(target)
    if check:
        return _checked(target, before, text, recipe)
    is_ours = before is not None and before.startswith(MARK)
    refuse_target(target, force=force or is_ours)
    write_recipe(target, text, force=force or is_ours)
    tell(f"{target}: {'unchanged' if before == text else 'written'}")
    return 0


def _path_between(recipe: Path | None, target: Path | None) -> str:
    """The path of the recipe from the folder of the client; without a file they are neighbours.

    Raises:
        UsageError: The recipe has no file.
    """
    if recipe is None:
        raise UsageError("A client names the file of its recipe; - has none.")
    if target is None:
        return recipe.name
    between = os.path.relpath(recipe.absolute(), target.absolute().parent)
    return Path(between).as_posix()


def _present(target: Path) -> str | None:
    """The content of the file; None: there is none that could be a client."""
    try:
        return read_regular(target, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None


def _checked(target: Path, before: str | None, text: str, recipe: str) -> int:
    if before == text:
        tell(f"{target}: up to date")
        return 0
    state = "does not fit the recipe any more" if before is not None else "is not there"
    tell(f"{target} {state}. Write it: minions stubs {recipe} -o {target}")
    return 1
