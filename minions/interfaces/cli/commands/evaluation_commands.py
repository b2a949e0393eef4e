"""`minions eval`, `test` and `learn`: how good recipes are, and what their runs teach them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from attrs import evolve, frozen

from minions.app.evaluating.background_scores import watch_gauges
from minions.app.evaluating.corrected_cases import CorrectedCases, corrected_cases
from minions.app.evaluating.evaluation_runs import (
    EvaluatedRecipe,
    Evaluation,
    EvaluationPlan,
    checked_scorers,
)
from minions.app.evaluating.learning import (
    LearntRecipe,
    LearntStep,
    TestComparison,
    compare_tests,
    learn_recipe,
)
from minions.app.evaluating.live_scores import Watch, WatchedScorer, WatchReport
from minions.app.evaluating.recipe_tests import TestOutcome, run_test
from minions.app.runs.deciders import decider_for
from minions.app.settings.settings import bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime
from minions.app.wiring.patient_runtime import patient_runtime
from minions.contracts.flow import Priority
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, dumps
from minions.data.texts import shell_word, spoken
from minions.evaluation.report import EvaluationReport, VariantOutcome
from minions.evaluation.scorers import Suite
from minions.evaluation.statistics import Interval
from minions.evaluation.suite_file import read_suite
from minions.interfaces.cli.case_source import CaseOptions, CaseSource, read_cases
from minions.interfaces.cli.console.batch_progress import batch_progress
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.console.evaluation_tables import (
    case_lines,
    comparison_lines,
    report_lines,
)
from minions.interfaces.cli.console.printed_results import check_writable, write_whole
from minions.interfaces.cli.console.render import dollars, stderr_painter
from minions.interfaces.cli.options import (
    FILE,
    AnnotationOption,
    CacheOption,
    CassetteOptions,
    CommandContext,
    CommonOptions,
    ExtensionOptions,
    PatienceOptions,
    command_context,
    option,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import (
    common_inputs,
    editable_path,
    named_recipe,
    recipe_text,
    refuse_target,
    write_recipe,
)
from minions.interfaces.cli.run_follower import Signals, note_of, with_misses
from minions.recipe.examples import MOST_EXAMPLE_TOKENS, MOST_EXAMPLES
from minions.recipe.model import AgentRecipe

if TYPE_CHECKING:
    from minions.interfaces.cli.console.junit_reports import JUnitSuite

_SUITE: Final = (".eval.yaml", ".eval.yml")
_MOST_MISSED: Final = 10
"""Cases that did not pass, named for each variant on a terminal."""


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _EvalOptions(CaseOptions, CacheOption, CassetteOptions, AnnotationOption, CommonOptions):
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
def eval_command(options: _EvalOptions, recipe: str, data: str | None) -> int:
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
        report, code = asyncio.run(_run_evaluation(context, options))
    _write_report(options, report)
    if context.settings.json:
        say(json_text(report.to_json()))
    else:
        _print_report(report, context.flags_again[0])
    if (stream := options.annotation_stream(context, sys.stdout)) is not None:
        for line in _missed_annotations(report, options.suite):
            say(line, stream)
    if options.page is not None:
        tell(f"page: {options.page}")
    return code


def _check_files(options: _EvalOptions) -> None:
    if options.junit is not None:
        from minions.interfaces.cli.console.junit_reports import check_junit

        check_junit(options.junit)
    if options.page is not None:
        from minions.interfaces.cli.console.printed_results import check_writable

        check_writable(options.page, "--page", code="unwritable-file")


# --- the evaluation ------------------------------------------------------------------------------


async def _run_evaluation(
    context: CommandContext, options: _EvalOptions
) -> tuple[EvaluationReport, int]:
    """The report, and the exit code."""
    by = options.deadline(context.settings)
    with Signals() as signals:
        async with context.runtime() as unlimited, patient_runtime(unlimited, by, tell) as opened:
            if opened.cassettes is not None:
                opened.cassettes.check()
            decider = decider_for(context.settings.approve or "wait", tell)
            runtime = opened.evolve(decider=decider, priority=Priority.BACKGROUND)
            recipes = _recipes(context, runtime, options)
            plan = await _plan(context, runtime, options, recipes)
            evaluation = Evaluation(runtime, recipes, plan)
            if (patience := runtime.services.patience) is not None:
                patience.calls.expect_runs(evaluation.total)
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


def _write_report(options: _EvalOptions, report: EvaluationReport) -> None:
    if options.junit is not None:
        from minions.interfaces.cli.console.junit_reports import write_junit

        write_junit(options.junit, [_suite_of(each) for each in report.variants])
    if options.page is not None:
        from minions.app.pages.evaluation_page import EvaluationPage
        from minions.interfaces.cli.console.printed_results import write_whole

        write_whole(options.page, EvaluationPage(report).html().encode("utf-8", "replace"))


def _suite_of(outcome: VariantOutcome) -> JUnitSuite:
    from minions.interfaces.cli.console.junit_reports import (
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


def _print_report(report: EvaluationReport, database: str) -> None:
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


def _missed_annotations(report: EvaluationReport, suite: Suite | None) -> Iterator[str]:
    """A line for a workflow for each case that did not pass, at its line of the file.

    They are warnings where as many pass as are wanted, and no more than the terminal names.
    """
    from minions.interfaces.cli.console.fault_reports import workflow_command

    level = "warning" if report.is_passed else "error"
    for outcome in report.variants:
        title = f"eval {outcome.variant.label}"
        missed = [each for each in outcome.cases if each.reason or each.ungraded]
        for each in missed[:_MOST_MISSED]:
            file, _, line = each.case.place.rpartition(":")
            where = {"file": file, "line": line} if file and line.isdecimal() else {}
            if not where and suite is not None:
                where = {"file": suite.file}
            why = each.reason or f"not graded: {each.ungraded}"
            words = f"case '{each.case.name}': {why}"
            yield workflow_command(level, {**where, "title": title}, words)
        if (rate := outcome.rate) is not None and missed:
            passed = f"{rate.value:.0%} of the cases pass"
            wanted = f", {report.at_least:.0%} are wanted" if report.at_least is not None else ""
            yield workflow_command(level, {"title": title}, f"{passed}{wanted}")


# --- `minions test` ------------------------------------------------------------------------------


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _TestOptions(AnnotationOption, ExtensionOptions):
    """Which tests, and what may go wrong in them."""

    wanted: str | None = option("-k", metavar="TEXT", help="Only tests whose name holds TEXT.")
    junit: str | None = option(
        "--junit", metavar="FILE", help="Write the outcomes as JUnit XML, for CI."
    )
    crash: int | None = option(
        "--crash",
        type=click.IntRange(min=1),
        metavar="N",
        help="Play N runs with kills and faults: what can happen twice or be lost?",
    )
    crash_story: Path | None = option(
        "--crash-story", type=FILE, metavar="FILE", help="Play the run of a crash story again."
    )
    crash_stories: Path | None = option(
        "--write-stories",
        type=FILE,
        metavar="DIR",
        help="Write the story of each finding of --crash to a file there.",
    )
    crash_seed: int = option(
        "--seed", type=int, default=0, metavar="N", help="Of --crash: other runs; default: 0."
    )
    real_tools: bool = option(
        "--real-tools",
        is_flag=True,
        help="Of --crash: call the tools that change nothing, instead of doubles.",
    )


@click.command("test")
@click.argument("recipes", nargs=-1, required=True)
@takes_options(_TestOptions)
def test_command(options: _TestOptions, recipes: tuple[str, ...]) -> int:
    """Run the `tests:` of RECIPES, with scripted answers and faked tools; nothing is stored.

    With --crash their runs are killed and disturbed in every place. Exit code 1 if a test fails or
    something can happen, 2 if there is none.
    """
    context = command_context(options)
    if options.crash is not None or options.crash_story is not None:
        return _crash_recipes(context, options, recipes)
    if options.crash_stories is not None or options.real_tools or options.crash_seed:
        raise UsageError(
            "--write-stories, --real-tools and --seed belong to a crash test: add --crash 500.",
            code="usage",
        )
    wanted = options.wanted
    file = Path(options.junit) if options.junit is not None else None
    if file is not None:
        from minions.interfaces.cli.console.junit_reports import check_junit

        check_junit(file)
    with contextlib.redirect_stdout(sys.stderr) as _:
        done = asyncio.run(_run_tests(context, recipes, wanted or ""))
    if not any(done.values()):
        named = f" whose name holds '{wanted}'" if wanted else ""
        raise UsageError(
            f"No tests{named} in {', '.join(recipes)}. Write them under `tests:`.", code="no-tests"
        )
    if file is not None:
        from minions.interfaces.cli.console.junit_reports import suite_of_tests, write_junit

        write_junit(file, [suite_of_tests(name, outcomes) for name, outcomes in done.items()])
    if context.settings.json:
        shown = {name: [tested.to_json() for tested in all_] for name, all_ in done.items()}
        say(json_text({"recipes": shown}))
    else:
        _print_tests(done)
    if (stream := options.annotation_stream(context, sys.stdout)) is not None:
        for line in _fault_annotations(done):
            say(line, stream)
    return 1 if any(tested.faults for all_ in done.values() for tested in all_) else 0


async def _run_tests(
    context: CommandContext, names: Sequence[str], wanted: str
) -> dict[str, list[TestOutcome]]:
    done: dict[str, list[TestOutcome]] = {}
    async with context.runtime(is_stored=False) as runtime:
        for name in names:
            recipe = named_recipe(name, context, runtime)
            chosen = (test for test in recipe.tests if wanted in test.name)
            done[name] = [await run_test(recipe, test, runtime) for test in chosen]
    return done


def _print_tests(done: dict[str, list[TestOutcome]]) -> None:
    paint = stderr_painter()
    failed = 0
    for name, all_ in done.items():
        for tested in all_:
            glyph = paint("✗", "red") if tested.faults else paint("✓", "green")
            tell(f"{glyph} {name}: {tested.test.name} ({spoken(tested.duration_ms)})")
            for fault in tested.faults:
                tell(f"    {fault}")
            if tested.faults:
                tell(f"    --> {tested.test.where}")
            failed += bool(tested.faults)
    count = sum(len(all_) for all_ in done.values())
    say(f"{count - failed} of {count} passed")


def _fault_annotations(done: dict[str, list[TestOutcome]]) -> Iterator[str]:
    """A line for a workflow for each test that failed, at its line of the recipe."""
    from minions.interfaces.cli.console.fault_reports import workflow_command

    for name, all_ in done.items():
        for tested in all_:
            if tested.faults:
                where = tested.test.where
                place = {"file": where.file, "line": str(where.line), "title": "test-failed"}
                words = f"test '{tested.test.name}' of '{name}': {'; '.join(tested.faults)}"
                yield workflow_command("error", place, words)


# --- `minions test --crash` ----------------------------------------------------------------------


def _crash_recipes(context: CommandContext, options: _TestOptions, names: Sequence[str]) -> int:
    from minions.testing.crash_findings import (
        CrashReport,
        StoryFile,
        crash_lines,
        find_crash_faults,
        read_story,
        replay_story,
        write_stories,
    )
    from minions.testing.crash_world import CrashedRecipe, choose_test

    if options.junit is not None or (options.crash and options.crash_story):
        other = "--junit" if options.junit is not None else "--crash-story"
        raise UsageError(f"{other} does not go with a crash test: leave one out.", code="usage")
    told = read_story(options.crash_story) if options.crash_story is not None else StoryFile()
    wanted = options.wanted or told.test
    reports: dict[str, CrashReport] = {}
    runtime = context.runtime(is_stored=False)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            for name in names:
                recipe = named_recipe(name, context, runtime)
                if told.recipe not in {"", recipe.id}:
                    raise UsageError(
                        f"{options.crash_story} is a story of the recipe '{told.recipe}', not of "
                        f"'{recipe.id}'. Name the recipe that it was written for, or find "
                        "stories of this one with --crash.",
                        code="bad-story",
                    )
                crashed = CrashedRecipe(
                    recipe,
                    runtime,
                    test=choose_test(recipe, wanted),
                    real_tools=options.real_tools or told.real_tools,
                )
                reports[name] = (
                    find_crash_faults(crashed, stories=options.crash, seed=options.crash_seed)
                    if options.crash is not None
                    else replay_story(crashed, told.story)
                )
    finally:
        asyncio.run(runtime.aclose())
    if options.crash_stories is not None:
        for path in write_stories(options.crash_stories, reports.values()):
            tell(f"story: {path}")
    if context.settings.json:
        say(json_text({"recipes": {name: each.to_json() for name, each in reports.items()}}))
    else:
        for name, report in reports.items():
            for line in crash_lines(name, report):
                say(line)
    return 1 if any(report.findings for report in reports.values()) else 0


# --- `minions learn` -----------------------------------------------------------------------------


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ModelTestOptions(CommonOptions):
    """How the recipe's tests are run."""

    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name that the tests ask."
    )
    max_cost_usd: float | None = option(
        "--max-cost",
        type=float,
        metavar="USD",
        help="Most that the tests may cost together: 0.50.",
    )
    dry_run: bool = option("--dry-run", is_flag=True, help="Ask no model: the tests are not run.")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _LearnOptions(PatienceOptions, _ModelTestOptions):
    """How the recipe's tests are run, with the new examples and without."""


@click.command("learn")
@click.argument("recipe")
@click.option("--step", "step_id", metavar="STEP", help="Only this step.")
@click.option(
    "--max",
    "most",
    type=click.IntRange(min=1),
    default=MOST_EXAMPLES,
    metavar="N",
    help=f"Most examples of a step, those that it has included; default: {MOST_EXAMPLES}.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=MOST_EXAMPLE_TOKENS,
    metavar="N",
    help=f"Most tokens of them, estimated; default: {MOST_EXAMPLE_TOKENS}.",
)
@click.option("-o", "--output", "target", metavar="FILE", help="Write the changed recipe there.")
@click.option("--write", "is_written", is_flag=True, help="Change the recipe's own file.")
@click.option(
    "--cases",
    metavar="FILE.jsonl",
    help="Write what persons corrected as cases for `minions eval` there, and learn nothing else.",
)
@takes_options(_LearnOptions)
def learn_command(
    options: _LearnOptions,
    recipe: str,
    *,
    step_id: str | None,
    most: int,
    max_tokens: int,
    target: str | None,
    is_written: bool,
    cases: str | None,
) -> int:
    """Add examples to the steps of RECIPE: outputs of recorded runs that were marked good,
    approved, or tested by an `assert` step.

    The change is shown as a diff, and nothing is written without --write or -o. Each of the
    recipe's tests is run twice with the model in use, without the new examples and with them.
    """
    context = command_context(options)
    if cases is not None:
        if is_written or target is not None or step_id is not None:
            raise UsageError("--cases excludes --step, --write and -o.", code="usage")
        return _write_cases(context, recipe, Path(cases))
    path = editable_path(recipe)
    goal = Path(target) if target is not None else None
    if is_written and goal is not None:
        raise UsageError("--write and -o name two files to write to: leave one out.", code="usage")
    refuse_target(goal, force=None)
    if is_written:
        check_writable(path, "--write", code="unwritable-file")
    with contextlib.redirect_stdout(sys.stderr):
        learnt, compared = asyncio.run(
            _learn(context, options, path, step_id, most=most, max_tokens=max_tokens)
        )
    written = _write_recipe(learnt, path if is_written else None, goal)
    if context.settings.json:
        say(json_text(_to_json(learnt, compared, written)))
    elif learnt.diff:
        say(learnt.diff)
    for line in _lines(learnt, compared, written, recipe, is_dry=context.settings.dry_run):
        tell(hanging(line))
    return 0


async def _learn(
    context: CommandContext,
    options: _LearnOptions,
    path: Path,
    step_id: str | None,
    *,
    most: int,
    max_tokens: int,
) -> tuple[LearntRecipe, TestComparison | None]:
    settings = context.settings
    by = options.deadline(settings)
    async with context.runtime() as opened, patient_runtime(opened, by, tell) as runtime:
        learnt = await learn_recipe(
            runtime.services.journal,
            recipe_text(path),
            str(path),
            runtime.catalog,
            step_id=step_id,
            most=most,
            max_tokens=max_tokens,
            project=runtime.services.project,
        )
        if settings.dry_run or not learnt.diff or not learnt.recipe.tests:
            return learnt, None
        choice = ModelChoice(override=settings.model, asked_as=str(path), command="learn")
        count = len(learnt.recipe.tests)
        tell(f"runs {count} test{'s' * (count != 1)} twice (--dry-run: no model is asked) …")
        compared = await compare_tests(
            learnt.recipe, learnt.learnt, runtime, choice, max_cost_usd=settings.max_cost_usd
        )
        return learnt, compared


def _write_cases(context: CommandContext, name: str, target: Path) -> int:
    refuse_target(target, force=None)
    with contextlib.redirect_stdout(sys.stderr):
        found = asyncio.run(_cases(context, name))
    if found.cases:
        lines = "".join(f"{dumps(each)}\n" for each in found.cases)
        write_whole(target, lines.encode("utf-8", "backslashreplace"))
    if context.settings.json:
        written = str(target) if found.cases else None
        left_out: dict[str, JsonValue] = dict(found.left_out)
        cases = [dict(each) for each in found.cases]
        say(json_text({"written": written, "cases": cases, "left_out": left_out}))
        return 0
    count = len(found.cases)
    tell(f"{count} case{'s' * (count != 1)} of what persons corrected")
    for reason, left in found.left_out.items():
        tell(f"  {left} left out: {reason}")
    if count:
        words = f"minions eval {shell_word(name)} {shell_word(str(target))}"
        tell(f"written: {target} · {words}")
    else:
        tell("nothing was written: approve a call with changed arguments, and it is a case")
    return 0


async def _cases(context: CommandContext, name: str) -> CorrectedCases:
    async with context.runtime() as runtime:
        recipe = named_recipe(name, context, runtime)
        services = runtime.services
        return await corrected_cases(services.journal, recipe, project=services.project)


def _write_recipe(learnt: LearntRecipe, path: Path | None, target: Path | None) -> Path | None:
    """Write the recipe where it was asked for; the file, or None."""
    if not learnt.diff:
        return None
    if target is not None:
        write_recipe(target, learnt.text, force=False)
    elif path is not None:
        write_whole(path, learnt.text.encode())
    return target or path


# --- what is said ---------------------------------------------------------------------------------


def _lines(
    learnt: LearntRecipe,
    compared: TestComparison | None,
    written: Path | None,
    recipe: str,
    *,
    is_dry: bool,
) -> Iterator[str]:
    if not learnt.steps:
        yield "no step of the recipe answers from a goal: there is nothing to learn"
    for step in learnt.steps:
        yield from _step_lines(step)
    if not learnt.diff:
        yield "nothing was learnt: mark runs whose outputs are good: minions sessions mark RUN good"
        return
    yield from _test_lines(learnt, compared, is_dry=is_dry)
    if written is not None:
        yield f"written: {written}"
    else:
        yield f"nothing was written · minions learn {shell_word(recipe)} --write changes the recipe"


def _step_lines(step: LearntStep) -> Iterator[str]:
    if step.problem is not None:
        yield f"{step.step_id}: {step.problem}"
        return
    reasons = Counter(each.because for each in step.examples)
    because = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    count = len(step.examples)
    words = f"{count} new example{'s' * (count != 1)}"
    kept = f" · {step.kept} kept" if step.kept else ""
    about = f", about {step.tokens} tokens in each prompt: {because}" if count else ""
    yield f"{step.step_id}: {words}{about}{kept}"
    if step.not_chosen:
        yield f"  {step.not_chosen} more not needed: they show nothing new, or have no room"
    for reason, left in step.left_out.items():
        yield f"  {left} left out: {reason}"


def _test_lines(
    learnt: LearntRecipe, compared: TestComparison | None, *, is_dry: bool
) -> Iterator[str]:
    if not learnt.recipe.tests:
        yield "what they change is not known: the recipe has no `tests`"
        return
    if compared is None:
        count = len(learnt.recipe.tests)
        why = "dry run" if is_dry else "not run"
        yield f"what they change is not known ({why}): no model was asked in {count} tests"
        return
    yield from comparison_lines(compared, ("without them", "with them"))


def _to_json(
    learnt: LearntRecipe, compared: TestComparison | None, written: Path | None
) -> dict[str, JsonValue]:
    return {
        "file": learnt.file,
        "written": str(written) if written is not None else None,
        "steps": [each.to_json() for each in learnt.steps],
        "diff": learnt.diff,
        "tests": compared.to_json() if compared is not None else None,
    }


# --- `minions watch` ------------------------------------------------------------------------------


@click.command("watch")
@click.argument("recipe")
@click.option("--no-scoring", is_flag=True, help="Only read the scores that there are.")
@click.option(
    "--metrics",
    type=FILE,
    metavar="FILE.prom",
    help="Write gauges for Prometheus, as its textfile collector reads them.",
)
@takes_options(CommonOptions)
def watch_command(
    options: CommonOptions, recipe: str, *, no_scoring: bool, metrics: Path | None
) -> int:
    """Score the runs of RECIPE that its `watch` samples, and compare the newest with the first.

    Each run is scored once, after its end, and the score stands beside it: `minions sessions show`.
    Exit code 1: by a whole interval at 95 %, the newest pass less often than the first ones, or
    than `at_least`. A schedule of your system may call it as often as you like.
    """
    context = command_context(options)
    if metrics is not None:
        from minions.adapters.telemetry.prometheus import require_client

        require_client()
        check_writable(metrics, "--metrics", code="unwritable-file")
    with contextlib.redirect_stdout(sys.stderr):
        report = asyncio.run(_watch(context, recipe, scores_new=not no_scoring))
    if metrics is not None:
        from minions.adapters.telemetry.prometheus import text_of

        write_whole(metrics, text_of(watch_gauges([(context.project, report)])).encode())
    if context.settings.json:
        say(json_text(report.to_json()))
        return 1 if report.is_alarm else 0
    say(f"{report.recipe}: {report.sampled} runs in the sample, {report.new} new scores")
    for each in report.scorers:
        say(hanging(f"  {_watched_words(each)}"))
    if report.usage.total_tokens:
        cost = report.usage.cost_usd
        price = "" if cost is None else f", {dollars(cost)}"
        tell(f"grading: {report.usage.total_tokens:,} tokens{price}")
    if report.left is not None:
        tell(hanging(f"not all is scored: {report.left}"))
    return 1 if report.is_alarm else 0


async def _watch(context: CommandContext, name: str, *, scores_new: bool) -> WatchReport:
    async with context.runtime() as opened:
        runtime = opened.evolve(priority=Priority.BACKGROUND)
        recipe = named_recipe(name, context, runtime)
        watch = Watch(runtime, recipe, project=runtime.services.project)
        return await watch.report(scores_new=scores_new)


def _watched_words(watched: WatchedScorer) -> str:
    if watched.recent is None:
        return f"{watched.scorer}: no run is scored yet" + _failed_words(watched)
    newest = "" if watched.compared == watched.scored else f"the newest {watched.compared} of "
    of = f"{newest}{watched.scored} scored runs"
    words = f"{watched.scorer}: {_rate_words(watched.recent)} of {of} pass"
    if watched.change is not None and watched.before is not None:
        words += f", at first {_rate_words(watched.before)}"
    words += _failed_words(watched)
    return f"ALARM {words}" if watched.is_alarm else words


def _failed_words(watched: WatchedScorer) -> str:
    return f"; {watched.failed} without a score" if watched.failed else ""


def _rate_words(rate: Interval) -> str:
    return f"{rate.value:.0%} ({rate.low:.0%} to {rate.high:.0%})"
