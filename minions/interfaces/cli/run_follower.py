"""Executes a run on the command line: shows progress, stops it on signals, prints the result."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TextIO

from msgspec import Struct

from minions.app.runs.deciders import TerminalDecider
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_models import Cassettes
from minions.contracts.context import Limits
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.start_note import StartNote
from minions.contracts.run_events import RunEvent, event_to_json
from minions.data.errors import (
    EnvironmentRefusedError,
    FailureInfo,
    Fault,
    MinionsError,
    UsageError,
)
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word, spoken, with_options
from minions.engine.run.agent_run import AgentRun
from minions.engine.views.run_names import shortest_name
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.live_progress import LiveProgress, PlainProgress, Progress
from minions.interfaces.cli.console.printed_results import (
    EXIT_CODES,
    output_text,
    result_to_json,
    summary_lines,
)
from minions.interfaces.cli.console.render import stderr_painter, wants_color
from minions.interfaces.cli.options import CommandContext
from minions.recipe.nested_recipes import reads_starter

if TYPE_CHECKING:
    from minions.recipe.model import AgentRecipe


def refuse_two_outputs(settings: Settings) -> None:
    """Refuse two ways to print the result.

    Raises:
        UsageError: `--json` and `--events` were both given.
    """
    if settings.json and settings.events:
        raise UsageError("--json and --events exclude each other: one object, or one per line.")


def note_of(
    context: CommandContext,
    model: str | None,
    recipe: AgentRecipe | None = None,
    by: datetime | None = None,
) -> dict[str, JsonValue]:
    """The note that a later resume needs; stored with the run's start.

    Args:
        model: The argument of `-m`; None: not given.
        recipe: That of a new run: if its approvals exclude who started it, the note says who.
        by: When a worker is to be done with it, so that model calls may wait; None: as soon as
            possible.
    """
    settings, folder = context.settings, context.folder_of("extensions")
    named = [str(folder / name) if name.endswith(".py") else name for name in settings.extensions]
    return StartNote(
        cwd=str(Path.cwd()),
        extensions=tuple(named),
        model=model,
        folder=None if model is None else str(context.folder_of("model")),
        starters=_starters(recipe),
        approve=settings.approve if "approve" in context.flags else None,
        max_cost_usd=settings.max_cost_usd if "max_cost_usd" in context.flags else None,
        no_cache=settings.no_cache,
        by=by,
    ).to_json()


def _starters(recipe: AgentRecipe | None) -> tuple[str, ...]:
    name = user_of_machine() if recipe is not None and reads_starter(recipe) else None
    return () if name is None else (name,)


def user_of_machine() -> str | None:
    """The name of the user who gives commands here; None: it is not known."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None


async def follow(
    run: AgentRun,
    context: CommandContext,
    out: TextIO,
    signals: Signals,
    *,
    edited: str | None = None,
    reports: RunReports | None = None,
    cassettes: Cassettes | None = None,
) -> int:
    """Execute the run with progress, print its result, and return the exit code.

    Args:
        edited: The file of an edited recipe, for the command of a retry; None: the run's own.
        reports: Where its end is reported, too; None: nowhere.
        cassettes: What answers in place of models: the exit code is 1 if it lacked an answer,
            whatever the run made of that. None: nothing does.
    """
    progress = progress_of(context)
    clock = run.context.scope.services.clock
    begin = clock.monotonic()
    printer = EventPrinter(out)
    if (replay := run.context.scope.replay) is not None:
        progress.recall(replay.loop_facts())
    run.listen(progress.on_event)
    if context.settings.events:
        run.listen(printer)
    decider = run.context.scope.services.decider
    if isinstance(decider, TerminalDecider):
        decider.pausing = progress.paused
    signals.stop(run, last_words=_next_command(run, context, RunStatus.CANCELLED))
    reports = reports or RunReports()
    try:
        result = await run.execute()
    except MinionsError as error:
        reports.write_break(run.context.recipe.id, error.info())
        raise
    finally:
        progress.close()
    seconds = spoken((clock.monotonic() - begin) * 1_000)
    try:
        await _report(run, result, context, out, edited, seconds)
        reports.annotate(result, run.context.recipe)
    finally:
        reports.write(result)
    if printer.error is not None:
        raise printer.error
    if signals.caught is not None and result.status is RunStatus.CANCELLED:
        return 128 + signals.caught
    code = EXIT_CODES[result.status]
    return with_misses(code, cassettes)


def with_misses(code: int, cassettes: Cassettes | None) -> int:
    """The exit code: 1 instead of 0 where the cassette lacked an answer, whatever became of that.

    It tells what the cassette lacked, or had and was not asked for.
    """
    if cassettes is None:
        return code
    if code == 0 and cassettes.misses:
        count = len(cassettes.misses)
        tell(f"error[cassette-miss]: requests that were not answered: {count}. The first:")
        tell(cassettes.misses[0])
        return 1
    if code == 0 and cassettes.calls_left:
        count, first = cassettes.calls_left, cassettes.first_left
        tell(f"note: recorded calls that were not asked for: {count}. The first is {first}")
    return code


_GRACE_S: Final = 1.8
"""After a signal, in seconds; a run that has not ended by then is left: its facts are stored."""


_HANGUP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)
"""Windows has none."""
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, *((_HANGUP,) if _HANGUP else ()))
"""SIGHUP comes when the terminal is closed; `nohup` has it ignored, and so it stays."""


class Cancellable(Protocol):
    """Work that a signal stops."""

    def cancel(self) -> None:
        """Stop as soon as may be; what was done is recorded."""


class Signals:
    """The first of `_STOPPING` cancels the run, the second ends the process at once.

    A run that blocks is not waited for longer than `_GRACE_S`.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
        self._run: Cancellable | None = None
        self._last_words: str | None = None
        self._watchdog: threading.Timer | None = None

    def __enter__(self) -> Self:
        """Catch signals from now on; an event loop must be running."""
        self._loop = asyncio.get_running_loop()
        self._before = {
            number: handler
            for number in _STOPPING
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN or number != _HANGUP
        }
        for number in self._before:
            # Signals wake only a loop that has a handler of its own: one that came just before
            # the loop waits for events would be seen when that wait is over.
            with contextlib.suppress(NotImplementedError):  # Windows: there they always wake it
                self._loop.add_signal_handler(number, self._on_woken, number)
            # This handler does not wait for a loop that code of a step may block.
            signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the former handlers."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        for number, handler in self._before.items():
            with contextlib.suppress(NotImplementedError):
                self._loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def stop(self, run: Cancellable, *, last_words: str) -> None:
        """Let signals cancel `run`, also one that came before there was a run."""
        self._run, self._last_words = run, last_words
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # a SIGINT before our handler was there
            task.uncancel()
            self.caught = signal.SIGINT
        if self.caught is not None:
            run.cancel()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.caught is not None:
            self._leave(number)
        self.caught = number
        self._watchdog = threading.Timer(_GRACE_S, self._leave, [number])
        self._watchdog.daemon = True
        self._watchdog.start()
        self._loop.call_soon_threadsafe(self._cancel)
        tell(f"\n{signal.Signals(number).name}: stopping; what was done is kept.")

    def _on_woken(self, number: int) -> None:
        if self.caught is None:  # it came before our handler was there
            self._on_signal(number, None)

    def _cancel(self) -> None:
        if self._run is not None:
            self._run.cancel()

    def _leave(self, number: int) -> None:
        """End the process at once, without anything that could block."""
        if self._last_words is not None:
            tell(self._last_words)
        os._exit(128 + number)


class EventPrinter:
    """Prints one JSON event per line, until the output cannot be written any more."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.error: EnvironmentRefusedError | None = None

    def __call__(self, event: RunEvent) -> None:
        """Print the event; if that fails, the run continues and the error is raised at its end."""
        if self.error is not None:
            return
        try:
            say(json_text(event_to_json(event)), self._out)
        except EnvironmentRefusedError as error:
            self.error = error


class _NoProgress(Progress):
    """Shows no progress, for programs that read the output."""

    def on_event(self, event: RunEvent) -> None:
        """Ignore the event."""


def progress_of(context: CommandContext) -> Progress:
    """A live list on a terminal, else lines; none with `--events`."""
    if context.settings.events:
        return _NoProgress()
    environ = context.environ
    is_live = (
        sys.stderr is not None
        and sys.stderr.isatty()
        and environ.get("TERM") != "dumb"
        and not environ.get("CI")
    )
    if not is_live or context.settings.debug:
        return PlainProgress(tell, stderr_painter())
    from rich.console import Console

    console = Console(stderr=True, no_color=not wants_color(sys.stderr, environ))
    return LiveProgress(console)


async def _report(
    run: AgentRun,
    result: AgentResult[object],
    context: CommandContext,
    out: TextIO,
    edited: str | None,
    time: str,
) -> None:
    """Print the result to standard output, and the summary to standard error."""
    if context.settings.json:
        say(json_text(result_to_json(result)), out)
    elif not context.settings.events and result.output is not None:
        say(output_text(result.output), out, is_output=True)
    elif (
        not context.settings.events
        and result.plan
        and result.status is not RunStatus.NEEDS_DECISION
    ):
        say(json_text({"steps": list(result.plan)}, indent=2), out, is_output=True)
    journal = run.context.scope.services.journal
    name = await shortest_name(journal, run.run_id) if run.has_recorded_end else run.run_id
    for line in summary_lines(result, stderr_painter(), time):
        tell(
            _with_name(
                with_options(line, run.run_id, "".join(context.flags_again)), run.run_id, name
            )
        )
    decision = next(iter(result.error.suggestions), "") if result.error is not None else ""
    command = _next_command(run, context, result.status, decision, edited)
    tell(f"session {result.session_id} · {_with_name(command, run.run_id, name)}")


def _with_name(text: str, run_id: str, name: str) -> str:
    """The text with the shortest name of the run in its commands."""
    return text.replace(f" {run_id}", f" {name}")


def _next_command(
    run: AgentRun,
    context: CommandContext,
    status: RunStatus,
    decision: str = "",
    edited: str | None = None,
) -> str:
    """The next useful command, with a word on what it does.

    Args:
        decision: The command that makes the first decision that the run waits for.
        edited: As for `follow`.
    """
    settings = context.settings
    if settings.no_store:
        lost = ", so it cannot be resumed" if status is RunStatus.NEEDS_DECISION else ""
        return f"not stored (--no-store){lost}"
    database, code = context.flags_again
    rest = f"{shell_word(run.run_id)}{database}{code}"
    if status is RunStatus.NEEDS_DECISION:
        if decide := "".join(f" --decide {shlex.quote(key)}=…" for key in run.waiting_calls):
            return f"resume: minions resume {rest}{decide}"
        return (
            f"decide: {decision}{database}{code}" if decision else f"resume: minions resume {rest}"
        )
    budget = run.context.progress.budget
    is_bound_to_recur = budget.reached != "timeout_s" and not budget.is_shared
    if status is RunStatus.LIMIT_REACHED and is_bound_to_recur:
        where = "--max-cost USD" if _is_limit_of_a_flag(run) else "--recipe EDITED.yaml"
        return f"raise the limit: minions retry {rest} {where}"
    if status in (RunStatus.CANCELLED, RunStatus.LIMIT_REACHED):
        return f"resume: minions resume {rest}"
    if status in (RunStatus.FAILED, RunStatus.PARTIAL):
        file = f" --recipe {shlex.quote(edited)}" if edited is not None else ""
        is_known = run.has_recorded_end
        return (
            f"retry: minions retry {rest}{file}" if is_known else f"resume: minions resume {rest}"
        )
    return f"see it: minions sessions show {shell_word(run.run_id)}{database}"


def _is_limit_of_a_flag(run: AgentRun) -> bool:
    """Whether the limit on cost of a flag was reached, not the recipe's own."""
    context = run.context
    written = (context.recipe.document or {}).get("limits")
    own = Limits.from_metadata(written if isinstance(written, Mapping) else {}).max_cost_usd
    return context.progress.budget.reached == "max_cost_usd" and own != context.limits.max_cost_usd


# --- a run's result for continuous integration ---------------------------------------------------


class RunReports(Struct, frozen=True, kw_only=True):
    """Where the end of a run is reported beside the console."""

    junit: Path | None = None
    """The file for JUnit XML; None: none is written."""
    annotations: TextIO | None = None
    """The stream for annotations of a workflow; None: none are printed."""

    def check(self) -> None:
        """Refuse a file that could not be written at the end of the run.

        Raises:
            EnvironmentRefusedError: `junit-file`.
        """
        if self.junit is not None:
            from minions.interfaces.cli.console.junit_reports import check_junit

            check_junit(self.junit)

    def tell_faults(self, faults: Sequence[Fault]) -> None:
        """Annotate the faults of a recipe that was refused."""
        if self.annotations is not None:
            from minions.interfaces.cli.console.fault_reports import annotation

            for fault in faults:
                say(annotation(fault), self.annotations)

    def annotate(self, result: AgentResult[object], recipe: AgentRecipe) -> None:
        """Print an annotation for each failure of the run."""
        if self.annotations is not None:
            from minions.interfaces.cli.console.junit_reports import run_annotations

            for line in run_annotations(result, recipe):
                say(line, self.annotations)

    def write(self, result: AgentResult[object]) -> None:
        """Write the file, however the run ended.

        Raises:
            EnvironmentRefusedError: It cannot be written (`junit-file`).
        """
        if self.junit is not None:
            from minions.interfaces.cli.console.junit_reports import write_run

            write_run(self.junit, result)

    def write_break(self, recipe_id: str, error: FailureInfo) -> None:
        """Write the file of a run that has no result, since its journal failed.

        Raises:
            EnvironmentRefusedError: It cannot be written (`junit-file`).
        """
        if self.junit is not None:
            from minions.interfaces.cli.console.junit_reports import write_break

            write_break(self.junit, recipe_id, error)
