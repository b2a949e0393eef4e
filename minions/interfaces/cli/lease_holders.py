"""Refuses to resume a run that another worker executes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minions.contracts.errors import LeaseHeldError
from minions.engine.services.leases import refuse_if_renewed
from minions.engine.services.services import Services

if TYPE_CHECKING:
    from minions.engine.run.recorded_run import RecordedRun

__all__ = ["refuse_if_active"]


async def refuse_if_active(services: Services, recorded: RecordedRun) -> None:
    """Refuse a decision or resume of a run that is active elsewhere; the message names the worker.

    Raises:
        LeaseHeldError: Another worker executes the run, and is not known to be dead.
    """
    journal, summary = services.journal, recorded.summary
    await refuse_if_renewed(services, summary.session_id)
    try:
        lease = await journal.acquire(
            summary.session_id, summary.run_id, services.worker_id, services.lease_ttl_s
        )
    except LeaseHeldError as error:
        if services.is_worker_gone(error.worker_id) or error.run_id != summary.run_id:
            return  # the lease can be taken over, or another run of the session reports it
        begins = [
            row
            for row in recorded.entries
            if row.kind == "run" and row.state in ("started", "resumed")
        ]
        word = "resumed" if begins[-1].state == "resumed" else "started"
        raise LeaseHeldError(
            f"Nothing was done: run '{summary.run_id}' is active on worker '{error.worker_id}', "
            f"which {word} it at {begins[-1].at:%Y-%m-%d %H:%M:%S}Z. Wait for its end, or end that "
            "worker, and repeat the command if there is still something to do.",
            worker_id=error.worker_id,
            run_id=error.run_id,
        ) from error
    await journal.release(lease)
