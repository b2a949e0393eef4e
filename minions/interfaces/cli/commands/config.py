"""`minions config`: shows the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs
import click

from minions.adapters.stores.postgres_url import without_password
from minions.app.settings.settings import Settings
from minions.data.codec import encode
from minions.interfaces.cli.console.console import json_text, say
from minions.interfaces.cli.options import (
    CommonOptions,
    command_context,
    takes_options,
)


@click.command("config")
@click.option("--show-origin", is_flag=True, help="Say where each value comes from.")
@takes_options(CommonOptions)
def command(options: CommonOptions, *, show_origin: bool) -> int:
    """Show every setting: flags, MINIONS_* environment, minions.toml, user file, defaults."""
    context = command_context(options)
    values = encode(_without_secrets(context.settings))
    assert isinstance(values, Mapping)  # noqa: S101  # an attrs class encodes to a mapping
    if context.settings.json:
        report = {
            key: {"value": value, "origin": context.origin.origins[key]}
            for key, value in values.items()
        }
        say(json_text(report))
        return 0
    for attribute in attrs.fields(Settings):
        value = json.dumps(values[attribute.name], ensure_ascii=False)
        origin = f"    # {context.origin.origins[attribute.name]}" if show_origin else ""
        say(f"{attribute.name} = {value}{origin}")
    return 0


def _without_secrets(settings: Settings) -> Settings:
    """The settings without the password of the database, and without texts that may be secrets:
    of these only references are shown.
    """
    providers = {
        name: attrs.evolve(each, headers=_references(each.headers))
        for name, each in settings.providers.items()
    }
    servers = {
        name: attrs.evolve(
            each,
            env=_references(each.env),
            headers=_references(each.headers),
            client_secret=_reference(each.client_secret),
            private_key=_reference(each.private_key),
        )
        for name, each in settings.mcp.items()
    }
    db = settings.db and without_password(settings.db)
    return attrs.evolve(settings, db=db, providers=providers, mcp=servers)


def _references(values: Mapping[str, str]) -> Mapping[str, str]:
    return {name: f"{_reference(value)}" for name, value in values.items()}


def _reference(value: str | None) -> str | None:
    return value if value is None or value.startswith(("env:", "file:/")) else "…"
