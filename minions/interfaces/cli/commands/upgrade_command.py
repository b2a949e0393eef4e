"""`minions upgrade`: what becomes of a recipe's runs under its new version, and moving them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

import click
from attrs import evolve, frozen

from minions.data.errors import UsageError
from minions.data.texts import shell_word
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    option,
    required_text,
    takes_options,
)
from minions.interfaces.cli.queue_options import open_queue
from minions.interfaces.cli.recipe_argument import named_recipe
from minions.interfaces.cli.run_follower import user_of_machine
from minions.recipe.nested_recipes import bundle_of

if TYPE_CHECKING:
    from minions.app.runs.recipe_upgrade import RunUpgrade, UpgradeWish

_MOST_SHOWN: Final = 10
_WORDS: Final = {
    "goes_on": ("continues unchanged", "continue unchanged"),
    "moves": ("can be moved", "can be moved"),
    "breaks": ("breaks", "break"),
}
_ORDER: Final = ("breaks", "moves", "goes_on")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _UpgradeOptions(CommonOptions):
    """Which runs are meant, and what is done."""

    before: str | None = option(
        "--from", metavar="OLD", help="Only runs of that `version`, or fingerprint of a recipe."
    )
    move: bool = option("--move", is_flag=True, help="Move the runs that can be moved.")
    pin: bool = option(
        "--pin", is_flag=True, help="Let runs that are not moved stay with their version for good."
    )
    undo: bool = option(
        "--undo",
        is_flag=True,
        help="Move back runs of which nothing was executed since, and schedules that started none.",
    )
    only: tuple[str, ...] = option(
        "--only", multiple=True, metavar="ID", help="Only this run or schedule. Repeatable."
    )


@click.command("upgrade")
@click.argument("recipe")
@takes_options(_UpgradeOptions)
def upgrade_command(options: _UpgradeOptions, recipe: str) -> int:
    """Say what RECIPE, as it is now, means for its runs that wait, are queued or are executed.

    Each continues unchanged, can be moved, or breaks; the step and the reason are named. Without
    --move or --pin nothing is changed. Moving keeps what ended, and executes nothing. Exit code 1
    if a run breaks, or if what was asked for could not be done.
    """
    if options.undo and (options.move or options.pin):
        raise UsageError("--undo goes without --move and --pin.")
    if options.before is not None:
        required_text("--from", options.before)
    context = command_context(options)
    out = sys.stdout
    # What extensions print is no result: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(_upgrade(context, options, recipe, out))


async def _upgrade(
    context: CommandContext, options: _UpgradeOptions, name: str, out: TextIO
) -> int:
    from minions.app.runs.recipe_upgrade import (
        RecipeUpgrade,
        UpgradeWish,
        recipe_digest,
        unknown_run,
    )
    from minions.app.runs.schedule_store import ScheduleStore
    from minions.app.wiring.databases import has_database, state_beside

    wish = UpgradeWish(
        moves=options.move,
        pins=options.pin,
        undoes=options.undo,
        only=options.only,
        before=options.before,
        by=user_of_machine(),
    )
    # A database that is not there holds no run: it stays so.
    is_there = has_database(context.settings, context.folder_of("db"))
    async with context.runtime(is_stored=is_there) as runtime:
        recipe = named_recipe(name, context, runtime)
        if recipe.document is None:
            raise UsageError(
                f"The recipe '{recipe.id}' was made by code, which does not travel with a run.",
                code="recipe-needed",
            )
        state = state_beside(runtime.services.journal)
        try:
            async with open_queue(context, None) as queue:
                upgrade = RecipeUpgrade(
                    runtime.services, ScheduleStore(state), runtime.extensions, queue
                )
                found = [each async for each in upgrade.upgraded(recipe, wish)]
        finally:
            await state.aclose()
    for each in wish.only:  # it may be a run of another version, or a child run
        if not any((one.run_id or one.schedule or "").startswith(each) for one in found):
            raise unknown_run(each, recipe.id)
    # Nothing to undo is no success: whoever asks for it means a move that happened.
    undid_nothing = wish.undoes and not any(each.done or each.problem for each in found)
    if undid_nothing:
        found = [evolve(each, problem="it was not moved") for each in found]
    if context.settings.json:
        say(json_text([each.to_json() for each in found]), out)
    else:
        digest = recipe_digest(recipe.document, bundle_of(recipe))
        say(f"{recipe.id} version {recipe.version} ({digest})", out)
        _show(found, wish.before, out)
        _tell_next(found, wish, name, context)
    if undid_nothing:
        tell(
            f"nothing to undo: no run of '{recipe.id}' that is not over, and no schedule, was moved"
        )
        return 1
    has_break = any(each.fate.fate == "breaks" and each.done is None for each in found)
    return int((not wish.undoes and has_break) or any(each.problem for each in found))


def _show(found: Sequence[RunUpgrade], before: str | None, out: TextIO) -> None:
    counts = Counter(each.fate.fate for each in found)
    done = Counter(each.done for each in found if each.done is not None)
    for fate in _ORDER:
        if count := counts[fate]:
            say(f"{count} {_WORDS[fate][count > 1]}", out)
    if not found:
        meant = "it" if before is None else f"version or fingerprint '{before}'"
        say(f"no run of {meant} waits, is queued or is executed", out)
    for what, count in sorted(done.items()):
        say(f"{count} {what}", out)
    shown = sorted(found, key=lambda each: (each.problem is None, _ORDER.index(each.fate.fate)))
    for each in shown[:_MOST_SHOWN]:
        say(hanging(_line(each)), out)
    if len(shown) > _MOST_SHOWN:
        say(f"… and {len(shown) - _MOST_SHOWN} more (--json lists all)", out)


def _line(each: RunUpgrade) -> str:
    version = f"version {each.version}, " if each.version is not None else ""
    step = f"  step '{each.fate.step}':" if each.fate.step is not None else " "
    done = f"  {each.done}" if each.done is not None else ""
    problem = f"  nothing was done: {each.problem}" if each.problem is not None else ""
    fate = _WORDS[each.fate.fate][0]
    return (
        f"{each.name}  {each.status or 'scheduled'}  ({version}{each.digest})  {fate}"
        f"{step} {each.fate.reason}{done}{problem}"
    )


def _tell_next(
    found: Sequence[RunUpgrade], wish: UpgradeWish, name: str, context: CommandContext
) -> None:
    flags = "".join(context.flags_again)
    command = f"minions upgrade {shell_word(name)}"
    moved = [each for each in found if each.done == "moved"]
    if moved:
        has_runs = any(each.run_id for each in moved)
        until = "they are executed" if has_runs else "the schedule starts a run"
        tell(f"until {until}: {command} --undo{flags}")
    elif not wish.undoes and any(each.fate.fate == "moves" and not each.done for each in found):
        tell(f"move them: {command} --move{flags}")
