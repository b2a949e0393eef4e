"""`minions tune`: searches for the cheapest configuration of a recipe that passes a bar."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import click
from attrs import evolve, frozen

from minions.app.evaluating.evaluation_runs import checked_scorers
from minions.app.evaluating.learning import TestComparison, compare_tests
from minions.app.evaluating.tuning_runs import Tuning, TuningPlan
from minions.app.evaluating.tuning_space import (
    MOST_ROUNDS,
    RecipeVersion,
    SpaceOptions,
    TuningSpace,
)
from minions.app.runs.deciders import decider_for
from minions.app.settings.settings import bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_prices import knowledge_of_models
from minions.app.wiring.configured_runtime import Runtime
from minions.app.wiring.patient_runtime import patient_runtime
from minions.contracts.flow import Priority
from minions.contracts.messages import TokenUsage
from minions.data.errors import UsageError, did_you_mean
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word, shown_text
from minions.evaluation.cases import Part
from minions.evaluation.scorers import Suite
from minions.evaluation.suite_file import read_suite
from minions.evaluation.tuning import USUAL_DIMENSIONS, Configuration, Dimension
from minions.evaluation.tuning_search import TuningReport
from minions.interfaces.cli.case_source import CaseOptions, CaseSource, read_cases
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.console.evaluation_tables import (
    closed_lines,
    comparison_lines,
    space_lines,
    tuning_lines,
)
from minions.interfaces.cli.console.printed_results import check_writable, write_whole
from minions.interfaces.cli.console.render import dollars
from minions.interfaces.cli.options import (
    CassetteOptions,
    CommandContext,
    CommonOptions,
    command_context,
    option,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import (
    common_inputs,
    editable_path,
    named_recipe,
    recipe_text,
)
from minions.interfaces.cli.run_follower import Signals, note_of, with_misses
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import load_recipe_text

if TYPE_CHECKING:
    from minions.app.evaluating.tuning_runs import TuningBound

_SUITE: Final = (".eval.yaml", ".eval.yml")
_TYPICAL: Final = TokenUsage(input_tokens=1_000, output_tokens=200)
"""Models are tried in the order of what this costs."""


def _dimensions(
    _context: click.Context, _option: click.Parameter, said: tuple[str, ...]
) -> frozenset[Dimension]:
    """The dimensions that `--over` names, each time that it is given."""
    known = [each.value for each in Dimension]
    names = [name.strip() for words in said for name in words.split(",")]
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"'{name}' is nothing to choose.{did_you_mean(name, known)} "
                f"Expected some of {', '.join(known)}."
            )
    return frozenset(map(Dimension, names or USUAL_DIMENSIONS))


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _TuneOptions(CaseOptions, CassetteOptions, CommonOptions):
    """What is tried, and what becomes of what was found."""

    models: tuple[str, ...] = option(
        "-m", "--model", multiple=True, metavar="MODEL", help="Tried for each step; repeatable."
    )
    against: tuple[str, ...] = option(
        "--against",
        multiple=True,
        metavar="RECIPE",
        help="Another version of RECIPE, whose prompts of steps are tried.",
    )
    dimensions: frozenset[Dimension] = option(
        "--over",
        multiple=True,
        metavar="WHAT,…",
        callback=_dimensions,
        help=f"What is chosen: {', '.join(Dimension)}; repeatable; default: all but words.",
    )
    reflector: str | None = option(
        "--reflector",
        metavar="MODEL",
        help="Writes other words; default: the model that answers the step.",
    )
    rounds: int | None = option(
        "--rounds",
        type=click.IntRange(1, MOST_ROUNDS),
        metavar="N",
        help="How often other words are written for each model of a step; default: "
        f"{SpaceOptions().rounds}.",
    )
    steps: tuple[str, ...] = option(
        "--step", multiple=True, metavar="STEP", help="Only this step; repeatable."
    )
    at_least: float | None = option(
        "--at-least",
        type=click.FloatRange(0, 1),
        metavar="RATE",
        help="The pass rate that is wanted: 0.9; default: that of RECIPE as it is.",
    )
    cost_usd: float | None = option(
        "--max-cost",
        "--budget",
        type=click.FloatRange(min=0, min_open=True),
        metavar="USD",
        help="Most that all of it may cost.",
    )
    seed: int = option(
        "--seed", type=int, default=0, show_default=True, help="Divides the cases into parts."
    )
    name: str | None = option(
        "--name",
        metavar="NAME",
        help="Another name is another tuning, in which all is asked again.",
    )
    is_written: bool = option(
        "--write",
        is_flag=True,
        help="Change the recipe's own file, after its tests were run before and after.",
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Show what is tried, and what it costs at most."
    )
    recipe: str | None = None
    """The recipe as it was typed; None: a suite was."""
    data: str | None = None
    suite: Suite | None = None

    def about(self, recipe: str, data: str | None) -> Self:
        """These options, with what the suite says where they say nothing."""
        suite = read_suite(Path(recipe)) if recipe.endswith(_SUITE) else None
        if suite is None:
            return evolve(self, recipe=recipe, data=data)
        return evolve(
            self,
            data=data,
            suite=suite,
            models=self.models or suite.models,
            against=self.against or suite.against,
            scorers=self.scorers or suite.scorers,
            samples=self.samples or suite.samples,
            at_least=self.at_least if self.at_least is not None else suite.at_least,
        )

    def check_use(self) -> None:
        """Refuse candidates of what `--over` leaves out.

        Raises:
            UsageError: An option is of no use.
        """
        needed = (
            (self.models, "-m", Dimension.MODEL),
            (self.against, "--against", Dimension.FORM),
            (self.reflector, "--reflector", Dimension.WORDS),
            (self.rounds, "--rounds", Dimension.WORDS),
        )
        for given, flag, dimension in needed:
            if given and dimension not in self.dimensions:
                raise UsageError(
                    f"{flag} is of no use: --over leaves out '{dimension}'. Leave {flag} out, or "
                    f"add --over {dimension}."
                )


@click.command("tune")
@click.argument("recipe", metavar="RECIPE|NAME.eval.yaml")
@click.argument("data", required=False, metavar="[CASES.jsonl|CASES.csv|-]")
@takes_options(_TuneOptions)
def tune_command(options: _TuneOptions, recipe: str, data: str | None) -> int:
    """Find the cheapest model, prompt, output mode and examples of each step of RECIPE that pass
    the cases of a file with known answers, and show them as a diff.

    Cases are as for `minions eval`; NAME.eval.yaml names recipe, cases, models and scorers. Some
    cases are held out: what was found is confirmed by them. Started again with the same arguments,
    recorded answers are not asked again.
    """
    options.check_use()
    options = options.about(recipe, data)
    context = command_context(options)
    path = _path(options)
    if options.is_written:
        check_writable(path, "--write", code="unwritable-file")
    with contextlib.redirect_stdout(sys.stderr):
        outcome, code = asyncio.run(_tune(context, options, path))
    if context.settings.json:
        say(json_text(outcome.to_json()))
    else:
        outcome.print(named=recipe)
    return code


def _path(options: _TuneOptions) -> Path:
    suite = options.suite
    named = options.recipe or (suite.recipe if suite is not None else None)
    if named is None:
        file = suite.file if suite is not None else ""
        raise UsageError(f"{file}: it names no `recipe`.", code="no-recipe")
    near = None if suite is None else suite.folder / named
    return near if near is not None and near.is_file() else editable_path(named)


# --- the tuning -----------------------------------------------------------------------------------


async def _tune(
    context: CommandContext, options: _TuneOptions, path: Path
) -> tuple[TuneOutcome, int]:
    """What came out, and the exit code."""
    with Signals() as signals:
        by = options.deadline(context.settings)
        async with context.runtime() as unlimited, patient_runtime(unlimited, by, tell) as opened:
            decider = decider_for(context.settings.approve or "wait", tell)
            runtime = opened.evolve(decider=decider, priority=Priority.BACKGROUND)
            tuning = Tuning(runtime, await _plan(context, runtime, options, path))
            if context.settings.dry_run:
                return _dry_run(context, runtime, options, tuning), 0
            for line in closed_lines(tuning.space.steps):
                tell(hanging(line))
            tuning.listen(_tell_trial, _tell_reflection)
            signals.stop(tuning, last_words="start it again to continue")
            report = await tuning.report()
            outcome = TuneOutcome(tuning=tuning, report=report)
            if signals.caught is not None:
                return outcome, 128 + signals.caught
            if options.is_written and report.is_passed and report.diff:
                outcome = await _write(context, runtime, options, outcome, path)
            return outcome, with_misses(0 if outcome.is_passed else 1, runtime.cassettes)


def _dry_run(
    context: CommandContext, runtime: Runtime, options: _TuneOptions, tuning: Tuning
) -> TuneOutcome:
    from minions.app.evaluating.tuning_runs import tuning_bound

    bound = tuning_bound(
        tuning,
        runtime,
        knowledge_of_models(context.settings, context.environ),
        samples=options.samples or 1,
        max_cost_usd=options.cost_usd,
    )
    return TuneOutcome(tuning=tuning, bound=bound)


def _tell_trial(configuration: Configuration, part: Part, count: int) -> None:
    held_out = " held out" if part is Part.CONFIRMATION else ""
    tell(f"{shown_text(configuration.label)}: {count} cases{held_out} …")


def _tell_reflection(step: str, count: int) -> None:
    tell(f"{step}: other words, from {count} wrong answer{'s' * (count != 1)} …")


async def _plan(
    context: CommandContext, runtime: Runtime, options: _TuneOptions, path: Path
) -> TuningPlan:
    text = recipe_text(path)
    recipe = load_recipe_text(text, str(path), runtime.catalog)
    wanted = CaseSource(data=options.data, suite=options.suite, recorded=options.recorded)
    cases, source = await read_cases(wanted, context, runtime, [recipe])
    suite = options.suite
    inputs = {**(suite.inputs if suite is not None else {})}
    inputs.update(common_inputs(recipe, options.pairs, context))
    return TuningPlan(
        name=options.name or source,
        title=f"{path} on {source}",
        file=str(path),
        text=text,
        cases=cases,
        scorers=checked_scorers(
            options.scorers,
            cases,
            runtime,
            [recipe],
            are_recorded=wanted.recorded is not None,
        ),
        options=_space_options(context, runtime, options),
        limits=context.settings,
        seed=options.seed,
        samples=options.samples or 1,
        concurrency=options.jobs,
        inputs=inputs,
        max_cost_usd=options.cost_usd,
        at_least=options.at_least,
        retry_failed=options.retry_failed,
        note=note_of(context, None),
        asked_as=" ".join(
            word
            for word in (suite.file if suite is not None else str(path), options.data)
            if word is not None
        ),
    )


def _space_options(
    context: CommandContext, runtime: Runtime, options: _TuneOptions
) -> SpaceOptions:
    know = knowledge_of_models(context.settings, context.environ)

    def price(name: str) -> float:
        cost = know(ModelConfig(name=name)).cost_usd(_TYPICAL)
        return float("inf") if cost is None else cost

    return SpaceOptions(
        models=tuple(sorted(dict.fromkeys(options.models), key=price)),
        configured=context.settings.model,
        versions=tuple(
            RecipeVersion(name=name, recipe=_version(name, options.suite, context, runtime))
            for name in dict.fromkeys(options.against)
        ),
        dimensions=options.dimensions,
        steps=options.steps,
        reflector=options.reflector,
        rounds=options.rounds or SpaceOptions().rounds,
        has_bar=options.at_least is not None,
    )


def _version(
    name: str, suite: Suite | None, context: CommandContext, runtime: Runtime
) -> AgentRecipe:
    near = None if suite is None else suite.folder / name
    found = str(near) if near is not None and near.is_file() else name
    return named_recipe(found, context, runtime)


async def _write(
    context: CommandContext,
    runtime: Runtime,
    options: _TuneOptions,
    outcome: TuneOutcome,
    path: Path,
) -> TuneOutcome:
    """Write the recipe, unless one of its tests passes before and not after, or it was edited
    meanwhile.
    """
    report, tests = outcome.report, None
    assert report is not None  # noqa: S101  # it is no dry run
    before = outcome.tuning.recipe_of(Configuration())
    if before.tests:
        count = len(before.tests)
        tell(f"runs {count} test{'s' * (count != 1)} twice …")
        most = options.cost_usd
        tests = await compare_tests(
            bounded(before, context.settings),
            bounded(outcome.tuning.recipe_of(report.result.chosen), context.settings),
            runtime,
            ModelChoice(asked_as=str(path), command="tune"),
            max_cost_usd=None if most is None else max(0.0, most - report.spent_usd),
        )
    refusal = refusal_of(tests)
    if refusal is None and recipe_text(path) != outcome.tuning.space.text:
        refusal = f"{path} was edited meanwhile"
    if refusal is None:
        write_whole(path, report.text.encode())
    return evolve(outcome, tests=tests, refusal=refusal, written=path if refusal is None else None)


# --- what `minions tune` has to say at its end ---------------------------------------------------


_ANY_WIDTH: Final = 1_000_000
"""Columns where the output is no terminal: no line is wrapped."""


def refusal_of(tests: TestComparison | None) -> str | None:
    """Why the recipe is not written after its tests; None: it may be."""
    if tests is None:
        return None
    if tests.is_cut:
        return "not all of its tests were run"
    before = {each.test.name for each in tests.before if each.faults}
    worse = [each.test.name for each in tests.after if each.faults and each.test.name not in before]
    return f"its test '{worse[0]}' passes as it is and not as changed" if worse else None


@frozen(kw_only=True)
class TuneOutcome:
    """The report of a tuning and what became of the recipe; or of a dry run the bound."""

    tuning: Tuning
    bound: TuningBound | None = None
    """None: it is no dry run."""
    report: TuningReport | None = None
    """None: it is a dry run."""
    tests: TestComparison | None = None
    """None: they were not run."""
    written: Path | None = None
    refusal: str | None = None
    """Why the recipe was not written although that was asked for."""

    @property
    def _space(self) -> TuningSpace:
        return self.tuning.space

    @property
    def is_passed(self) -> bool:
        """Whether the command did what it was asked for."""
        return self.refusal is None and (self.report is None or self.report.is_passed)

    def to_json(self) -> dict[str, JsonValue]:
        """The outcome as `--json` prints it."""
        if self.report is None:
            return {
                "space": [each.to_json() for each in self._space.steps],
                "bound": None if self.bound is None else self.bound.to_json(),
            }
        return {
            **self.report.to_json(),
            "tests": None if self.tests is None else self.tests.to_json(),
            "written": None if self.written is None else str(self.written),
            "not_written_because": self.refusal,
        }

    def print(self, named: str) -> None:
        """Print it for people.

        Args:
            named: How the recipe was named, for commands.
        """
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _ANY_WIDTH
        if self.report is None:
            for line in self._dry_lines():
                say(hanging(line, width))
            return
        for line in tuning_lines(self.report, width):
            say(hanging(line, width))
        if self.report.diff:
            say(self.report.diff)
        for line in self._last_lines(self.report, named):
            tell(hanging(line))

    def _dry_lines(self) -> Iterator[str]:
        parts = self.tuning.parts
        shown = f"{len(parts.shown)} cases for examples, " if parts.shown else ""
        yield (
            f"{shown}{len(parts.search)} to search, {len(parts.confirmation)} held out to confirm "
            f"(seed {parts.seed})"
        )
        yield from space_lines(self._space.steps)
        if self.bound is None:
            return
        yield f"at most {self.bound.configurations} configurations in {self.bound.runs} runs"
        if self.bound.cost_usd is not None:
            yield f"cost: at most {dollars(self.bound.cost_usd)}"
        else:
            why = "; ".join(self.bound.unbounded)
            yield f"cost: unbounded because {why} (--max-cost USD is a bound)"
        yield "nothing was asked"

    def _last_lines(self, report: TuningReport, named: str) -> Iterator[str]:
        if self.tests is not None:
            yield from comparison_lines(self.tests, ("as it is", "as changed"))
        if report.result.problem is not None:
            yield f"the search was cut: {report.result.problem}"
        if not report.diff:
            yield "the recipe stays as it is" if report.is_passed else "nothing was written"
        elif self.written is not None:
            yield f"written: {self.written}"
        elif self.refusal is not None:
            yield f"nothing was written: {self.refusal}"
        else:
            tune = f"minions tune {shell_word(named)} … --write"
            yield f"nothing was written · {tune} changes the recipe"
