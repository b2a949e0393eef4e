"""`minions fork`: a new session that begins with the first messages of another."""

from __future__ import annotations

import asyncio
from typing import cast

import click

from minions.contracts.errors import UsageError
from minions.contracts.sessions import Session
from minions.engine.services import Services
from minions.engine.session_store import StepRepository
from minions.interfaces.cli.setup import (
    Surroundings,
    naming_the_journal,
    output_options,
    store_options,
    surroundings,
)
from minions.interfaces.cli.talks import find_session
from minions.interfaces.cli.voice import json_text, say, tell

__all__ = ["command"]


@click.command("fork")
@click.argument("name", metavar="ID")
@click.option(
    "--at",
    type=int,
    metavar="SEQ",
    help="The last message that the fork has; else the session's last.",
)
@click.option("--name", "title", metavar="TEXT", help="What the fork is called.")
@store_options
@output_options
def command(name: str, at: int | None, title: str | None, **flags: object) -> int:
    """Branch the session ID (or a run's session) at a message. Nothing is copied, nothing runs."""
    around = surroundings(flags)
    fork = asyncio.run(_fork(around, name, at, title))
    if around.settings.json:
        say(json_text(fork.to_json()))
    else:
        say(fork.id)
    return 0


async def _fork(around: Surroundings, name: str, at: int | None, title: str | None) -> Session:
    if around.settings.no_store:
        raise UsageError("Without a journal there is nothing to fork: leave out --no-store.")
    journal = around.journal()
    repository = StepRepository(Services(journal=journal))
    try:
        with naming_the_journal(around):
            session = await find_session(journal, name)
        count = await repository.get_step_count(session.id)
        if count == 0:
            raise UsageError(
                f"Session '{session.id}' has no messages: there is nothing to fork. Only steps "
                "with `memory: conversation` leave messages in their session.",
                code="empty-session",
            )
        fork = await repository.fork(session.id, at if at is not None else count, name=title)
    finally:
        await journal.aclose()
    sequence = cast(int, fork.forked_at_sequence)
    tell(f"{fork.id} begins with messages 1 to {sequence} of {session.id}, which has {count}")
    tell(f"talk on: minions chat --session {fork.id} · go on: minions resume {fork.id}")
    return fork
