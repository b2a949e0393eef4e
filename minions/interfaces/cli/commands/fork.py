"""`minions fork`: creates a session that begins with the first messages of another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import click

from minions.contracts.sessions import Session
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.words import shell_word
from minions.engine.services.services import Services
from minions.engine.sessions.store import StepRepository
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    naming_the_journal,
    takes_options,
)
from minions.interfaces.cli.params import some_inputs
from minions.interfaces.cli.session_choice import OpenSession, find_session


@click.command("fork")
@click.argument("name", metavar="ID")
@click.option(
    "--at",
    type=int,
    metavar="SEQ",
    help="The last message that the fork has; else the session's last.",
)
@click.option("--name", "title", metavar="TEXT", help="What the fork is called.")
@click.option(
    "-p",
    "--param",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input of the fork's turns; else as before.",
)
@takes_options(CommonOptions)
def command(
    options: CommonOptions, name: str, at: int | None, title: str | None, pairs: tuple[str, ...]
) -> int:
    """Branch the session ID (or a run's session) at a message. Nothing is copied, nothing runs."""
    context = command_context(options)
    fork = asyncio.run(_fork(context, name, at, title, pairs))
    if context.settings.json:
        say(json_text(fork.to_json()))
    else:
        say(fork.id)
    return 0


async def _inputs(
    context: CommandContext, name: str, pairs: tuple[str, ...]
) -> Mapping[str, JsonValue]:
    """The inputs, checked against the session's recipe."""
    async with OpenSession(context, name, model=None) as opened:
        return some_inputs(opened.session_recipe(), pairs, opened.context)


async def _fork(
    context: CommandContext, name: str, at: int | None, title: str | None, pairs: tuple[str, ...]
) -> Session:
    inputs = await _inputs(context, name, pairs) if pairs else {}
    if context.settings.no_store:
        raise UsageError("Without a journal there is nothing to fork: leave out --no-store.")
    journal = context.known_journal()
    repository = StepRepository(Services(journal=journal))
    try:
        with naming_the_journal(context):
            session = await find_session(journal, name)
        count = await repository.get_step_count(session.id)
        if count == 0:
            raise UsageError(
                f"Session '{session.id}' has no messages: there is nothing to fork. Only steps "
                "with `memory: conversation` leave messages in their session.",
                code="empty-session",
            )
        fork = await repository.fork(
            session.id, at if at is not None else count, name=title, inputs=inputs
        )
    finally:
        await journal.aclose()
    sequence = cast(int, fork.forked_at_sequence)
    tell(f"{fork.id} starts with messages 1 to {sequence} of {session.id}, which has {count}")
    again = "".join(context.flags_again)
    tell(
        f"continue: minions chat --session {shell_word(fork.id)}{again} · "
        f"resume: minions resume {shell_word(fork.id)}{again}"
    )
    return fork
