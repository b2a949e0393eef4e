"""Deletes sessions: finds those that may be deleted, and removes them with their blobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Final

from attrs import frozen

from minions.contracts.errors import LeaseHeldError, NotFoundError, UsageError, near_names
from minions.contracts.executions import OPEN_STATES, RunState, RunStatus
from minions.contracts.journal import SPARED_S, BlobCollection, Journal
from minions.contracts.run_rows import RunFilter, SessionFilter, SessionRow
from minions.engine.history.run_names import meaning_of, not_unique, unknown_name
from minions.engine.services.leases import held_lease
from minions.engine.services.services import Services

__all__ = ["CleanUp", "StoredSession", "clean_up", "find_session", "list_stored", "remove_sessions"]

_OPEN: Final = (*OPEN_STATES, RunStatus.NEEDS_DECISION, RunState.UNREADABLE)
"""States of runs that may be resumed; an unreadable run counts if it has no end."""


@frozen(kw_only=True)
class StoredSession:
    """What decides whether a session may be removed."""

    session_id: str
    parent: str | None = None
    """The session from which it was forked, and whose rows it reads; None: it is no fork."""
    is_finished: bool = True
    """Whether no run of it may be resumed."""
    last_at: datetime
    """When a run of it last began or ended."""


@frozen(kw_only=True)
class CleanUp:
    """The result of a clean-up, or of a dry run of one."""

    sessions: tuple[str, ...]
    unfinished: tuple[str, ...]
    """Old sessions that stay because a run may be resumed, or is active."""
    forked: tuple[str, ...]
    """Old sessions that stay because forks of them stay."""
    collected: BlobCollection


async def list_stored(journal: Journal) -> Mapping[str, StoredSession]:
    """All sessions by their ids."""
    open_runs = await journal.runs(RunFilter(statuses=_OPEN))
    unfinished = {
        run.session_id
        for run in open_runs
        if run.status != RunState.UNREADABLE or run.ended_at is None
    }
    return {
        row.session_id: _stored(row, is_finished=row.session_id not in unfinished)
        for row in await journal.sessions()
    }


def _stored(row: SessionRow, *, is_finished: bool = True) -> StoredSession:
    return StoredSession(
        session_id=row.session_id, parent=row.parent, is_finished=is_finished, last_at=row.last_at
    )


async def _relatives(journal: Journal, session_ids: Iterable[str]) -> dict[str, StoredSession]:
    """These sessions, those from which they were forked, and all forks of these."""
    found: dict[str, StoredSession] = {}
    rest = list(session_ids)
    while rest:
        rows = await journal.sessions(SessionFilter(session_ids=rest))
        rest = [row.parent for row in rows if row.parent and row.session_id not in found]
        found |= {row.session_id: _stored(row) for row in rows}
    below = list(session_ids)
    while below:
        forks = await journal.sessions(SessionFilter(parent=below.pop()))
        below += [row.session_id for row in forks if row.session_id not in found]
        found |= {row.session_id: _stored(row) for row in forks}
    return found


async def find_session(journal: Journal, name: str) -> str:
    """The session with that id, with a run of that id, or with a unique prefix of either.

    Raises:
        NotFoundError: No id starts so.
        UsageError: Several ids start so.
    """
    meaning = await meaning_of(journal, name)
    if meaning.session is not None:
        return meaning.session
    if meaning.run is not None:
        return meaning.run.session_id
    found = {*(row.session_id for row in meaning.sessions), *meaning.sessions_of_runs}
    if len(found) == 1:
        return found.pop()
    if found:
        raise not_unique(name, sorted(found))
    raise await unknown_name(journal, name)


async def remove_sessions(services: Services, session_ids: Collection[str]) -> tuple[str, ...]:
    """Remove these sessions; return their ids, forks before parents. Blobs stay: see `clean_up`.

    Raises:
        NotFoundError: There is no such session; nothing was removed.
        UsageError: `has-forks`; other sessions read from it; nothing was removed.
        LeaseHeldError: A run of one of them is active; nothing was removed.
    """
    journal = services.journal
    stored = await _relatives(journal, session_ids)
    for session_id in session_ids:
        if session_id not in stored and not await journal.entries(
            session_id, limit=1, with_damaged=True
        ):
            known = await journal.sessions(limit=1000)
            raise NotFoundError(
                f"There is no session '{session_id}'.",
                code="unknown-session",
                suggestions=near_names(session_id, [row.session_id for row in known]),
            )
    _refuse_parents(stored, session_ids)
    ordered = _forks_first(stored, session_ids)
    async with AsyncExitStack() as stack:
        for session_id in ordered:  # hold all before the first one is removed
            await _hold(services, session_id, stack)
    for session_id in ordered:
        await journal.remove_session(session_id)
    return ordered


def _refuse_parents(stored: Mapping[str, StoredSession], session_ids: Collection[str]) -> None:
    for session_id in session_ids:
        readers = sorted(_readers(stored, session_id) - set(session_ids))
        if readers:
            raise UsageError(
                f"Session '{session_id}' cannot be removed: {', '.join(readers)} "
                f"{'was' if len(readers) == 1 else 'were'} forked from it and "
                f"{'reads' if len(readers) == 1 else 'read'} from it. Remove "
                f"{'both' if len(readers) == 1 else 'all'} in one command: "
                f"minions sessions rm {' '.join([session_id, *readers])}",
                code="has-forks",
            )


def _readers(stored: Mapping[str, StoredSession], session_id: str) -> set[str]:
    """The forks of a session, and all forks of these."""
    found: set[str] = set()
    rest = {session_id}
    while rest:
        rest = {each.session_id for each in stored.values() if each.parent in rest} - found
        found |= rest
    return found


def _forks_first(
    stored: Mapping[str, StoredSession], session_ids: Iterable[str]
) -> tuple[str, ...]:
    def depth(session_id: str) -> int:
        above: list[str] = []
        while (session := stored.get(session_id)) is not None and session_id not in above:
            above.append(session_id)
            session_id = session.parent or ""
        return len(above)

    return tuple(sorted(dict.fromkeys(session_ids), key=depth, reverse=True))


async def _hold(services: Services, session_id: str, stack: AsyncExitStack) -> None:
    """Hold the lease of a session, so that no run of it can begin."""
    await stack.enter_async_context(held_lease(services, session_id, services.ids("removal")))


async def clean_up(
    services: Services,
    *,
    older_than_s: float | None = None,
    keep: int | None = None,
    dry_run: bool = False,
    spare_s: float = SPARED_S,
) -> CleanUp:
    """Remove finished sessions that are old, and all blobs that no entry names.

    Args:
        older_than_s: Sessions without any change for so many seconds are old; None without `keep`:
            no session is.
        keep: How many of the newest sessions are not old, whatever their age.
        dry_run: Only report; blobs that only these sessions name are not counted then.
        spare_s: Blobs younger than so many seconds stay, for a run that is about to name them.
    """
    journal = services.journal
    stored = await list_stored(journal)
    old = _old(stored, services.clock.now(), older_than_s, keep)
    unfinished = [each for each in old if not stored[each].is_finished]
    chosen = {each for each in old if stored[each].is_finished}
    forked = [each for each in old if each in chosen and _readers(stored, each) - chosen]
    chosen.difference_update(forked)
    removed: list[str] = []
    for session_id in _forks_first(stored, [each for each in old if each in chosen]):
        if _readers(stored, session_id).intersection(unfinished):
            forked.append(session_id)
            continue
        try:
            if not dry_run:
                await journal.remove_session(session_id)
            removed.append(session_id)
        except LeaseHeldError:
            unfinished.append(session_id)
    return CleanUp(
        sessions=tuple(removed),
        unfinished=tuple(unfinished),
        forked=tuple(forked),
        collected=await journal.collect(dry_run=dry_run, spare_s=spare_s),
    )


def _old(
    stored: Mapping[str, StoredSession],
    now: datetime,
    older_than_s: float | None,
    keep: int | None,
) -> list[str]:
    """Ids of the old sessions, the oldest first."""
    if older_than_s is None and keep is None:
        return []
    oldest_first = sorted(stored.values(), key=lambda each: each.last_at)
    latest = now - timedelta(seconds=older_than_s or 0)
    candidates = oldest_first[: max(len(oldest_first) - (keep or 0), 0)]
    return [each.session_id for each in candidates if each.last_at <= latest]
