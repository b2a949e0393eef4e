"""`minions reject`: rejects a call that a run waits for; its step fails."""

from __future__ import annotations

import click

from minions.contracts.decision_words import Reject
from minions.interfaces.cli.decision_commands import decide, resume_options

__all__ = ["command"]


@click.command("reject")
@click.argument("run", metavar="ID")
@click.argument("call", required=False)
@resume_options
def command(run: str, call: str | None, **flags: object) -> int:
    """Reject the call that run ID waits for, and resume it; the step of the call fails.

    CALL is its key, its tool or its step, if several wait.
    """
    return decide(run, call, Reject(), "approval", flags)
