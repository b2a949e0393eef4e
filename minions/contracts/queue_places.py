"""Where a run is queued for workers. Every command that runs a recipe loads it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from attrs import field, frozen
from attrs.validators import ge, le, matches_re

from minions.data.json_values import JsonValue

DEFAULT_QUEUE: Final = "default"
"""The queue of jobs for which none is named."""
LOWEST_PRIORITY: Final = 1_000
"""The greatest number that a priority may be."""
QUEUE_NAME: Final = r"[a-z0-9][a-z0-9_.-]{0,62}\Z"
"""The pattern of a queue's name."""


@frozen(kw_only=True)
class QueuePlace:
    """Where a run is queued; stored with its start, so that it can be submitted again."""

    name: str = field(default=DEFAULT_QUEUE, validator=matches_re(QUEUE_NAME))
    priority: int = field(default=0, validator=[ge(0), le(LOWEST_PRIORITY)])
    not_before: datetime | None = None
    """Before this time no worker begins with it; None: it may begin at once."""

    pauses: int = field(default=0, validator=ge(0))
    """How often in a row the run paused for a server, with no call answered in between."""

    def to_note(self) -> dict[str, JsonValue]:
        """The form in which it is stored."""
        note: dict[str, JsonValue] = {"name": self.name, "priority": self.priority}
        if self.not_before is not None:
            note["not_before"] = self.not_before.isoformat()
        if self.pauses:
            note["pauses"] = self.pauses
        return note

    @classmethod
    def of_note(cls, note: object) -> QueuePlace | None:
        """The place that was stored; None: the note is of another form."""
        if not isinstance(note, Mapping):
            return None
        try:
            until = note.get("not_before")
            return cls(
                name=note.get("name", ""),
                priority=note.get("priority", 0),
                not_before=None if until is None else datetime.fromisoformat(until),
                pauses=note.get("pauses", 0),
            )
        except (TypeError, ValueError):
            return None
