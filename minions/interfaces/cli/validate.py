"""`minions validate`: every fault of every recipe, nothing run."""

from __future__ import annotations

from pathlib import Path

import click

from minions.contracts.errors import Fault, MinionsError, RecipeError
from minions.contracts.json_values import JsonValue
from minions.interfaces.cli.setup import extension_options, output_options, surroundings
from minions.interfaces.cli.voice import json_text, say, tell
from minions.interfaces.render import fault_to_json, faults_lines, stderr_painter
from minions.interfaces.wiring import catalog_of
from minions.recipe.catalog import Catalog
from minions.recipe.library import find_recipe
from minions.recipe.load import find_faults

__all__ = ["command"]


@click.command("validate")
@click.argument("recipes", nargs=-1, required=True)
@extension_options
@output_options
def command(recipes: tuple[str, ...], **flags: object) -> int:
    """Check RECIPES: no model, no tool, no network, nothing written.

    Exit code 2 when any has an error; warnings alone are fine.
    """
    around = surroundings(flags)
    catalog = catalog_of(around.extensions())
    by_file = {name: _faults(name, catalog) for name in recipes}
    if around.settings.json:
        _print_json(by_file)
    else:
        _print_text(by_file)
    is_bad = any(not fault.is_warning for faults in by_file.values() for fault in faults)
    return 2 if is_bad else 0


def _faults(name: str, catalog: Catalog) -> tuple[Fault, ...]:
    try:
        return find_faults(find_recipe(name, [Path("recipes")]), catalog)
    except RecipeError as error:
        return error.faults
    except MinionsError as error:
        return (Fault(code=error.error_code, message=error.message, file=name),)


def _print_text(by_file: dict[str, tuple[Fault, ...]]) -> None:
    paint = stderr_painter()
    for name, faults in by_file.items():
        for line in faults_lines(faults, paint):
            tell(line)
        if not any(not fault.is_warning for fault in faults):
            say(f"{name}: ok")


def _print_json(by_file: dict[str, tuple[Fault, ...]]) -> None:
    report: dict[str, JsonValue] = {
        "recipes": [
            {
                "recipe": name,
                "ok": all(fault.is_warning for fault in faults),
                "faults": [fault_to_json(fault) for fault in faults],
            }
            for name, faults in by_file.items()
        ]
    }
    say(json_text(report))
