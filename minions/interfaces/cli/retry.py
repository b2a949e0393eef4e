"""`minions retry`: a run's failed steps run again, with the recipe as it was or edited."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TextIO, cast

import click

from minions.interfaces.cli.following import bounded, refuse_two_outputs
from minions.interfaces.cli.going_on import RecordedRunOpener
from minions.interfaces.cli.setup import (
    Surroundings,
    cache_option,
    common_options,
    surroundings,
)
from minions.interfaces.wiring import catalog_of
from minions.recipe.library import find_recipe
from minions.recipe.load import load_recipe

__all__ = ["command"]


@click.command("retry")
@click.argument("name", metavar="ID")
@click.option("--from", "from_step", metavar="STEP", help="This step and those after it, too.")
@click.option(
    "--recipe",
    "edited",
    metavar="EDITED.yaml",
    help="An edited recipe: steps that are unchanged and read the same are kept.",
)
@click.option("-m", "--model", metavar="MODEL", help="provider/name; else the run's own.")
@click.option("--max-parallel", type=click.IntRange(min=1), help="Steps at a time.")
@click.option("--timeout", metavar="TIME", help="Most time from now on: 90, 90s, 10m.")
@click.option(
    "--max-cost",
    "max_cost_usd",
    type=float,
    metavar="USD",
    help="Most the run may cost in all; else as it began.",
)
@click.option("--approve", help="Who consents to further calls: ask, deny, all or wait.")
@click.option("--events", is_flag=True, help="Print one JSON event per line.")
@cache_option
@common_options
def command(name: str, from_step: str | None, edited: str | None, **flags: object) -> int:
    """Run again what failed in a run, and what changed or reads what changed.

    ID is a run's or a session's, or a unique start of one.
    """
    around = surroundings(flags)
    refuse_two_outputs(around.settings)
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        model = cast("str | None", flags["model"])
        return asyncio.run(_retry(around, name, from_step, edited, model=model, out=out))


async def _retry(
    around: Surroundings,
    name: str,
    from_step: str | None,
    edited: str | None,
    *,
    model: str | None,
    out: TextIO,
) -> int:
    async with RecordedRunOpener(around, name, model=model) as opened:
        if edited is not None:
            path = find_recipe(edited, [Path("recipes")])
            recipe = bounded(load_recipe(path, catalog_of(opened.extensions)), opened.settings)
        else:
            recipe = opened.own_recipe()
        run = opened.executor(recipe).prepare_retry(
            opened.recorded,
            recipe=recipe,
            is_edited=edited is not None,
            from_step=from_step,
            note=opened.note(),
        )
        return await opened.follow(run, out)
