"""Recorded runs as rows: lists of them, and the one that a name means; `run_detail` shows one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.runtime import BlockingCalls, IsWorkerGone
from minions.data.errors import JournalError, NotFoundError
from minions.engine.services.event_loop import beside
from minions.engine.services.run_services import is_worker_gone
from minions.engine.views.run_names import meaning_of, not_unique, unknown_name
from minions.engine.views.run_states import executed_runs, with_states
from minions.engine.views.run_summary import RunSummary

REJECTED = RunState.REJECTED.value
"""The state of a run that never began: its recipe has faults."""

_LONG: Final = 65_536
"""Bytes of JSON that are parsed at once."""
UNREADABLE = RunState.UNREADABLE.value
"""The state of a run whose entries are damaged; `problem` says how."""


async def list_runs(
    journal: Journal,
    *,
    run_id: str | None = None,
    wanted: RunFilter | None = None,
    limit: int | None = None,
    offset: int = 0,
    after: RunRow | None = None,
    is_worker_gone: IsWorkerGone = is_worker_gone,
) -> tuple[RunSummary, ...]:
    """All runs, the newest first; a damaged one has the state `unreadable` and hides no other.

    The cost depends on the number of runs returned, not on the number stored.

    Args:
        run_id: Only this run.
        wanted: Only runs that match; its `running` is filled in here.
        limit: At most so many, the newest.
        offset: Skip so many of the newest.
        after: Only runs behind this one in the list, whether or not it still exists.
        is_worker_gone: Whether the holder of a lease is known to be dead.
    """
    fit = wanted or RunFilter()
    if run_id is not None:
        fit = replace(fit, run_ids=[run_id])
    found = await _list(journal, fit, is_worker_gone, limit=limit, offset=offset, after=after)
    return _in_state(found, fit)


async def _list(
    journal: Journal,
    fit: RunFilter,
    is_worker_gone: IsWorkerGone,
    *,
    limit: int | None,
    offset: int,
    after: RunRow | None = None,
) -> Sequence[RunSummary]:
    async def read(running: frozenset[str]) -> Sequence[RunSummary]:
        rows = await journal.runs(
            replace(fit, running=running), limit=limit, offset=offset, after=after
        )
        return [_summary(row) for row in rows]

    return await with_states(journal, is_worker_gone, read, lambda run: run.run_id)


def _in_state(found: Sequence[RunSummary], fit: RunFilter) -> tuple[RunSummary, ...]:
    """One may have begun or ended between the looks at the leases."""
    return tuple(run for run in found if fit.statuses is None or run.status in fit.statuses)


async def page_of_runs(
    journal: Journal,
    wanted: RunFilter,
    *,
    limit: int,
    offset: int,
    at_most: int,
    is_worker_gone: IsWorkerGone = is_worker_gone,
) -> tuple[tuple[RunSummary, ...], int]:
    """A part of a list of runs, and how many match in all: nobody counts where the list ends in
    that part, so that a text which no run has is looked for once.

    Args:
        at_most: Counting ends with this number.
    """
    found = await _list(journal, wanted, is_worker_gone, limit=limit, offset=offset)
    if (total := total_at_end(len(found), limit, offset)) is None:
        total = await count_runs(journal, wanted, at_most=at_most, is_worker_gone=is_worker_gone)
    return _in_state(found, wanted), total


def total_at_end(found: int, limit: int, offset: int) -> int | None:
    """How many a list has, if it ends in the part that was read; None: it may be longer, or ends
    before that part.
    """
    return offset + found if found < limit and (found or not offset) else None


async def count_runs(
    journal: Journal,
    wanted: RunFilter,
    *,
    at_most: int | None = None,
    is_worker_gone: IsWorkerGone = is_worker_gone,
) -> int:
    """How many runs match; the filter's `running` is filled in here.

    Args:
        at_most: Counting ends with this number; None: all of them are counted.
    """
    if wanted.statuses is not None or wanted.is_without_index:
        wanted = replace(wanted, running=await executed_runs(journal, is_worker_gone))
    return await journal.count_runs(wanted, at_most=at_most)


def _summary(row: RunRow) -> RunSummary:
    is_unreadable = row.problem is not None
    return RunSummary(
        run_id=row.run_id,
        session_id=row.session_id,
        recipe=row.recipe,
        status=row.status,
        model=None if is_unreadable else row.model,
        started_at=row.started_at,
        finished_at=None if is_unreadable else row.ended_at,
        usage={} if is_unreadable else row.usage,
        problem=row.problem,
        input_words=row.input_words,
        user=row.user,
        project=row.project,
        version=row.version,
        digest=row.digest,
    )


async def find_run(journal: Journal, name: str) -> RunSummary:
    """The run with that id, or with a unique prefix of an id; a session's id means its last run.

    A whole id wins over longer ids that begin with it.

    Raises:
        NotFoundError: No id begins so, or nothing ran yet in the session of that id.
        UsageError: Several ids begin so.
        JournalError: `corrupt-entry`; the run exists and cannot be read.
    """
    row = await _row_named(journal, name)
    (run,) = await list_runs(journal, run_id=row.run_id) or [_summary(row)]
    return readable(run)


async def _row_named(journal: Journal, name: str) -> RunRow:
    meaning = await meaning_of(journal, name)
    if meaning.run is not None:
        return meaning.run
    if meaning.session is not None:
        if own := await journal.runs(RunFilter(session_id=name), limit=1):
            return own[0]
        raise NotFoundError(
            f"Nothing ran yet in session '{name}'. `minions sessions list` shows all runs.",
            code="unknown-session",
        )
    if len(meaning.runs) == 1:
        return meaning.runs[0]
    if meaning.runs:
        raise not_unique(name, [row.run_id for row in meaning.runs])
    last = [
        row
        for session in meaning.sessions
        for row in await journal.runs(RunFilter(session_id=session.session_id), limit=1)
    ]
    if len(last) == 1:
        return last[0]
    if last:
        raise not_unique(name, [row.run_id for row in last])
    raise await unknown_name(journal, name)


def readable(run: RunSummary) -> RunSummary:
    """The run, checked to be readable.

    Raises:
        JournalError: `corrupt-entry`; it cannot be read.
    """
    if run.problem is not None:
        raise JournalError(run.problem, code="corrupt-entry")
    return run


async def json_of_blob(
    journal: Journal, digest: str, threads: BlockingCalls | None = None
) -> object:
    """The JSON of a blob that an entry names; it may have come with an imported file.

    Args:
        threads: Where a long one is parsed; None: at once.
    Raises:
        JournalError: `corrupt-entry`; it is none, or nested too deep.
    """
    content = await journal.get_blob(digest)
    try:
        return await beside(
            threads,
            len(content) > _LONG,
            lambda: json.loads(content.decode("utf-8", "surrogatepass")),
        )
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else error
        raise JournalError(
            f"The blob {digest[:19]}… holds no JSON that can be read: {why}.", code="corrupt-entry"
        ) from error
