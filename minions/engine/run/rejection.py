"""A recipe that was refused before it began leaves one row, so that the list of runs shows it."""

from __future__ import annotations

from collections.abc import Mapping

from minions.contracts.errors import Fault, RecipeError
from minions.contracts.journal import EntryDraft
from minions.contracts.json_values import JsonValue
from minions.engine.history.lookup import REJECTED
from minions.engine.services.services import Services

__all__ = ["record_rejected_run"]


async def record_rejected_run(
    services: Services,
    recipe_id: str,
    error: RecipeError,
    *,
    note: Mapping[str, JsonValue] | None = None,
) -> str:
    """Store that a recipe was not run, and why; the id of the run that was none.

    Neither the recipe's text nor the run's inputs are stored: what is wrong with a recipe may be
    that a password stands in it.

    Args:
        note: What the caller wants to find beside it.
    Raises:
        JournalError: The journal cannot be opened or written.
    """
    run_id, session_id = services.ids("run"), services.ids("ses")
    draft = EntryDraft(
        kind="run",
        key="run",
        state=REJECTED,
        body={
            "recipe": recipe_id,
            "note": dict(note or {}),
            "error": error.info().to_json(),
            "faults": [_told(fault) for fault in error.faults],
        },
    )
    journal = services.journal
    lease = await journal.acquire(session_id, run_id, services.worker_id, services.lease_ttl_s)
    try:
        await journal.append(lease, draft)
    finally:
        await journal.release(lease)
    return run_id


def _told(fault: Fault) -> dict[str, JsonValue]:
    """What `Fault` takes, without the line of the recipe's text."""
    return {
        "code": fault.code,
        "message": fault.message,
        "file": fault.file,
        "line": fault.line,
        "column": fault.column,
        "label": fault.label,
        "help": fault.help,
    }
