"""`minions sessions follow RUN`: what happens in a run, wherever it is executed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final, TextIO

import click

from minions.contracts.codec import encode
from minions.contracts.events import RunCompleted, RunEvent, RunFailed, RunWaiting
from minions.contracts.journal import Journal
from minions.engine.history.lookup import REJECTED, RunDetail, find_run, show_run
from minions.engine.history.run_summary import RunSummary
from minions.engine.history.stored_events import StoredEvents
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.results import EXIT_CODES, output_text
from minions.interfaces.cli.options import (
    CommandContext,
    command_context,
    naming_the_journal,
    output_options,
)
from minions.interfaces.cli.run_follower import EventPrinter, progress_of, refuse_two_outputs

__all__ = ["follow"]

_ENDS: Final = (RunCompleted, RunWaiting, RunFailed)


@click.command("follow")
@click.argument("name", metavar="RUN")
@click.option("--events", is_flag=True, help="Print one JSON event per line.")
@click.option("--db", metavar="PATH|URL", help="Where the journal is.")
@output_options
def follow(name: str, **flags: object) -> int:
    """Show what was stored of RUN and what other processes store, until it ends or waits.

    The result goes to standard output, and the exit code is that of the run, as for `minions run`.
    Ctrl-C ends the following alone.
    """
    context = command_context(flags)
    refuse_two_outputs(context.settings)
    return asyncio.run(_follow(context, name, sys.stdout))


async def _follow(context: CommandContext, name: str, out: TextIO) -> int:
    journal = context.journal()
    try:
        with naming_the_journal(context):
            run = await find_run(journal, name)
            if run.status != REJECTED:
                await _show_events(context, journal, run, out)
            detail = await show_run(journal, await find_run(journal, run.run_id))
        return _report(context, detail, out)
    finally:
        await journal.aclose()


async def _show_events(
    context: CommandContext, journal: Journal, run: RunSummary, out: TextIO
) -> None:
    """Until an event after which nobody executes the run."""
    progress, printer = progress_of(context), EventPrinter(out)
    stored = StoredEvents(journal, run.session_id, run.run_id)
    try:
        async with contextlib.aclosing(stored.follow()) as events:
            async for event in events:
                progress.on_event(event)
                if context.settings.events:
                    printer(event)
                if printer.error is not None:
                    raise printer.error
                if isinstance(event, _ENDS) and await _is_last(journal, event, run):
                    return
    finally:
        progress.close()


async def _is_last(journal: Journal, event: RunEvent, run: RunSummary) -> bool:
    """Whether the run was not resumed since."""
    newest = await journal.entries(
        run.session_id, run_id=run.run_id, kinds={"run"}, limit=1, newest_first=True
    )
    return bool(newest) and newest[0].position == event.position


def _report(context: CommandContext, detail: RunDetail, out: TextIO) -> int:
    run = detail.summary
    if context.settings.json:
        say(json_text(encode(detail)), out)
    elif not context.settings.events and detail.output is not None:
        say(output_text(detail.output), out)
    database, _ = context.flags_again
    tell(f"{run.run_id} · {run.status} · see it: minions sessions show {run.run_id}{database}")
    return next((code for status, code in EXIT_CODES.items() if status == run.status), 1)
