"""`minions batch`: runs a recipe once for each line of a file."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import hashlib
import json
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self, TextIO

import click
from attrs import evolve, frozen

from minions.adapters.binary_files.file_reader import PartRange, UnreadableFileError, open_parts
from minions.adapters.binary_files.parquet_writer import ParquetTable
from minions.analysis.bounds import KnownModel
from minions.analysis.explanation import explain
from minions.app.runs.batch_items import (
    ChosenItems,
    FieldChoice,
    ItemsFile,
    count_lines,
    lines_of,
    store_items,
)
from minions.app.runs.batch_records import BatchRecord, batch_id, record_batch
from minions.app.runs.deciders import POLICIES, decider_for
from minions.app.settings.settings import Settings, bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_prices import knowledge_of_models
from minions.app.wiring.configured_runtime import Runtime
from minions.app.wiring.patient_runtime import patient_runtime
from minions.contracts.executions import RunState
from minions.contracts.flow import Priority
from minions.contracts.journal.start_note import QueuePlace, StartNote
from minions.data.bounded_files import open_regular
from minions.data.codec import encode
from minions.data.csv_lines import csv_line
from minions.data.errors import (
    LIMIT_REACHED,
    BudgetSpentError,
    EnvironmentRefusedError,
    FailureInfo,
    UsageError,
)
from minions.data.json_values import JsonValue, dumps
from minions.data.texts import spoken
from minions.engine.batches.batch import Batch, BatchPlan, Enqueue
from minions.engine.batches.result import NOT_STARTED, BatchResult
from minions.engine.run.agent_run import AgentRun
from minions.interfaces.cli.console.batch_progress import BatchTally, batch_progress
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.printed_results import usage_text
from minions.interfaces.cli.options import (
    CacheOption,
    CassetteOptions,
    CommandContext,
    CommonOptions,
    ManyRunsOptions,
    UserOption,
    command_context,
    given_words,
    option,
    output_file,
    takes_options,
)
from minions.interfaces.cli.queue_options import QueueOptions, open_queue
from minions.interfaces.cli.recipe_argument import STANDARD_INPUT, common_inputs, named_recipe
from minions.interfaces.cli.run_follower import Signals, note_of, with_misses
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.recipe.permissions import tool_specs

_MOST_NAMED: Final = 5
"""Changed lines that are named; further ones are only counted."""
_LIMIT: Final = "--max-cost"


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ExecutedOptions(CassetteOptions):
    """How lines are executed here; workers decide for themselves."""

    cost_usd: float | None = option(
        _LIMIT,
        type=click.FloatRange(min=0, min_open=True),
        metavar="USD",
        help="Most that all lines together may cost, earlier ones included: 0.50.",
    )
    approve: str | None = option(
        "--approve",
        type=click.Choice([policy for policy in POLICIES if policy != "ask"]),
        help="Who approves calls that need approval; default: the line waits.",
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _BatchOptions(
    ManyRunsOptions, CacheOption, _ExecutedOptions, QueueOptions, UserOption, CommonOptions
):
    """What is run for each line, and where results go."""

    output: str | None = option(
        "-o",
        "--output",
        metavar="OUT.jsonl|OUT.csv|OUT.parquet",
        callback=output_file,
        help="Where results go, a table by its ending; default: standard output.",
    )
    paths: tuple[str, ...] = option(
        "--map",
        multiple=True,
        metavar="INPUT=.FIELD",
        help="Where an input stands in a line: text=.body, name=.user.names[0].",
    )
    kept: str | None = option(
        "--keep", metavar="NAMES", help="Fields that stand beside the result, no inputs: id,title."
    )
    ignores_others: bool = option(
        "--ignore-extra", is_flag=True, help="Leave out fields that are neither inputs nor kept."
    )
    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name; wins over the recipe's."
    )
    pairs: tuple[str, ...] = option(
        "-p", "--param", multiple=True, metavar="NAME=VALUE", help="For each line."
    )
    params: str | None = option(
        "--params", metavar="FILE", help="Inputs for each line, YAML or JSON; -p wins."
    )
    timeout: str | None = option(
        "--timeout", metavar="TIME", help="Most time for one run: 90, 90s, 10m."
    )
    max_parallel: int | None = option(
        "--max-parallel", type=click.IntRange(min=1), help="Steps of one run at a time."
    )
    retry_failed: bool = option("--retry-failed", is_flag=True, help="Retry the lines that failed.")
    name: str | None = option(
        "--name",
        metavar="NAME",
        help="Another name is another batch, in which every line runs.",
    )
    recipe: str = ""
    items: str = ""
    queued_at: QueuePlace | None = None
    """Where the lines are queued for workers; None: they run here."""

    def identity(self, recipe: AgentRecipe, items: ItemsFile) -> str:
        """The name of the batch: of recipe, model and file; a given name stands for the file."""
        return dumps([recipe.id, self.model, self.name or items.identity])

    def again(self, context: CommandContext, *more: str) -> str:
        """The command that continues the batch, with the options that it has.

        Args:
            more: Further words; an option among them replaces that of the batch.
        """
        given = given_words(self, _BatchOptions, but=CommonOptions)
        words = ["minions", "batch", self.recipe, self.items, "-j", str(self.jobs)]
        said = ("-j", *more)
        words += [word for flag, *value in given if flag not in said for word in (flag, *value)]
        database, code = context.flags_again
        return shlex.join([*words, *more]) + database + code


@click.command("batch")
@click.argument("recipe")
@click.argument("items", metavar="ITEMS.jsonl|ITEMS.csv|-")
@takes_options(_BatchOptions)
def batch_command(options: _BatchOptions, recipe: str, items: str) -> int:
    """Run RECIPE (- is standard input) once for each line of a file, several at a time.

    A line of ITEMS.jsonl is an object of the recipe's inputs; the columns of ITEMS.csv or
    ITEMS.parquet are inputs.
    There is one result line for each of them, in the same order. Started again with the same
    arguments, it continues where it was stopped or killed: recorded lines are not run again.
    """
    context = command_context(options)
    place = options.place(context)
    if place is not None:
        for flag, *_ in given_words(options, _ExecutedOptions):
            raise UsageError(
                f"{flag} does not go with --detach: workers execute the lines, each by its own "
                "configuration."
            )
    if context.settings.json and options.output is None:
        raise UsageError("--json prints a summary to standard output: give -o OUT.jsonl, too.")
    options = evolve(options, recipe=recipe, items=items, queued_at=place)
    out = sys.stdout
    # What tools and extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(_run(context, options, out))


async def _run(context: CommandContext, options: _BatchOptions, out: TextIO) -> int:
    with Signals() as signals, _open_items(options, context) as items:
        is_here = options.queued_at is None
        by = options.deadline(context.settings) if is_here else None
        async with context.runtime() as opened, patient_runtime(opened, by, tell) as runtime:
            return await _run_until(signals, context, runtime, options, items, out)


@contextlib.contextmanager
def _open_items(options: _BatchOptions, context: CommandContext) -> Iterator[ItemsFile]:
    """The file of items; standard input is stored in one, as it is read twice."""
    if options.items != STANDARD_INPUT:
        yield ItemsFile(Path(options.items))
        return
    stream = context.stdin.stream("the items -")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.jsonl"
        yield ItemsFile(path, name="stdin", identity=store_items(stream, path, "stdin"))


async def _run_until(
    signals: Signals,
    context: CommandContext,
    runtime: Runtime,
    options: _BatchOptions,
    items: ItemsFile,
    out: TextIO,
) -> int:
    recipe = named_recipe(options.recipe, context, runtime)
    recipe = bounded(recipe, _with_limit(context.settings, options.cost_usd))
    choice = _field_choice(options, recipe)
    table = _Table.of(options.output, choice.kept, recipe.known_output)
    rows = ChosenItems(items, choice, tuple(recipe.inputs))
    common = common_inputs(recipe, options.pairs, context)
    total = count_lines(recipe, rows, common, Path.cwd())
    if (patience := runtime.services.patience) is not None:
        patience.calls.expect_runs(total)
    decider = decider_for(context.settings.approve or "wait", tell)
    executor = runtime.evolve(decider=decider, priority=Priority.BACKGROUND).executor(
        recipe, ModelChoice(override=options.model, asked_as=options.recipe, command="batch")
    )
    plan = _plan(context, runtime, recipe, options, options.identity(recipe, items))
    async with _enqueue(context, runtime, options.queued_at) as enqueue:
        lines = lines_of(recipe, rows, common, Path.cwd())
        record = BatchRecord(
            id=batch_id(plan.name),
            title=options.name or ("stdin" if options.items == STANDARD_INPUT else items.path.name),
            recipe=recipe.id,
            lines=total,
            began_at=runtime.services.clock.now(),
            project=runtime.services.project,
        )
        begin = partial(record_batch, runtime.services.journal, record)
        batch = Batch(executor, recipe, lines, plan, enqueue=enqueue, on_begin=begin)
        results = ResultFile.opened(options.output, out, batch.is_own, table)
        return await _follow_batch(signals, context, runtime, options, batch, plan, total, results)


def _field_choice(options: _BatchOptions, recipe: AgentRecipe) -> FieldChoice:
    """What --map, --keep and --ignore-extra say.

    Raises:
        UsageError: One is malformed, or names no input.
    """
    choice = FieldChoice.of_words(
        options.paths, options.kept, ignores_others=options.ignores_others
    )
    choice.check(recipe.inputs)
    return choice


@contextlib.asynccontextmanager
async def _enqueue(
    context: CommandContext, runtime: Runtime, place: QueuePlace | None
) -> AsyncIterator[Enqueue | None]:
    """Queues runs there; None: runs are executed here. One warning for all that goes wrong."""
    if place is None:
        yield None
        return
    problems: set[str] = set()
    async with open_queue(context, runtime.extensions) as queue:

        async def enqueue(run: AgentRun) -> None:
            problem = (await queue.put(run, place)).problem
            if problem is not None and problem not in problems:
                problems.add(problem)
                tell(f"warning: {problem} The runs are recorded; a worker finds them there.")

        yield enqueue


async def _follow_batch(
    signals: Signals,
    context: CommandContext,
    runtime: Runtime,
    options: _BatchOptions,
    batch: Batch,
    plan: BatchPlan,
    total: int,
    opened: AbstractContextManager[ResultFile],
) -> int:
    await _check_earlier(batch, plan)
    signals.stop(batch, last_words=f"continue: {options.again(context)}")
    progress = batch_progress(context.environ, runtime.services.clock, total)
    batch.listen(progress.on_result)
    with opened as results:
        try:
            async for result in batch:
                results.write(result)
        finally:
            progress.close()
    report = _Report(tally=progress.tally, stopped_by=batch.stopped_by, seconds=progress.seconds)
    _tell_end(report, context, options, results.out)
    if signals.caught is not None:
        return 128 + signals.caught
    return with_misses(report.exit_code, runtime.cassettes)


def _with_limit(settings: Settings, max_cost_usd: float | None) -> Settings:
    """The settings of each run; the limit of the batch is one of each of its runs."""
    limits = [most for most in (settings.max_cost_usd, max_cost_usd) if most is not None]
    return evolve(settings, max_cost_usd=min(limits, default=None))


def _plan(
    context: CommandContext,
    runtime: Runtime,
    recipe: AgentRecipe,
    options: _BatchOptions,
    name: str,
) -> BatchPlan:
    digest = hashlib.sha256(dumps(recipe.document or {}).encode()).hexdigest()
    batch: Mapping[str, JsonValue] = {"name": name, "recipe": digest}
    patience = runtime.services.patience
    by = patience.by if patience is not None else options.deadline(context.settings)
    worst = None
    if options.cost_usd is not None:
        worst = _worst_case(context, runtime, recipe, options.model)
    return BatchPlan(
        name=name,
        concurrency=options.jobs,
        max_cost_usd=options.cost_usd,
        worst_case_usd=worst,
        retry_failed=options.retry_failed,
        note={**note_of(context, options.model, recipe, by), "batch": batch},
        user=options.user,
    )


def _worst_case(
    context: CommandContext, runtime: Runtime, recipe: AgentRecipe, model: str | None
) -> float | None:
    """What one run may cost at most, in US dollars; None: that is not known."""
    know = knowledge_of_models(context.settings, context.environ)

    def know_chosen(config: ModelConfig) -> KnownModel:
        return know(config if model is None else evolve(config, name=model))

    found = explain(
        evolve(recipe, limits={}),
        tool_specs(recipe, runtime.catalog),
        know_chosen,
        tools_within=lambda inner: tool_specs(inner, runtime.catalog),
        kinds=runtime.extensions.steps,
    )
    return found.spending.cost_usd.at_most


async def _check_earlier(batch: Batch, plan: BatchPlan) -> None:
    """Refuse to continue in another folder, and tell that the recipe was edited.

    Raises:
        UsageError: `other-folder`.
    """
    note = await batch.earlier_start()
    if note is None:
        return
    before, now = StartNote.of(note), StartNote.of(plan.note)
    folder = before.cwd
    if folder != now.cwd:
        raise UsageError(
            f"This batch was started in {folder}, where relative paths start: continue it there, "
            "or give another --name, which is another batch.",
            code="other-folder",
        )
    if before.batch != now.batch:
        tell(
            "warning: the recipe was edited since this batch was started; recorded lines keep "
            "their results (--retry-failed uses the edited one; --name makes another batch)"
        )


@frozen(kw_only=True)
class _Report:
    """How the batch ended."""

    tally: BatchTally
    stopped_by: FailureInfo | None
    seconds: float

    @property
    def exit_code(self) -> int:
        """5: a limit was reached; 1: a line failed or could not start; 3: a line waits; else 0."""
        count = self.tally.by_status
        if self.has_reached_limit:
            return 5
        if self.stopped_by is not None or count[RunState.FAILED] or self.tally.others:
            return 1
        return 3 if count[RunState.NEEDS_DECISION] else 0

    @property
    def has_reached_limit(self) -> bool:
        """Whether money or another limit was used up, of the batch or of a line."""
        codes = (LIMIT_REACHED, BudgetSpentError.code)
        stopped = self.stopped_by is not None and self.stopped_by.code in codes
        return stopped or self.tally.by_status[RunState.LIMIT_REACHED] > 0


def _tell_end(
    report: _Report, context: CommandContext, options: _BatchOptions, out: TextIO
) -> None:
    tally = report.tally
    counts = ", ".join(f"{count} {status}" for status, count in tally.by_status.items())
    words = f"{tally.done} lines: {counts or 'none'}"
    tell(f"{words} · {spoken(report.seconds * 1_000)} · {usage_text(tally.usage)}")
    if tally.changed:
        named = ", ".join(str(index) for index in tally.changed[:_MOST_NAMED])
        more = (
            f" and {tally.changed_count - _MOST_NAMED} more"
            if tally.changed_count > _MOST_NAMED
            else ""
        )
        tell(
            f"warning: lines that had other inputs before ran again: {named}{more} (by index); "
            "their earlier runs stay in the journal"
        )
    if report.stopped_by is not None:
        tell(f"stopped[{report.stopped_by.code}]: {report.stopped_by.message}")
    if options.output is not None:
        tell(f"results: {options.output}")
    tell(_next_command(report, context, options))
    if context.settings.json:
        say(json_text(_summary(report, options)), out)


def _next_command(report: _Report, context: CommandContext, options: _BatchOptions) -> str:
    count = report.tally.by_status
    database, _ = context.flags_again
    if context.settings.no_store:
        return "not stored (--no-store), so it cannot be continued"
    if report.stopped_by is not None and report.stopped_by.code == BudgetSpentError.code:
        return f"continue: {options.again(context)}"
    if report.has_reached_limit:
        return f"raise the limit: {options.again(context, _LIMIT, 'USD')}"
    if count[RunState.QUEUED]:
        return f"collect their results, when workers have executed them: {options.again(context)}"
    if count[NOT_STARTED] or count[RunState.CANCELLED] or count[RunState.INTERRUPTED]:
        return f"continue: {options.again(context)}"
    if count[RunState.FAILED] or count[RunState.PARTIAL]:
        return f"retry what failed: {options.again(context, '--retry-failed')}"
    if count[RunState.NEEDS_DECISION]:
        return f"decide: minions sessions list --status needs_decision{database}"
    return f"see them: minions sessions list{database}"


def _summary(report: _Report, options: _BatchOptions) -> dict[str, JsonValue]:
    stop = report.stopped_by
    return {
        "lines": report.tally.done,
        "statuses": dict(report.tally.by_status),
        "changed": report.tally.changed_count,
        "usage": report.tally.usage.to_json(),
        "duration_s": round(report.seconds, 3),
        "output": options.output,
        "stopped_by": {"code": stop.code, "message": stop.message} if stop else None,
    }


# --- the file of a batch's results ---------------------------------------------------------------


_LONGEST_FIRST: Final = 64 * 1_048_576
"""Bytes of the first line that are looked at."""


@frozen
class _Table:
    """Results as the rows of a table."""

    kept: tuple[str, ...]
    fields: Mapping[str, JsonValue]
    """Fields of the recipe's output by name with their schemas, a column each; empty: its output
    is one column."""
    is_parquet: bool = False
    """Whether the file is Parquet; else it is CSV."""

    @classmethod
    def of(
        cls, path: str | None, kept: tuple[str, ...], output: Mapping[str, JsonValue]
    ) -> _Table | None:
        """The table that the file's ending asks for; None: results are JSON Lines.

        Args:
            output: What is known of the recipe's output, as JSON Schema.
        Raises:
            UsageError: The ending is that of another format, or columns have one name.
        """
        ending = Path(path or "").suffix.lower()
        if ending in _OTHER_TABLES:
            raise UsageError(
                f"-o {path}: results are written as JSON Lines, or as a table to a name with .csv "
                f"or .parquet, not as {ending[1:]}."
            )
        if ending not in (".csv", ".parquet"):
            return None
        known = output.get("properties")
        made = cls(kept, known if isinstance(known, Mapping) else {}, ending == ".parquet")
        if twice := sorted(set(kept) & set(evolve(made, kept=()).columns)):
            raise UsageError(
                f"--keep {twice[0]}: the table of -o {path} has a column of that name. Rename the "
                "field, or write JSON Lines, where kept fields stand apart."
            )
        return made

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        outputs = tuple(f"output.{name}" for name in self.fields) or ("output",)
        return ("index", "run_id", "status", *self.kept, *outputs, "error", "cost_usd", "tokens")

    def cells(self, result: BatchResult) -> Sequence[JsonValue]:
        """The row of one result."""
        output, error = encode(result.output), result.error
        of = output if isinstance(output, Mapping) else {}
        return (
            result.index,
            result.run_id,
            result.status,
            *(encode(result.kept.get(name)) for name in self.kept),
            *([of.get(name) for name in self.fields] if self.fields else [output]),
            f"{error.code}: {error.message}" if error else None,
            result.usage.cost_usd,
            result.usage.total_tokens,
        )

    def open_parquet(self, path: Path) -> ParquetTable:
        """The file of that path, which is written once all rows are known.

        Raises:
            EnvironmentRefusedError: `missing-package`, or it cannot be written.
        """
        types: dict[str, str | None] = dict.fromkeys(self.columns)
        types |= {"index": "int64", "run_id": "string", "status": "string", "error": "string"}
        types |= {"cost_usd": "float64", "tokens": "int64"}
        for name, schema in self.fields.items():
            if isinstance(schema, Mapping) and isinstance(word := schema.get("type"), str):
                types[f"output.{name}"] = _PARQUET_TYPES.get(word)
        try:
            return ParquetTable(path, types)
        except OSError as error:
            raise _not_written(path, error, _NOTHING) from error


_PARQUET_TYPES: Final = {
    "integer": "int64",
    "number": "float64",
    "boolean": "bool",
    "string": "string",
}
"""By JSON's types; what has another is JSON text."""
_OTHER_TABLES: Final = (".xlsx", ".xls", ".ods", ".tsv", ".feather", ".arrow")


class ResultFile:
    """Writes result lines. A file is written whole each time: recorded results come first."""

    def __init__(
        self,
        stream: TextIO,
        out: TextIO,
        path: Path | None,
        table: _Table | None,
        parquet: ParquetTable | None = None,
    ) -> None:
        """Write to that stream.

        Args:
            out: Standard output.
            path: The stream's path; None: it is standard output.
            table: What the lines are of; None: they are JSON.
            parquet: Where rows of the table go instead; None: to the stream.
        """
        self.out = out
        self._stream = stream
        self._path = path
        self._table = table
        self._parquet = parquet

    @classmethod
    @contextmanager
    def opened(
        cls,
        path: str | None,
        out: TextIO,
        is_own: Callable[[str], bool],
        table: _Table | None = None,
    ) -> Iterator[Self]:
        """Open the file of that path, or take `out` where there is none.

        Args:
            is_own: Whether a run with that id is one of the batch.
            table: What the file is a table of; None: its lines are JSON.
        Raises:
            UsageError: `already-there`; the file holds something else than results of the batch.
            EnvironmentRefusedError: It cannot be written.
        """
        if path is None:
            yield cls(out, out, None, None)
            return
        target = Path(path)
        if table is not None and table.is_parquet:
            _refuse_foreign_parquet(target, is_own)
            with contextlib.closing(table.open_parquet(target)) as parquet:
                try:
                    yield cls(out, out, target, table, parquet)
                finally:
                    try:
                        parquet.write()
                    except OSError as error:
                        raise _not_written(target, error, _RECORDED) from error
            return
        _refuse_foreign(target, is_own, table)
        try:
            stream = target.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise _not_written(target, error, _NOTHING) from error
        with stream:
            results = cls(stream, out, target, table)
            if table is not None:
                results._write(csv_line(table.columns), _NOTHING)
            yield results

    def write(self, result: BatchResult) -> None:
        """Write one line; whoever reads the file sees it at once, but for Parquet, which is written
        at the end.

        Raises:
            EnvironmentRefusedError: It cannot be written.
        """
        if self._path is None:
            say(json_text(result.to_json()), self._stream)
        elif self._table is not None and self._parquet is not None:
            try:
                self._parquet.add(self._table.cells(result))
            except OSError as error:
                raise _not_written(self._path, error, _RECORDED) from error
        elif self._table is not None:
            self._write(csv_line(self._table.cells(result)), _RECORDED)
        else:
            self._write(f"{json.dumps(result.to_json(), ensure_ascii=False)}\n", _RECORDED)

    def _write(self, line: str, kept: str) -> None:
        try:
            self._stream.write(line.encode("utf-8", "backslashreplace").decode())  # half characters
            self._stream.flush()
        except OSError as error:
            raise _not_written(self._path or Path(), error, kept) from error


def _refuse_foreign(path: Path, is_own: Callable[[str], bool], table: _Table | None) -> None:
    """Refuse to write over a file that is not of this batch."""
    if path.exists() and not path.is_file():  # a device or a pipe, from which nothing is read
        return
    try:
        with open_regular(path) as file:
            head = file.readline(_LONGEST_FIRST)
            first = head if table is None else file.readline(_LONGEST_FIRST)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _not_written(path, error, _NOTHING) from error
    if not head.strip() or (
        _is_result(first, is_own) if table is None else _is_row(head, first, is_own, table)
    ):
        return
    raise _already_there(path)


def _already_there(path: Path) -> UsageError:
    return UsageError(
        f"-o {path}: the file exists and holds no results of this batch; it was not changed. "
        "Choose another name, or move it away.",
        code="already-there",
    )


def _refuse_foreign_parquet(path: Path, is_own: Callable[[str], bool]) -> None:
    """Refuse to write over a Parquet file that is not of this batch.

    Raises:
        UsageError: `already-there`.
        EnvironmentRefusedError: `missing-package`, or it cannot be read.
    """
    first = PartRange(most=1, most_bytes=_LONGEST_FIRST, columns=("run_id",))
    try:
        with open_regular(path) as file, open_parts(file, "parquet", first) as parts:
            [row] = list(parts.values()) or [{"run_id": None}]
            columns = parts.columns
    except FileNotFoundError:
        return
    except OSError as error:
        raise _not_written(path, error, _NOTHING) from error
    except UnreadableFileError as error:
        raise _already_there(path) from error
    run_id = row["run_id"]
    if columns[:1] != ["index"] or not (
        run_id is None or (isinstance(run_id, str) and is_own(run_id))
    ):
        raise _already_there(path)


def _is_result(line: bytes, is_own: Callable[[str], bool]) -> bool:
    try:
        value = json.loads(line)
    except RecursionError:
        return False
    except ValueError:  # also a line that was cut off by a kill
        return line.startswith(b'{"index": 0, "run_id": ') and not line.endswith(b"\n")
    if not isinstance(value, dict) or "index" not in value:
        return False
    run_id = value.get("run_id")
    return run_id is None or (isinstance(run_id, str) and is_own(run_id))


def _is_row(head: bytes, first: bytes, is_own: Callable[[str], bool], table: _Table) -> bool:
    """Whether a table with that head and that first line is one of the batch."""
    if not first.strip():  # a head alone, perhaps cut off by a kill
        return csv_line(table.columns).encode().startswith(head)
    names, cells = (
        next(csv.reader([line.decode("utf-8", "replace")]), []) for line in (head, first)
    )
    run_id = dict(zip(names, cells, strict=False)).get("run_id")
    return names[:1] == ["index"] and run_id is not None and (run_id == "" or is_own(run_id))


_NOTHING: Final = "Nothing was started."
_RECORDED: Final = "What has ended is in the journal, if there is one."


def _not_written(path: Path, error: OSError, kept: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"-o {path}: it cannot be written: {error.strerror}. {kept}", code="no-output"
    )
