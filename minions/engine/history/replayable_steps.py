"""What a Python step offers to `replay`: knowing its recorded work, or having it in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod

from minions.contracts.context import RunContext
from minions.engine.history.step_rows import StepRows


class Replayable(ABC):
    """A Python step that can say whether it would repeat its recorded work, without doing it."""

    @abstractmethod
    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Whether the step would do now what `recorded` says it did."""


class RecordedInParts:
    """A Python step whose calls are recorded one by one: if it is run again, they are replayed."""
