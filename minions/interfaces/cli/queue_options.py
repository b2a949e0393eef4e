"""Options of commands that queue runs for workers, and what these commands print."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final, TextIO, TypeVar

import click

from minions.contracts.durations import seconds_of
from minions.contracts.errors import UsageError
from minions.contracts.json_values import JsonValue
from minions.contracts.queue_places import DEFAULT_QUEUE, LOWEST_PRIORITY, QueuePlace
from minions.contracts.words import shell_word
from minions.engine.services.services import SystemClock
from minions.interfaces.cli.console.console import json_text, log_line, say, tell
from minions.interfaces.cli.options import CommandContext
from minions.interfaces.run_queue import QueuedRun, RunQueue
from minions.interfaces.wiring.dispatch import shared_dispatch
from minions.interfaces.wiring.logs import make_log

__all__ = [
    "open_queue",
    "queue_options",
    "queue_place",
    "report_queued",
    "settings_of",
]

F = TypeVar("F", bound=Callable[..., Any])  # Any: click passes options as it finds them

_OPTIONS: Final = frozenset({"detach", "queue", "priority", "delay"})
_LONGEST_DELAY_S: Final = 10 * 365 * 86_400.0
_QUEUE_HELP: Final = "The queue, of letters, digits, - _ . ; else `default`. With --detach."


def queue_options(function: F) -> F:
    """Add `--detach`, `--queue`, `--priority` and `--delay`."""
    text = "No worker begins with it before that time: 90, 10m. With --detach."
    function = click.option("--delay", metavar="TIME", help=text)(function)
    text = f"0, which goes first, to {LOWEST_PRIORITY}. With --detach."
    function = click.option(
        "--priority", type=click.IntRange(0, LOWEST_PRIORITY), metavar="NUMBER", help=text
    )(function)
    function = click.option("--queue", metavar="NAME", help=_QUEUE_HELP)(function)
    text = "Only queue it, for a `minions worker` of the same database, and return."
    return click.option("--detach", is_flag=True, help=text)(function)


def settings_of(options: Mapping[str, object]) -> dict[str, object]:
    """The options without those of `queue_options`, which are no settings."""
    return {key: value for key, value in options.items() if key not in _OPTIONS}


def queue_place(
    context: CommandContext, options: Mapping[str, object], *, flag: str = "--detach"
) -> QueuePlace | None:
    """Where the command queues its run; None: it executes it.

    Args:
        flag: The option that says so, for messages.
    Raises:
        UsageError: `--queue` or `--priority` without `--detach`, a name that is none, or nothing
            is stored.
    """
    queue, priority, delay = (options.get(name) for name in ("queue", "priority", "delay"))
    if not options.get("detach"):
        if (queue, priority, delay) != (None, None, None):
            raise UsageError(
                f"--queue, --priority and --delay go with {flag}: else nothing is queued."
            )
        return None
    if context.settings.no_store:
        raise UsageError(
            "A queued run needs a journal that a worker can open: leave out --no-store.",
            code="no-store",
        )
    try:
        return QueuePlace(
            name=queue if isinstance(queue, str) else DEFAULT_QUEUE,
            priority=priority if isinstance(priority, int) else 0,
            not_before=_after(delay) if isinstance(delay, str) else None,
        )
    except ValueError as error:
        raise UsageError(
            f"--queue {queue}: the name of a queue has 1 to 63 lower-case letters, digits, `-`, "
            "`_` or `.`, and begins with a letter or digit.",
            code="bad-queue-name",
        ) from error


@asynccontextmanager
async def open_queue(context: CommandContext) -> AsyncIterator[RunQueue]:
    """The queues of the command's database, closed at the end of the block."""
    log = make_log(context.settings, log_line)
    queue = RunQueue(shared_dispatch(context.settings, log), SystemClock())
    try:
        yield queue
    finally:
        await queue.aclose()


def report_queued(queued: QueuedRun, context: CommandContext, out: TextIO) -> int:
    """Print the id of a run that was queued, and the next command; the exit code."""
    database, code = context.flags_again
    if queued.problem is not None:
        tell(f"warning: {queued.problem} The run is recorded; a worker finds it there.")
    if context.settings.json:
        document: dict[str, JsonValue] = {
            "run_id": queued.run_id,
            "session_id": queued.session_id,
            "status": "queued",
            "queue": queued.place.name,
            "priority": queued.place.priority,
        }
        say(json_text(document), out)
    else:
        say(queued.run_id, out)
    tell(f"queued in '{queued.place.name}' · session {queued.session_id}")
    queues = shell_word(queued.place.name)
    tell(f"a worker executes it: minions worker --queues {queues}{database}{code}")
    tell(f"see it: minions sessions show {shell_word(queued.run_id)}{database}")
    return 0


def _after(delay: str) -> datetime:
    seconds = seconds_of(delay)
    if seconds > _LONGEST_DELAY_S:
        raise UsageError(f"--delay {delay}: a run is delayed by 10 years at most.")
    return SystemClock().now() + timedelta(seconds=seconds)
