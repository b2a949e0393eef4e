"""`minions validate`: shows every fault of every recipe; nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
from attrs import evolve, frozen
from msgspec.structs import replace

from minions.app.wiring.configured_models import model_check
from minions.data.errors import Fault, MinionsError, RecipeError
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.fault_reports import annotation, json_report, sarif_report
from minions.interfaces.cli.console.render import faults_lines, stderr_painter
from minions.interfaces.cli.options import (
    CommandContext,
    ExtensionOptions,
    StrictOption,
    command_context,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import checked_recipe
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import LoadedRecipe


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ValidateOptions(StrictOption, ExtensionOptions):
    """How strictly recipes are checked, and what they may name."""


@click.command("validate")
@click.argument("recipes", nargs=-1, required=True)
@click.option(
    "--output-format",
    "form",
    type=click.Choice(["text", "json", "github", "sarif"]),
    help="text; one JSON object; annotations for a workflow; or SARIF.",
)
@click.option(
    "--strict-types",
    is_flag=True,
    help="Refuse reads of fields whose type is not known, and of what may be missing or null.",
)
@takes_options(_ValidateOptions)
def validate_command(
    options: _ValidateOptions, recipes: tuple[str, ...], form: str | None, *, strict_types: bool
) -> int:
    """Check RECIPES; - is standard input. Uses no model, no tool, no network; writes nothing.

    Fields of values of unknown type, such as those of a tool that declares nothing, are not
    checked, nor are those of a schema that requires none; a line tells which these are.

    Exit code 2 if any has an error; warnings alone are fine.
    """
    context = command_context(options)
    catalog = replace(
        context.catalog(),
        takes_unlocked=True,
        check_model=model_check(context.settings, context.environ, context.folder_of),
    )
    loaded = {name: _load_argument(name, context, catalog) for name in recipes}
    by_file = {
        name: _all_as_errors(each) if strict_types else each.faults for name, each in loaded.items()
    }
    form = form or ("json" if context.settings.json else "text")
    _print(by_file, form)
    if form == "text" and not strict_types:
        for name, each in loaded.items():
            if each.unchecked and not each.errors:
                tell(f"note: {name}: {_count(each.unchecked)}")
    is_bad = any(not fault.is_warning for faults in by_file.values() for fault in faults)
    return 2 if is_bad else 0


def _load_argument(name: str, context: CommandContext, catalog: Catalog) -> LoadedRecipe:
    try:
        return checked_recipe(name, context, catalog)
    except RecipeError as error:
        return LoadedRecipe(faults=error.faults)
    except MinionsError as error:
        fault = Fault(code=error.error_code, message=error.message, file=name)
        return LoadedRecipe(faults=(fault,))


def _all_as_errors(loaded: LoadedRecipe) -> tuple[Fault, ...]:
    """The faults, with those of types as errors, in the order of the text."""
    found = [
        evolve(fault, is_warning=False) if fault.code == "may-be-missing" else fault
        for fault in (*loaded.faults, *loaded.unchecked)
    ]
    return tuple(sorted(found, key=lambda fault: (fault.line, fault.column)))


_MOST_NAMED: Final = 5


def _count(unchecked: Sequence[Fault]) -> str:
    """Which values are not checked, in one line."""
    names = [f"'{fault.message[1:].partition(chr(39))[0]}'" for fault in unchecked]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    what = "1 value is" if len(names) == 1 else f"{len(names)} values are"
    return f"{what} unchecked: {', '.join(names[:_MOST_NAMED])}{more}; `--strict-types` tells where"


def _print(by_file: dict[str, tuple[Fault, ...]], form: str) -> None:
    faults = [fault for found in by_file.values() for fault in found]
    if form == "json":
        say(json_text(json_report(by_file)))
    elif form == "sarif":
        say(json_text(sarif_report(faults)))
    elif form == "github":
        for fault in faults:
            say(annotation(fault))
    else:
        _print_text(by_file)


def _print_text(by_file: dict[str, tuple[Fault, ...]]) -> None:
    paint = stderr_painter()
    for name, faults in by_file.items():
        for line in faults_lines(faults, paint):
            tell(line)
        if not any(not fault.is_warning for fault in faults):
            say(f"{name}: ok")
