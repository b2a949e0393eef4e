"""Which step may follow which. Two kinds stand behind one contract."""

from __future__ import annotations

from abc import ABC, abstractmethod

from minions.contracts.steps import Step

__all__ = ["StepGraph"]


class StepGraph(ABC):
    """An immutable graph of steps, checked when it is built.

    A *transition graph* picks one successor of the step that just ended; a *dependency graph*
    starts every step whose dependencies are done.
    """

    @property
    @abstractmethod
    def steps(self) -> tuple[Step[object], ...]:
        """All steps, in list order; never empty."""

    @abstractmethod
    def find(self, step_id: str) -> Step[object] | None:
        """The step of that id; None when there is none."""

    @abstractmethod
    def possible_next_steps(self, step: Step[object]) -> tuple[Step[object], ...]:
        """What may follow `step`, in edge order; empty at an end."""
