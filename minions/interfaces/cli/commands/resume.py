"""`minions resume`: continues a run or a session that was cut off or waits."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable
from typing import TextIO, cast

import click

from minions.contracts.errors import UsageError
from minions.contracts.queue_places import QueuePlace
from minions.interfaces.cli.console.console import say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    cache_option,
    cassette_options,
    command_context,
    common_options,
)
from minions.interfaces.cli.queue_options import queue_options, queue_place, settings_of
from minions.interfaces.cli.resume_plan import RecordedRunOpener
from minions.interfaces.cli.run_follower import refuse_two_outputs
from minions.interfaces.cli.session_choice import OpenSession, is_conversation

__all__ = ["command"]


@click.command("resume")
@click.argument("name", metavar="ID")
@click.option(
    "--decide",
    "decisions",
    multiple=True,
    metavar="CALL=WORD",
    help="Of a call in doubt: redo, done, done:JSON or fail. Repeatable.",
)
@click.option("-m", "--model", metavar="MODEL", help="provider/name; else the run's own.")
@click.option("--max-parallel", type=click.IntRange(min=1), help="Steps at a time.")
@click.option("--timeout", metavar="TIME", help="Most time from now on: 90, 90s, 10m.")
@click.option(
    "--max-cost",
    "max_cost_usd",
    type=float,
    metavar="USD",
    help="Most that the run may cost in total; default: as it was started.",
)
@click.option("--approve", help="Who approves further calls: ask, deny, all or wait.")
@click.option("--events", is_flag=True, help="Print one JSON event per line.")
@queue_options
@cassette_options
@cache_option
@common_options
def command(name: str, decisions: tuple[str, ...], **flags: object) -> int:
    """Resume a run that was killed, stopped, or waits for a decision.

    ID is a run's or a session's, or a unique start of one. Recorded work is not done again.
    """
    context = command_context(settings_of(flags))
    place = queue_place(context, flags)
    refuse_two_outputs(context.settings)
    words = _decisions(decisions)
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        model = cast("str | None", flags["model"])
        return asyncio.run(_resume(context, name, words, place, model=model, out=out))


def _decisions(texts: Iterable[str]) -> dict[str, str]:
    words: dict[str, str] = {}
    for text in texts:
        call, equals, word = text.partition("=")
        if not equals or not call:
            raise UsageError(
                f"--decide {text!r}: write it as CALL=redo, CALL=done or CALL=fail.",
                code="bad-decision",
            )
        if words.setdefault(call, word) != word:
            raise UsageError(f"--decide: two decisions about {call!r}.", code="bad-decision")
    return words


async def _resume_session(
    context: CommandContext, name: str, *, model: str | None, out: TextIO
) -> int:
    """Resume a session: continue a run that was cut off, else answer its last message."""
    async with OpenSession(context, name, model=model) as opened:
        runner = opened.runner()
        run = await runner.prepare_resume(opened.session)
        if run is None:
            last = await runner.repository.get_last_step(opened.session.id)
            tell("The last message is an answer; nothing is done again.")
            say(last.content or "" if last is not None else "", out, is_output=True)
            return 0
        return await opened.follow(run, out)


async def _resume(
    context: CommandContext,
    name: str,
    words: dict[str, str],
    place: QueuePlace | None,
    *,
    model: str | None,
    out: TextIO,
) -> int:
    if place is None and not words and await is_conversation(context, name):
        return await _resume_session(context, name, model=model, out=out)
    async with RecordedRunOpener(context, name, model=model) as opened:
        opened.queue_at(place)
        recipe = opened.own_recipe()
        run = opened.executor(recipe).prepare_resume(
            opened.recorded, recipe=recipe, decisions=words, note=opened.note()
        )
        return await opened.follow(run, out)
