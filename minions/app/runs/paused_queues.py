"""Queues from which no worker takes runs for a while, with the reason: texts beside the journal.

Workers of every kind of database read them; what they have taken already is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from attrs import frozen

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.data.json_values import JsonValue, dumps, parse_json

ALL_QUEUES: Final = "*"
"""The name under which all queues are paused."""
_PAUSED: Final = f"{RESERVED}paused:"


@frozen(kw_only=True)
class QueuePause:
    """Since when and why no worker takes runs of a queue."""

    queue: str
    """Its name; `ALL_QUEUES`: every queue."""
    reason: str
    since: datetime

    @property
    def words(self) -> str:
        """One line for a person."""
        what = "all queues are" if self.queue == ALL_QUEUES else f"queue {self.queue} is"
        return f"{what} paused since {self.since:%Y-%m-%d %H:%M}Z: {self.reason}"

    def to_json(self) -> dict[str, JsonValue]:
        """The form in which it is printed."""
        return {"queue": self.queue, "reason": self.reason, "since": self.since.isoformat()}


async def put_pause(state: StateStore, pause: QueuePause) -> None:
    """Pause a queue, also one that is paused already.

    Raises:
        JournalError: The database cannot be used.
    """
    text = dumps({"reason": pause.reason, "since": pause.since.isoformat()})
    await state.put(_PAUSED + pause.queue, text)


async def remove_pause(state: StateStore, queue: str) -> bool:
    """Let workers take runs of a queue again; whether it was paused itself.

    Raises:
        JournalError: The database cannot be used.
    """
    was_paused = await state.get(_PAUSED + queue) is not None
    await state.remove(_PAUSED + queue)
    return was_paused


async def queue_pauses(state: StateStore) -> Mapping[str, QueuePause]:
    """All pauses by the names of their queues; one query where there is none.

    A text of another form pauses its queue as well: whoever put it there wants that.

    Raises:
        JournalError: The database cannot be used.
    """
    found = {}
    for key in await state.keys(_PAUSED):
        queue, text = key.removeprefix(_PAUSED), await state.get(key)
        if text is None:  # it was resumed just now
            continue
        try:
            stored = parse_json(text)
            known = stored if isinstance(stored, dict) else {}
            since = datetime.fromisoformat(str(known["since"]))
            found[queue] = QueuePause(queue=queue, reason=str(known["reason"]), since=since)
        except (KeyError, ValueError):
            since = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
            found[queue] = QueuePause(queue=queue, reason="unknown", since=since)
    return found


def pause_among(pauses: Mapping[str, QueuePause], queue: str) -> QueuePause | None:
    """The pause that holds for a queue: that of all, or its own; None: there is none."""
    return pauses.get(ALL_QUEUES) or pauses.get(queue)
