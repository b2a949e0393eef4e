"""`minions test`: runs the tests of recipes, with scripted answers; nothing is stored."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from minions.app.evaluating.recipe_tests import TestOutcome, run_test
from minions.data.errors import UsageError
from minions.data.texts import spoken
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.render import stderr_painter
from minions.interfaces.cli.options import (
    CommandContext,
    ExtensionOptions,
    command_context,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import named_recipe


@click.command("test")
@click.argument("recipes", nargs=-1, required=True)
@click.option("-k", "wanted", metavar="TEXT", help="Only tests whose name holds TEXT.")
@click.option("--junit", metavar="FILE", help="Write the outcomes as JUnit XML, for CI.")
@takes_options(ExtensionOptions)
def command(
    options: ExtensionOptions, recipes: tuple[str, ...], wanted: str | None, junit: str | None
) -> int:
    """Run the `tests:` of RECIPES, with scripted answers and faked tools; nothing is stored.

    Exit code 1 if one fails, 2 if there is none.
    """
    context = command_context(options)
    file = Path(junit) if junit is not None else None
    if file is not None:
        from minions.interfaces.cli.console.junit import check_junit

        check_junit(file)
    with contextlib.redirect_stdout(sys.stderr) as _:
        done = asyncio.run(_run(context, recipes, wanted or ""))
    if not any(done.values()):
        named = f" whose name holds '{wanted}'" if wanted else ""
        raise UsageError(
            f"No tests{named} in {', '.join(recipes)}. Write them under `tests:`.", code="no-tests"
        )
    if file is not None:
        from minions.interfaces.cli.console.junit import suite_of_tests, write_junit

        write_junit(file, [suite_of_tests(name, outcomes) for name, outcomes in done.items()])
    if context.settings.json:
        shown = {name: [tested.to_json() for tested in all_] for name, all_ in done.items()}
        say(json_text({"recipes": shown}))
    else:
        _print(done)
    return 1 if any(tested.faults for all_ in done.values() for tested in all_) else 0


async def _run(
    context: CommandContext, names: Sequence[str], wanted: str
) -> dict[str, list[TestOutcome]]:
    done: dict[str, list[TestOutcome]] = {}
    async with context.runtime(is_stored=False) as runtime:
        for name in names:
            recipe = named_recipe(name, context, runtime)
            chosen = (test for test in recipe.tests if wanted in test.name)
            done[name] = [await run_test(recipe, test, runtime) for test in chosen]
    return done


def _print(done: dict[str, list[TestOutcome]]) -> None:
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
