"""`minions approve`: a call that waits for consent may be made; the run goes on."""

from __future__ import annotations

import click

from minions.contracts.decision_words import Approve
from minions.interfaces.cli.decision_commands import decide, resume_options

__all__ = ["command"]


@click.command("approve")
@click.argument("run", metavar="ID")
@click.argument("call", required=False)
@resume_options
def command(run: str, call: str | None, **flags: object) -> int:
    """Consent to the call that run ID waits for, with just the arguments that are shown.

    CALL is its key, its tool or its step, where several wait.
    """
    return decide(run, call, Approve(), "approval", flags)
