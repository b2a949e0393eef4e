"""`minions models`: the models of this machine; each command is in a module beside it."""

from __future__ import annotations

import click

from minions.interfaces.cli.commands.models_weights import list_, pull, rm

__all__ = ["command"]


@click.group("models")
def command() -> None:
    """Pull, list and remove models that run on this machine."""


for each in (list_, pull, rm):
    command.add_command(each)
