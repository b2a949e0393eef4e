"""Cases with known answers and their options; from a file, standard input, a suite or recorded
runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from attrs import frozen

from minions.app.evaluating.evaluation_runs import file_rows, recorded_rows
from minions.app.runs.batch_items import store_items
from minions.app.runs.deciders import POLICIES
from minions.app.wiring.configured_runtime import Runtime
from minions.data.errors import UsageError
from minions.evaluation.cases import Case, CaseRow, cases_of
from minions.evaluation.scorers import AnyScorer, Suite
from minions.evaluation.suite_file import SCORERS, scorer_named
from minions.interfaces.cli.console.console import tell
from minions.interfaces.cli.options import CommandContext, ManyRunsOptions, option
from minions.interfaces.cli.recipe_argument import STANDARD_INPUT
from minions.recipe.model import AgentRecipe


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class CaseOptions(ManyRunsOptions):
    """Which cases are asked, how, and how an answer is scored."""

    recorded: int | None = option(
        "--recorded",
        type=click.IntRange(min=1),
        metavar="N",
        help="The newest N runs of RECIPE that completed are the cases, and their outputs "
        "expected.",
    )
    scorers: tuple[AnyScorer, ...] = option(
        "--score",
        multiple=True,
        metavar="SCORER",
        callback=lambda _context, _option, said: tuple(map(_scorer_of_word, said)),
        help="exact or fields; the default is fields.",
    )
    samples: int | None = option(
        "--samples",
        type=click.IntRange(1, 1_000),
        metavar="N",
        help="How often each case is asked; default 1.",
    )
    pairs: tuple[str, ...] = option(
        "-p", "--param", multiple=True, metavar="NAME=VALUE", help="For each case."
    )
    params: str | None = option(
        "--params", metavar="FILE", help="Inputs for each case, YAML or JSON; -p wins."
    )
    timeout: str | None = option(
        "--timeout", metavar="TIME", help="Most time for one run: 90, 90s, 10m."
    )
    retry_failed: bool = option("--retry-failed", is_flag=True, help="Retry the runs that failed.")
    approve: str | None = option(
        "--approve",
        type=click.Choice([policy for policy in POLICIES if policy != "ask"]),
        help="Who approves calls that need approval; default: the case waits.",
    )


_MANY_UNREADABLE: Final = "runs cannot be read and are no cases"


@frozen(kw_only=True)
class CaseSource:
    """Where the cases come from, as the arguments say."""

    data: str | None
    """A file, or `-`; None: not given."""
    suite: Suite | None
    recorded: int | None
    """How many of the newest runs are cases; None: none is."""


def _scorer_of_word(word: str) -> AnyScorer:
    """The scorer of one word on the command line.

    Raises:
        UsageError: There is none.
    """
    found = scorer_named(word)
    if found is None:
        raise UsageError(
            f"--score takes exact or fields, not '{word:.40}'. Others "
            f"({', '.join(SCORERS[2:])}) need more words: write them in a file NAME.eval.yaml."
        )
    return found


async def read_cases(
    wanted: CaseSource, context: CommandContext, runtime: Runtime, recipes: Sequence[AgentRecipe]
) -> tuple[tuple[Case, ...], str]:
    """The cases, and what they are called.

    Args:
        recipes: Those that are asked; the first one's inputs the cases have.
    Raises:
        UsageError: `bad-items`; there is none, or one cannot be read.
    """
    recipe = recipes[0]
    rows, source = await _rows(wanted, context, runtime, recipe)
    cases = tuple(cases_of(rows, recipe.inputs, [each.known_output for each in recipes]))
    if not cases and wanted.recorded is not None:
        raise UsageError(
            f"No completed run of '{recipe.id}' is recorded that could be a case.",
            code="bad-items",
        )
    if not cases:
        raise UsageError(f"{source} has no cases: nothing was asked.", code="bad-items")
    return cases, source


async def _rows(
    wanted: CaseSource, context: CommandContext, runtime: Runtime, recipe: AgentRecipe
) -> tuple[list[CaseRow], str]:
    suite = wanted.suite
    if wanted.recorded is not None:
        return await _recorded_rows(runtime, recipe, wanted.recorded), "recorded runs"
    if wanted.data == STANDARD_INPUT:
        return _standard_input(context), "stdin"
    if wanted.data is not None:
        return file_rows(Path(wanted.data), wanted.data), wanted.data
    if suite is not None and suite.data is not None:
        return file_rows(suite.folder / suite.data, suite.data), suite.data
    if suite is not None and suite.rows:
        return list(suite.rows), suite.file
    where = "" if suite is None else f"{suite.file}: "
    raise UsageError(
        f"{where}Name a file of cases (CASES.jsonl or CASES.csv), write `data:` or `cases:` in a "
        "file NAME.eval.yaml, or take recorded runs by --recorded N.",
        code="bad-items",
    )


async def _recorded_rows(runtime: Runtime, recipe: AgentRecipe, most: int) -> list[CaseRow]:
    found = await recorded_rows(runtime.services.journal, recipe, most, runtime.services.project)
    if found.unreadable:
        count, named = len(found.unreadable), ", ".join(found.unreadable[:3])
        words = "run cannot be read and is no case" if count == 1 else _MANY_UNREADABLE
        tell(f"warning: {count} {words}: {named}")
    return found.rows


def _standard_input(context: CommandContext) -> list[CaseRow]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.jsonl"
        store_items(context.stdin.stream("the cases -"), path, "stdin")
        return file_rows(path, "stdin")
