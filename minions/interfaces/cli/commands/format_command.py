"""`minions format`: indents recipes in the usual way, and changes nothing else."""

from __future__ import annotations

import click
from attrs import frozen

from minions.data.errors import MinionsError, RecipeError
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.printed_results import write_whole
from minions.interfaces.cli.console.render import faults_lines, stderr_painter
from minions.interfaces.cli.options import (
    CommandContext,
    OutputOptions,
    command_context,
    option,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import STANDARD_INPUT, editable_path
from minions.recipe.text.recipe_format import formatted
from minions.recipe.text.yaml_reader import read_document, read_source


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _FormatOptions(OutputOptions):
    """Whether files are written."""

    check: bool = option(
        "--check", is_flag=True, help="Write nothing; exit code 1 if a file would change."
    )


@click.command("format")
@click.argument("recipes", nargs=-1, required=True)
@takes_options(_FormatOptions)
def format_command(options: _FormatOptions, recipes: tuple[str, ...]) -> int:
    """Indent RECIPES in the usual way: two columns for each level, no blanks at the ends of lines.

    Of -, the recipe on standard input, the formatted text is printed. Comments, quotes and texts
    stay. A file that is not YAML, or whose meaning would change, is left as it is. Exit code 2 if
    one cannot be read or written.
    """
    context = command_context(options)
    as_json = context.settings.json
    states = {name: _format(name, context, is_check=options.check) for name in recipes}
    if as_json:
        say(json_text({"recipes": [{"recipe": name, "state": states[name]} for name in states]}))
    elif changed := [name for name, state in states.items() if state == "changed"]:
        for name in changed:
            say(f"{name}: {'would change' if options.check else 'formatted'}")
    if "failed" in states.values():
        return 2
    return 1 if options.check and "changed" in states.values() else 0


def _format(name: str, context: CommandContext, *, is_check: bool) -> str:
    """Format one file, or print standard input formatted; what became of it: `changed`, `same` or
    `failed`, which was told.
    """
    try:
        path = None if name == STANDARD_INPUT else editable_path(name)
        content = context.stdin.read("the recipe -") if path is None else read_source(path)
        where = "stdin.yaml" if path is None else str(path)
        read_document(content, where)  # of the bytes: too many, or no UTF-8, is refused
        text = content.decode()
        after = formatted(text, where)
        if path is None and not is_check and not context.settings.json:
            say(after.removesuffix("\n"))
            return "printed"
        if after == text:
            return "same"
        if path is not None and not is_check:
            write_whole(path, after.encode())
    except RecipeError as error:
        for line in faults_lines(error.faults, stderr_painter()):
            tell(line)
        return "failed"
    except MinionsError as error:
        tell(f"{name}: {error.message}")
        return "failed"
    except OSError as error:
        tell(f"{name} cannot be written: {error.strerror}.")
        return "failed"
    return "changed"
