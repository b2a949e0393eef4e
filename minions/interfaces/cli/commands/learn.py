"""`minions learn`: adds examples from recorded runs to a recipe, and says what they change."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from attrs import frozen

from minions.app.evaluating.learning import (
    LearntRecipe,
    LearntStep,
    TestComparison,
    compare_tests,
    learn_recipe,
)
from minions.app.wiring.models import ModelChoice
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.words import shell_word
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.console.test_comparison import comparison_lines
from minions.interfaces.cli.console.whole_file import check_writable, write_whole
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    option,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import editable_path, recipe_text
from minions.interfaces.cli.written_recipe import refuse_target, write_recipe
from minions.recipe.examples import MOST_EXAMPLE_TOKENS, MOST_EXAMPLES


@frozen(kw_only=True, slots=False)
class _TestOptions(CommonOptions):
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
@takes_options(_TestOptions)
def command(
    options: _TestOptions,
    recipe: str,
    *,
    step_id: str | None,
    most: int,
    max_tokens: int,
    target: str | None,
    is_written: bool,
) -> int:
    """Add examples to the steps of RECIPE: outputs of recorded runs that were marked good,
    approved, or tested by an `assert` step.

    The change is shown as a diff, and nothing is written without --write or -o. Each of the
    recipe's tests is run twice with the model in use, without the new examples and with them.
    """
    context = command_context(options)
    path = editable_path(recipe)
    goal = Path(target) if target is not None else None
    if is_written and goal is not None:
        raise UsageError("--write and -o name two files to write to: leave one out.", code="usage")
    refuse_target(goal, force=False)
    if is_written:
        check_writable(path, "--write", code="unwritable-file")
    with contextlib.redirect_stdout(sys.stderr):
        learnt, compared = asyncio.run(
            _learn(context, path, step_id, most=most, max_tokens=max_tokens)
        )
    written = _write(learnt, path if is_written else None, goal)
    if context.settings.json:
        say(json_text(_to_json(learnt, compared, written)))
    elif learnt.diff:
        say(learnt.diff)
    for line in _lines(learnt, compared, written, recipe, is_dry=context.settings.dry_run):
        tell(hanging(line))
    return 0


async def _learn(
    context: CommandContext, path: Path, step_id: str | None, *, most: int, max_tokens: int
) -> tuple[LearntRecipe, TestComparison | None]:
    settings = context.settings
    async with context.runtime() as runtime:
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


def _write(learnt: LearntRecipe, path: Path | None, target: Path | None) -> Path | None:
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
