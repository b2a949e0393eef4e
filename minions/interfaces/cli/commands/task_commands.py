"""`minions plan` and `minions do`: plan a task on a folder; write the plan, or carry it out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import click
from attrs import evolve, frozen

from minions.app.runs.deciders import POLICIES, decider_for
from minions.app.settings.settings import bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.contracts.executions import AgentResult, RunStatus
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, as_object, as_texts
from minions.data.texts import shell_word
from minions.interfaces.cli.commands.run_command import reports_of
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.live_progress import PlainProgress
from minions.interfaces.cli.console.printed_results import EXIT_CODES, summary_lines
from minions.interfaces.cli.console.render import stderr_painter
from minions.interfaces.cli.options import (
    CacheOption,
    CassetteOptions,
    CommandContext,
    CommonOptions,
    EventsOption,
    ReportOptions,
    UserOption,
    command_context,
    option,
    output_file,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import (
    given_inputs,
    refuse_target,
    text_argument,
    write_recipe,
)
from minions.interfaces.cli.run_follower import (
    RunReports,
    Signals,
    follow,
    note_of,
    refuse_two_outputs,
)
from minions.planning.plan_json import Sharing
from minions.planning.step_executor import PlanChoices, step_executor_document
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _TaskOptions(CommonOptions):
    """How a task is planned."""

    workspace: str = option(
        "-w", "--workspace", metavar="DIR", default=".", help="The folder to work in; default: ."
    )
    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name of who plans and works."
    )
    command: str | None = option("--test", metavar="COMMAND", help="The shell command that tests.")
    context: str = option(
        "--context", metavar="TEXT", default="", help="What every step is told, or @FILE."
    )
    share: str = option(
        "--share",
        type=click.Choice([each.value for each in Sharing]),
        default=Sharing.OUTLINE.value,
        help="How steps see files that earlier steps made: names (cheapest), outline, whole.",
    )
    form: str = option(
        "--form",
        type=click.Choice(["structured", "text"]),
        default="structured",
        help="How the model writes the plan; text for weak models.",
    )
    trust_workspace: bool = option(
        "--trust-workspace",
        is_flag=True,
        help="Nobody but you writes there: its text is no stranger's.",
    )
    allow_config: tuple[str, ...] = option(
        "--allow-config",
        multiple=True,
        metavar="PATTERN",
        help="Files that may be written, unasked, although they configure tools: Makefile.",
    )
    allow_secrets: tuple[str, ...] = option(
        "--allow-secrets",
        multiple=True,
        metavar="PATTERN",
        help="Files that may be used although they are taken for secrets: .env.test.",
    )
    timeout: str | None = option(
        "--timeout", metavar="TIME", help="Most time for the run: 90, 90s, 10m."
    )
    max_cost_usd: float | None = option(
        "--max-cost", type=float, metavar="USD", help="Most it may cost: 0.50."
    )

    def check(self, task: str) -> None:
        """Check the task and its folder.

        Raises:
            UsageError: The workspace is no folder, or the task is empty.
        """
        workspace = self.workspace
        if not workspace:
            raise UsageError("--workspace is empty. Name the folder to work in.", code="empty")
        if Path(workspace).exists() and not Path(workspace).is_dir():
            raise UsageError(
                f"--workspace {workspace} is a file. Name the folder to work in.",
                code="bad-workspace",
            )
        if not Path(workspace).exists() and not Path(workspace).absolute().parent.is_dir():
            raise UsageError(
                f"--workspace {workspace}: there is no folder {Path(workspace).absolute().parent}. "
                "A missing workspace is made, the folder that it is in is not.",
                code="bad-workspace",
            )
        if Path(workspace).is_dir() and not os.access(workspace, os.R_OK | os.X_OK):
            raise UsageError(
                f"--workspace {workspace} cannot be listed: you have no right to read it.",
                code="bad-workspace",
            )
        if not task.strip():
            raise UsageError("The task is empty. Say what is to be done.", code="empty")

    def choices(self) -> PlanChoices:
        """How it is planned, as far as both commands say it."""
        return PlanChoices(
            share=Sharing(self.share),
            form=self.form,
            command=self.command,
            is_trusted=self.trust_workspace,
            allow_config=self.allow_config,
            allow_secrets=self.allow_secrets,
        )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _PlanOptions(_TaskOptions):
    """Where the plan goes."""

    output: str | None = option(
        "-o",
        "--output",
        metavar="RECIPE.yaml",
        callback=output_file,
        help="Where to write; else printed.",
    )
    force: bool = option("--force", is_flag=True, help="Overwrite what is there.")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _DoOptions(
    _TaskOptions, ReportOptions, EventsOption, UserOption, CacheOption, CassetteOptions
):
    """How the plan is carried out."""

    yes: bool = option("-y", "--yes", is_flag=True, help="Carry plans out without asking.")
    reuse: bool = option(
        "--reuse",
        is_flag=True,
        help="Use the plan of an earlier task again, if this one differs in names, numbers and "
        "paths alone.",
    )
    max_replans: int = option(
        "--max-replans",
        type=click.IntRange(0, 20),
        default=1,
        help="How often what is left is planned again after a failure; default 1.",
    )
    max_repairs: int = option(
        "--max-repairs",
        type=click.IntRange(0, 20),
        default=2,
        help="How often a failed validation is repaired; default 2.",
    )
    rollback_on_failure: bool = option(
        "--rollback-on-failure",
        is_flag=True,
        help="Take the files back to what they were when the plan fails.",
    )
    approve: str | None = option(
        "--approve", type=click.Choice(POLICIES), help="Who approves calls of tools."
    )


@click.command("plan")
@click.argument("task")
@takes_options(_PlanOptions)
def plan_command(options: _PlanOptions, task: str) -> int:
    """Plan TASK on a folder and write the plan as a recipe; nothing is carried out.

    TASK is a text, @FILE, or @- for standard input. Run the recipe with `minions run`, as often as
    you like; `minions graph` draws it, `minions explain` says what it needs and may do.
    """
    target = Path(options.output) if options.output is not None else None
    refuse_target(target, force=options.force)
    options.check(task)
    choices = evolve(options.choices(), needs_approval=False, is_run=False)
    wanted = _Task(task=task, options=options, choices=choices)
    context = command_context(options)
    out = sys.stdout
    # What extensions print is no recipe: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        result, code = asyncio.run(_plan(context, wanted))
        if code == 0:
            made = as_object(result.output)
            _put(
                made, target, out, options=options, json=context.settings.json, run_id=result.run_id
            )
    return code


async def _plan(context: CommandContext, wanted: _Task) -> tuple[AgentResult[JsonValue], int]:
    async with context.runtime() as runtime:
        recipe = wanted.recipe(context, runtime.catalog)
        choice = ModelChoice(override=wanted.options.model, asked_as="TASK", command="plan")
        note = {**note_of(context, wanted.options.model), "command": "plan"}
        executor = runtime.executor(recipe, choice)
        run = executor.prepare(recipe, wanted.inputs(recipe, context), note=note)
        run.listen(PlainProgress(tell, stderr_painter()).on_event)
        with Signals() as signals:
            signals.stop(run, last_words="Nothing was written.")
            result = await run.execute()
        for line in summary_lines(result, stderr_painter()):
            tell(line)
        if signals.caught is not None and result.status is RunStatus.CANCELLED:
            return result, 128 + signals.caught
        return result, EXIT_CODES[result.status]


def _put(
    plan: Mapping[str, JsonValue],
    target: Path | None,
    out: TextIO,
    *,
    options: _PlanOptions,
    json: bool,
    run_id: str,
) -> None:
    """Print the plan, and write its recipe to the file or to standard output."""
    text = str(plan["recipe"])
    for line in (*str(plan["text"]).splitlines(), *map(str, as_texts(plan["notes"]))):
        tell(line)
    if target is not None:
        write_recipe(target, text, force=options.force)
    if json:
        shown: dict[str, JsonValue] = {
            "plan": plan["plan"],
            "recipe": text,
            "notes": plan["notes"],
            "file": str(target) if target is not None else None,
            "run_id": run_id,
        }
        say(json_text(shown), out)
    elif target is None:
        say(text.rstrip("\n"), out)
    if target is not None:
        tell(f"Wrote {target}. What it needs and may do: minions explain {shell_word(str(target))}")


@click.command("do")
@click.argument("task")
@takes_options(_DoOptions)
def do_command(options: _DoOptions, task: str) -> int:
    """Plan TASK on a folder, show the plan, and carry it out when you say yes.

    TASK is a text, @FILE, or @- for standard input. What the steps may change are the files that
    the plan names, below the workspace. Without a terminal the run waits for
    `minions answer RUN yes`. `minions rollback RUN` takes the files back to what they were.

    The result goes to standard output, everything else to standard error.
    """
    options.check(task)
    choices = evolve(
        options.choices(),
        needs_approval=not options.yes,
        max_replans=options.max_replans,
        max_repairs=options.max_repairs,
        rolls_back=options.rollback_on_failure,
        reuses=options.reuse,
    )
    wanted = _Task(task=task, options=options, choices=choices)
    context = command_context(options)
    refuse_two_outputs(context.settings)
    out = sys.stdout
    # What tools and extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        reports = reports_of(context, options, out)
        return asyncio.run(_do(context, wanted, options.user, reports, out))


async def _do(
    context: CommandContext, wanted: _Task, user: str | None, reports: RunReports, out: TextIO
) -> int:
    with Signals() as signals:
        async with context.runtime() as runtime:
            recipe = wanted.recipe(context, runtime.catalog)
            decider = decider_for(context.settings.approve, tell)
            choice = ModelChoice(override=wanted.options.model, asked_as="TASK", command="do")
            run = (
                runtime.evolve(decider=decider)
                .executor(recipe, choice)
                .prepare(
                    recipe,
                    wanted.inputs(recipe, context),
                    note=note_of(context, wanted.options.model),
                    user=user,
                )
            )
            return await follow(
                run, context, out, signals, reports=reports, cassettes=runtime.cassettes
            )


@frozen(kw_only=True)
class _Task:
    """A task, with the options that say how it is planned."""

    task: str
    """The task as it was typed: a text, @FILE, or @- for standard input."""
    options: _TaskOptions
    choices: PlanChoices

    def recipe(self, context: CommandContext, catalog: Catalog) -> AgentRecipe:
        """The recipe that plans, with the operator's limits."""
        document = step_executor_document(self.choices)
        return bounded(recipe_from_document(document, catalog), context.settings)

    def inputs(self, recipe: AgentRecipe, context: CommandContext) -> Mapping[str, JsonValue]:
        """The inputs of that recipe."""
        texts: dict[str, JsonValue] = {
            "requirements": self._requirements(context),
            "workspace": str(Path(self.options.workspace).resolve()),
        }
        if self.options.context:
            texts["context"] = text_argument(self.options.context, context.stdin, "--context ")
        return given_inputs(recipe, (), context, before=texts)

    def _requirements(self, context: CommandContext) -> str:
        text = text_argument(self.task, context.stdin, "TASK ")
        if not text.strip():
            raise UsageError(
                f"TASK {self.task}: there is no text in it. Say what is to be done.", code="empty"
            )
        return text
