"""`minions schema`: JSON Schemas for editors and programs."""

from __future__ import annotations

import json

import click

from minions.interfaces.cli.voice import say
from minions.recipe.editor_schema import recipe_schema

__all__ = ["command"]


@click.command("schema")
@click.argument("what", type=click.Choice(["recipe"]), default="recipe")
def command(what: str) -> int:
    """Print the JSON Schema of WHAT (recipe).

    In a recipe's first line, for editors with a YAML language server:
    # yaml-language-server: $schema=recipe.schema.json
    """
    schemas = {"recipe": recipe_schema}
    say(json.dumps(schemas[what](), ensure_ascii=False, indent=2))
    return 0
