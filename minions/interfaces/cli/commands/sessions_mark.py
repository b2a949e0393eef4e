"""`minions sessions mark RUN good|bad`: says what a recorded output is worth."""

from __future__ import annotations

import asyncio
from typing import cast

import click

from minions.contracts.errors import UsageError
from minions.contracts.journal import JournalEntry
from minions.contracts.words import shell_word
from minions.engine.services.services import Services
from minions.engine.sessions.marking import Verdict, mark_run
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    command_context,
    naming_the_journal,
    output_options,
)

__all__ = ["mark"]


@click.command("mark")
@click.argument("name", metavar="RUN")
@click.argument("verdict", type=click.Choice(["good", "bad"]))
@click.option(
    "--step",
    "address",
    metavar="ADDRESS",
    help="Only the output of this step or item: `sort`, `each[2]`, `sub[1]/each[2]`.",
)
@click.option("--note", metavar="TEXT", help="Why; shown with the run.")
@click.option("--db", metavar="PATH|URL", help="Where the journal is.")
@output_options
def mark(name: str, verdict: str, *, address: str | None, note: str | None, **flags: object) -> int:
    """Mark the outputs of RUN, or of one of its steps, as good or bad.

    Good outputs can be examples for later runs: `examples: {from: journal}`. The last mark counts,
    and earlier ones stay on record. Where a step is run again, its new output is not marked.
    """
    context = command_context(flags)
    entry = asyncio.run(_mark(context, name, cast("Verdict", verdict), address=address, note=note))
    if context.settings.json:
        place = {"run_id": entry.run_id, "session_id": entry.session_id}
        say(json_text({**place, "position": entry.position, "mark": dict(entry.body)}))
    again = "".join(context.flags_again)
    what = f"{address} of {entry.run_id}" if address is not None else entry.run_id
    tell(
        f"{what} is marked {verdict} · show: "
        f"minions sessions show {shell_word(entry.run_id)}{again}"
    )
    return 0


async def _mark(
    context: CommandContext, name: str, verdict: Verdict, *, address: str | None, note: str | None
) -> JournalEntry:
    if context.settings.no_store:
        raise UsageError("Without a journal there is no run to mark: leave out --no-store.")
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            services = Services(journal=journal)
            return await mark_run(services, name, verdict, address=address, note=note)
    finally:
        await journal.aclose()
