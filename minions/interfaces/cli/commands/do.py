"""`minions do`: plans a task on a folder, asks, carries the plan out."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TextIO

import click

from minions.interfaces.cli.commands.run import reports_of
from minions.interfaces.cli.console.run_reports import RunReports
from minions.interfaces.cli.options import (
    CommandContext,
    cache_option,
    cassette_options,
    command_context,
    common_options,
    user_option,
)
from minions.interfaces.cli.plan_options import PlanTask, plan_options, settings_among
from minions.interfaces.cli.run_follower import Signals, follow, note_of, refuse_two_outputs
from minions.interfaces.deciders import POLICIES, decider_for
from minions.interfaces.wiring.models import ModelChoice

__all__ = ["command"]


@click.command("do")
@click.argument("task")
@plan_options
@click.option("-y", "--yes", is_flag=True, help="Carry plans out without asking.")
@click.option(
    "--max-replans",
    type=click.IntRange(0, 20),
    default=1,
    help="How often what is left is planned again after a failure; default 1.",
)
@click.option(
    "--max-repairs",
    type=click.IntRange(0, 20),
    default=2,
    help="How often a failed validation is repaired; default 2.",
)
@click.option(
    "--rollback-on-failure",
    is_flag=True,
    help="Take the files back to what they were when the plan fails.",
)
@click.option("--approve", type=click.Choice(POLICIES), help="Who approves calls of tools.")
@click.option("--junit", metavar="FILE", help="Write the steps as JUnit XML, however it ends.")
@click.option(
    "--annotations/--no-annotations",
    default=None,
    help="Print failures as annotations of a GitHub workflow. In one of them it is done anyway.",
)
@click.option("--events", is_flag=True, help="Print one JSON event per line.")
@user_option
@cache_option
@cassette_options
@common_options
def command(
    task: str,
    *,
    yes: bool,
    max_replans: int,
    max_repairs: int,
    rollback_on_failure: bool,
    junit: str | None,
    annotations: bool | None,
    user: str | None,
    **flags: object,
) -> int:
    """Plan TASK on a folder, show the plan, and carry it out when you say yes.

    TASK is a text, @FILE, or @- for standard input. What the steps may change are the files that
    the plan names, below the workspace. Without a terminal the run waits for
    `minions answer RUN yes`. `minions rollback RUN` takes the files back to what they were.

    The result goes to standard output, everything else to standard error.
    """
    wanted = PlanTask.of(
        task,
        flags,
        needs_approval=not yes,
        max_replans=max_replans,
        max_repairs=max_repairs,
        rolls_back=rollback_on_failure,
    )
    context = command_context(settings_among(flags))
    refuse_two_outputs(context.settings)
    out = sys.stdout
    # What tools and extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        reports = reports_of(context, junit, annotations, out)
        return asyncio.run(_run(context, wanted, user, reports, out))


async def _run(
    context: CommandContext, wanted: PlanTask, user: str | None, reports: RunReports, out: TextIO
) -> int:
    from minions.interfaces.cli.console.console import tell

    with Signals() as signals:
        async with context.runtime() as runtime:
            recipe = wanted.recipe(context, runtime.catalog)
            decider = decider_for(context.settings.approve, tell)
            choice = ModelChoice(override=wanted.model, asked_as="TASK", command="do")
            run = (
                runtime.evolve(decider=decider)
                .executor(recipe, choice)
                .prepare(
                    recipe,
                    wanted.inputs(recipe, context),
                    note=note_of(context, wanted.model),
                    user=user,
                )
            )
            return await follow(
                run, context, out, signals, reports=reports, cassettes=runtime.cassettes
            )
