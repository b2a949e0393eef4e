"""`minions cancel`: ends a run that another process executes."""

from __future__ import annotations

import asyncio

import click
from attrs import evolve

from minions.data.errors import UsageError
from minions.data.words import shell_word
from minions.engine.services.services import Services
from minions.engine.services.worker_names import worker_name
from minions.engine.sessions.cancellation import cancel_run
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    StoreOptions,
    command_context,
    naming_the_journal,
    takes_options,
)


@click.command("cancel")
@click.argument("name", metavar="ID")
@takes_options(StoreOptions)
def command(options: StoreOptions, name: str) -> int:
    """End the run ID, wherever it is executed. What it did is recorded, and it can be resumed.

    Its worker stops at the next fact that it records: a model call or tool call in progress is not
    waited for.
    """
    context = command_context(options)
    run = asyncio.run(_cancel(context, name))
    if context.settings.json:
        say(json_text({"run_id": run.run_id, "session_id": run.session_id, "status": run.status}))
    again = "".join(context.flags_again)
    tell(f"{run.run_id} is cancelled · resume: minions resume {shell_word(run.run_id)}{again}")
    return 0


async def _cancel(context: CommandContext, name: str) -> RunSummary:
    if context.settings.no_store:
        raise UsageError("Without a journal there is no run to cancel: leave out --no-store.")
    journal = context.known_journal()
    services = evolve(Services(journal=journal), worker_id=f"cancel@{worker_name()}")
    try:
        with naming_the_journal(context):
            return await cancel_run(services, name)
    finally:
        await journal.aclose()
