"""Everything that a journal holds of one user: found, and removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import Final

from attrs import frozen
from msgspec.structs import replace

from minions.contracts.journal.facts import (
    ExamplesPinned,
    Fact,
    PinnedExample,
    RunBeginning,
    UnreadableFact,
)
from minions.contracts.journal.journal import Journal, digests_in
from minions.contracts.journal.run_rows import JUDGED, RunFilter, SessionFilter
from minions.data.codec import encode
from minions.data.errors import LeaseHeldError, NotFoundError
from minions.engine.services.run_services import Services
from minions.engine.sessions.deletion import OPEN, child_sessions, remove_sessions
from minions.engine.sessions.retention import ForgetRuns

_SPARED_S: Final = 120.0
"""Longer than a process takes a blob that it stored for stored."""
REMOVED: Final = "(removed)"
"""What stands in place of the words of an example that was taken from a removed run."""


@frozen(kw_only=True)
class UserData:
    """What a journal holds of a user, by ids."""

    user: str
    sessions: tuple[str, ...]
    """Their own, those of child runs, and all forks of these."""
    runs: tuple[str, ...]
    """The runs of these sessions."""
    queued: tuple[str, ...]
    """Those that have not ended."""
    examples: tuple[str, ...]
    """Sessions of others whose runs were shown examples out of these runs."""
    foreign: tuple[str, ...]
    """Sessions of others in which a run was for the user: they are not removed."""
    judged: tuple[str, ...]
    """Sessions of others in which a mark or a decision names the user as who made it."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it can be removed."""
        return not (self.sessions or self.examples)


@frozen(kw_only=True)
class RemovedUser:
    """What was removed of a user."""

    sessions: tuple[str, ...]
    blobs: int
    cached: int
    examples: tuple[str, ...]
    """Sessions of others in which examples were blanked."""
    left: tuple[str, ...]
    """Sessions of others in which examples stay, because a run of them is active, or
    `Journal.verify` finds something wrong."""
    young_blobs: int
    """Blobs younger than two minutes, and texts of recipes younger than an hour, which a run may be
    about to name: they stay until the next clean-up."""


async def find_user_data(journal: Journal, user: str) -> UserData:
    """What the journal holds of a user; reads all entries about examples, marks and decisions.

    Raises:
        JournalError: It cannot be read.
    """
    own = [row.session_id for row in await journal.sessions(SessionFilter(user=user))]
    found = dict.fromkeys((*own, *await child_sessions(journal, own)))
    rest = list(found)
    while rest:
        forks = await journal.sessions(SessionFilter(parent=rest.pop()))
        new = [row.session_id for row in forks if row.session_id not in found]
        new += [each for each in await child_sessions(journal, new) if each not in found]
        found |= dict.fromkeys(new)
        rest += new
    rows = [row for each in found for row in await journal.runs(RunFilter(session_id=each))]
    runs = {row.run_id for row in rows}
    foreign = {row.session_id for row in await journal.runs(RunFilter(user=user))} - found.keys()
    shown = await journal.entries(kinds={"examples"}, with_damaged=True)
    judgements = await journal.entries(kinds=JUDGED, with_damaged=True)
    return UserData(
        user=user,
        sessions=tuple(found),
        runs=tuple(row.run_id for row in rows),
        queued=tuple(row.run_id for row in rows if row.status in OPEN),
        examples=_others((each.session_id for each in shown if _shows(each.fact, runs)), found),
        foreign=tuple(sorted(foreign)),
        judged=_others(
            (each.session_id for each in judgements if getattr(each.fact, "by", None) == user),
            found,
        ),
    )


def _others(session_ids: Iterable[str], found: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in session_ids if each not in found))


def _shows(fact: Fact | UnreadableFact, runs: Collection[str]) -> bool:
    return isinstance(fact, ExamplesPinned) and any(each.run in runs for each in fact.examples)


async def remove_user_data(
    services: Services, found: UserData, forget: ForgetRuns | None = None
) -> RemovedUser:
    """Remove what was found, and blank examples that were taken from it.

    Args:
        forget: Removes what is kept of runs beside the journal; gives a number, if it knows one.
    Raises:
        LeaseHeldError: A run of the user is active; nothing was removed.
        JournalError: The journal cannot be read or written.
    """
    journal = services.journal
    words, recipes = await _blobs_of(journal, found.sessions)
    removed = await remove_sessions(services, found.sessions) if found.sessions else ()
    examples, left = list[str](), list[str]()
    for session_id in found.examples:
        try:
            if (await journal.verify(session_id)).fault is not None:
                left.append(session_id)  # a new chain would hide it
                continue
            await journal.rewrite_session(session_id, _without_examples(frozenset(found.runs)))
            examples.append(session_id)
        except LeaseHeldError:
            left.append(session_id)
    # Nobody else is about to name what these runs said, unless a process stored the same just now.
    # The text of a recipe is another thing: a run may name it long after it was stored.
    collected = await journal.collect(only=words, spare_s=_SPARED_S) if words else None
    documents = await journal.collect(only=recipes) if recipes else None
    both = words | recipes
    young = await journal.collect(only=both, spare_s=-1, dry_run=True) if both else None
    cached = await forget(found.runs) if forget is not None and found.runs else 0
    await journal.forget_sessions(removed)
    await journal.forget_spender(found.user)
    return RemovedUser(
        sessions=removed,
        blobs=sum(each.blobs for each in (collected, documents) if each is not None),
        cached=cached if isinstance(cached, int) else 0,
        examples=tuple(examples),
        left=tuple(left),
        young_blobs=0 if young is None else young.blobs,
    )


async def _blobs_of(journal: Journal, session_ids: Collection[str]) -> tuple[set[str], set[str]]:
    """The digests that these sessions name: of what was said, and of recipes."""
    words, recipes = set[str](), set[str]()
    for session_id in session_ids:
        for entry in await journal.entries(session_id, with_damaged=True):
            if isinstance(entry.fact, RunBeginning):
                recipes |= {each for each in (entry.fact.document, entry.fact.recipes) if each}
            words |= digests_in(json.dumps(encode(entry.body)))
    words -= recipes
    rest = set(words)
    while rest:
        texts = list[bytes]()
        for digest in rest:
            try:
                texts.append(await journal.get_blob(digest))
            except NotFoundError:
                continue
        rest = digests_in(*texts) - words - recipes
        words |= rest
    return words, recipes


def _without_examples(runs: Collection[str]) -> Callable[[Fact], Fact]:
    """Blanks examples out of these runs; all else stays as it is."""

    def change(fact: Fact) -> Fact:
        if not isinstance(fact, ExamplesPinned) or not _shows(fact, runs):
            return fact
        return replace(fact, examples=tuple(_blanked(each) for each in fact.examples))

    def _blanked(example: PinnedExample) -> PinnedExample:
        if example.run not in runs:
            return example
        return replace(example, question=REMOVED, answer=REMOVED)

    return change
