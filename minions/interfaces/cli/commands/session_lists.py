"""`minions sessions list` and `diff`: runs with their state and cost, and two of them compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import click
from attrs import frozen
from msgspec.structs import replace

from minions.app.wiring.databases import database_of, has_database
from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import SystemClock
from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.texts import spoken
from minions.engine.views.lookup import UNREADABLE, find_run, list_runs
from minions.engine.views.run_detail import show_run
from minions.engine.views.run_diff import RunDiff, StepDiff, StepSide, ValueDiff, compare_runs
from minions.engine.views.run_query import run_filter_of, time_since
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.cli.console.console import (
    hanging,
    json_text,
    list_width,
    say,
    table_lines,
    tell,
)
from minions.interfaces.cli.console.render import dollars, plain
from minions.interfaces.cli.options import (
    AllProjectsOption,
    CommandContext,
    DatabaseOption,
    command_context,
    naming_the_journal,
    takes_options,
)

_NARROW: Final = 90
"""Columns below which a run takes several lines."""
_WIDE: Final = 150
"""Columns from which on the session's id has room."""
_NOTHING: Final = "–"


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ListOptions(AllProjectsOption, DatabaseOption):
    """Whose runs are listed, and where the journal is."""


@click.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([state.value for state in RunState]),
    help="Only runs in this state. Repeatable.",
)
@click.option("--recipe", metavar="RECIPE", help="Only runs of the recipe with this id.")
@click.option("--user", metavar="LABEL", help="Only runs that were for this user.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only runs since: 90m, 2h, 7d ago, 2026-01-31T08:00 (UTC).",
)
@click.option(
    "--search",
    metavar="QUERY",
    help="Only runs with these words in recipe, model, inputs, errors or ids; also "
    "status:failed, recipe:, user:, project:, session:, since:2d, cost>0.01, tokens>=1000, "
    'and words in a row in "quotation marks".',
)
@takes_options(_ListOptions)
def list_(
    options: _ListOptions,
    *,
    limit: int,
    statuses: tuple[str, ...],
    recipe: str | None,
    user: str | None,
    since: str | None,
    search: str | None,
) -> int:
    """List runs of this project, the newest first.

    A project is the nearest folder with a minions.toml or .git, else the current one.
    """
    context = command_context(options)
    now = SystemClock().now()
    asked = RunFilter(
        statuses=statuses or None,
        recipe=recipe,
        user=user,
        since=_since(since, now) if since is not None else None,
    )
    wanted = run_filter_of(search or "", now, asked)
    if wanted.project is None and not options.of_all:
        wanted = replace(wanted, project=context.project)
    runs, is_elsewhere = asyncio.run(_list(context, wanted, limit + 1))
    if context.settings.json:
        say(json_text([encode(run) for run in runs[:limit]]))
        return 0
    if not runs:
        tell(_none(context, wanted, is_elsewhere=is_elsewhere))
        return 0
    for line in run_lines(runs[:limit], list_width()):
        say(line)
    if len(runs) > limit:
        tell(f"there are older runs: --limit {2 * limit}")
    return 0


def _none(context: CommandContext, wanted: RunFilter, *, is_elsewhere: bool) -> str:
    """Why no run is listed.

    Args:
        is_elsewhere: Whether a run of another project fits.
    """
    if is_elsewhere:
        return f"No run of the project {wanted.project} fits. Those of other projects: --all."
    if replace(wanted, project=None) != RunFilter():
        return "No run fits."
    folder = context.folder_of("db")
    if context.settings.no_store or has_database(context.settings, folder):
        return "No runs yet. `minions run RECIPE` makes the first."
    place = database_of(context.settings, folder)
    return f"No runs yet: {place} does not exist. `minions run RECIPE` makes it."


async def _list(
    context: CommandContext, wanted: RunFilter, limit: int
) -> tuple[tuple[RunSummary, ...], bool]:
    """The runs; and where there are none, whether a run of another project fits."""
    journal = context.known_journal()
    try:
        runs = await list_runs(journal, wanted=wanted, limit=limit)
        if wanted.project is None:
            return runs, False
        if damaged := await _damaged_runs(journal, wanted):
            runs = tuple(sorted((*runs, *damaged), key=_started_at, reverse=True))[:limit]
        if runs:
            return runs, False
        others = await list_runs(journal, wanted=replace(wanted, project=None), limit=1)
        return runs, bool(others)
    finally:
        await journal.aclose()


async def _damaged_runs(journal: Journal, wanted: RunFilter) -> tuple[RunSummary, ...]:
    """Damaged runs that fit and whose project cannot be read: every project's list names them."""
    if UNREADABLE not in (wanted.statuses or (UNREADABLE,)):
        return ()
    damaged = replace(wanted, statuses={UNREADABLE}, project=None)
    runs = await list_runs(journal, wanted=damaged)
    return tuple(run for run in runs if run.project is None)


def _started_at(run: RunSummary) -> datetime:
    return run.started_at


def _since(text: str, now: datetime) -> datetime:
    try:
        return time_since(text, now)
    except UsageError as error:
        raise UsageError(f"--since {error.message}", code=error.error_code) from error


# --- lines -----------------------------------------------------------------------------------


def run_lines(runs: Sequence[RunSummary], width: int | None) -> Iterator[str]:
    """The runs as a table with a head line; in few columns each as a few lines.

    Args:
        width: The columns that there are; None: any number.
    """
    if width is not None and width < _NARROW:
        for run in runs:
            yield from _narrow_lines(run, width)
        return
    names = [*_COLUMNS]
    if width is not None and width < _WIDE:
        names.remove("SESSION")
    rows = [[_cell(run, name) for name in names] for run in runs]
    for at, line in enumerate(table_lines(names, rows, numbers=_NUMBERS)):
        yield _cut(line, width)
        if at and runs[at - 1].problem is not None:
            yield hanging(f"  {plain(str(runs[at - 1].problem))}", width or 80)


_COLUMNS: Final = (
    "RUN", "SESSION", "STARTED", "STATUS", "TIME", "TOKENS", "COST", "RECIPE", "INPUTS",
)  # fmt: skip
_NUMBERS: Final = frozenset(("TIME", "TOKENS", "COST"))


def _cell(run: RunSummary, name: str) -> str:
    text = {
        "RUN": run.run_id,
        "SESSION": run.session_id,
        "STARTED": f"{run.started_at:%Y-%m-%d %H:%M:%S}Z",
        "STATUS": run.status,
        "TIME": _duration(run) or _NOTHING,
        "TOKENS": _tokens(run) or _NOTHING,
        "COST": _cost(run) or _NOTHING,
        "RECIPE": _recipe(run),
        "INPUTS": run.input_words or "",
    }[name]
    return plain(text)


def _narrow_lines(run: RunSummary, width: int) -> Iterator[str]:
    parts = [_recipe(run), _duration(run), _tokens(run, " tokens"), _cost(run)]
    yield _cut(plain(f"{run.run_id} {run.status}"), width)
    yield _cut(f"  {plain(' · '.join(part for part in parts if part))}", width)
    yield _cut(f"  {run.started_at:%Y-%m-%d %H:%M:%S}Z", width)
    if run.input_words:
        yield _cut(f"  {plain(run.input_words)}", width)
    if run.problem is not None:
        yield hanging(f"  {plain(run.problem)}", width)


def _recipe(run: RunSummary) -> str:
    """With its version, where its author counts them."""
    return run.recipe if run.version in (None, "1") else f"{run.recipe}@{run.version}"


def _duration(run: RunSummary) -> str:
    if run.finished_at is None:
        return ""
    return spoken((run.finished_at - run.started_at).total_seconds() * 1_000)


def _tokens(run: RunSummary, unit: str = "") -> str:
    count = run.usage.get("total_tokens")
    return f"{count}{unit}" if isinstance(count, int) and count else ""


def _cost(run: RunSummary) -> str:
    return dollars(run.cost_usd) if run.cost_usd is not None and _tokens(run) else ""


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


# --- `minions sessions diff A B` -----------------------------------------------------------------


_LONGEST_VALUE: Final = 160
"""How many characters of a value are shown; `--json` has all."""
_BEFORE: Final = 40
"""How many of these are before the first difference."""


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@takes_options(DatabaseOption)
def diff(options: DatabaseOption, a: str, b: str) -> int:
    """Compare two runs: inputs, every step, the result.

    A and B are ids of runs, or of sessions, which means their last run; unique starts are enough.
    """
    context = command_context(options)
    found = asyncio.run(_diff(context, a, b))
    if context.settings.json:
        say(json_text(encode(found)))
        return 0
    for line in _lines(found):
        say(hanging(line))
    return 0


async def _diff(context: CommandContext, a: str, b: str) -> RunDiff:
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            runs = [await find_run(journal, name) for name in (a, b)]
        left, right = [await show_run(journal, run) for run in runs]
        return compare_runs(left, right)
    finally:
        await journal.aclose()


def _lines(found: RunDiff) -> Iterator[str]:
    yield f"A  {_run_line(found.a)}"
    yield f"B  {_run_line(found.b)}"
    if found.first is None:
        yield "The same inputs, steps and result."
    elif found.first in ("inputs", "result"):
        yield f"They differ first in the {found.first}."
    else:
        yield f"They differ first in step {found.first}."
    if found.inputs:
        yield "inputs:"
        for value in found.inputs:
            yield from _value_lines(value.name, value, "  ")
    yield "steps:"
    for step in found.steps:
        yield from _step_lines(step)
    if found.result:
        yield "result:"
        for value in found.result:
            yield from _value_lines(value.name, value, "  ")


def _run_line(run: RunSummary) -> str:
    parts = [run.run_id, run.recipe, run.status, f"{run.started_at:%Y-%m-%d %H:%M:%S}Z"]
    if run.finished_at is not None:
        parts.append(spoken((run.finished_at - run.started_at).total_seconds() * 1000))
    if tokens := run.usage.get("total_tokens"):
        parts.append(f"{tokens:,} tokens")
    return " · ".join(parts)


def _step_lines(step: StepDiff) -> Iterator[str]:
    name = step.step_id if step.visit == 1 else f"{step.step_id} (time {step.visit})"
    if step.a is None or step.b is None:
        side, which = (step.a, "A") if step.a is not None else (step.b, "B")
        yield f"  {'-' if which == 'A' else '+'} {name}: {side and side.status}, only in {which}"
        return
    yield f"  {'~' if step.differs else '='} {name}: {' · '.join(_facts(step.a, step.b))}"
    for what in step.differs:
        if what != "status":
            value = ValueDiff(name=what, a=_side(step.a, what), b=_side(step.b, what))
            yield from _value_lines(what, value, "      ")


def _side(side: StepSide, what: str) -> JsonValue:
    return side.output if what == "output" else side.error


def _facts(a: StepSide, b: StepSide) -> Iterator[str]:
    yield _change(_status(a), _status(b))
    if a.duration_ms is not None and b.duration_ms is not None:
        yield _change(spoken(a.duration_ms), spoken(b.duration_ms))
    tokens = [side.usage.get("total_tokens") or 0 for side in (a, b)]
    if any(tokens):
        yield f"{_change(*[f'{count:,}' for count in tokens])} tokens"


def _status(side: StepSide) -> str:
    return f"{side.status} ({side.reason})" if side.reason else side.status


def _change(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


def _value_lines(name: str, value: ValueDiff, indent: str) -> Iterator[str]:
    a, b = _show_value(value.a), _show_value(value.b)
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    yield f"{indent}{name}:"
    yield f"{indent}  A {_part(a, same)}"
    yield f"{indent}  B {_part(b, same)}"


def _show_value(value: JsonValue) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _part(text: str, place: int) -> str:
    """The part of a long text around the first difference."""
    if len(text) <= _LONGEST_VALUE:
        return text
    start = max(0, place - _BEFORE)
    end = start + _LONGEST_VALUE
    return f"{'… ' if start else ''}{text[start:end]}{' …' if end < len(text) else ''}"
