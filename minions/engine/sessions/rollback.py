"""Rolls back the files that a recorded run changed."""

from __future__ import annotations

from minions.contracts.executions import RunState
from minions.contracts.file_changes import RollbackReport
from minions.data.errors import LeaseHeldError, UsageError
from minions.data.texts import shell_word
from minions.engine.history.event_stream import EventStream
from minions.engine.history.file_rollback import (
    RecordedChanges,
    RunRollback,
    recorded_changes,
    roll_back_within,
)
from minions.engine.history.recorder import Recorder
from minions.engine.services.run_services import Services
from minions.engine.views.lookup import find_run
from minions.engine.views.run_summary import RunSummary


async def roll_back_run(services: Services, name: str, *, dry_run: bool = False) -> RollbackReport:
    """Restore the files that a run changed, as far as its tools recorded it (`undo: true`).

    Changes are undone from the newest to the oldest, of nested recipes and all executions. A file
    that somebody else changed since is left as it is. What was begun and killed can be done again.

    Args:
        name: The id or a unique prefix; see `find_run`.
        dry_run: Only report what would be done.
    Raises:
        NotFoundError: There is no such run.
        UsageError: `nothing-recorded`; the run recorded no changes of files here.
        LeaseHeldError: The run, or another one of its session, is being executed.
        EnvironmentRefusedError: `undo-unavailable`; the services have no `file_restorer`.
        JournalError: The journal refuses.
    """
    run = await find_run(services.journal, name)
    _refuse_running(services, run)
    changes = await recorded_changes(services, run.session_id, run.run_id)
    _refuse_empty(run, changes)
    if dry_run:
        return await RunRollback.of(services, changes, None).carry_out()
    recorder = Recorder(services, EventStream(), session_id=run.session_id, run_id=run.run_id)
    try:
        await recorder.open()
        return await roll_back_within(services, recorder)
    finally:
        await recorder.close()


def _refuse_running(services: Services, run: RunSummary) -> None:
    if run.status == RunState.RUNNING or run.run_id in services.executing:
        raise LeaseHeldError(
            f"Run '{run.run_id}' is being executed: its files cannot be rolled back now. Wait for "
            f"its end, or end it: minions cancel {shell_word(run.run_id)}",
            worker_id=services.worker_id,
            run_id=run.run_id,
        )


def _refuse_empty(run: RunSummary, changes: RecordedChanges) -> None:
    if changes.files:
        return
    why = (
        "its changes of files were made where it was exported from"
        if changes.imported
        else "none of its tools recorded a change of a file (`undo: true` of the toolset `files`)"
    )
    raise UsageError(
        f"There is nothing to roll back of run '{run.run_id}': {why}.", code="nothing-recorded"
    )
