"""`minions models`: the group; each command is in a module beside it."""

from __future__ import annotations

import click

from minions.interfaces.cli.commands.models_probe import probe

__all__ = ["command"]


@click.group("models")
def command() -> None:
    """Find out what servers do with their models."""


command.add_command(probe)
