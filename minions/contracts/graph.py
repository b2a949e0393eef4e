"""The graph of steps: which step may follow which. The engine has two implementations."""

from __future__ import annotations

from abc import ABC, abstractmethod

from minions.contracts.steps import Step


class StepGraph(ABC):
    """An immutable graph of steps, validated when it is built.

    A *transition graph* selects one successor of the step that just ended; a *dependency graph*
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
        """The steps that may follow `step`, in the order of the edges; empty at an end."""
