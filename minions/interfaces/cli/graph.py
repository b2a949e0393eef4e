"""`minions graph`: a picture of a recipe's steps, nothing run."""

from __future__ import annotations

from pathlib import Path

import click

from minions.contracts.errors import UsageError
from minions.interfaces.cli.setup import extension_options, output_options, surroundings
from minions.interfaces.cli.voice import json_text, say, tell
from minions.interfaces.pictures.picture import Picture, picture_of
from minions.interfaces.tool_specs import tool_specs
from minions.recipe.library import find_recipe
from minions.recipe.load import load_recipe

__all__ = ["command"]

_FORMS = ("mermaid", "svg", "ascii", "json")
_FORM_OF_SUFFIX = {".svg": "svg", ".json": "json", ".mmd": "mermaid", ".mermaid": "mermaid"}


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
@extension_options
@output_options
def command(recipe: str, form: str | None, file: str | None, **flags: object) -> int:
    """Draw the steps of RECIPE and what waits for what: no model, no tool, no network."""
    around = surroundings(flags)
    catalog = around.catalog()
    loaded = load_recipe(find_recipe(recipe, [Path("recipes")]), catalog)
    picture = picture_of(loaded, tool_specs(loaded, catalog))
    suffix = Path(file).suffix.lower() if file is not None else ""
    usual = "json" if around.settings.json else _FORM_OF_SUFFIX.get(suffix, "ascii")
    text = _drawn(picture, form or usual)
    if file is None:
        say(text.rstrip("\n"))
    else:
        _write(Path(file), text)
        count = len(picture.nodes)
        tell(f"{file}: {count} step{'s' * (count != 1)}")
    return 0


def _drawn(picture: Picture, form: str) -> str:
    if form == "svg":
        from minions.interfaces.pictures.svg import svg

        return svg(picture)
    if form == "mermaid":
        from minions.interfaces.pictures.mermaid import mermaid

        return mermaid(picture)
    if form == "json":
        from minions.interfaces.pictures.data import picture_to_json

        return json_text(picture_to_json(picture)) + "\n"
    from minions.interfaces.pictures.outline import outline

    return outline(picture)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(
            f"The picture cannot be written to {path}: {error.strerror or error}.",
            code="unwritable-file",
        ) from error
