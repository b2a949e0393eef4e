"""`minions schedules`: recipes that workers run at their due times."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

import click
from attrs import evolve, field, frozen

from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.logs import make_log
from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.journal.start_note import DEFAULT_QUEUE, LOWEST_PRIORITY, QueuePlace
from minions.contracts.runtime import SystemClock
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.interfaces.cli.console.console import json_text, log_line, say, say_table, tell
from minions.interfaces.cli.options import (
    CacheOption,
    CommandContext,
    CommonOptions,
    OutputOptions,
    command_context,
    naming_the_journal,
    option,
    takes_options,
)
from minions.interfaces.cli.queue_options import (
    PRIORITY,
    hindrance_lines,
    queue_place,
    run_hindrance,
    tell_worker,
)
from minions.interfaces.cli.recipe_argument import named_recipe, stored_inputs
from minions.interfaces.cli.run_follower import note_of
from minions.recipe.recipe_files import is_file

if TYPE_CHECKING:
    from minions.app.runs.schedule_store import ListedSchedule, Schedule, ScheduleStore
    from minions.app.runs.work_lists import RunHindrance
    from minions.app.wiring.configured_runtime import Runtime
    from minions.recipe.model import AgentRecipe


T = TypeVar("T")

_MOST_LOOKED: Final = 10
"""Runs of a schedule that one command looks at, those that were started first."""
_NAME: Final = "1 to 100 letters, digits, `-`, `_` or `.`, and begins with no `-`"


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _DatabaseOption(OutputOptions):
    """Where the schedules are."""

    db: str | None = option(
        "--db", metavar="PLACE", help="PATH of an SQLite file, or postgresql://USER@HOST/DATABASE."
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _AddOptions(CacheOption, CommonOptions):
    """What runs when it is due."""

    pairs: tuple[str, ...] = option(
        "-p", "--param", multiple=True, metavar="NAME=VALUE", help="An input."
    )
    params: str | None = option(
        "--params", metavar="FILE", help="Inputs from a YAML or JSON file; -p wins."
    )
    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name; wins over the recipe's."
    )
    max_cost_usd: float | None = option(
        "--max-cost", type=float, metavar="USD", help="Most each run may cost: 0.50."
    )
    name: str | None = option(
        "--name", metavar="NAME", help="The name of the schedule; else the recipe's id."
    )
    queue: str | None = option(
        "--queue", metavar="NAME", help="The queue of its runs; else `default`."
    )
    priority: int | None = option(
        "--priority",
        type=PRIORITY,
        metavar="NUMBER",
        help=f"0, which goes first, to {LOWEST_PRIORITY}.",
    )
    recipe: str = ""
    place: QueuePlace = field(factory=QueuePlace)


@click.group("schedules")
def schedules_command() -> None:
    """Let workers run recipes at the times of their `schedule`."""


@schedules_command.command("add")
@click.argument("recipe")
@takes_options(_AddOptions)
def add(options: _AddOptions, recipe: str) -> int:
    """Store the recipe with its schedule and inputs; workers of the database run it when it is due.

    The recipe counts as it is now. The same command after an edit replaces it.
    """
    context = command_context(options)
    place = queue_place(context, options.queue, options.priority)
    options = evolve(options, recipe=recipe, place=place)
    out = sys.stdout
    # What extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(_add(context, options, out))


@schedules_command.command("list")
@takes_options(_DatabaseOption)
def list_(options: _DatabaseOption) -> int:
    """List the schedules: when each is due next, and what became of its last run."""
    context = command_context(options)

    async def look(store: ScheduleStore) -> list[ListedSchedule]:
        journal = context.known_journal()
        try:
            return [await store.listed(journal, name) for name in await store.names()]
        finally:
            await journal.aclose()

    found, now = asyncio.run(_with_store(context, look)), SystemClock().now()
    if context.settings.json:
        say(json_text({"schedules": [_listed_document(each, now) for each in found]}))
        return 0
    say_table(_HEADS, [_row(each, now) for each in found])
    if not found:
        tell("There is no schedule. Add one: minions schedules add RECIPE")
    return 0


@schedules_command.command("show")
@click.argument("name")
@takes_options(_DatabaseOption)
def show(options: _DatabaseOption, name: str) -> int:
    """Show the schedule NAME: the newest 100 times that were left out and why, and of its runs that
    are queued who executes them, or what no worker has.
    """
    from minions.engine.services.run_services import is_worker_gone
    from minions.engine.views.run_states import executed_runs

    context = command_context(options)

    async def look(store: ScheduleStore) -> tuple[ListedSchedule, list[RunHindrance]]:
        journal = context.known_journal()
        try:
            if name not in await store.names():
                await store.get(name)  # which says that there is none
            listed = await store.listed(journal, name)
            open_runs = listed.progress.open_runs[:_MOST_LOOKED]
            if listed.last_run is not None:
                open_runs = tuple(dict.fromkeys((*open_runs, listed.last_run.run_id)))
            rows = await journal.runs(
                RunFilter(
                    run_ids=set(open_runs),
                    statuses={RunState.QUEUED, RunState.INTERRUPTED},
                    running=await executed_runs(journal, is_worker_gone),
                )
            )
            queued = [await run_hindrance(context, journal, row.run_id) for row in reversed(rows)]
            return listed, queued
        finally:
            await journal.aclose()

    (found, queued), now = asyncio.run(_with_store(context, look)), SystemClock().now()
    if context.settings.json:
        document = _listed_document(found, now)
        say(json_text({**document, "queued": [each.to_json() for each in queued]}))
        return 0
    lines = list[str]()
    for each in found.progress.skipped:
        span = "" if each.after is None else f", and all after {each.after:%Y-%m-%d %H:%M}Z"
        lines.append(f"  left out {each.due:%Y-%m-%d %H:%M}Z{span}  {each.cause}: {each.reason}")
    for waiting in queued:
        run_id = "" if waiting.run is None else waiting.run.run_id
        lines += (f"  {run_id}: {line}" for line in hindrance_lines(waiting))
    say_table(_HEADS, [_row(found, now)], details=[lines])
    for waiting in queued[:1]:  # all began in one place, with the same extensions
        tell_worker(context, waiting)
    return 0


@schedules_command.command("pause")
@click.argument("name")
@takes_options(_DatabaseOption)
def pause(options: _DatabaseOption, name: str) -> int:
    """Start no more runs of NAME until it is resumed; times meanwhile are left out."""
    return _set_paused(name, command_context(options), is_paused=True)


@schedules_command.command("resume")
@click.argument("name")
@takes_options(_DatabaseOption)
def resume(options: _DatabaseOption, name: str) -> int:
    """Start runs of NAME again, from its next due time on."""
    return _set_paused(name, command_context(options), is_paused=False)


@schedules_command.command("remove")
@click.argument("name")
@takes_options(_DatabaseOption)
def remove(options: _DatabaseOption, name: str) -> int:
    """Remove the schedule NAME; its runs stay, also those that are queued."""
    context = command_context(options)
    asyncio.run(_with_store(context, lambda store: store.remove(name)))
    return _report(context, {"name": name, "removed": True}, f"{name}  removed")


# --- add ------------------------------------------------------------------------------------------


async def _add(context: CommandContext, wanted: _AddOptions, out: TextIO) -> int:
    async with context.runtime() as runtime:
        recipe, deployment = await _recipe_of(context, runtime, wanted.recipe)
        schedules = _schedules(context, runtime, wanted, recipe, deployment)
        clock = runtime.services.clock
        store = _store(context)
        try:
            missing = await _missing(context, runtime, schedules[0])
            for each in schedules:
                is_new = await store.put(each)
                word = "added" if is_new else "replaced"
                document = {"name": each.name, "status": word, **_document(each, clock.now())}
                _report(
                    context,
                    {**document, "missing": list(missing)},
                    f"{each.name}  {word}  {_times(each, clock.now())}",
                    out,
                )
        finally:
            await store.aclose()
    database, code = context.flags_again
    if missing:
        parts = "; ".join(missing)
        tell(f"warning: no living worker can carry it out. What is missing: {parts}.")
    tell(f"workers start its runs: minions worker{_queue(wanted.place)}{database}{code}")
    return 0


async def _missing(
    context: CommandContext, runtime: Runtime, schedule: Schedule
) -> tuple[str, ...]:
    """What no living worker has of what the schedule needs, in words; empty: nothing is known to
    be missing.
    """
    from minions.app.runs.left_runs import living_workers, missing_parts
    from minions.app.runs.run_needs import needs_of
    from minions.app.wiring.databases import make_state, shared_dispatch
    from minions.contracts.journal.start_note import StartNote
    from minions.engine.services.run_services import is_worker_gone

    recipe = schedule.recipe(runtime.catalog)
    needs = needs_of(recipe, StartNote.of(schedule.note).cwd, runtime.extensions)
    state = make_state(context.settings, context.folder_of("db"))
    engine, living = shared_dispatch(context.settings, make_log(context.settings, log_line)), None
    try:
        if engine is not None:
            living = await living_workers(engine)
        return await missing_parts(state, is_worker_gone, living, schedule.place.name, needs)
    except EnvironmentRefusedError as error:
        tell(f"warning: whether a worker can carry it out is not known. {error.message}")
        return ()
    finally:
        await state.aclose()
        if engine is not None:
            await engine.aclose()


def _queue(place: QueuePlace) -> str:
    return "" if place.name == DEFAULT_QUEUE else f" --queues {shell_word(place.name)}"


async def _recipe_of(
    context: CommandContext, runtime: Runtime, name: str
) -> tuple[AgentRecipe, str | None]:
    """The recipe of that name, and the deployment that says which version runs get; None: none.

    Raises:
        NotFoundError: There is no such recipe, or deployment.
        UsageError: One version of a deployment is named: its file is the same for all time.
    """
    from minions.app.runs.deployments import DeploymentStore, split_name
    from minions.app.wiring.databases import state_beside

    named = None if "@" not in name or is_file(Path(name)) else split_name(name)
    if named is None:
        return named_recipe(name, context, runtime), None
    state = state_beside(runtime.services.journal)
    try:
        store = DeploymentStore(state)
        deployment = await store.get(named[0])
        if named[1] is not None:
            raise UsageError(
                f"A schedule runs the version that a deployment gives: {named[0]}@live.",
                code="bad-name",
            )
        return store.recipe(deployment, deployment.live, runtime.catalog), deployment.name
    finally:
        await state.aclose()


def _schedules(
    context: CommandContext,
    runtime: Runtime,
    options: _AddOptions,
    recipe: AgentRecipe,
    deployment: str | None,
) -> Sequence[Schedule]:
    """The schedules of the recipe, checked as a run is.

    Raises:
        UsageError: The recipe has no schedule, or an input is wrong.
        RecipeError: The recipe is wrong.
        EnvironmentRefusedError: There is no model.
    """
    from minions.app.runs.schedule_store import Schedule

    if not recipe.schedules or recipe.document is None:
        raise UsageError(
            f"The recipe '{recipe.id}' has no `schedule`. Write when it is due: "
            '`schedule: "0 8 * * 1-5"`.',
            code="no-schedule",
        )
    name = recipe.id if options.name is None else options.name
    _check_name(name)
    choice = ModelChoice(override=options.model, asked_as=options.recipe)
    executor, now = runtime.executor(recipe, choice), runtime.services.clock.now()
    found: list[Schedule] = []
    for number, spec in enumerate(recipe.schedules, start=1):
        inputs = stored_inputs(recipe, options.pairs, context, before=spec.inputs)
        executor.prepare(recipe, inputs)  # what it refuses now would be refused at each time
        own_name = name if number == 1 else f"{name}-{number}"
        schedule = Schedule.of(own_name, recipe, spec, now)
        note = note_of(context, options.model)
        schedule = evolve(schedule, inputs=inputs, note=note, deployment=deployment)
        found.append(evolve(schedule, place=options.place))
    return found


def _check_name(name: str) -> None:
    is_fit = (
        0 < len(name) <= 100
        and not name.startswith("-")
        and all(each.isalnum() or each in "-_." for each in name)
    )
    if not (is_fit and name.isascii()):
        raise UsageError(f"--name {name:.100}: the name of a schedule has {_NAME}.")


# --- what is shown --------------------------------------------------------------------------------


_HEADS: Final = ("SCHEDULE", "RECIPE", "TIMES", "NEXT", "LAST RUN", "NOTES")


def _row(each: ListedSchedule, now: datetime) -> tuple[str, ...]:
    """The cells of `_HEADS`."""
    if each.schedule is None:
        return (each.name, "", "", "", "", f"damaged: {each.problem}")
    run, progress, spec = each.last_run, each.progress, each.schedule.spec
    notes = [f"{len(progress.waiting)} wait"] if progress.waiting else []
    count = sum(progress.skip_counts.values())
    notes += [
        f"left out {count}, last {skip.due:%Y-%m-%d %H:%M}Z: {skip.reason}"
        for skip in progress.skipped[-1:]
    ]
    if each.problem is not None:
        notes.append(f"not carried out: {each.problem}")
    last = "" if run is None else f"{run.run_id} {run.status}"
    times = (f"{spec.cron} {spec.timezone}", _next_time(each.schedule, now))
    return (each.name, each.schedule.recipe_id, *times, last, "; ".join(notes))


def _listed_document(each: ListedSchedule, now: datetime) -> dict[str, JsonValue]:
    """What `--json` prints of one."""
    if each.schedule is None:
        return {"name": each.name, "problem": each.problem}
    run, progress = each.last_run, each.progress
    return {
        "name": each.name,
        **_document(each.schedule, now),
        "last_run": None if run is None else {"run_id": run.run_id, "status": run.status},
        "waiting": [at.isoformat() for at in progress.waiting],
        "skipped": [skip.to_json() for skip in progress.skipped],
        "skip_counts": {cause.value: n for cause, n in progress.skip_counts.items()},
        "problem": each.problem,
    }


def _times(schedule: Schedule, now: datetime) -> str:
    spec = schedule.spec
    return f"{schedule.recipe_id}  {spec.cron} {spec.timezone}  next {_next_time(schedule, now)}"


def _next_time(schedule: Schedule, now: datetime) -> str:
    from minions.recipe.schedules import next_due

    at = next_due(schedule.spec, now)
    if schedule.is_paused:
        return "paused"
    return "never due" if at is None else f"{at:%Y-%m-%d %H:%M}Z"


def _document(schedule: Schedule, now: datetime) -> dict[str, JsonValue]:
    from minions.recipe.schedules import next_due

    spec = schedule.spec
    at = None if schedule.is_paused else next_due(spec, now)
    return {
        "recipe": schedule.recipe_id,
        "cron": spec.cron,
        "timezone": spec.timezone,
        "missed": spec.missed.value,
        "overlap": spec.overlap.value,
        "queue": schedule.place.name,
        "paused": schedule.is_paused,
        "next": None if at is None else at.isoformat(),
    }


def _set_paused(name: str, context: CommandContext, *, is_paused: bool) -> int:
    now = SystemClock().now()
    schedule = asyncio.run(
        _with_store(context, lambda store: store.set_paused(name, is_paused=is_paused, now=now))
    )
    document: Mapping[str, JsonValue] = {"name": name, **_document(schedule, now)}
    return _report(context, document, f"{name}  {_times(schedule, now)}")


def _report(
    context: CommandContext,
    document: Mapping[str, JsonValue],
    words: str,
    out: TextIO | None = None,
) -> int:
    say(json_text(dict(document)) if context.settings.json else words, out or sys.stdout)
    return 0


async def _with_store(context: CommandContext, use: Callable[[ScheduleStore], Awaitable[T]]) -> T:
    store = _store(context, is_known=True)
    try:
        with naming_the_journal(context):
            return await use(store)
    finally:
        await store.aclose()


def _store(context: CommandContext, *, is_known: bool = False) -> ScheduleStore:
    """The schedules of the command's database.

    Args:
        is_known: Whether an SQLite file that is missing stays so.
    Raises:
        UsageError: Nothing is stored.
    """
    from minions.app.runs.schedule_store import ScheduleStore
    from minions.app.wiring.databases import make_state

    if context.settings.no_store:
        raise UsageError(
            "Schedules are stored in a database: leave out --no-store.", code="no-store"
        )
    settings = context.known_stores() if is_known else context.settings
    return ScheduleStore(make_state(settings, context.folder_of("db")))
