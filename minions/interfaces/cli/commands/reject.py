"""`minions reject`: rejects a call, or declines to answer a tool, and resumes the run."""

from __future__ import annotations

import click

from minions.contracts.decision_words import Reject
from minions.interfaces.cli.decision_commands import decide, resume_options

__all__ = ["command"]


@click.command("reject")
@click.argument("run", metavar="ID")
@click.argument("call", required=False, metavar="[ADDRESS]")
@click.option("--reason", metavar="TEXT", help="Why: the failure says it, and a model reads it.")
@resume_options
def command(run: str, call: str | None, reason: str | None, **flags: object) -> int:
    """Reject the call that run ID waits for, and resume it.

    The step of the call fails; under `tool_failure: report` the model reads the reason and
    continues. A question that a tool asks is declined: the tool is told so, and continues. ADDRESS
    says which, if several wait: an address, a step, a tool or a key.
    """
    return decide(run, call, Reject(reason=reason or None), flags)
