"""`minions approve`: approves a call that a run waits for, and resumes the run."""

from __future__ import annotations

import click

from minions.contracts.decision_words import Approve
from minions.interfaces.cli.decision_commands import decide, resume_options

__all__ = ["command"]


@click.command("approve")
@click.argument("run", metavar="ID")
@click.argument("call", required=False, metavar="[ADDRESS]")
@click.option("--arguments", metavar="JSON", help="Call it with exactly these arguments instead.")
@resume_options
def command(run: str, call: str | None, arguments: str | None, **flags: object) -> int:
    """Approve the call that run ID waits for, and resume it.

    It is made with exactly the arguments shown, or with those that you give.
    ADDRESS says which, if several wait: an address, a step, a tool or a key.
    """
    return decide(run, call, Approve(arguments=arguments), flags)
