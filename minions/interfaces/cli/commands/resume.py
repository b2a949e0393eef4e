"""`minions resume`: continues a run or a session that was cut off or waits."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable
from typing import TextIO

import click

from minions.contracts.queue_places import QueuePlace
from minions.data.errors import UsageError
from minions.interfaces.cli.console.console import say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    command_context,
    takes_options,
)
from minions.interfaces.cli.resume_plan import RecordedRunOpener, RerunOptions
from minions.interfaces.cli.run_follower import refuse_two_outputs
from minions.interfaces.cli.session_choice import OpenSession, is_conversation


@click.command("resume")
@click.argument("name", metavar="ID")
@click.option(
    "--decide",
    "decisions",
    multiple=True,
    metavar="CALL=WORD",
    help="Of a call in doubt: redo, done, done:JSON or fail. Repeatable.",
)
@takes_options(RerunOptions)
def command(options: RerunOptions, name: str, decisions: tuple[str, ...]) -> int:
    """Resume a run that was killed, stopped, or waits for a decision.

    ID is a run's or a session's, or a unique start of one. Recorded work is not done again.
    """
    context = command_context(options)
    place = options.place(context)
    refuse_two_outputs(context.settings)
    words = _decisions(decisions)
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(_resume(context, name, words, place, model=options.model, out=out))


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
