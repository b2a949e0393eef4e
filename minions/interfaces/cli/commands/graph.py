"""`minions graph`: draws a recipe's steps; nothing is run."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import frozen

from minions.analysis.pictures.picture import Picture, picture_of, with_statuses
from minions.data.errors import UsageError
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    ExtensionOptions,
    command_context,
    naming_the_journal,
    option,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import checked_recipe
from minions.recipe.model import AgentRecipe
from minions.recipe.tool_specs import tool_specs

_FORMS = ("mermaid", "svg", "ascii", "json")
_FORM_OF_SUFFIX = {".svg": "svg", ".json": "json", ".mmd": "mermaid", ".mermaid": "mermaid"}


@frozen(kw_only=True, slots=False)
class _GraphOptions(ExtensionOptions):
    """The journal of the run that is shown."""

    db: str | None = option("--db", metavar="PATH", help="SQLite file of the journal.")


@click.command("graph")
@click.argument("recipe")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(_FORMS),
    help="ascii unless FILE's name says otherwise (.svg, .mmd, .json).",
)
@click.option("-o", "--output", "file", metavar="FILE", help="Write there.")
@click.option("--run", metavar="ID", help="Show how each step of that run of RECIPE ended.")
@takes_options(_GraphOptions)
def command(
    options: _GraphOptions, recipe: str, form: str | None, file: str | None, run: str | None
) -> int:
    """Draw the steps of RECIPE and what waits for what: no model, no tool, no network."""
    context = command_context(options)
    catalog = context.catalog()
    loaded = checked_recipe(recipe, context, catalog).unwrap()
    picture = picture_of(loaded, tool_specs(loaded, catalog))
    if run is not None:
        picture = with_statuses(picture, _statuses(context, loaded, run))
    suffix = Path(file).suffix.lower() if file is not None else ""
    usual = "json" if context.settings.json else _FORM_OF_SUFFIX.get(suffix, "ascii")
    text = _drawn(picture, form or usual)
    if file is None:
        say(text.rstrip("\n"))
    else:
        _write(Path(file), text)
        count = len(picture.nodes)
        tell(f"{file}: {count} step{'s' * (count != 1)}")
    return 0


def _statuses(context: CommandContext, recipe: AgentRecipe, name: str) -> dict[str, str]:
    """By step id, the status of the newest execution.

    Raises:
        NotFoundError, UsageError: There is no such run, or it is one of another recipe.
    """
    import asyncio

    from minions.engine.views.lookup import find_run
    from minions.engine.views.run_detail import RunDetail, show_run

    async def look() -> RunDetail:
        journal = context.known_journal()
        try:
            with naming_the_journal(context):
                run = await find_run(journal, name)
            return await show_run(journal, run)
        finally:
            await journal.aclose()

    detail = asyncio.run(look())
    found = detail.summary
    if found.recipe != recipe.id:
        raise UsageError(
            f"Run {found.run_id} is one of '{found.recipe}', not of '{recipe.id}'.",
            code="other-recipe",
        )
    return {
        step.step_id: "waits" if step.is_waiting else step.kept_as or step.status
        for step in detail.steps
    }


def _drawn(picture: Picture, form: str) -> str:
    if form == "svg":
        from minions.analysis.pictures.svg import svg

        return svg(picture)
    if form == "mermaid":
        from minions.analysis.pictures.mermaid import mermaid

        return mermaid(picture)
    if form == "json":
        from minions.analysis.pictures.data import picture_to_json

        return json_text(picture_to_json(picture)) + "\n"
    from minions.analysis.pictures.outline import outline

    return outline(picture)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(
            f"The picture cannot be written to {path}: {error.strerror or error}.",
            code="unwritable-file",
        ) from error
