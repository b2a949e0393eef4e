"""`minions queues` and `workers`: lists queues with their limits, sets and removes them, and lists
the workers of a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import click
from attrs import evolve, frozen

from minions.app.wiring.dispatch import shared_dispatch
from minions.app.wiring.logs import make_log
from minions.contracts.dispatch import DispatchEngine, QueueLimits, QueueView, RateLimit, WorkerView
from minions.data.errors import NotFoundError, UsageError, near_hint, near_names
from minions.data.json_values import JsonValue
from minions.data.texts import seconds_of
from minions.interfaces.cli.console.console import json_text, log_line, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    OutputOptions,
    command_context,
    option,
    takes_options,
)

T = TypeVar("T")


_MOST: Final = 1_000_000
"""Runs at a time; the engine stores no larger number."""


@frozen(kw_only=True, slots=False)
class _SharedDatabaseOption(OutputOptions):
    """The database that workers share."""

    db: str | None = option("--db", metavar="URL", help="postgresql://USER@HOST/DATABASE.")


@click.group("queues")
def queues() -> None:
    """List queues with their limits, and limit them."""


@queues.command("list")
@takes_options(_SharedDatabaseOption)
def list_(options: _SharedDatabaseOption) -> int:
    """List the queues: their limits, and how many runs wait and are executed."""
    context = command_context(options)
    found = asyncio.run(_with_engine(context, lambda engine: engine.queues()))
    if context.settings.json:
        say(json_text({"queues": [_document(each) for each in found]}))
        return 0
    for each in found:
        say(
            f"{each.limits.name}  {each.waiting} wait, {each.delayed} delayed, {each.taken} "
            f"executed  {_words(each.limits)}"
        )
    if not found:
        tell("There is no queue. The first run makes one: minions run RECIPE --detach --queue NAME")
    return 0


@queues.command("set")
@click.argument("name")
@click.option(
    "--concurrency",
    type=click.IntRange(0, _MOST),
    metavar="NUMBER",
    help="Runs at a time, over all workers; 0: unlimited.",
)
@click.option(
    "--per-worker",
    type=click.IntRange(1, _MOST),
    metavar="NUMBER",
    help="Runs at a time of a worker.",
)
@click.option(
    "--rate", metavar="NUMBER/TIME", help="Runs that begin in a time: 10/60s; 0: unlimited."
)
@takes_options(_SharedDatabaseOption)
def set_(
    options: _SharedDatabaseOption,
    name: str,
    *,
    concurrency: int | None,
    per_worker: int | None,
    rate: str | None,
) -> int:
    """Change limits of the queue NAME; those that are not named stay as they are.

    A worker takes no more than --concurrency: where that is less, --per-worker becomes the same.
    """
    context = command_context(options)
    given: dict[str, object] = {}
    if concurrency is not None:
        given["concurrency"] = concurrency or None
    if per_worker is not None:
        given["per_worker"] = per_worker
    if rate is not None:
        given["rate"] = _rate(rate)
    if not given:
        raise UsageError("Say which limit: --concurrency, --per-worker or --rate.")

    async def change(engine: DispatchEngine) -> QueueLimits:
        known = {each.limits.name: each.limits for each in await engine.queues()}
        limits = evolve(known.get(name) or _new(name), **given)  # type: ignore[arg-type]  # its own
        limits = limits.capped()
        await engine.set_queue(limits)
        return limits

    limits = asyncio.run(_with_engine(context, change))
    if context.settings.json:
        say(json_text(_document(QueueView(limits=limits))))
    else:
        say(f"{limits.name}  {_words(limits)}")
    return 0


@queues.command("remove")
@click.argument("name", metavar="NAME")
@takes_options(_SharedDatabaseOption)
def remove(options: _SharedDatabaseOption, name: str) -> int:
    """Forget the queue NAME and its limits. One that has runs stays."""
    context = command_context(options)

    async def forget(engine: DispatchEngine) -> tuple[bool, Mapping[str, QueueView]]:
        known = {each.limits.name: each for each in await engine.queues()}
        return await engine.remove_queue(name), known

    is_removed, known = asyncio.run(_with_engine(context, forget))
    if is_removed:
        say(json_text({"removed": name}) if context.settings.json else f"{name} is removed")
        return 0
    if name not in known:
        near = near_names(name, known)
        raise NotFoundError(
            f"There is no queue '{name:.63}'.{near_hint(near)}",
            code="unknown-queue",
            suggestions=near,
        )
    raise UsageError(
        f"The queue '{name}' has runs that have not ended: `minions queues list` shows how many. "
        "Let a worker execute them, or cancel them.",
        code="queue-in-use",
    )


def _new(name: str) -> QueueLimits:
    try:
        return QueueLimits(name=name)
    except ValueError as error:
        raise UsageError(
            f"{name!r} is no name of a queue: it has 1 to 63 lower-case letters, digits, `-`, `_` "
            "or `.`, and begins with a letter or digit.",
            code="bad-queue-name",
        ) from error


def _rate(text: str) -> RateLimit | None:
    """The rate as it was typed; None: unlimited.

    Raises:
        UsageError: It is none.
    """
    if text == "0":
        return None
    number, slash, time = text.partition("/")
    if not (slash and number.isascii() and number.isdecimal() and int(number)):
        raise UsageError(f"--rate {text}: expected NUMBER/TIME, such as 10/60s, or 0.")
    return RateLimit(starts=int(number), period_s=seconds_of(time))


def _words(limits: QueueLimits) -> str:
    at_once = "unlimited" if limits.concurrency is None else f"at most {limits.concurrency}"
    rate = "" if limits.rate is None else f", {limits.rate.starts} per {limits.rate.period_s:g} s"
    return f"{at_once}, {limits.per_worker} at each worker{rate}"


def _document(queue: QueueView) -> JsonValue:
    limits = queue.limits
    rate = limits.rate
    return {
        "name": limits.name,
        "concurrency": limits.concurrency,
        "per_worker": limits.per_worker,
        "rate": None if rate is None else {"starts": rate.starts, "period_s": rate.period_s},
        "waiting": queue.waiting,
        "delayed": queue.delayed,
        "taken": queue.taken,
    }


async def _with_engine(context: CommandContext, use: Callable[[DispatchEngine], Awaitable[T]]) -> T:
    engine = shared_dispatch(context.settings, make_log(context.settings, log_line))
    if engine is None:
        raise UsageError(
            "Queues have limits where the journal is in PostgreSQL: give --db postgresql://…. In "
            "an SQLite file they have none, and `minions sessions list --status queued` lists "
            "what waits.",
            code="no-shared-queues",
        )
    try:
        return await use(engine)
    finally:
        await engine.aclose()


@click.group("workers")
def workers() -> None:
    """List the workers of a database."""


@workers.command("list")
@takes_options(_SharedDatabaseOption)
def list_workers(options: _SharedDatabaseOption) -> int:
    """List the workers that were heard of within a day, and what they execute."""
    context = command_context(options)
    found = asyncio.run(_workers(context))
    if context.settings.json:
        say(json_text({"workers": [_worker_document(each) for each in found]}))
        return 0
    for each in found:
        state = "alive" if each.is_alive else "dead"
        say(
            f"{each.name}  {state}  {each.taken} of {each.slots} runs  "
            f"queues {', '.join(each.queues)}  seen {each.seen_at:%Y-%m-%d %H:%M:%S}Z"
        )
    if not found:
        tell("There is no worker. Start one: minions worker --db URL --queues NAME")
    return 0


def _worker_document(worker: WorkerView) -> JsonValue:
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
