"""Deletes sessions: finds those that may be deleted, and removes them with their blobs.

Sessions of child runs go with the session of their run, and not before: it reads their results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Final

from attrs import frozen

from minions.contracts.executions import OPEN_STATES, RunState, RunStatus
from minions.contracts.journal.child_run_links import ChildLink, child_runs_start, parent_part
from minions.contracts.journal.facts import RunRejected, RunStarted
from minions.contracts.journal.journal import SPARED_S, BlobCollection, Journal
from minions.contracts.journal.run_rows import Expiry, RunFilter, SessionFilter, SessionRow
from minions.data.errors import LeaseHeldError, NotFoundError, UsageError, near_names
from minions.data.texts import shell_word
from minions.engine.history.recorder import held_lease
from minions.engine.services.run_services import Services
from minions.engine.views.run_names import meaning_of, not_unique, unknown_name

OPEN: Final = (*OPEN_STATES, RunStatus.NEEDS_DECISION, RunState.UNREADABLE)
"""States of runs that may be resumed; an unreadable run counts if it has no end."""


@frozen(kw_only=True)
class StoredSession:
    """What decides whether a session may be removed."""

    session_id: str
    parent: str | None = None
    """The session from which it was forked, and whose rows it reads; None: it is no fork."""
    owner: str | None = None
    """The session of the run whose child run it holds; None: there is none."""
    is_finished: bool = True
    """Whether no run of it may be resumed."""
    last_at: datetime
    """When a run of it last began or ended."""
    ended_at: datetime
    """When a run of it last started or ended, else when it was made."""
    expires_at: datetime | None = None
    """When its own time is over; None: it has none."""


@frozen(kw_only=True)
class CleanUp:
    """The result of a clean-up, or of a dry run of one."""

    sessions: tuple[str, ...]
    unfinished: tuple[str, ...]
    """Old sessions that stay because a run may be resumed, or is active."""
    forked: tuple[str, ...]
    """Old sessions that stay because forks of them stay."""
    collected: BlobCollection
    runs: tuple[str, ...] = ()
    """The runs of the removed sessions."""


async def list_stored(journal: Journal) -> Mapping[str, StoredSession]:
    """All sessions by their ids."""
    open_runs = await journal.runs(RunFilter(statuses=OPEN))
    unfinished = {
        run.session_id
        for run in open_runs
        if run.status != RunState.UNREADABLE or run.ended_at is None
    }
    rows = await journal.sessions()
    owners = await _owners(journal, [row.session_id for row in rows])
    return {
        row.session_id: _stored(
            row,
            owner=owners.get(row.session_id),
            is_finished=row.session_id not in unfinished,
        )
        for row in rows
    }


async def _owners(journal: Journal, session_ids: Collection[str]) -> Mapping[str, str]:
    """The session of the run that has the child run, by the session of a child run."""
    parts = {each: part for each in session_ids if (part := parent_part(each)) is not None}
    if not parts:
        return {}
    known = set(session_ids)
    runs = {
        child_runs_start(run.run_id): run.session_id
        for run in await journal.runs()
        if run.session_id in known
    }
    return {each: runs[part] for each, part in parts.items() if part in runs}


def _stored(
    row: SessionRow, *, owner: str | None = None, is_finished: bool = True
) -> StoredSession:
    return StoredSession(
        session_id=row.session_id,
        parent=row.parent,
        owner=owner,
        is_finished=is_finished,
        last_at=row.last_at,
        ended_at=row.updated_at,
        expires_at=row.expires_at,
    )


async def has_owner(journal: Journal, session_id: str) -> bool:
    """Whether the run is there whose child run the session holds."""
    if parent_part(session_id) is None:
        return False
    started = await journal.entries(session_id, kinds={"run"}, limit=1, with_damaged=True)
    fact = started[0].fact if started else None
    note = fact.note if isinstance(fact, RunStarted | RunRejected) else None
    link = ChildLink.of_note(note or {})
    return link is not None and await journal.count_runs(RunFilter(run_ids=[link.run_id])) > 0


async def child_sessions(journal: Journal, session_ids: Iterable[str]) -> tuple[str, ...]:
    """The sessions of all child runs of the runs of these sessions, and of theirs."""
    found: dict[str, None] = {}
    rest = list(session_ids)
    while rest:
        for run in await journal.runs(RunFilter(session_id=rest.pop())):
            children = await journal.runs(RunFilter(id_start=child_runs_start(run.run_id)))
            new = dict.fromkeys(row.session_id for row in children if row.session_id not in found)
            found |= new
            rest += new
    return tuple(found)


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
    """Remove these sessions, and those of their child runs. Blobs stay: see `clean_up`.

    Returns their ids: forks before parents, child runs before their runs.

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
    children = await child_sessions(journal, session_ids)
    session_ids = (*reversed(children), *session_ids)
    stored |= await _relatives(journal, children)
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
                f"minions sessions rm {' '.join(map(shell_word, [session_id, *readers]))}",
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
    retain_s: float | None = None,
    dry_run: bool = False,
    spare_s: float = SPARED_S,
) -> CleanUp:
    """Remove finished sessions that are old, and all blobs that no entry names.

    Args:
        older_than_s: Sessions without any change for so many seconds are old; None without `keep`:
            those alone are whose time is over.
        keep: How many of the newest sessions are not old, whatever their age.
        retain_s: How long a session may stay after the last start or end of a run; its runs may
            say less. None: as long as these say. What is older is removed, whatever else is said.
        dry_run: Only report; blobs that only these sessions name are not counted then.
        spare_s: Blobs younger than so many seconds stay, for a run that is about to name them.
    """
    journal = services.journal
    stored = await list_stored(journal)
    groups = _groups(stored)
    own = {each: session for each, session in stored.items() if each in groups}
    now = services.clock.now()
    old = list(dict.fromkeys((*_old(own, now, older_than_s, keep), *_over(own, now, retain_s))))
    unfinished = [
        each for each in old if not all(stored[member].is_finished for member in groups[each])
    ]
    candidates = [member for each in old if each not in unfinished for member in groups[each]]
    chosen = set(candidates)
    forked = [each for each in candidates if _readers(stored, each) - chosen]
    chosen.difference_update(*(groups[_top(stored, each)] for each in forked))
    removed: list[str] = []
    runs: list[str] = []
    for session_id in _forks_first(stored, [each for each in candidates if each in chosen]):
        if _readers(stored, session_id).intersection(unfinished):
            forked.append(session_id)
            continue
        try:
            of_session = await journal.runs(RunFilter(session_id=session_id))
            if not dry_run:
                await journal.remove_session(session_id)
            runs += [row.run_id for row in of_session]
            removed.append(session_id)
        except LeaseHeldError:
            unfinished.append(session_id)
    return CleanUp(
        sessions=tuple(removed),
        unfinished=tuple(unfinished),
        forked=tuple(forked),
        collected=await journal.collect(dry_run=dry_run, spare_s=spare_s),
        runs=tuple(runs),
    )


def _top(stored: Mapping[str, StoredSession], session_id: str) -> str:
    """The session with which it is removed: its own, or that of the run above its child runs."""
    above: set[str] = set()
    while (owner := stored[session_id].owner) is not None and owner not in above:
        above.add(session_id := owner)
    return session_id


def _groups(stored: Mapping[str, StoredSession]) -> Mapping[str, Sequence[str]]:
    """Sessions that are removed together: those of child runs first, then their run's, by it."""
    groups: dict[str, list[str]] = {}
    for session_id in stored:
        top = _top(stored, session_id)
        groups.setdefault(top, [top])
        if session_id != top:
            groups[top].insert(-1, session_id)
    return groups


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


def _over(stored: Mapping[str, StoredSession], now: datetime, retain_s: float | None) -> list[str]:
    """Ids of the sessions whose time is over."""
    over = expiry_at(now, retain_s)
    return [
        each.session_id
        for each in stored.values()
        if (each.expires_at is not None and each.expires_at <= now)
        or (over.ended_by is not None and each.ended_at <= over.ended_by)
    ]


def expiry_at(now: datetime, retain_s: float | None) -> Expiry:
    """Selects sessions that are over.

    Args:
        retain_s: How long they may stay after their end; None: as long as their runs say.
    """
    ended_by = None
    if retain_s is not None:
        with contextlib.suppress(OverflowError):
            ended_by = now - timedelta(seconds=retain_s)
    return Expiry(now=now, ended_by=ended_by)
