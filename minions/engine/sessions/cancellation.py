"""Ends a run from outside: its worker loses the lease, and can store nothing more."""

from __future__ import annotations

import contextlib
from typing import Final

from minions.contracts.executions import RunStatus
from minions.contracts.journal.child_run_links import OPEN_STATES, child_runs_start
from minions.contracts.journal.facts import RunFinished
from minions.contracts.journal.journal import EntryDraft, Lease
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.data.errors import FailureInfo, LeaseHeldError, UsageError
from minions.engine.history.recorder import acquire_lease
from minions.engine.services.run_services import Services
from minions.engine.views.lookup import find_run
from minions.engine.views.run_summary import RunSummary

_PAGE: Final = 200

_WORDS = "The run was cancelled from outside; what was done is kept."


async def cancel_run(services: Services, name: str) -> RunSummary:
    """Record the end of a run that is active, waits or was killed, and of its child runs; their
    workers stop at the next fact.

    What is recorded stays, and the run can be resumed.

    Args:
        name: The id or a unique prefix; see `find_run`.
    Returns:
        The run with its new state.
    Raises:
        NotFoundError: There is no such run.
        UsageError: `run-ended`; it has ended.
    """
    journal = services.journal
    run = await find_run(journal, name)
    if run.has_ended and run.status != RunStatus.NEEDS_DECISION:
        raise UsageError(
            f"Run '{run.run_id}' has ended ({run.status}): there is nothing to cancel.",
            code="run-ended",
        )
    lease = await _seized(services, run)
    error = FailureInfo(code="cancelled", message=_WORDS)
    ended = await _ended(services, lease, run, RunStatus.CANCELLED, error)
    await cancel_child_runs(services, run.run_id)
    return ended


async def cancel_child_runs(services: Services, run_id: str) -> int:
    """Record the end of all child runs of a run that have none; returns how many they are.

    Raises:
        JournalError: The journal cannot be reached; the others are cancelled by whoever takes them.
    """
    count, open_ones = 0, RunFilter(id_start=child_runs_start(run_id), statuses=OPEN_STATES)
    after: RunRow | None = None
    while rows := await services.journal.runs(open_ones, limit=_PAGE, after=after):
        for row in rows:
            with contextlib.suppress(UsageError, LeaseHeldError):  # it has ended just now
                await cancel_run(services, row.run_id)
                count += 1
        after = rows[-1]
    return count


async def fail_run(services: Services, run: RunSummary, error: FailureInfo) -> RunSummary:
    """Record that a run without an end failed, and that no worker tries it any more.

    What is recorded stays, and the run can be retried.

    Returns:
        The run with its new state.
    Raises:
        LeaseHeldError: A worker executes it, or another run of its session.
        JournalError: It cannot be stored.
    """
    lease = await acquire_lease(services, run.session_id, run.run_id)
    return await _ended(services, lease, run, RunStatus.FAILED, error)


async def _ended(
    services: Services, lease: Lease, run: RunSummary, status: RunStatus, error: FailureInfo
) -> RunSummary:
    finished = RunFinished(
        status=status.value,
        output=None,
        usage=dict(run.usage),
        error={"code": error.code, "message": error.message},
    )
    try:
        await services.journal.append(lease, EntryDraft(key="run", fact=finished))
    finally:
        await services.journal.release(lease)
    return await find_run(services.journal, run.run_id)


async def _seized(services: Services, run: RunSummary) -> Lease:
    journal, worker, ttl_s = services.journal, services.worker_id, services.lease_ttl_s
    is_over = run.has_ended
    try:
        return await journal.acquire(
            run.session_id, run.run_id, worker, ttl_s, next_generation=is_over
        )
    except LeaseHeldError as error:
        if error.run_id != run.run_id:
            raise  # the lease is of another run of the session
        return await journal.acquire(
            run.session_id, run.run_id, worker, ttl_s, takes_over=error.worker_id
        )
