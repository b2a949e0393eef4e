"""`minions schema`: prints JSON Schemas for editors and programs."""

from __future__ import annotations

from collections.abc import Mapping

import click

from minions.data.json_values import JsonValue
from minions.interfaces.cli.console.console import json_text, say
from minions.recipe.editor_schema import recipe_schema


@click.command("schema")
@click.argument("what", type=click.Choice(["recipe", "events", "api"]), default="recipe")
def command(what: str) -> int:
    """Print the JSON Schema of WHAT: recipe, events, or the HTTP API (OpenAPI 3.1).

    In a recipe's first line, for editors with a YAML language server:
    # yaml-language-server: $schema=recipe.schema.json
    """
    schemas = {"recipe": recipe_schema, "events": _events, "api": _api}
    say(json_text(schemas[what](), indent=2))
    return 0


def _events() -> Mapping[str, JsonValue]:
    from minions.app.runs.event_schema import events_schema

    return events_schema()


def _api() -> Mapping[str, JsonValue]:
    from minions.interfaces.server.app import api_document

    return api_document()
