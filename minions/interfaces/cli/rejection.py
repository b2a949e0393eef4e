"""Records a recipe that `run` refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

from minions.contracts.errors import MinionsError, RecipeError
from minions.engine.run.rejection import record_rejected_run
from minions.engine.services.services import Services
from minions.interfaces.cli.console.console import tell
from minions.interfaces.cli.options import CommandContext
from minions.recipe.library import recipe_id_of

__all__ = ["keep_rejection"]


async def keep_rejection(context: CommandContext, recipe: Path, error: RecipeError) -> None:
    """Record the run as rejected, unless nothing may be written.

    If the journal fails, one line says so; the error of the recipe is printed afterwards.
    """
    if context.settings.no_store or context.settings.dry_run:
        return
    note = {"cwd": str(Path.cwd()), "file": str(recipe)}
    try:
        async with contextlib.aclosing(context.journal()) as journal:
            services = Services(journal=journal, project=context.project)
            await record_rejected_run(services, recipe_id_of(recipe), error, note=note)
    except (MinionsError, OSError) as problem:
        tell(f"This run was not recorded: {problem}")
