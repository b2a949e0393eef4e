"""`minions sessions follow RUN`: what happens in a run, wherever it is executed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final, TextIO

import click
from attrs import frozen

from minions.app.runs.remote_deltas import remote_deltas_of
from minions.app.runs.worker_streams import remote_deltas
from minions.app.wiring.logs import make_log
from minions.contracts.events import RunCompleted, RunEvent, RunFailed, RunWaiting
from minions.contracts.journal.journal import Journal
from minions.data.codec import encode
from minions.data.words import shell_word
from minions.engine.services.secrets import environment_and_files
from minions.engine.views.lookup import REJECTED, find_run
from minions.engine.views.run_detail import RunDetail, show_run
from minions.engine.views.run_summary import RunSummary
from minions.engine.views.stored_events import StoredEvents
from minions.interfaces.cli.console.console import json_text, log_line, say, tell
from minions.interfaces.cli.console.results import EXIT_CODES, output_text
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    command_context,
    naming_the_journal,
    option,
    takes_options,
)
from minions.interfaces.cli.run_follower import EventPrinter, progress_of, refuse_two_outputs

_ENDS: Final = (RunCompleted, RunWaiting, RunFailed)


@frozen(kw_only=True, slots=False)
class _FollowOptions(DatabaseOption):
    """How events are printed, and where the journal is."""

    events: bool = option("--events", is_flag=True, help="Print one JSON event per line.")


@click.command("follow")
@click.argument("name", metavar="RUN")
@takes_options(_FollowOptions)
def follow(options: _FollowOptions, name: str) -> int:
    """Show what was stored of RUN and what other processes store, until it ends or waits.

    The result goes to standard output, and the exit code is that of the run, as for `minions run`.
    Ctrl-C ends the following alone.
    """
    context = command_context(options)
    refuse_two_outputs(context.settings)
    return asyncio.run(_follow(context, name, sys.stdout))


async def _follow(context: CommandContext, name: str, out: TextIO) -> int:
    journal = context.known_journal()
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

    def show(event: RunEvent) -> None:
        progress.on_event(event)
        if context.settings.events:
            printer(event)

    stored = StoredEvents(journal, run.session_id, run.run_id)
    try:
        async with (
            _deltas(context, journal, run, show) as note_stored,
            contextlib.aclosing(stored.follow()) as events,
        ):
            async for event in events:
                show(event)
                note_stored(event)
                if printer.error is not None:
                    raise printer.error
                if isinstance(event, _ENDS) and await _is_last(journal, event, run):
                    return
    finally:
        progress.close()


@contextlib.asynccontextmanager
async def _deltas(
    context: CommandContext, journal: Journal, run: RunSummary, show: Callable[[RunEvent], None]
) -> AsyncIterator[Callable[[RunEvent], None]]:
    """Show the pieces of answers within the block, each in its place among the stored events.

    Gives what has to be told of each stored event after it was shown.
    """
    log = make_log(context.settings, log_line)
    remote = remote_deltas(context.settings, journal, log, environment_and_files)
    try:
        deltas = remote_deltas_of(remote, run.session_id, show, run_id=run.run_id)
        async with deltas as note_stored:
            yield lambda event: note_stored(event.position, getattr(event, "address", None))
    finally:
        if remote is not None:
            await remote.aclose()


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
        say(output_text(detail.output), out, is_output=True)
    database, _ = context.flags_again
    tell(
        f"{run.run_id} · {run.status} · see it: "
        f"minions sessions show {shell_word(run.run_id)}{database}"
    )
    return next((code for status, code in EXIT_CODES.items() if status == run.status), 1)
