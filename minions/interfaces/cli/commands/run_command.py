"""`minions run`: runs a recipe and prints its result."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from attrs import frozen
from msgspec import Struct

from minions.app.runs.deciders import POLICIES, decider_for
from minions.app.settings.settings import bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime
from minions.app.wiring.databases import has_database
from minions.app.wiring.patient_runtime import patient_runtime
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.start_note import QueuePlace
from minions.data.errors import MinionsError, RecipeError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.data.patterns import match_beside_loop
from minions.engine.compile.selection import RunPart
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.interfaces.cli.console.console import tell
from minions.interfaces.cli.options import (
    AllProjectsOption,
    CacheOption,
    CassetteOptions,
    CommandContext,
    CommonOptions,
    EventsOption,
    PatienceOptions,
    ReportOptions,
    StrictOption,
    UserOption,
    command_context,
    given_words,
    naming_the_journal,
    option,
    takes_options,
)
from minions.interfaces.cli.queue_options import QueueOptions, open_queue, report_queued
from minions.interfaces.cli.recipe_argument import (
    given_inputs,
    named_recipe,
    recipe_path,
    registered_recipe,
)
from minions.interfaces.cli.run_follower import (
    RunReports,
    Signals,
    follow,
    note_of,
    refuse_two_outputs,
)
from minions.recipe.inputs import no_text_input, text_input
from minions.recipe.model import AgentRecipe
from minions.recipe.recipe_files import is_file, recipe_id_of

if TYPE_CHECKING:
    from minions.engine.run.pins import Pins


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _FollowedOptions(CassetteOptions, EventsOption, ReportOptions):
    """How the run is executed and followed here; a worker decides for itself."""

    approve: str | None = option(
        "--approve",
        type=click.Choice(POLICIES),
        help="Who approves calls that need approval. At a terminal ask, elsewhere deny.",
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Show what would be done; nothing is called."
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class RunOptions(
    AllProjectsOption,
    _FollowedOptions,
    QueueOptions,
    UserOption,
    StrictOption,
    PatienceOptions,
    CacheOption,
    CommonOptions,
):
    """What is run, with which limits, and in which session."""

    pairs: tuple[str, ...] = option(
        "-p", "--param", multiple=True, metavar="NAME=VALUE", help="An input."
    )
    params: str | None = option(
        "--params", metavar="FILE", help="Inputs from a YAML or JSON file; -p wins."
    )
    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name; wins over the recipe's."
    )
    max_parallel: int | None = option(
        "--max-parallel", type=click.IntRange(min=1), help="Steps at a time."
    )
    timeout: str | None = option(
        "--timeout", metavar="TIME", help="Most time for the run: 90, 90s, 10m."
    )
    max_cost_usd: float | None = option(
        "--max-cost", type=float, metavar="USD", help="Most the run may cost: 0.50."
    )
    first: str | None = option(
        "--from", metavar="STEP", help="Only this step and what depends on it."
    )
    until: str | None = option("--until", metavar="STEP", help="Only this step and what it needs.")
    only: str | None = option("--only", metavar="STEP", help="Only this step.")
    pin: str | None = option(
        "--pin",
        metavar="RUN",
        help="The run that the outputs come from which these steps need; else the newest that has "
        "all.",
    )
    session: str | None = option(
        "--session",
        metavar="NAME",
        help="Run in this session: an id, a unique start of ses_…, or a name. New names make new "
        "ones.",
    )
    continues: bool = option(
        "-c", "--continue", is_flag=True, help="Run in the project's last session."
    )

    def part(self) -> RunPart | None:
        """The steps to run; None: all.

        Raises:
            UsageError: A run to pin is given for a whole run.
        """
        if (self.first, self.until, self.only) != (None, None, None):
            return RunPart(first=self.first, until=self.until, only=self.only)
        if self.pin is not None:
            raise UsageError("--pin goes with --from, --until or --only: a whole run pins nothing.")
        return None


@click.command("run")
@click.argument("recipe")
@takes_options(RunOptions)
def run_command(options: RunOptions, recipe: str) -> int:
    """Run RECIPE: a path, a registered name, an id found under ./recipes, or - for standard input.

    A value @FILE is the text of that file, @- of standard input, and @@... is @... itself.

    The result goes to standard output, everything else to standard error.
    """
    out = sys.stdout
    # What tools and extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(run_recipe(recipe, None, options, out))


async def run_recipe(name: str, text: str | None, options: RunOptions, out: TextIO) -> int:
    """Run a recipe with the options of `minions run`; its exit code.

    Args:
        text: Given to the input that takes a text, and then `name` is the name of an agent;
            None: the recipe is run with its inputs alone.
        out: Where the result goes.
    """
    context = command_context(options)
    wanted = _read_request(name, text, options, context, out)
    by = wanted.options.deadline(context.settings)
    here_by = by if wanted.place is None else None
    with Signals() as signals:
        async with (
            context.runtime() as unlimited,
            patient_runtime(unlimited, here_by, tell) as opened,
        ):
            runtime = _without_file(context, opened)
            recipe, noted = await _recipe(context, runtime, wanted)
            decider = decider_for(context.settings.approve, tell)
            choice = ModelChoice(override=wanted.options.model, asked_as=wanted.recipe)
            executor = runtime.evolve(decider=decider).executor(recipe, choice)
            pins = await _pins(executor, recipe, wanted, context)
            before = pins.inputs if pins else None
            inputs = await match_beside_loop(
                lambda: given_inputs(recipe, _pairs(recipe, wanted), context, before=before)
            )
            part = pins.part if pins else None
            if context.settings.dry_run:
                from minions.interfaces.cli.console.dry_run_table import show_plan

                plan = executor.plan(recipe, inputs, part=part)
                show_plan(plan, recipe.id, out, json=context.settings.json)
                return 0
            project = None if wanted.options.of_all else context.project
            session = await _session(wanted, runtime.services.journal, project)
            run = await match_beside_loop(
                lambda: executor.prepare(
                    recipe,
                    inputs,
                    session_id=session,
                    note=note_of(context, wanted.options.model, recipe, by) | noted,
                    part=part,
                    user=wanted.options.user,
                )
            )
            for line in (*run.preview(), *(_origin(pins, inputs) if pins else ())):
                tell(line)
            if wanted.place is not None:
                async with open_queue(context, runtime.extensions) as queue:
                    return report_queued(await queue.put(run, wanted.place), context, out)
            return await follow(
                run, context, out, signals, reports=wanted.reports, cassettes=runtime.cassettes
            )


class _Run(Struct, frozen=True, kw_only=True):
    """What is run, and what becomes of it."""

    recipe: str
    """The name as it was typed."""
    text: str | None
    """The text that an agent is given; None: a recipe is run with its inputs."""
    options: RunOptions
    part: RunPart | None
    """The steps to run; None: all steps."""
    reports: RunReports
    """Where the end of the run is reported beside the console."""
    place: QueuePlace | None
    """Where the run is queued for a worker; None: it is executed here."""


def _read_request(
    name: str, text: str | None, options: RunOptions, context: CommandContext, out: TextIO
) -> _Run:
    """What the options ask for.

    Raises:
        UsageError: Two of them exclude each other.
        EnvironmentRefusedError: As `reports_of`.
    """
    refuse_two_outputs(context.settings)
    if options.continues and options.session is not None:
        raise UsageError("-c and --session exclude each other: the last session, or that one.")
    if options.detach:
        for flag, *_ in given_words(options, _FollowedOptions):
            raise UsageError(
                f"{flag} does not go with --detach: a worker executes the run, later and by its "
                "own configuration."
            )
    return _Run(
        recipe=name,
        text=text,
        options=options,
        part=options.part(),
        reports=reports_of(context, options, out),
        place=options.place(context),
    )


def reports_of(context: CommandContext, options: ReportOptions, out: TextIO) -> RunReports:
    """Where the run's end is reported; annotations go to standard error if `out` is for programs.

    Raises:
        UsageError: A file is given for a dry run, which has no end.
        EnvironmentRefusedError: The file cannot be written.
    """
    settings = context.settings
    if options.junit is not None and settings.dry_run:
        raise UsageError("--junit does not go with --dry-run: nothing is run.")
    reports = RunReports(
        junit=Path(options.junit) if options.junit is not None else None,
        annotations=options.annotation_stream(context, out),
    )
    reports.check()
    return reports


def _pairs(recipe: AgentRecipe, wanted: _Run) -> tuple[str, ...]:
    """The inputs as they were typed, and the text of an agent as its input.

    Raises:
        UsageError: The agent takes no text.
    """
    if wanted.text is None:
        return wanted.options.pairs
    taken_by = text_input(recipe)
    if taken_by is None:
        raise UsageError(no_text_input(recipe), code="no-request-input")
    return (*wanted.options.pairs, f"{taken_by}={wanted.text}")


async def _recipe(
    context: CommandContext, runtime: Runtime, wanted: _Run
) -> tuple[AgentRecipe, dict[str, JsonValue]]:
    """The named recipe, with the operator's limits, and what its run notes of a deployment; a
    refused one is recorded.
    """
    if wanted.text is not None:
        return bounded(runtime.agents.find(wanted.recipe), context.settings), {}
    is_registered = registered_recipe(wanted.recipe, runtime) is not None
    if "@" in wanted.recipe and not is_registered and not is_file(Path(wanted.recipe)):
        deployed = await _deployed_recipe(context, runtime, wanted)
        if deployed is not None:
            return bounded(deployed[0], context.settings), deployed[1]
    path = None if is_registered else recipe_path(wanted.recipe)
    try:
        return bounded(named_recipe(wanted.recipe, context, runtime), context.settings), {}
    except RecipeError as error:
        wanted.reports.tell_faults(error.faults)
        if path is not None:
            await _keep_rejection(context, path, error)
        raise


async def _deployed_recipe(
    context: CommandContext, runtime: Runtime, wanted: _Run
) -> tuple[AgentRecipe, dict[str, JsonValue]] | None:
    """The recipe of the deployment's version that is named, and what its run notes; None: the name
    is of another form.

    Raises:
        NotFoundError: There is no such deployment, or version.
    """
    from minions.app.runs.deployments import DeploymentStore, split_name
    from minions.app.wiring.databases import state_beside

    named = split_name(wanted.recipe)
    if named is None:
        return None
    services = runtime.services
    project = None if wanted.options.of_all else context.project
    session = await _session(wanted, services.journal, project)
    state = state_beside(services.journal)
    try:
        store = DeploymentStore(state)
        return await store.recipe_for(
            await store.get(named[0]),
            named[1],
            services.ids("run"),
            runtime.catalog,
            journal=services.journal,
            threads=services.beside,
            session=session,
        )
    finally:
        await state.aclose()


def _without_file(context: CommandContext, runtime: Runtime) -> Runtime:
    """The runtime; for a dry run with its journal in memory if there is no database yet."""
    settings = context.settings
    if not settings.dry_run or settings.no_store:
        return runtime
    if has_database(settings, context.folder_of("db")):
        return runtime
    from minions.engine.services.memory_journal import MemoryJournal

    return runtime.evolve(journal=MemoryJournal(runtime.services.clock))


async def _session(wanted: _Run, journal: Journal, project: str | None) -> str | None:
    """The id of the session to run in; None: a new one."""
    if not wanted.options.continues and wanted.options.session is None:
        return None
    from minions.interfaces.cli.session_choice import last_session, named_session

    if wanted.options.session is None:
        return await last_session(journal, project)
    return await named_session(journal, wanted.options.session, project)


async def _pins(
    executor: AgentExecutor, recipe: AgentRecipe, wanted: _Run, context: CommandContext
) -> Pins | None:
    """The pins from an earlier run; None: all steps run."""
    if wanted.part is None:
        return None
    with naming_the_journal(context):
        return await executor.pin(
            recipe, wanted.part, run=wanted.options.pin, asked_as=wanted.recipe
        )


def _origin(pins: Pins, inputs: Mapping[str, JsonValue]) -> Iterator[str]:
    """Lines on inputs that are the same as in the earlier run, and on steps edited since."""
    same = [name for name, value in pins.inputs.items() if dumps(inputs[name]) == dumps(value)]
    if same:
        yield f"  inputs (as in {pins.run_id}): {', '.join(same)}"
    for step_id in pins.edited:
        yield f"  warning: step '{step_id}' was edited since {pins.run_id}; its output is from then"


async def _keep_rejection(context: CommandContext, recipe: Path, error: RecipeError) -> None:
    """Record the run as rejected, unless nothing may be written.

    If the journal fails, one line says so; the error of the recipe is printed afterwards.
    """
    from minions.engine.run.rejection import record_rejected_run

    if context.settings.no_store or context.settings.dry_run:
        return
    note = {"cwd": str(Path.cwd()), "file": str(recipe)}
    try:
        async with contextlib.aclosing(context.journal()) as journal:
            services = Services(journal=journal, project=context.project)
            await record_rejected_run(services, recipe_id_of(recipe), error, note=note)
    except (MinionsError, OSError) as problem:
        tell(f"This run was not recorded: {problem}")
