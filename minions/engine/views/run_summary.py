"""One run in a list, with its state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from attrs import field, frozen

from minions.contracts.executions import OPEN_STATES, RunState
from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class RunSummary:
    """One run in a list, with its state by the journal and the leases."""

    run_id: str
    session_id: str
    recipe: str
    status: str = RunState.INTERRUPTED.value
    """One of `RunState`."""
    model: str | None = None
    started_at: datetime
    finished_at: datetime | None = None
    usage: Mapping[str, JsonValue] = field(factory=dict)
    problem: str | None = None
    """Which entry of an unreadable run is damaged, and how; None: the run is readable."""
    input_words: str | None = None
    """The first words of its inputs: `question: Where is … · times: 3`."""
    user: str | None = None
    """The label of the user for whom it runs; None: it has none."""
    project: str | None = None
    """The folder of the project in which it was started; None: not known."""
    version: str | None = None
    """The version that its recipe states; None: not known."""
    digest: str | None = None
    """Twelve digits that are equal for all runs of that text of the recipe; None: of code."""

    @property
    def cost_usd(self) -> float | None:
        """What it cost so far, in US dollars; None: not known."""
        cost = self.usage.get("cost_usd")
        return float(cost) if isinstance(cost, int | float) else None

    @property
    def has_ended(self) -> bool:
        """False of a run that is running or was interrupted."""
        return self.status not in OPEN_STATES
