"""`minions eval`: asks recipes and models cases with known answers, and compares them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from attrs import evolve, frozen

from minions.app.evaluating.evaluation_runs import (
    EvaluatedRecipe,
    Evaluation,
    EvaluationPlan,
    checked_scorers,
)
from minions.app.runs.deciders import decider_for
from minions.app.settings.operator_limits import bounded
from minions.app.wiring.runtime import Runtime
from minions.contracts.flow import Priority
from minions.data.errors import UsageError
from minions.evaluation.report import EvaluationReport, VariantOutcome
from minions.evaluation.suite_file import read_suite
from minions.evaluation.suites import Suite
from minions.interfaces.cli.case_source import CaseOptions, CaseSource, read_cases
from minions.interfaces.cli.console.batch_progress import batch_progress
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.evaluation_table import case_lines, report_lines
from minions.interfaces.cli.options import (
    FILE,
    CacheOption,
    CassetteOptions,
    CommandContext,
    CommonOptions,
    command_context,
    option,
    takes_options,
)
from minions.interfaces.cli.params import common_inputs
from minions.interfaces.cli.recipe_argument import named_recipe
from minions.interfaces.cli.run_follower import Signals, note_of, with_misses
from minions.recipe.model import AgentRecipe

if TYPE_CHECKING:
    from minions.interfaces.cli.console.junit import JUnitSuite


_SUITE: Final = (".eval.yaml", ".eval.yml")
_MOST_MISSED: Final = 10
"""Cases that did not pass, named for each variant on a terminal."""


@frozen(kw_only=True, slots=False)
class _EvalOptions(CaseOptions, CacheOption, CassetteOptions, CommonOptions):
    """What is compared, and where the report goes."""

    models: tuple[str, ...] = option(
        "-m", "--model", multiple=True, metavar="MODEL", help="Compared; repeatable."
    )
    against: tuple[str, ...] = option(
        "--against", multiple=True, metavar="RECIPE", help="Another recipe, asked the same."
    )
    at_least: float | None = option(
        "--at-least",
        type=click.FloatRange(0, 1),
        metavar="RATE",
        help="Exit code 1 where a variant passes less: 0.9.",
    )
    cost_usd: float | None = option(
        "--max-cost",
        type=click.FloatRange(min=0, min_open=True),
        metavar="USD",
        help="Most that all of it may cost.",
    )
    name: str | None = option(
        "--name",
        metavar="NAME",
        help="Another name is another evaluation, in which all is asked again.",
    )
    junit: Path | None = option(
        "--junit", type=FILE, metavar="FILE", help="Write the cases as JUnit XML, for CI."
    )
    page: Path | None = option(
        "--page",
        type=FILE,
        metavar="FILE.html",
        help="Write a page with variants side by side.",
    )
    recipe: str | None = None
    """The recipe as it was typed; None: a suite was."""
    data: str | None = None
    suite: Suite | None = None


@click.command("eval")
@click.argument("recipe", metavar="RECIPE|NAME.eval.yaml")
@click.argument("data", required=False, metavar="[CASES.jsonl|CASES.csv|-]")
@takes_options(_EvalOptions)
def command(options: _EvalOptions, recipe: str, data: str | None) -> int:
    """Ask RECIPE the cases of a file with known answers, and say how many it passes.

    A case is an object of inputs with `expected`; columns of CSV are inputs and `expected.FIELD`.
    With several -m or --against, variants stand side by side. Started again with the same
    arguments, recorded answers are not asked again. NAME.eval.yaml has all of it in a file.
    """
    suite = read_suite(Path(recipe)) if recipe.endswith(_SUITE) else None
    options = evolve(options, recipe=None if suite else recipe, data=data, suite=suite)
    context = command_context(options)
    _check_files(options)
    with contextlib.redirect_stdout(sys.stderr):
        report, code = asyncio.run(_run(context, options))
    _write(options, report)
    if context.settings.json:
        say(json_text(report.to_json()))
    else:
        _print(report, context.flags_again[0])
    if options.page is not None:
        tell(f"page: {options.page}")
    return code


def _check_files(options: _EvalOptions) -> None:
    if options.junit is not None:
        from minions.interfaces.cli.console.junit import check_junit

        check_junit(options.junit)
    if options.page is not None:
        from minions.interfaces.cli.console.whole_file import check_writable

        check_writable(options.page, "--page", code="unwritable-file")


# --- the evaluation ------------------------------------------------------------------------------


async def _run(context: CommandContext, options: _EvalOptions) -> tuple[EvaluationReport, int]:
    """The report, and the exit code."""
    with Signals() as signals:
        async with context.runtime() as opened:
            if opened.cassettes is not None:
                opened.cassettes.check()
            decider = decider_for(context.settings.approve or "wait", tell)
            runtime = opened.evolve(decider=decider, priority=Priority.BACKGROUND)
            recipes = _recipes(context, runtime, options)
            plan = await _plan(context, runtime, options, recipes)
            evaluation = Evaluation(runtime, recipes, plan)
            progress = batch_progress(context.environ, runtime.services.clock, evaluation.total)
            evaluation.listen(lambda _variant, result: progress.on_result(result))
            signals.stop(evaluation, last_words="start it again to continue")
            try:
                report = await evaluation.report()
            finally:
                progress.close()
            if signals.caught is not None:
                return report, 128 + signals.caught
            return report, with_misses(0 if report.is_passed else 1, runtime.cassettes)


def _recipes(
    context: CommandContext, runtime: Runtime, options: _EvalOptions
) -> tuple[EvaluatedRecipe, ...]:
    suite = options.suite
    first = options.recipe or (suite.recipe if suite is not None else None)
    if first is None and suite is not None:
        raise UsageError(f"{suite.file}: it names no `recipe`.", code="no-recipe")
    against = options.against or (suite.against if suite is not None else ())
    names = [name for name in (first, *against) if name is not None]
    return tuple(
        EvaluatedRecipe(name=name, recipe=_recipe(name, suite, context, runtime))
        for name in dict.fromkeys(names)
    )


def _recipe(
    name: str, suite: Suite | None, context: CommandContext, runtime: Runtime
) -> AgentRecipe:
    near = None if suite is None else suite.folder / name
    found = str(near) if near is not None and near.is_file() else name
    return bounded(named_recipe(found, context, runtime), context.settings)


async def _plan(
    context: CommandContext,
    runtime: Runtime,
    options: _EvalOptions,
    recipes: Sequence[EvaluatedRecipe],
) -> EvaluationPlan:
    suite, first = options.suite, recipes[0]
    wanted = CaseSource(data=options.data, suite=suite, recorded=options.recorded)
    asked = [each.recipe for each in recipes]
    cases, source = await read_cases(wanted, context, runtime, asked)
    scorers = options.scorers or (suite.scorers if suite is not None else ())
    models = options.models or (suite.models if suite is not None else ())
    inputs = {**(suite.inputs if suite is not None else {})}
    inputs.update(common_inputs(first.recipe, options.pairs, context))
    return EvaluationPlan(
        name=options.name or source,
        title=f"{first.name} on {source}",
        cases=cases,
        scorers=checked_scorers(
            scorers,
            cases,
            runtime,
            asked,
            are_recorded=wanted.recorded is not None,
        ),
        models=models or (None,),
        samples=options.samples or (suite.samples if suite is not None else 1),
        concurrency=options.jobs,
        inputs=inputs,
        max_cost_usd=options.cost_usd,
        at_least=options.at_least
        if options.at_least is not None
        else (suite.at_least if suite is not None else None),
        retry_failed=options.retry_failed,
        note=note_of(context, None),
        asked_as=" ".join(
            word
            for word in (suite.file if suite is not None else first.name, options.data)
            if word is not None
        ),
    )


# --- the report ----------------------------------------------------------------------------------


def _write(options: _EvalOptions, report: EvaluationReport) -> None:
    if options.junit is not None:
        from minions.interfaces.cli.console.junit import write_junit

        write_junit(options.junit, [_suite_of(each) for each in report.variants])
    if options.page is not None:
        from minions.app.pages.evaluation_page import EvaluationPage
        from minions.interfaces.cli.console.whole_file import write_whole

        write_whole(options.page, EvaluationPage(report).html().encode("utf-8", "replace"))


def _suite_of(outcome: VariantOutcome) -> JUnitSuite:
    from minions.interfaces.cli.console.junit import (
        JUnitCase,
        JUnitProblem,
        JUnitSuite,
        ProblemKind,
    )

    cases = []
    for each in outcome.cases:
        problem = None
        if each.reason is not None:
            problem = JUnitProblem(kind=ProblemKind.FAILURE, message=each.reason)
        elif each.ungraded is not None:
            why = f"not graded: {each.ungraded}"
            problem = JUnitProblem(kind=ProblemKind.ERROR, message=why)
        elif each.share is None:
            problem = JUnitProblem(kind=ProblemKind.ERROR, message="it did not end")
        took = sum(sample.duration_ms or 0 for sample in each.samples)
        cases.append(JUnitCase(name=each.case.name, duration_ms=took, problem=problem))
    took = sum(each.duration_ms for each in cases)
    return JUnitSuite(name=outcome.variant.label, cases=cases, duration_ms=took)


def _print(report: EvaluationReport, database: str) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
    for line in report_lines(report, width, database=database):
        say(line)
    for outcome in report.variants:
        missed = list(case_lines(outcome, _MOST_MISSED))
        if missed:
            tell(f"{outcome.variant.label}:")
        for line in missed:
            tell(f"  {line}")
    if report.stopped is not None:
        tell(f"stopped: {report.stopped}")
