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
from minions.capture.programs import Question
from minions.capture.recipe_writing import Surprise
from minions.data.errors import UsageError
from minions.data.json_values import dumps
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import (
    editable_path,
    recipe_text,
    refuse_target,
    write_recipe,
)
from minions.planning.step_edit import recipe_diff
from minions.recipe.reading.load import load_recipe_text

_NOT_WRITTEN: Final = 1
_ASKS: Final = 3


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
@click.option("--draft", is_flag=True, help="Write the recipe although it is not proved.")
@click.option("--force", is_flag=True, help="Replace the file.")
@takes_options(CommonOptions)
def capture_command(
    options: CommonOptions,
    runs: tuple[str, ...],
    *,
    target: str | None,
    recipe_id: str | None,
    answers: tuple[str, ...],
    accepts: bool,
    on_surprise: str,
    extended: str | None,
    proved: str | None,
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
        is_draft=draft,
        is_forced=force or (goal is not None and goal == path),
    )
    return asyncio.run(_capture(context, request))


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
    is_written = request.goal is not None and (found.is_proved or request.is_draft)
    if request.goal is not None and is_written:
        for name, text in found.files.items():
            write_recipe(request.goal.parent / name, text, force=request.is_forced)
        write_recipe(request.goal, found.text, force=request.is_forced)
    if context.settings.json:
        say(json_text(found.to_json()))
    elif request.extended is not None:
        say(recipe_diff(recipe_text(request.extended), found.text, str(request.extended)))
    elif request.goal is None:
        say(found.text.rstrip())
    for line in _lines(found, request.goal if is_written else None):
        tell(hanging(line))
    if found.is_proved or is_written:
        return 0
    return _ASKS if found.questions else _NOT_WRITTEN


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
        yield f"proved: the same calls and output as in {len(found.traces)} traces"
    for problem in found.problems:
        yield f"not proved: {problem}"
    if written is not None:
        yield f"written: {written}"
    elif found.problems:
        yield "nothing was written; --draft writes it as it is"
