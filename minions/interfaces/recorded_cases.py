"""What a recorded run gave, for evaluations that ask the same again."""

from __future__ import annotations

from minions.contracts.facts import RunFinished, given
from minions.contracts.journal import Journal
from minions.contracts.json_values import JsonValue
from minions.contracts.run_rows import RunRow

__all__ = ["recorded_output"]


async def recorded_output(journal: Journal, row: RunRow) -> JsonValue:
    """The output at the run's last end; null where none is recorded."""
    entries = await journal.entries(
        row.session_id, run_id=row.run_id, kinds={"run"}, limit=1, newest_first=True
    )
    end = entries[0].fact if entries else None
    return given(end.output) if isinstance(end, RunFinished) else None
