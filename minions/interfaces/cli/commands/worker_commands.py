"""`minions worker`, `workers` and `queues`: who executes queued runs, and how many at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

import click
from attrs import evolve, frozen
from click.core import ParameterSource
from msgspec.structs import replace

from minions.adapters.daemon_thread import import_in_daemon_thread
from minions.adapters.stores.memory_stores import StateStore
from minions.app.runs.left_runs import LeftRunsFound, WaitingRun, worker_records
from minions.app.runs.paused_queues import (
    ALL_QUEUES,
    QueuePause,
    put_pause,
    queue_pauses,
    remove_pause,
)
from minions.app.runs.run_needs import missing_words
from minions.app.runs.work_lists import ListedWorker, WorkLists
from minions.app.wiring.databases import make_state, shared_dispatch, state_beside
from minions.app.wiring.logs import make_log
from minions.contracts.dispatch import (
    DEFAULT_SLOTS,
    DispatchEngine,
    FairShares,
    QueueLimits,
    QueueView,
    RateLimit,
    WorkerPlan,
)
from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import DEFAULT_QUEUE
from minions.contracts.model_endpoints import check_base_url
from minions.contracts.runtime import SystemClock
from minions.data.errors import (
    MinionsError,
    NotFoundError,
    UsageError,
    did_you_mean,
    near_hint,
    near_names,
)
from minions.data.json_values import JsonValue
from minions.data.schema import load_validator
from minions.engine.services.run_services import is_worker_gone, worker_name
from minions.interfaces.cli.console.console import json_text, log_line, say, say_table, tell
from minions.interfaces.cli.options import (
    CacheOption,
    CommandContext,
    CommonOptions,
    OutputOptions,
    RunLimitOptions,
    command_context,
    option,
    option_seconds,
    required_text,
    takes_options,
)
from minions.interfaces.cli.queue_options import process_log
from minions.interfaces.worker.run_execution import GIVEN_UP
from minions.interfaces.worker.worker import Worker

if TYPE_CHECKING:
    from minions.interfaces.worker.health import DeltaAccess

_LOOPBACK: Final = "127.0.0.1"
_ANY_HOST: Final = ("0.0.0.0", "::")  # noqa: S104  # compared, not bound
_LEAST_HEARTBEAT_S: Final = 0.2
_LONGEST_HEARTBEAT_S: Final = 3600.0
_BEYOND_DRAIN_S: Final = 15.0
"""Seconds that the end may take beyond the time of runs; then the process exits."""


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ExecutionOptions(RunLimitOptions, CacheOption, CommonOptions):
    """How each run is executed."""

    max_parallel: int | None = option(
        "--max-parallel", type=click.IntRange(min=1), help="Steps at a time of one run."
    )


@click.group("worker", invoke_without_command=True, subcommand_metavar="[COMMAND]…")
@click.option(
    "--queues",
    default=DEFAULT_QUEUE,
    show_default=True,
    metavar="NAME,…",
    help="The queues whose runs it executes, separated by commas.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 1_000),
    default=DEFAULT_SLOTS,
    show_default=True,
    help="Runs at a time.",
)
@click.option("--once", is_flag=True, help="End when no run is queued any more.")
@click.option(
    "--drain",
    default="30s",
    show_default=True,
    metavar="TIME",
    help="When it is stopped, runs have that long to end; then others resume them.",
)
@click.option(
    "--heartbeat",
    default="5s",
    show_default=True,
    metavar="TIME",
    help="How often it tells that it lives; after three times without, others take its runs.",
)
@click.option(
    "--health", metavar="[HOST:]PORT", help="Answer /health and /ready there; else nowhere."
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="Metrics and pieces of answers are at --health for who has this token; a file as that of "
    "`serve`.",
)
@click.option(
    "--stream-url", metavar="URL", help="Where other machines reach --health; else its address."
)
@click.option(
    "--any-folder",
    is_flag=True,
    help="Take runs that were started in other folders, too; their relative paths start here.",
)
@click.option(
    "--patience",
    metavar="TIME",
    help="Model calls of runs that say nothing may wait so long after the run's start for the "
    "half-price batches of their providers, where those have some: 8h, 24h.",
)
@click.option(
    "--any-version",
    is_flag=True,
    help="Take runs that were queued with other versions of tools or of the package, too.",
)
@takes_options(_ExecutionOptions)
def worker_command(
    execution: _ExecutionOptions,
    *,
    queues: str,
    slots: int,
    once: bool,
    drain: str,
    heartbeat: str,
    health: str | None,
    token_file: str | None,
    stream_url: str | None,
    any_folder: bool,
    patience: str | None,
    any_version: bool,
) -> int:
    """Execute the runs that were queued in the database of --db, until Ctrl-C or SIGTERM.

    What a run may do is decided here, not where it was queued: tools, approvals, keys and limits
    are this worker's. Any number of workers may use one PostgreSQL database.
    """
    if (inner := click.get_current_context().invoked_subcommand) is not None:
        _refuse_own_options(inner)
        return 0
    context = command_context(execution)
    if context.settings.no_store:
        raise UsageError("A worker needs a journal: leave out --no-store.", code="no-store")
    address = None if health is None else _address(health)
    options = _WorkerOptions(
        plan=_plan(queues, slots, drain, heartbeat, once=once),
        health=address,
        stream=_stream(address, token_file, stream_url),
        any_folder=any_folder,
        patience_s=None if patience is None else option_seconds("--patience", patience),
        any_version=any_version,
    )
    out = sys.stdout
    # What tools and extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(_work(context, options, out))


def _refuse_own_options(inner: str) -> None:
    """Refuse options of a worker before a command that starts none.

    Raises:
        UsageError: There are some.
    """
    context = click.get_current_context()
    for each in context.command.params:
        if context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{each.opts[0]} before '{inner}' is an option of the worker, and '{inner}' starts "
                "none. Write options of a command behind it."
            )


@frozen(kw_only=True)
class _WorkerOptions:
    """The arguments of the command."""

    plan: WorkerPlan
    health: tuple[str, int] | None
    stream: _Stream | None
    """Who may read the pieces of answers; None: nobody."""
    any_folder: bool
    patience_s: float | None
    any_version: bool


@frozen(kw_only=True)
class _Stream:
    token_file: Path
    url: str | None
    """Where other processes reach it; None: at the address on which it listens."""


def _plan(queues: str, slots: int, drain: str, heartbeat: str, *, once: bool) -> WorkerPlan:
    """The plan, under a name that no other worker has.

    Raises:
        UsageError: The name of a queue, or the time, is none.
    """
    names = tuple(dict.fromkeys(name.strip() for name in queues.split(",")))
    for name in names:
        try:
            QueueLimits(name=name)
        except ValueError as error:
            raise UsageError(
                f"--queues {queues}: {name!r} is no name of a queue. It has 1 to 63 lower-case "
                "letters, digits, `-`, `_` or `.`; several are separated by commas.",
                code="bad-queue-name",
            ) from error
    heartbeat_s = option_seconds("--heartbeat", heartbeat)
    if not _LEAST_HEARTBEAT_S <= heartbeat_s <= _LONGEST_HEARTBEAT_S:
        raise UsageError(
            f"--heartbeat {heartbeat}: expected {_LEAST_HEARTBEAT_S:g} s to an hour: others take "
            "the runs of a dead worker after three of them."
        )
    return WorkerPlan(
        heartbeat_s=heartbeat_s,
        name=worker_name(f"wrk_{os.urandom(6).hex()}"),
        queues=names,
        slots=slots,
        drain_s=option_seconds("--drain", drain),
        ends_when_idle=once,
    )


def _address(text: str) -> tuple[str, int]:
    """Host and port; loopback where no host is given.

    Raises:
        UsageError: There is no port in it.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 65_536):
        raise UsageError(f"--health {text}: expected a port, or HOST:PORT.")
    return host.strip("[]") or _LOOPBACK, int(port)


def _stream(
    health: tuple[str, int] | None, token_file: str | None, url: str | None
) -> _Stream | None:
    """What the options say about pieces of answers.

    Raises:
        UsageError: An option is missing, or the URL is none.
    """
    if token_file is None:
        if url is None:
            return None
        raise UsageError("--stream-url needs --token-file FILE: pieces of answers need a token.")
    if health is None:
        raise UsageError("--token-file needs --health [HOST:]PORT, where the pieces are offered.")
    if url is None and health[0] in _ANY_HOST:
        raise UsageError(
            f"--health {health[0]}:{health[1]} is no address that others can connect to: say with "
            "--stream-url URL how they reach it, such as http://worker-1.example:8650."
        )
    checked = None if url is None else check_base_url(url, "--stream-url")
    return _Stream(token_file=Path(token_file), url=checked)


async def _work(context: CommandContext, options: _WorkerOptions, out: TextIO) -> int:
    from minions.interfaces.worker.health import serving_health

    await import_in_daemon_thread(load_validator)
    access = None if options.stream is None else _access(options.stream)
    worker = _worker(context, options, access)
    try:
        with _stopped_by_signals(worker) as caught:
            async with contextlib.AsyncExitStack() as stack:
                port = None
                if options.health is not None:
                    host, wanted = options.health
                    log = process_log(context)
                    serving = serving_health(worker, host, wanted, log, deltas=access)
                    port = await stack.enter_async_context(serving)
                    if options.stream is not None:
                        worker.publish_stream(options.stream.url or _url(host, port))
                _announce(context, options.plan, port, out)
                await worker.run()
    finally:
        await worker.aclose()
    return 128 + caught[0] if caught else 0


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _access(stream: _Stream) -> DeltaAccess:
    """Who may read the pieces of answers.

    Raises:
        EnvironmentRefusedError: The token file cannot be used.
        UsageError: Its token is too short.
    """
    from minions.interfaces.http.token_file import read_token_file
    from minions.interfaces.worker.delta_streams import DeltaStreams
    from minions.interfaces.worker.health import DeltaAccess

    return DeltaAccess(DeltaStreams(), read_token_file(stream.token_file), SystemClock().now)


def _worker(context: CommandContext, options: _WorkerOptions, access: DeltaAccess | None) -> Worker:
    from minions.app.runs.schedule_store import ScheduleStore
    from minions.app.wiring.databases import make_dispatch
    from minions.app.wiring.webhook import waiting_webhook
    from minions.interfaces.http.metrics_page import with_counts
    from minions.interfaces.server.live.waiting_notices import WaitingNotices
    from minions.interfaces.worker.worker import WorkerRuntime

    log, plan, settings = process_log(context), options.plan, context.settings
    engine = make_dispatch(settings, log)
    parts = context.runtime()
    services, is_gone = parts.services, parts.services.is_worker_gone
    parts = parts.evolve(is_worker_gone=lambda name: is_gone(name) or engine.is_worker_gone(name))
    if access is not None:  # who has its token reads metrics
        parts = with_counts(parts)
    folder = None if options.any_folder else str(Path.cwd())
    runtime = WorkerRuntime(
        settings,
        parts,
        name=plan.name,
        folder=folder,
        takes_other_versions=options.any_version,
    )
    webhook = waiting_webhook(
        settings,
        clock=services.clock,
        sleep=services.sleep,
        log=log,
        secrets=services.secrets,
    )
    hooks = () if webhook is None else (webhook,)
    marks = state_beside(services.journal)
    notices = WaitingNotices(hooks, services.journal, marks, log, page=None, clock=services.clock)
    schedules = ScheduleStore(state_beside(services.journal))
    deltas = None if access is None else access.streams
    return Worker(
        runtime,
        engine,
        plan,
        log,
        notices=notices,
        schedules=schedules,
        deltas=deltas,
        retain_s=settings.journal.retain_s,
        patience_s=options.patience_s,
        state=marks,
    )


def _announce(context: CommandContext, plan: WorkerPlan, port: int | None, out: TextIO) -> None:
    if context.settings.json:
        document: dict[str, JsonValue] = {"worker": plan.name, "queues": list(plan.queues)}
        say(json_text({**document, "slots": plan.slots, "health_port": port}), out)
        return
    health = f" · health on port {port}" if port is not None else ""
    say(f"worker {plan.name} · queues {', '.join(plan.queues)} · {plan.slots} runs{health}", out)


@contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM stops the worker, the second ends the process at once.

    Gives the list in which a caught signal stands afterwards.
    """
    caught: list[int] = []
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        tell(f"\n{signal.Signals(number).name}: stopping; runs have {worker.plan.drain_s:g} s.")
        late = threading.Timer(worker.plan.drain_s + _BEYOND_DRAIN_S, os._exit, [128 + number])
        late.daemon = True
        late.start()
        loop.call_soon_threadsafe(worker.stop)

    # Not the loop's handlers: they wait for a loop that code of a step may block.
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield caught
    finally:
        if not caught:
            for number, handler in before.items():
                signal.signal(number, handler)


# --- `minions worker list` and `worker queues` ---------------------------------------------------


T = TypeVar("T")


_QUEUED: Final = "queued"
_MOST_DEAD: Final = 500
"""Runs that were given up which one command lists, or queues again."""
_LONGEST_PERIOD_S: Final = 7 * 86_400.0
_MOST: Final = 1_000_000
"""Runs at a time, or in a time; the engine stores no larger number."""
_LONGEST_AGE_S: Final = 365 * 86_400.0


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _SharedDatabaseOption(OutputOptions):
    """The database that workers share."""

    db: str | None = option("--db", metavar="URL", help="postgresql://USER@HOST/DATABASE.")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _DatabaseOption(OutputOptions):
    """Any database that workers use."""

    db: str | None = option(
        "--db", metavar="PLACE", help="PATH of an SQLite file, or postgresql://USER@HOST/DATABASE."
    )


@click.group("queues")
def queues_command() -> None:
    """List queues with their limits, and limit them."""
    _tell_newer_name("queues", "worker queues")


def _tell_newer_name(older: str, newer: str) -> None:
    context = click.get_current_context()
    if context.parent is not None and context.parent.parent is None:
        tell(f"deprecated: `minions {older} …` is `minions {newer} …`, and stays until 0.5.")


@queues_command.command("list")
@takes_options(_SharedDatabaseOption)
def list_(options: _SharedDatabaseOption) -> int:
    """List the queues: their limits, how many runs wait and are executed, and what is paused."""
    context = command_context(options)
    found = asyncio.run(_with_engine(context, lambda engine: engine.queues()))
    pauses = list(asyncio.run(_with_state(context, queue_pauses)).values())
    if context.settings.json:
        queues = [_document(each) for each in found]
        say(json_text({"queues": queues, "paused": [each.to_json() for each in pauses]}))
        return 0
    rows = [
        (each.limits.name, *map(str, (each.waiting, each.delayed, each.taken)), _words(each.limits))
        for each in found
    ]
    counts = ("WAITING", "DELAYED", "EXECUTED")
    say_table(("QUEUE", *counts, "LIMITS"), rows, numbers=counts)
    for pause in pauses:
        say(pause.words)
    if not found:
        tell("There is no queue. The first run makes one: minions run RECIPE --detach --queue NAME")
    return 0


@queues_command.command("set")
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
@click.option(
    "--share-by",
    metavar="LABEL",
    help="Values of that label take turns: user, project, batch, recipe, schedule, or one that "
    "`run --detach --label` gives; none: the oldest run goes first.",
)
@click.option(
    "--per-key",
    type=click.IntRange(0, _MOST),
    metavar="NUMBER",
    help="Runs at a time of one value of that label; 0: unlimited.",
)
@click.option(
    "--key-rate",
    metavar="NUMBER/TIME",
    help="Runs of one value of that label that begin in a time; 0: unlimited.",
)
@click.option(
    "--age",
    metavar="TIME",
    help="A run that has waited for so long goes as if its priority was one lower; 0: never.",
)
@takes_options(_SharedDatabaseOption)
def set_(
    options: _SharedDatabaseOption,
    name: str,
    *,
    concurrency: int | None,
    per_worker: int | None,
    rate: str | None,
    share_by: str | None,
    per_key: int | None,
    key_rate: str | None,
    age: str | None,
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
        given["rate"] = _rate(rate, "--rate")
    if age is not None:
        given["age_s"] = age_s = None if age == "0" else option_seconds("--age", age)
        if age_s is not None and age_s > _LONGEST_AGE_S:
            raise UsageError(f"--age {age}: the time is 365 days at most, or 0: never.")
    shared: dict[str, object] = {}
    if per_key is not None:
        shared["per_key"] = per_key or None
    if key_rate is not None:
        shared["rate"] = _rate(key_rate, "--key-rate")
    if not (given or shared or share_by is not None):
        raise UsageError(
            "Say which limit: --concurrency, --per-worker, --rate, --share-by, --per-key, "
            "--key-rate or --age."
        )

    async def change(engine: DispatchEngine) -> QueueLimits:
        known = {each.limits.name: each.limits for each in await engine.queues()}
        before = known.get(name) or _new(name)
        limits = evolve(before, **given, shares=_shares(before, share_by, shared))  # type: ignore[arg-type]  # its own
        limits = limits.capped()
        await engine.set_queue(limits)
        return limits

    limits = asyncio.run(_with_engine(context, change))
    if context.settings.json:
        say(json_text(_document(QueueView(limits=limits))))
    else:
        say(f"{limits.name}  {_words(limits)}")
    return 0


@queues_command.command("pause")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--reason", metavar="TEXT", required=True, help="Why: workers and pages show it.")
@takes_options(_DatabaseOption)
def pause_command(options: _DatabaseOption, name: str | None, reason: str) -> int:
    """Let no worker take runs of the queue NAME, or of any queue, until it is resumed.

    What workers have taken is executed. They notice it within five seconds.
    """
    context = command_context(options)
    queue = ALL_QUEUES if name is None else _new(name).name
    pause = QueuePause(
        queue=queue, reason=required_text("--reason", reason)[:200], since=SystemClock().now()
    )

    async def put(state: StateStore) -> set[str]:
        await put_pause(state, pause)
        known = await worker_records(state)
        return {served for each in known if not is_worker_gone(each.name) for served in each.queues}

    served = asyncio.run(_with_state(context, put, is_known=False))
    say(json_text(pause.to_json()) if context.settings.json else pause.words)
    if name is not None and served and queue not in served:
        hint = did_you_mean(queue, sorted(served))
        tell(f"warning: no living worker serves the queue '{queue}'.{hint}")
    return 0


@queues_command.command("resume")
@click.argument("name", metavar="[NAME]", required=False)
@takes_options(_DatabaseOption)
def resume_queue_command(options: _DatabaseOption, name: str | None) -> int:
    """Let workers take runs of the queue NAME again; without NAME, end the pause of all queues."""
    context = command_context(options)
    queue = ALL_QUEUES if name is None else _new(name).name

    async def resume(state: StateStore) -> tuple[bool, Mapping[str, QueuePause]]:
        return await remove_pause(state, queue), await queue_pauses(state)

    was_paused, left = asyncio.run(_with_state(context, resume))
    if not was_paused:
        paused = "; ".join(each.words for each in left.values()) or "no queue is paused"
        what = "All queues are" if name is None else f"The queue '{queue}' is"
        raise UsageError(f"{what} not paused: {paused}.", code="queue-not-paused")
    say(
        json_text({"resumed": queue, "paused": [each.to_json() for each in left.values()]})
        if context.settings.json
        else "all queues are resumed"
        if name is None
        else f"{queue} is resumed"
    )
    for each in left.values():
        tell(f"still: {each.words}")
    return 0


async def _with_state(
    context: CommandContext, use: Callable[[StateStore], Awaitable[T]], *, is_known: bool = True
) -> T:
    """Use the values beside the journal.

    Args:
        is_known: Whether an SQLite file that does not exist is not made.
    """
    if context.settings.no_store:
        raise UsageError("Pauses are stored in a database: leave out --no-store.", code="no-store")
    settings = context.known_stores() if is_known else context.settings
    state = make_state(settings, context.folder_of("db"))
    try:
        return await use(state)
    finally:
        await state.aclose()


@queues_command.command("dead")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--reason", metavar="TEXT", help="Only those whose reason contains that text.")
@click.option("--again", is_flag=True, help="Queue them again, each where it was queued before.")
@takes_options(CommonOptions)
def dead_command(
    options: CommonOptions, runs: tuple[str, ...], reason: str | None, *, again: bool
) -> int:
    """List the runs that workers gave up, by reason; with --again, queue them once more.

    RUN selects some of them. What they did is kept, and is not done again.
    """
    context = command_context(options)
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        wanted = "" if reason is None else required_text("--reason", reason)
        return asyncio.run(_dead(context, runs, wanted, out, again=again))


async def _dead(
    context: CommandContext, runs: Sequence[str], reason: str, out: TextIO, *, again: bool
) -> int:
    journal = context.known_journal()
    try:
        wanted = RunFilter(statuses={RunState.FAILED}, text=GIVEN_UP)
        rows = await journal.runs(replace(wanted, run_ids=set(runs) or None), limit=_MOST_DEAD)
    finally:
        await journal.aclose()
    found = {
        row.run_id: (row, why)
        for row in rows
        if row.error_code == "given-up" and reason.casefold() in (why := _reason_of(row)).casefold()
    }
    if unknown := [each for each in runs if each not in found]:
        raise NotFoundError(
            f"No run that was given up is '{unknown[0]:.100}'. `minions worker queues dead` lists "
            f"them, the newest {_MOST_DEAD}.",
            code="not-given-up",
        )
    fates = {each: await _queue_again(context, each) for each in found} if again else {}
    if context.settings.json:
        say(json_text({"dead": [_dead_document(*each, fates) for each in found.values()]}), out)
    else:
        groups: dict[str, list[RunRow]] = {}
        for row, why in found.values():
            groups.setdefault(why, []).append(row)
        for why, members in groups.items():
            say(f"{len(members)}  {why}", out)
            for row in members:
                ended = "" if row.ended_at is None else f"{row.ended_at:%Y-%m-%d %H:%M}Z"
                fate = f"  {fates[row.run_id]}" if again else ""
                say(f"  {row.run_id}  {row.recipe}  {ended}{fate}", out)
        if not found:
            tell("No run was given up." if not reason else "No run was given up for that reason.")
        elif not again:
            tell(
                "Mend the reason, then queue them: minions worker queues dead --again [RUN] "
                "[--reason …]"
            )
    return 1 if any(fate != _QUEUED for fate in fates.values()) else 0


def _reason_of(row: RunRow) -> str:
    """Why the run was given up, equal for all that were given up for the same."""
    said = (row.error_message or "").removeprefix(GIVEN_UP).lstrip(": ")
    _, lacks, parts = said.partition("no worker could execute it, for each lacks: ")
    if not lacks:
        return said.partition(".")[0]
    parts = parts.partition(". What was")[0]
    if parts[:1].isupper():  # a sentence, for which workers refused the run
        return parts
    return f"no worker had {'all of: ' if '; ' in parts else ''}{parts}"


def _dead_document(row: RunRow, why: str, fates: Mapping[str, str]) -> JsonValue:
    document: dict[str, JsonValue] = {
        "run_id": row.run_id,
        "session_id": row.session_id,
        "recipe": row.recipe,
        "ended_at": None if row.ended_at is None else row.ended_at.isoformat(),
        "reason": why,
    }
    return {**document, "again": fates[row.run_id]} if fates else document


async def _queue_again(context: CommandContext, run_id: str) -> str:
    """`queued`, or why the run could not be queued again."""
    from minions.contracts.journal.start_note import QueuePlace
    from minions.interfaces.cli.queue_options import open_queue
    from minions.interfaces.cli.resume_plan import RecordedRunOpener

    try:
        async with RecordedRunOpener(context, run_id, model=None) as opened:
            place = evolve(opened.place or QueuePlace(), not_before=None, pauses=0)
            opened.queue_at(place)
            recipe = opened.own_recipe()
            run = opened.executor(recipe).prepare_retry(
                opened.recorded, recipe=recipe, note=opened.note()
            )
            async with open_queue(context, opened.runtime.extensions) as queue:
                queued = await queue.put(run, place)
        if queued.problem is not None:
            tell(f"warning: {queued.problem} The run is recorded; a worker finds it there.")
    except MinionsError as error:
        return error.message
    return _QUEUED


@queues_command.command("remove")
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
        f"The queue '{name}' has runs that have not ended: `minions worker queues list` shows how "
        "many. Let a worker execute them, or cancel them.",
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


def _shares(
    before: QueueLimits, share_by: str | None, changes: Mapping[str, object]
) -> FairShares | None:
    """Whose runs take turns, as options change it.

    Raises:
        UsageError: The label has no fit name, or shares are limited of a queue that has none.
    """
    known = before.shares
    if share_by == "none" or (share_by is None and known is None):
        if changes:
            raise UsageError(
                "--per-key and --key-rate limit the values of a label: say which with --share-by."
            )
        return None
    try:
        shares = known if share_by is None or known is None else evolve(known, by=share_by)
        shares = shares or FairShares(by=share_by or "")
    except ValueError as error:
        raise UsageError(
            f"--share-by {share_by:.63}: expected user, project, batch, recipe, schedule, none, or "
            "the name of a label: 1 to 32 lower-case letters, digits, `-` or `_`.",
            code="bad-label",
        ) from error
    return evolve(shares, **changes)  # type: ignore[arg-type]  # its own


def _rate(text: str, option_name: str) -> RateLimit | None:
    """The rate as it was typed; None: unlimited.

    Raises:
        UsageError: It is none.
    """
    if text == "0":
        return None
    number, slash, time = text.partition("/")
    if not (slash and number.isascii() and number.isdecimal() and number.strip("0")):
        raise UsageError(f"{option_name} {text}: expected NUMBER/TIME, such as 10/60s, or 0.")
    if len(number) > len(str(_MOST)) or int(number) > _MOST:
        raise UsageError(f"{option_name} {text}: at most {_MOST} runs in a time, or 0: unlimited.")
    if (period_s := option_seconds(option_name, time)) > _LONGEST_PERIOD_S:
        raise UsageError(
            f"{option_name} {text}: the time is a week at most; ended runs are kept as long."
        )
    return RateLimit(starts=int(number), period_s=period_s)


def _words(limits: QueueLimits) -> str:
    at_once = "unlimited" if limits.concurrency is None else f"at most {limits.concurrency}"
    words = f"{at_once}, {limits.per_worker} at each worker{_rate_words(limits.rate)}"
    if (shares := limits.shares) is not None:
        quota = "" if shares.per_key is None else f", at most {shares.per_key}"
        words += f"  by {shares.by}{quota}{_rate_words(shares.rate)}"
    return words + ("" if limits.age_s is None else f"  ages by {limits.age_s:g} s")


def _rate_words(rate: RateLimit | None) -> str:
    return "" if rate is None else f", {rate.starts} per {rate.period_s:g} s"


def _document(queue: QueueView) -> JsonValue:
    limits = queue.limits
    shares = limits.shares
    return {
        "name": limits.name,
        "concurrency": limits.concurrency,
        "per_worker": limits.per_worker,
        "rate": _rate_document(limits.rate),
        "shares": None
        if shares is None
        else {"by": shares.by, "per_key": shares.per_key, "rate": _rate_document(shares.rate)},
        "age_s": limits.age_s,
        "waiting": queue.waiting,
        "delayed": queue.delayed,
        "taken": queue.taken,
    }


def _rate_document(rate: RateLimit | None) -> JsonValue:
    return None if rate is None else {"starts": rate.starts, "period_s": rate.period_s}


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
def workers_command() -> None:
    """List the workers of a database."""
    _tell_newer_name("workers", "worker")


@workers_command.command("list")
@takes_options(_SharedDatabaseOption)
def list_workers(options: _SharedDatabaseOption) -> int:
    """List the workers that were heard of within a day, and the runs that none can execute."""
    context = command_context(options)
    found = asyncio.run(_workers(context))
    if context.settings.json:
        workers = [_worker_document(each) for each in found.workers]
        document: dict[str, JsonValue] = {
            "left": [each.to_json() for each in found.left.runs],
            "left_more": found.left.has_more,
            "unserved": dict(found.unserved),
        }
        paused = [each.to_json() for each in found.pauses]
        say(json_text({"workers": workers, **document, "paused": paused}))
        return 0
    rows = [
        (
            each.name,
            "alive" if each.is_alive else "dead",
            "" if each.seen_at is None else f"{each.taken} of {each.slots}",
            ", ".join(each.queues),
            "" if each.seen_at is None else f"{each.seen_at:%Y-%m-%d %H:%M:%S}Z",
        )
        for each in found.workers
    ]
    say_table(("WORKER", "STATE", "RUNS", "QUEUES", "SEEN"), rows)
    for each in found.workers:
        if each.is_alive and each.problem is not None:
            say(f"{each.name} executes nothing: it lacks {each.problem}")
    for pause in found.pauses:
        say(pause.words)
    groups: dict[tuple[str, tuple[str, ...]], list[WaitingRun]] = {}
    for run in found.left.runs:
        groups.setdefault((run.queue, run.parts), []).append(run)
    for (queue, parts), runs in groups.items():
        count = "1 run waits" if len(runs) == 1 else f"{len(runs)} runs wait"
        say(f"{count} in {queue}: {missing_words(parts)}  ({runs[0].run_id})")
    if found.left.has_more:
        say("more runs wait than were looked at; these wait longest")
    for queue, number in found.unserved.items():
        count = "1 run waits" if number == 1 else f"{number} runs wait"
        say(f"{count} in {queue}, which has no living worker")
    if not found.workers:
        tell("There is no worker. Start one: minions worker --db URL --queues NAME")
    return 0


@frozen(kw_only=True)
class _WorkerList:
    workers: Sequence[ListedWorker]
    left: LeftRunsFound
    unserved: Mapping[str, int]
    pauses: Sequence[QueuePause]


def _worker_document(worker: ListedWorker) -> JsonValue:
    started, seen = worker.started_at, worker.seen_at
    return {
        "name": worker.name,
        "is_alive": worker.is_alive,
        "queues": list(worker.queues),
        "slots": worker.slots,
        "taken": worker.taken,
        "started_at": None if started is None else started.isoformat(),
        "seen_at": None if seen is None else seen.isoformat(),
        "stream_url": worker.stream_url,
        "version": worker.version or None,
        "lacks": list(worker.lacks),
        "problem": worker.problem,
    }


async def _workers(context: CommandContext) -> _WorkerList:
    journal = context.known_journal()
    state = state_beside(journal)
    engine = shared_dispatch(context.settings, make_log(context.settings, log_line))
    try:
        work = WorkLists(journal, state, engine, is_worker_gone)
        return _WorkerList(
            workers=await work.workers(),
            left=await work.left(),
            unserved=await work.unserved(),
            pauses=list((await queue_pauses(state)).values()),
        )
    finally:
        if engine is not None:
            await engine.aclose()
        await state.aclose()
        await journal.aclose()


worker_command.add_command(list_workers)
worker_command.add_command(queues_command)
