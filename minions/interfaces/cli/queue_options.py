"""Options of commands that queue runs for workers, and what these commands print."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click
from attrs import evolve, frozen

from minions.adapters.stores.postgres_url import is_postgres_url
from minions.app.wiring.databases import place_of_journal, shared_dispatch
from minions.app.wiring.logs import make_log
from minions.contracts.journal.start_note import (
    DEFAULT_QUEUE,
    LABEL_NAME,
    LOWEST_PRIORITY,
    QueuePlace,
)
from minions.contracts.runtime import Log, SystemClock
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.interfaces.cli.console.console import json_text, log_line, say, tell
from minions.interfaces.cli.options import CommandContext, option, option_seconds

if TYPE_CHECKING:
    from minions.app.runs.run_queue import QueuedRun, RunQueue
    from minions.app.runs.work_lists import RunHindrance
    from minions.contracts.journal.journal import Journal
    from minions.contracts.journal.start_note import StartNote
    from minions.engine.compile.extensions import Extensions

_LABEL_NAME: Final = re.compile(LABEL_NAME)
_LONGEST_DELAY_S: Final = 10 * 365 * 86_400.0
_MOST_NAMED: Final = 3
"""Workers that a line names."""
_LONGEST_LABEL: Final = 200
"""Characters of a label's value."""
PRIORITY: Final = click.IntRange(0, LOWEST_PRIORITY)
"""The values of an option for the priority in a queue."""


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class QueueOptions:
    """Whether the command queues its run for a worker, and where."""

    detach: bool = option(
        "--detach",
        is_flag=True,
        help="Only queue it, for a `minions worker` of the same database, and return.",
    )
    queue: str | None = option(
        "--queue",
        metavar="NAME",
        help="The queue, of letters, digits, - _ . ; else `default`. With --detach.",
    )
    priority: int | None = option(
        "--priority",
        type=PRIORITY,
        metavar="NUMBER",
        help=f"0, which goes first, to {LOWEST_PRIORITY}. With --detach.",
    )
    delay: str | None = option(
        "--delay",
        metavar="TIME",
        help="No worker begins with it before that time: 90, 10m. With --detach.",
    )

    labels: tuple[str, ...] = option(
        "--label",
        multiple=True,
        metavar="NAME=VALUE",
        help="By what its queue may share workers, beside user, project, batch, recipe and "
        "schedule. With --detach.",
    )

    def place(self, context: CommandContext) -> QueuePlace | None:
        """Where the command queues its run; None: it executes it.

        Raises:
            UsageError: As for `queue_place`, or one of the others is given without `--detach`.
        """
        if self.detach:
            place = queue_place(context, self.queue, self.priority, self.delay)
            return evolve(place, labels=dict(map(_label, self.labels)))
        if (self.queue, self.priority, self.delay, self.labels) != (None, None, None, ()):
            raise UsageError(
                "--queue, --priority, --delay and --label go with --detach: else nothing is queued."
            )
        return None


def queue_place(
    context: CommandContext,
    queue: str | None,
    priority: int | None = None,
    delay: str | None = None,
) -> QueuePlace:
    """The place in the queue of that name, as options say; None: as usual.

    Raises:
        UsageError: A name that is none, or nothing is stored.
    """
    if context.settings.no_store:
        raise UsageError(
            "A queued run needs a journal that a worker can open: leave out --no-store.",
            code="no-store",
        )
    try:
        return QueuePlace(
            name=queue if queue is not None else DEFAULT_QUEUE,
            priority=priority or 0,
            not_before=_after(delay) if delay is not None else None,
        )
    except ValueError as error:
        raise UsageError(
            f"--queue {queue}: the name of a queue has 1 to 63 lower-case letters, digits, `-`, "
            "`_` or `.`, and begins with a letter or digit.",
            code="bad-queue-name",
        ) from error


@asynccontextmanager
async def open_queue(
    context: CommandContext, extensions: Extensions | None
) -> AsyncIterator[RunQueue]:
    """The queues of the command's database, closed at the end of the block.

    Args:
        extensions: As for `RunQueue`.
    """
    from minions.app.runs.run_queue import RunQueue

    log = make_log(context.settings, log_line)
    queue = RunQueue(shared_dispatch(context.settings, log), SystemClock(), extensions)
    try:
        yield queue
    finally:
        await queue.aclose()


def report_queued(
    queued: QueuedRun, context: CommandContext, out: TextIO, noted: StartNote | None = None
) -> int:
    """Print the id of a run that was queued, and the next command; the exit code.

    Args:
        noted: Where and with what the run began; None: here, with this command.
    """
    database, _ = context.flags_again
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
    home, extensions = (None, ()) if noted is None else (noted.cwd, noted.extensions)
    command = worker_command(context, queued.place.name, home, extensions)
    tell(f"a worker executes it: {command}")
    tell(f"see it: minions sessions show {shell_word(queued.run_id)}{database}")
    return 0


def worker_command(
    context: CommandContext, queue: str, home: str | None, extensions: Sequence[str]
) -> str:
    """The command that starts a worker for a run of that queue.

    Args:
        home: The folder where the run began; None: this one.
        extensions: What it began with: paths are absolute.
    """
    database, code = context.flags_again
    if home is not None and home != str(Path.cwd()):
        if not is_postgres_url(context.settings.db or ""):  # a path here is no path there
            place = place_of_journal(context.settings, context.folder_of("db"))
            database = f" --db {shell_word(place)}"
        code = "".join(f" --extensions {shell_word(each)}" for each in extensions)
        return f"cd {shell_word(home)} && {_worker_of(queue)}{database}{code}"
    folder = context.folder_of("extensions")
    here = {
        each if not each.endswith(".py") else str(folder / each)
        for each in context.settings.extensions
    }
    missing = [each for each in extensions if each not in here]
    code += "".join(f" --extensions {shell_word(each)}" for each in missing)
    return f"{_worker_of(queue)}{database}{code}"


def _worker_of(queue: str) -> str:
    return f"minions worker --queues {shell_word(queue)}"


async def run_hindrance(context: CommandContext, journal: Journal, run_id: str) -> RunHindrance:
    """What keeps workers from a queued run of the command's database, and who may take it.

    Raises:
        JournalError: The database cannot be used.
    """
    from minions.app.runs.work_lists import WorkLists
    from minions.app.wiring.databases import state_beside
    from minions.engine.services.run_services import is_worker_gone

    state = state_beside(journal)
    engine = shared_dispatch(context.settings, make_log(context.settings, log_line))
    try:
        return await WorkLists(journal, state, engine, is_worker_gone).hindrance(run_id)
    finally:
        if engine is not None:
            await engine.aclose()
        await state.aclose()


def hindrance_lines(hindrance: RunHindrance) -> Iterator[str]:
    """Who executes a queued run, or why nobody does."""
    from minions.app.runs.run_needs import missing_words

    if hindrance.not_taken is not None:
        yield f"no worker takes it: {hindrance.not_taken}"
    if hindrance.lacks:
        yield f"no worker can execute it: {missing_words(hindrance.lacks, 'none')}"
    if hindrance.takers and hindrance.run is not None:
        more = len(hindrance.takers) - _MOST_NAMED
        some = ", ".join(hindrance.takers[:_MOST_NAMED])
        named = f"{some} and {more} more" if more > 0 else some
        yield f"will be executed by a worker of the queue '{hindrance.run.queue}': {named}"


def tell_worker(context: CommandContext, hindrance: RunHindrance) -> None:
    """Print the command that starts a worker for a queued run, where no worker can take it."""
    run = hindrance.run
    is_unserved = hindrance.not_taken is not None and not hindrance.is_paused
    if run is not None and (hindrance.lacks or is_unserved):
        command = worker_command(context, run.queue, run.home, run.extensions)
        tell(f"start one that can: {command}")


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and value and len(value) <= _LONGEST_LABEL and _LABEL_NAME.match(name)):
        raise UsageError(
            f"--label {text:.120}: expected NAME=VALUE; the name has 1 to 32 lower-case letters, "
            f"digits, `-` or `_`, the value 1 to {_LONGEST_LABEL} characters.",
            code="bad-label",
        )
    return name, value


def _after(delay: str) -> datetime:
    seconds = option_seconds("--delay", delay)
    if seconds > _LONGEST_DELAY_S:
        raise UsageError(f"--delay {delay}: a run is delayed by 10 years at most.")
    return SystemClock().now() + timedelta(seconds=seconds)


# --- the log of a command that runs until it is stopped ------------------------------------------


def process_log(context: CommandContext) -> Log:
    """The log in the form that was asked for, else as plain lines."""
    from minions.app.wiring.logs import make_log

    settings = context.settings
    return make_log(settings, log_line) if settings.log_format is not None else _Lines()


class _Lines:
    """The server's log, on standard error."""

    def info(self, event: str, /, **facts: object) -> None:
        """Write one line."""
        tell(" ".join((event, *(f"{name}={value!r}" for name, value in facts.items()))))

    def warning(self, event: str, /, **facts: object) -> None:
        """Write one line."""
        self.info(event, **facts)
