"""`minions capture`: a recipe from runs that worked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click
from attrs import frozen

from minions.app.capturing.captures import Capture, capture_runs, extend_recipe
from minions.app.capturing.proofs import prove_recipe
from minions.app.wiring.configured_runtime import Runtime
from minions.capture.captured_program import Question
from minions.capture.recipe_writing import Surprise
from minions.data.errors import UsageError
from minions.data.json_values import dumps
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    option,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import (
    editable_path,
    recipe_text,
    refuse_target,
    write_recipe,
)
from minions.interfaces.cli.run_follower import note_of
from minions.planning.step_edit import recipe_diff
from minions.recipe.reading.load import load_recipe_text

_NOT_WRITTEN: Final = 1
_ASKS: Final = 3


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _CaptureOptions(CommonOptions):
    """Who answers the cases of a trial."""

    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name that a trial asks."
    )
    max_cost_usd: float | None = option(
        "--max-cost", type=float, metavar="USD", help="Most that a trial may cost: 0.50."
    )


@click.command("capture")
@click.argument("runs", nargs=-1, metavar="RUN|SESSION…")
@click.option("-o", "--output", "target", metavar="FILE", help="Write the recipe there.")
@click.option("--id", "recipe_id", metavar="ID", help="Id of the recipe; default: the agent's.")
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="PLACE=N",
    help="Choose where a value comes from, by the number of the choice; repeatable.",
)
@click.option("--accept", "accepts", is_flag=True, help="Take the proposed choice everywhere.")
@click.option(
    "--on-surprise",
    type=click.Choice([each.value for each in Surprise]),
    default=Surprise.FAIL.value,
    help="What becomes of a run in which something is as it was never seen: the agent does what is "
    "left, a person is asked, or it fails (the default).",
)
@click.option(
    "--extend",
    "extended",
    metavar="RECIPE",
    help="Add the ways of these runs to a captured recipe; shown as a diff.",
)
@click.option("--prove", "proved", metavar="RECIPE", help="Prove a recipe again; write nothing.")
@click.option(
    "--try",
    "cases",
    metavar="CASES",
    help="Ask the agent and the recipe these cases, as `minions eval` does. Tools are called.",
)
@click.option(
    "-n", "most", type=click.IntRange(min=1), metavar="N", help="With --try: the first N cases."
)
@click.option("--draft", is_flag=True, help="Write the recipe although it is not proved.")
@click.option("--force", is_flag=True, help="Replace the file.")
@takes_options(_CaptureOptions)
def capture_command(
    options: _CaptureOptions,
    runs: tuple[str, ...],
    *,
    target: str | None,
    recipe_id: str | None,
    answers: tuple[str, ...],
    accepts: bool,
    on_surprise: str,
    extended: str | None,
    proved: str | None,
    cases: str | None,
    most: int | None,
    draft: bool,
    force: bool,
) -> int:
    """Write the recipe that does again what recorded runs did.

    Each argument of each tool call becomes a constant, an input, a part of an earlier result, or
    what a small model step gives; the report says which, and why. The recipe is proved before it is
    written: replayed on each of the runs it makes the same calls and gives the same output.
    """
    context = command_context(options)
    if proved is not None:
        if runs or extended is not None or target is not None:
            raise UsageError("--prove takes a recipe alone: no runs, --extend or -o.", code="usage")
        return asyncio.run(_prove(context, proved))
    if not runs:
        raise UsageError("Name at least one run or session to capture.", code="usage")
    goal = Path(target) if target is not None else None
    path = editable_path(extended) if extended is not None else None
    if goal != path or goal is None:
        refuse_target(goal, force=force)
    request = _Request(
        runs=runs,
        goal=goal,
        extended=path,
        recipe_id=recipe_id,
        given=answers,
        accepts=accepts,
        on_surprise=Surprise(on_surprise),
        cases=cases,
        most=most,
        is_draft=draft,
        is_forced=force or (goal is not None and goal == path),
    )
    return asyncio.run(_capture(context, request))


@click.command("drift")
@click.argument("recipe")
@click.option(
    "-n", "most", type=click.IntRange(min=1), default=50, metavar="N", help="The newest N runs."
)
@takes_options(CommonOptions)
def drift_command(options: CommonOptions, recipe: str, *, most: int) -> int:
    """Say whether the newest runs of a captured RECIPE are still what it was captured from.

    Its proof is run again, and its runs are searched for what it had never seen, for rejected calls
    and for costs. The last line recommends: keep, extend or re-capture. Exit code 1 unless keep.
    """
    return asyncio.run(_drift(command_context(options), recipe, most))


async def _drift(context: CommandContext, name: str, most: int) -> int:
    from minions.app.capturing.drift import Advice, find_drift

    path = editable_path(name)
    async with context.runtime() as runtime:
        recipe = load_recipe_text(recipe_text(path), str(path), runtime.catalog)
        found = await find_drift(recipe, runtime, most=most, file=str(path))
    if context.settings.json:
        say(json_text(found.to_json()))
    else:
        statuses = ", ".join(f"{count} {status}" for status, count in found.statuses.items())
        say(f"{found.runs} runs{': ' if statuses else ''}{statuses}")
        if found.tokens is not None:
            say(f"tokens of a run: {found.tokens:g} (of the older half: {found.tokens_before:g})")
        for each in found.surprises:
            say(f"{each.step_id}: {each.code} in {len(each.runs)} runs, {len(each.solved)} solved")
            tell(hanging(f"  {each.message} ({each.runs[0]})"))
        if found.rejected:
            say(f"rejected calls: {found.rejected}")
        for words in found.proof.differences:
            tell(hanging(f"not proved: {words}"))
        say(f"{found.advice.value}: {found.because}")
        for command in found.next_commands:
            say(f"  {command}")
    return 0 if found.advice is Advice.KEEP else 1


@frozen(kw_only=True)
class _Request:
    """What one command is to capture, and where it goes."""

    runs: tuple[str, ...]
    goal: Path | None
    extended: Path | None
    recipe_id: str | None
    given: tuple[str, ...]
    accepts: bool
    on_surprise: Surprise
    cases: str | None
    most: int | None
    is_draft: bool
    is_forced: bool

    async def captured(self, runtime: Runtime, answers: Mapping[str, str]) -> Capture:
        """The capture with these answers to its questions."""
        if self.extended is None:
            return await capture_runs(
                self.runs,
                runtime,
                recipe_id=self.recipe_id,
                answers=answers,
                accepts=self.accepts and answers is not _NONE,
                on_surprise=self.on_surprise,
            )
        recipe = load_recipe_text(recipe_text(self.extended), str(self.extended), runtime.catalog)
        return await extend_recipe(
            recipe,
            self.runs,
            runtime,
            answers=answers,
            accepts=self.accepts and answers is not _NONE,
        )


_NONE: Final[Mapping[str, str]] = {}
"""No answer yet: then every question is asked."""


async def _prove(context: CommandContext, name: str) -> int:
    path = editable_path(name)
    async with context.runtime() as runtime:
        recipe = load_recipe_text(recipe_text(path), str(path), runtime.catalog)
        proof = await prove_recipe(recipe, runtime)
    if context.settings.json:
        say(json_text(proof.to_json()))
    else:
        for each in proof.tests:
            sign = "✗" if each.faults or each.unnoticed else "✓"
            say(f"{sign} {name}: {each.name} ({each.effects} calls with an effect)")
        for words in proof.differences:
            tell(hanging(f"not proved: {words}"))
    return 0 if proof.is_proved else 1


async def _capture(context: CommandContext, request: _Request) -> int:
    async with context.runtime() as runtime:
        found = await request.captured(runtime, _NONE)
        if found.questions:
            chosen = dict(_chosen(found.questions, request.given))
            left = [each for each in found.questions if each.place not in chosen]
            if left and not request.accepts and sys.stdin.isatty() and not context.settings.json:
                chosen.update(await asyncio.to_thread(_ask, left))
            found = await request.captured(runtime, chosen)
        if request.cases is not None:
            return await _try(context, request, found, runtime)
    diff = None
    if request.extended is not None:
        diff = recipe_diff(recipe_text(request.extended), found.text, str(request.extended))
    is_written = request.goal is not None and (found.is_proved or request.is_draft)
    if request.goal is not None and is_written:
        for name, text in found.files.items():
            write_recipe(request.goal.parent / name, text, force=request.is_forced)
        write_recipe(request.goal, found.text, force=request.is_forced)
    if context.settings.json:
        say(json_text(found.to_json()))
    elif diff is not None:
        say(diff)
    elif request.goal is None:
        say(found.text.rstrip())
    for line in _lines(found, request.goal if is_written else None):
        tell(hanging(line))
    if found.is_proved or is_written:
        return 0
    return _ASKS if found.questions else _NOT_WRITTEN


async def _try(context: CommandContext, request: _Request, found: Capture, runtime: Runtime) -> int:
    """Ask agent and recipe the same cases, and print how many each passes, at what cost."""
    from minions.app.capturing.trials import tried_recipes
    from minions.app.evaluating.evaluation_runs import Evaluation, EvaluationPlan, checked_scorers
    from minions.interfaces.cli.case_source import CaseSource, read_cases
    from minions.interfaces.cli.console.evaluation_tables import report_lines

    if found.recipe is None or found.agent is None or not found.is_proved:
        for problem in found.problems:
            tell(hanging(f"not proved: {problem}"))
        raise UsageError(
            "A trial needs a captured recipe that is proved, and the run of its agent.",
            code="not-proved",
        )
    recipes = tried_recipes(found.recipe, found.agent, runtime.catalog)
    asked = [recipes[1].recipe, recipes[0].recipe]
    wanted = CaseSource(data=request.cases, suite=None, recorded=None)
    cases, source = await read_cases(wanted, context, runtime, asked)
    cases = cases[: request.most]
    plan = EvaluationPlan(
        name=f"try {source}",
        title=f"{found.recipe.id} on {source}",
        cases=cases,
        scorers=checked_scorers((), cases, runtime, asked),
        models=(context.settings.model,),
        max_cost_usd=context.settings.max_cost_usd,
        note=note_of(context, None),
    )
    report = await Evaluation(runtime, recipes, plan).report()
    if context.settings.json:
        say(json_text(report.to_json()))
    else:
        for line in report_lines(report, 200, database=context.flags_again[0]):
            say(line)
    return 0 if report.is_passed else 1


def _chosen(questions: tuple[Question, ...], given: tuple[str, ...]) -> Mapping[str, str]:
    """By place the template that was chosen.

    Raises:
        UsageError: A choice names no question, or none of its answers.
    """
    by_place = {each.place: each for each in questions}
    chosen: dict[str, str] = {}
    for each in given:
        place, sign, word = each.partition("=")
        question = by_place.get(place)
        if not sign or question is None:
            known = ", ".join(by_place) or "there are none"
            raise UsageError(
                f"--answer {each} answers no question. Questions: {known}.", code="usage"
            )
        number = int(word) if word.isdecimal() else 0
        if not 0 < number <= len(question.choices):
            listed = "; ".join(f"{at}: {it}" for at, it in enumerate(question.choices, start=1))
            raise UsageError(
                f"--answer {each}: choose the number of one of {listed}.", code="usage"
            )
        chosen[place] = question.choices[number - 1]
    return chosen


def _ask(questions: list[Question]) -> Mapping[str, str]:
    chosen: dict[str, str] = {}
    for each in questions:
        tell(f"{each.place} was {dumps(each.value)}. Where does it come from?")
        for number, choice in enumerate(each.choices, start=1):
            tell(f"  {number}: {choice}")
        number = click.prompt(
            "Number", type=click.IntRange(1, len(each.choices)), default=1, err=True
        )
        chosen[each.place] = each.choices[number - 1]
    return chosen


def _lines(found: Capture, written: Path | None) -> Iterator[str]:
    """What was found, for people."""
    for each in found.evidence:
        yield f"{each.place}: {each.how} {each.source} ({each.because})"
    for left in found.program.left_out:
        arguments = dumps(dict(left.call.arguments))
        yield f"left out: {left.call.tool} {arguments:.100} ({left.reason})"
    for question in found.questions:
        yield f"{question.place} was {dumps(question.value)}, which stands in several places:"
        for number, choice in enumerate(question.choices, start=1):
            yield f"  --answer {question.place}={number}  {choice}"
    agent = max(each.model_calls for each in found.traces)
    yield (
        f"model calls: {agent} of the agent, {found.judgements} of the recipe · "
        f"tokens of the agent: {found.usage_before.total_tokens}"
    )
    if found.is_proved:
        count = len(found.traces)
        yield f"proved: the same calls and output as in {count} trace{'s' * (count != 1)}"
    for problem in found.problems:
        yield f"not proved: {problem}"
    if written is not None:
        yield f"written: {written}"
    elif found.problems:
        yield "nothing was written; --draft writes it as it is"
