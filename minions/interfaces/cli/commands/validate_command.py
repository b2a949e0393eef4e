"""`minions validate`: shows every fault of every recipe; nothing is run."""

from __future__ import annotations

import click
from attrs import evolve, frozen

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


@frozen(kw_only=True, slots=False)
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
@takes_options(_ValidateOptions)
def validate_command(options: _ValidateOptions, recipes: tuple[str, ...], form: str | None) -> int:
    """Check RECIPES; - is standard input. Uses no model, no tool, no network; writes nothing.

    Exit code 2 if any has an error; warnings alone are fine.
    """
    context = command_context(options)
    catalog = evolve(
        context.catalog(),
        takes_unlocked=True,
        check_model=model_check(context.settings, context.environ, context.folder_of),
    )
    by_file = {name: _faults(name, context, catalog) for name in recipes}
    _print(by_file, form or ("json" if context.settings.json else "text"))
    is_bad = any(not fault.is_warning for faults in by_file.values() for fault in faults)
    return 2 if is_bad else 0


def _faults(name: str, context: CommandContext, catalog: Catalog) -> tuple[Fault, ...]:
    try:
        return checked_recipe(name, context, catalog).faults
    except RecipeError as error:
        return error.faults
    except MinionsError as error:
        return (Fault(code=error.error_code, message=error.message, file=name),)


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
