"""Who is at work on a run, for whoever wants to go on with it."""

from __future__ import annotations

from minions.contracts.errors import LeaseHeldError
from minions.engine.run.recorded_run import RecordedRun
from minions.engine.services.services import Services

__all__ = ["refuse_if_it_goes_on"]


async def refuse_if_it_goes_on(services: Services, recorded: RecordedRun) -> None:
    """Whatever somebody says of a run that goes on is too late; tell who has it, and since when.

    Raises:
        LeaseHeldError: Another worker has the run now, and is not known to be dead.
    """
    journal, summary = services.journal, recorded.summary
    try:
        lease = await journal.acquire(
            summary.session_id, summary.run_id, services.worker_id, services.lease_ttl_s
        )
    except LeaseHeldError as error:
        if services.is_worker_gone(error.worker_id) or error.run_id != summary.run_id:
            return  # its lease can be taken; another run of the session says so itself
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
