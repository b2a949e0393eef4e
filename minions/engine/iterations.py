"""The times that a step is done: for an item, in another attempt, after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from minions.contracts.json_values import JsonValue

if TYPE_CHECKING:
    pass


__all__ = ["Attempt", "Feedback", "LoopItem", "Turn"]


@frozen(kw_only=True)
class LoopItem:
    """What one iteration of a loop is about."""

    value: JsonValue
    index: int
    """From 0."""

    @property
    def loop(self) -> JsonValue:
        """What templates read as `loop`."""
        return {"item": self.value, "index": self.index}


@frozen(kw_only=True)
class Attempt:
    """One attempt of a step that is done as long as a condition holds."""

    index: int
    """From 0."""
    outputs: tuple[JsonValue, ...] = ()
    """What the attempts before gave."""

    @property
    def loop(self) -> JsonValue:
        """What templates read as `loop`."""
        last = self.outputs[-1] if self.outputs else None
        return {"index": self.index, "last": last, "attempts": list(self.outputs)}


Turn: TypeAlias = LoopItem | Attempt
"""One of the times that a step is done."""


@frozen(kw_only=True)
class Feedback:
    """Why the run went back to an earlier step."""

    step_id: str
    """That failed."""
    to: str
    """That runs again."""
    code: str
    message: str
    attempt: int
    """From 1."""

    def to_json(self) -> dict[str, JsonValue]:
        """What templates read as `feedback`."""
        return {
            "step": self.step_id,
            "to": self.to,
            "code": self.code,
            "message": self.message,
            "attempt": self.attempt,
        }
