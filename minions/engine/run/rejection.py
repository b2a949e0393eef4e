"""A recipe that was refused before it began leaves one row, so that the list of runs shows it."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from minions.contracts.journal.facts import RunRejected
from minions.contracts.journal.journal import EntryDraft
from minions.data.errors import Fault, RecipeError
from minions.data.json_values import JsonValue
from minions.engine.history.recorder import held_lease
from minions.engine.services.run_services import Services


async def record_rejected_run(
    services: Services,
    recipe_id: str,
    error: RecipeError,
    *,
    note: Mapping[str, JsonValue] | None = None,
) -> str:
    """Record that a recipe was refused, and why; returns the id of the rejected run.

    Neither the recipe's text nor the run's inputs are stored: what is wrong with a recipe may be
    that a password stands in it.

    Args:
        note: What the caller wants to find beside it.
    Raises:
        JournalError: The journal cannot be opened or written.
    """
    run_id, session_id = services.ids("run"), services.ids("ses")
    rejected = RunRejected(
        recipe=recipe_id,
        project=services.project,
        note=dict(note or {}),
        error=error.info().to_json(),
        faults=tuple(map(_told, error.faults)),
    )
    async with held_lease(services, session_id, run_id) as lease:
        await services.journal.append(lease, EntryDraft(key="run", fact=rejected))
    return run_id


def _told(fault: Fault) -> Fault:
    """Without the line of the recipe's text."""
    return evolve(fault, source_line=None, length=1, is_warning=False)
