"""Ends a run from outside: its worker loses the lease, and can store nothing more."""

from __future__ import annotations

from minions.contracts.errors import FailureInfo, LeaseHeldError, UsageError
from minions.contracts.executions import RunStatus
from minions.contracts.facts import RunFinished
from minions.contracts.journal import EntryDraft, Lease
from minions.engine.history.lookup import find_run
from minions.engine.history.run_summary import RunSummary
from minions.engine.services.leases import acquire_lease
from minions.engine.services.services import Services

__all__ = ["cancel_run", "fail_run"]

_WORDS = "The run was cancelled from outside; what was done is kept."


async def cancel_run(services: Services, name: str) -> RunSummary:
    """Record the end of a run that is active, waits or was killed; its worker stops at its next
    fact.

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
    return await _ended(services, lease, run, RunStatus.CANCELLED, error)


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
