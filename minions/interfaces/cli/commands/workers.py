"""`minions workers list`: the workers of a database, and whether they are alive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from minions.contracts.dispatch import WorkerView
from minions.contracts.errors import UsageError
from minions.contracts.json_values import JsonValue
from minions.interfaces.cli.console.console import json_text, log_line, say, tell
from minions.interfaces.cli.options import CommandContext, command_context, output_options
from minions.interfaces.wiring.dispatch import shared_dispatch
from minions.interfaces.wiring.logs import make_log

__all__ = ["command"]


@click.group("workers")
def command() -> None:
    """List the workers of a database."""


@command.command("list")
@click.option("--db", metavar="URL", help="postgresql://USER@HOST/DATABASE.")
@output_options
def list_(**flags: object) -> int:
    """List the workers that were heard of within a day, and what they execute."""
    context = command_context(flags)
    workers = asyncio.run(_workers(context))
    if context.settings.json:
        say(json_text({"workers": [_document(each) for each in workers]}))
        return 0
    for each in workers:
        state = "alive" if each.is_alive else "dead"
        say(
            f"{each.name}  {state}  {each.taken} of {each.slots} runs  "
            f"queues {', '.join(each.queues)}  seen {each.seen_at:%Y-%m-%d %H:%M:%S}Z"
        )
    if not workers:
        tell("There is no worker. Start one: minions worker --db URL --queues NAME")
    return 0


def _document(worker: WorkerView) -> JsonValue:
    return {
        "name": worker.name,
        "is_alive": worker.is_alive,
        "queues": list(worker.queues),
        "slots": worker.slots,
        "taken": worker.taken,
        "started_at": worker.started_at.isoformat(),
        "seen_at": worker.seen_at.isoformat(),
        "stream_url": worker.stream_url,
    }


async def _workers(context: CommandContext) -> Sequence[WorkerView]:
    engine = shared_dispatch(context.settings, make_log(context.settings, log_line))
    if engine is None:
        raise UsageError(
            "Workers are known where the journal is in PostgreSQL: give --db postgresql://…. A "
            "worker of an SQLite file answers at its --health.",
            code="no-shared-queues",
        )
    try:
        return await engine.workers()
    finally:
        await engine.aclose()
