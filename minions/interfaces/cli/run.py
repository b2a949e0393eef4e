"""`minions run`: a recipe from file to result."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TextIO, cast

import click

from minions.engine.agent_executor import AgentExecutor
from minions.interfaces.cli.dry_run import show_plan
from minions.interfaces.cli.following import Signals, bounded, follow, note_of, refuse_two_outputs
from minions.interfaces.cli.params import given_inputs
from minions.interfaces.cli.setup import Surroundings, common_options, surroundings
from minions.interfaces.cli.voice import tell
from minions.interfaces.wiring import Models, catalog_of, make_log, make_services
from minions.recipe.library import find_recipe
from minions.recipe.load import load_recipe

__all__ = ["command"]


@click.command("run")
@click.argument("recipe")
@click.option("-p", "--param", "pairs", multiple=True, metavar="NAME=VALUE", help="An input.")
@click.option("--params", metavar="FILE", help="Inputs from a YAML or JSON file; -p wins.")
@click.option("-m", "--model", metavar="MODEL", help="provider/name; wins over the recipe's.")
@click.option("--max-parallel", type=click.IntRange(min=1), help="Steps at a time.")
@click.option("--timeout", metavar="TIME", help="Most time for the run: 90, 90s, 10m.")
@click.option("--events", is_flag=True, help="Print one JSON event per line.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; nothing is called.")
@common_options
def command(recipe: str, pairs: tuple[str, ...], **flags: object) -> int:
    """Run RECIPE: a path, or an id found under ./recipes.

    The result goes to standard output, everything else to standard error.
    """
    around = surroundings(flags)
    refuse_two_outputs(around.settings)
    out = sys.stdout
    # What tools and extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        override = cast("str | None", flags["model"])
        return asyncio.run(_run(around, recipe, pairs, override=override, out=out))


async def _run(
    around: Surroundings,
    name: str,
    pairs: tuple[str, ...],
    *,
    override: str | None,
    out: TextIO,
) -> int:
    with Signals() as signals:
        return await _run_until(signals, around, name, pairs, override=override, out=out)


async def _run_until(
    signals: Signals,
    around: Surroundings,
    name: str,
    pairs: tuple[str, ...],
    *,
    override: str | None,
    out: TextIO,
) -> int:
    state = around.state()
    extensions = around.extensions(state)
    recipe = bounded(load_recipe(_path(name), catalog_of(extensions)), around.settings)
    inputs = given_inputs(recipe, pairs, around)
    models = Models(
        around.settings, extensions, environ=around.environ, override=override, asked_as=name
    )
    journal = around.journal()
    try:
        executor = AgentExecutor(
            models.source(recipe, around.folder_of),
            extensions=extensions,
            services=make_services(journal, make_log(around.settings, tell)),
        )
        if around.settings.dry_run:
            show_plan(executor.plan(recipe, inputs), recipe.id, out, json=around.settings.json)
            return 0
        run = executor.prepare(recipe, inputs, note=note_of(around, override))
        return await follow(run, around, out, signals)
    finally:
        await models.aclose()
        await journal.aclose()
        await state.aclose()


def _path(name: str) -> Path:
    return find_recipe(name, [Path("recipes")])
