"""`minions plan`: writes a plan for a task, and the recipe that carries it out."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO, cast

import click

from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.words import shell_word
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.progress import PlainProgress
from minions.interfaces.cli.console.render import stderr_painter
from minions.interfaces.cli.console.results import EXIT_CODES, summary_lines
from minions.interfaces.cli.options import CommandContext, command_context, common_options
from minions.interfaces.cli.plan_options import PlanTask, plan_options, settings_among
from minions.interfaces.cli.run_follower import Signals, note_of
from minions.interfaces.cli.written_recipe import refuse_target, write_recipe
from minions.interfaces.wiring.models import ModelChoice

__all__ = ["command"]


@click.command("plan")
@click.argument("task")
@plan_options
@click.option("-o", "--output", metavar="RECIPE.yaml", help="Where to write; else printed.")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@common_options
def command(task: str, *, output: str | None, force: bool, **flags: object) -> int:
    """Plan TASK on a folder and write the plan as a recipe; nothing is carried out.

    TASK is a text, @FILE, or @- for standard input. Run the recipe with `minions run`, as often as
    you like; `minions graph` draws it, `minions explain` says what it needs and may do.
    """
    target = Path(output) if output is not None else None
    refuse_target(target, force=force)
    wanted = PlanTask.of(task, flags, needs_approval=False, is_run=False)
    context = command_context(settings_among(flags))
    out = sys.stdout
    # What extensions print is no recipe: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        result, code = asyncio.run(_planned(context, wanted))
        if code == 0:
            plan = cast("Mapping[str, JsonValue]", result.output)
            _put(plan, target, out, json=context.settings.json, force=force, run_id=result.run_id)
    return code


async def _planned(context: CommandContext, wanted: PlanTask) -> tuple[AgentResult[JsonValue], int]:
    async with context.runtime() as runtime:
        recipe = wanted.recipe(context, runtime.catalog)
        choice = ModelChoice(override=wanted.model, asked_as="TASK", command="plan")
        note = {**note_of(context, wanted.model), "command": "plan"}
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
    json: bool,
    force: bool,
    run_id: str,
) -> None:
    """Print the plan, and write its recipe to the file or to standard output."""
    text = str(plan["recipe"])
    for line in (*str(plan["text"]).splitlines(), *map(str, cast("list[str]", plan["notes"]))):
        tell(line)
    if target is not None:
        write_recipe(target, text, force=force)
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
