"""`minions rollback`: restores the files that a run changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final

import click

from minions.adapters.tools.file_restorer import LocalFileRestorer
from minions.contracts.file_changes import FileOutcome, RollbackReport, RolledBackFile
from minions.data.errors import UsageError
from minions.data.words import shell_word
from minions.engine.services.services import Services
from minions.engine.sessions.rollback import roll_back_run
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    StoreOptions,
    command_context,
    naming_the_journal,
    takes_options,
)


@click.command("rollback")
@click.argument("name", metavar="ID")
@click.option("--dry-run", is_flag=True, help="Only show what would be restored.")
@takes_options(StoreOptions)
def command(options: StoreOptions, name: str, *, dry_run: bool) -> int:
    """Restore the files that the run ID changed, where its toolset `files` has `undo: true`.

    A file that somebody else changed since is left as it is; the exit code is then 1. What was
    killed can be repeated.
    """
    context = command_context(options)
    report = asyncio.run(_roll_back(context, name, dry_run=dry_run))
    if context.settings.json:
        say(json_text(report.to_json()))
    else:
        for line in _lines(report):
            say(line)
    if not report.is_dry_run:
        again = "".join(context.flags_again)
        tell(f"rolled back · show: minions sessions show {shell_word(report.run_id)}{again}")
    return 0 if report.is_complete else 1


async def _roll_back(context: CommandContext, name: str, *, dry_run: bool) -> RollbackReport:
    if context.settings.no_store:
        raise UsageError("Without a journal there is no run to roll back: leave out --no-store.")
    journal = context.known_journal()
    services = Services(journal=journal, file_restorer=LocalFileRestorer())
    try:
        with naming_the_journal(context):
            return await roll_back_run(services, name, dry_run=dry_run)
    finally:
        await journal.aclose()


_WORDS: Final = {
    FileOutcome.RESTORED: "restored",
    FileOutcome.REMOVED: "removed",
    FileOutcome.UNCHANGED: "as before",
    FileOutcome.CHANGED_SINCE: "left",
    FileOutcome.REFUSED: "refused",
}


def _lines(report: RollbackReport) -> Iterator[str]:
    root = None
    for each in report.files:
        if each.root != root:
            root = each.root
            yield f"in {root}:"
        yield f"  {_line(each)}"
    for call in report.not_reversible:
        yield f"not reversible: {call.tool} of {call.address} ({call.effect})"
    counts = Counter(_WORDS[each.outcome] for each in report.files)
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    yield f"would be: {told}" if report.is_dry_run else told


def _line(file: RolledBackFile) -> str:
    reason = f": {file.reason}" if file.reason else ""
    return f"{_WORDS[file.outcome]} {file.path}{reason}"
