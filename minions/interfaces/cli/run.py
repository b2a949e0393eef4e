"""`minions run`: a recipe from file to result."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TextIO, cast

import attrs
import click

from minions.contracts.errors import EnvironmentRefusedError, UsageError
from minions.contracts.events import RunEvent, event_to_json
from minions.contracts.executions import AgentResult, RunStatus
from minions.engine.agent_executor import AgentExecutor
from minions.engine.agent_run import AgentRun
from minions.interfaces.cli.params import given_inputs
from minions.interfaces.cli.setup import Surroundings, common_options, surroundings
from minions.interfaces.cli.voice import json_text, say, tell
from minions.interfaces.durations import seconds_of
from minions.interfaces.progress import LiveProgress, PlainProgress, Progress
from minions.interfaces.render import stderr_painter, wants_color
from minions.interfaces.results import EXIT_CODES, output_text, result_to_json, summary_lines
from minions.interfaces.wiring import Models, catalog_of, make_log, make_services
from minions.recipe.library import find_recipe
from minions.recipe.load import load_recipe
from minions.recipe.model import AgentRecipe

__all__ = ["command"]


@click.command("run")
@click.argument("recipe")
@click.option("-p", "--param", "pairs", multiple=True, metavar="NAME=VALUE", help="An input.")
@click.option("--params", metavar="FILE", help="Inputs from a YAML or JSON file; -p wins.")
@click.option("-m", "--model", metavar="MODEL", help="provider/name; wins over the recipe's.")
@click.option("--max-parallel", type=click.IntRange(min=1), help="Steps at a time.")
@click.option("--timeout", metavar="TIME", help="Most time for the run: 90, 90s, 10m.")
@click.option("--events", is_flag=True, help="Print one JSON event per line.")
@common_options
def command(recipe: str, pairs: tuple[str, ...], **flags: object) -> int:
    """Run RECIPE: a path, or an id found under ./recipes.

    The result goes to standard output, everything else to standard error.
    """
    around = surroundings(flags)
    if around.settings.json and around.settings.events:
        raise UsageError("--json and --events exclude each other: one object, or one per line.")
    out = sys.stdout
    # What tools and extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        override = cast("str | None", flags["model"])
        return asyncio.run(_run(around, recipe, pairs, override=override, out=out))


async def _run(
    around: Surroundings,
    name: str,
    pairs: tuple[str, ...],
    *,
    override: str | None,
    out: TextIO,
) -> int:
    signals = _Signals()
    extensions = around.extensions()
    recipe = _bounded(load_recipe(_path(name), catalog_of(extensions)), around)
    inputs = given_inputs(recipe, pairs, around)
    models = Models(
        around.settings, extensions, environ=around.environ, override=override, asked_as=name
    )
    journal = around.journal()
    try:
        executor = AgentExecutor(
            models.source(recipe, around.folder_of),
            extensions=extensions,
            services=make_services(journal, make_log(around.settings, tell)),
        )
        run = executor.prepare(recipe, inputs)
        return await _follow(run, around, out, signals)
    finally:
        await models.aclose()
        await journal.aclose()


def _path(name: str) -> Path:
    return find_recipe(name, [Path("recipes")])


def _bounded(recipe: AgentRecipe, around: Surroundings) -> AgentRecipe:
    """The operator's own bounds over the recipe's."""
    settings = around.settings
    if settings.max_parallel is not None:
        recipe = attrs.evolve(recipe, max_parallel=settings.max_parallel)
    if settings.timeout is not None:
        limits = {key: value for key, value in recipe.limits.items() if key != "timeoutS"}
        limits["timeout_s"] = seconds_of(settings.timeout)
        recipe = attrs.evolve(recipe, limits=limits)
    return recipe


# --- the run --------------------------------------------------------------------------------------


async def _follow(run: AgentRun, around: Surroundings, out: TextIO, signals: _Signals) -> int:
    """Show the run while it goes on; print its result; its exit code."""
    progress = _progress(around)
    printer = _EventPrinter(out)
    run.listen(progress.on_event)
    if around.settings.events:
        run.listen(printer)
    signals.stop(run)
    try:
        result = await run.execute()
    finally:
        progress.close()
    _report(result, around, out)
    if printer.error is not None:
        raise printer.error
    if signals.caught is not None and result.status is RunStatus.CANCELLED:
        return 128 + signals.caught
    return EXIT_CODES[result.status]


class _Signals:
    """The first SIGINT or SIGTERM cancels the run, the second leaves at once."""

    def __init__(self) -> None:
        """Catch from now on; an event loop must be running."""
        self.caught: int | None = None
        self._run: AgentRun | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def stop(self, run: AgentRun) -> None:
        """Let signals cancel `run`, also one that came before there was a run."""
        self._run = run
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # a SIGINT before our handler was there
            task.uncancel()
            self.caught = signal.SIGINT
        if self.caught is not None:
            run.cancel()

    def _on_signal(self, number: int) -> None:
        if self.caught is not None:
            os._exit(128 + number)
        self.caught = number
        tell(f"\n{signal.Signals(number).name}: stopping; what was done is kept.")
        if self._run is not None:
            self._run.cancel()


class _EventPrinter:
    """One JSON event per line, until nothing can be written any more."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.error: EnvironmentRefusedError | None = None

    def __call__(self, event: RunEvent) -> None:
        """Print it; the run goes on when that fails, and the error comes at the end."""
        if self.error is not None:
            return
        try:
            say(json_text(event_to_json(event)), self._out)
        except EnvironmentRefusedError as error:
            self.error = error


class _Silent(Progress):
    """For programs that read the output."""

    def on_event(self, event: RunEvent) -> None:
        """Nothing."""


def _progress(around: Surroundings) -> Progress:
    """A live table on a terminal, lines elsewhere; nothing beside `--events`."""
    if around.settings.events:
        return _Silent()
    environ = around.environ
    is_live = (
        sys.stderr is not None
        and sys.stderr.isatty()
        and environ.get("TERM") != "dumb"
        and not environ.get("CI")
    )
    if not is_live or around.settings.debug:
        return PlainProgress(tell, stderr_painter())
    from rich.console import Console

    console = Console(stderr=True, no_color=not wants_color(sys.stderr, environ))
    return LiveProgress(console)


def _report(result: AgentResult[object], around: Surroundings, out: TextIO) -> None:
    """The result to standard output, the summary to standard error."""
    if around.settings.json:
        say(json_text(result_to_json(result)), out)
    elif not around.settings.events and result.output is not None:
        say(output_text(result.output), out)
    for line in summary_lines(result, stderr_painter()):
        tell(line)
    if around.settings.no_store:
        tell(f"session {result.session_id} · not stored (--no-store)")
    else:
        database = f" --db {shlex.quote(around.settings.db)}" if around.settings.db else ""
        tell(
            f"session {result.session_id} · see it: minions sessions show {result.run_id}{database}"
        )
