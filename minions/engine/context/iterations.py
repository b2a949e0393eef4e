"""The times that a step is done: for an item, in another attempt, after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

from attrs import field, frozen

from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class LoopItem:
    """What one iteration of a loop is about."""

    value: JsonValue
    index: int
    """Of the item or attempt, from 0."""

    @property
    def loop(self) -> JsonValue:
        """What templates read as `loop`."""
        return {"item": self.value, "index": self.index}


@frozen(kw_only=True)
class Attempt:
    """One attempt of a step that is done as long as a condition holds."""

    index: int
    """Of the item or attempt, from 0."""
    outputs: Sequence[JsonValue] = ()
    """Outputs of the attempts before; one growing sequence, shared with later attempts."""
    _known: int = field(init=False)

    @_known.default
    def _all_so_far(self) -> int:
        return len(self.outputs)

    @property
    def loop(self) -> JsonValue:
        """What templates read as `loop`."""
        outputs = list(islice(self.outputs, self._known))
        return {"index": self.index, "last": outputs[-1] if outputs else None, "attempts": outputs}


Iteration: TypeAlias = LoopItem | Attempt
"""One of the times that a step is done."""


@frozen(kw_only=True)
class Feedback:
    """Why the run went back to an earlier step."""

    step_id: str
    """The id of the step that failed."""
    to: str
    """The id of the step that runs again."""
    code: str
    message: str
    attempt: int
    """How often the back edge was followed, this time included; from 1."""

    def to_json(self) -> dict[str, JsonValue]:
        """What templates read as `feedback`."""
        return {
            "step": self.step_id,
            "to": self.to,
            "code": self.code,
            "message": self.message,
            "attempt": self.attempt,
        }
