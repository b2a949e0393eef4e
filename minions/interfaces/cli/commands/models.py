"""`minions models`: the group; each command is in a module beside it."""

from __future__ import annotations

import click

from minions.interfaces.cli.commands.models_probe import probe
from minions.interfaces.cli.commands.models_weights import list_, pull, rm

__all__ = ["command"]


@click.group("models")
def command() -> None:
    """Models that run on this machine, and what servers do with theirs."""


for each in (list_, pull, rm, probe):
    command.add_command(each)
