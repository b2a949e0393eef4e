"""A run that waits for a person, or by which others got worse, as hooks and webhooks are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TypeAlias

from attrs import frozen

from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class RunWait:
    """The decisions for which a run began to wait with its last execution; what workers lack for
    one that waits in a queue; or the alarm of its recipe's `watch`, for which nothing waits.
    """

    id: str
    """The same however often the wait is told: a receiver that keeps it is told once."""
    run_id: str
    session_id: str
    recipe: str
    since: datetime
    """When the wait was recorded."""
    decisions: tuple[Mapping[str, JsonValue], ...]
    """As in the event `run_waiting`: `key`, `step_id`, `what` (`approval`, `answer` or `doubt`),
    `tool` with its `digest`, or `question`, and `deciders`, where not everybody decides. Those that
    the run waited for before are left out; a reminder has all that it waits for.
    """
    reminder: int = 0
    """How often it was told before, at the least; 0: it is new."""
    address: str | None = None
    """The page on which they are made; None: there is none."""

    lacks: tuple[str, ...] = ()
    """What its worker would need and no worker of its queue has, in words; then there is no
    decision to make. Runs that need the same are told once, with the one that waits longest."""

    alarm: Mapping[str, JsonValue] | None = None
    """What a scorer of the recipe's `watch` says of runs that got worse, as `minions watch --json`
    prints it; the run is the newest that did not pass. None: it says nothing."""

    def to_json(self) -> dict[str, JsonValue]:
        """The document that a webhook posts."""
        more: dict[str, JsonValue] = {"reminder": self.reminder} if self.reminder else {}
        if self.lacks:
            more["lacks"] = list(self.lacks)
        if self.alarm is not None:
            more["alarm"] = dict(self.alarm)
        return {
            "type": "run.waiting" if self.alarm is None else "watch.alarm",
            "timestamp": self.since.isoformat(),
            "data": {
                "id": self.id,
                "run_id": self.run_id,
                "session_id": self.session_id,
                "recipe": self.recipe,
                "decisions": [dict(each) for each in self.decisions],
                "address": self.address,
                **more,
            },
        }


OnWaiting: TypeAlias = Callable[[RunWait], Awaitable[None] | None]
"""Called with a run that waits, after its execution has ended. What it raises is logged."""
