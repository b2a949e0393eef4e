"""What became of a recorded step, where its run has ended or was cut off meanwhile."""

from __future__ import annotations

from minions.contracts.executions import RunState, StepStatus
from minions.contracts.journal.child_runs import OPEN_STATES
from minions.contracts.journal.facts import StepEnd, StepFact, StepOmission, StepOutcome
from minions.engine.views.run_summary import RunSummary

__all__ = ["reason_in", "status_in"]


def status_in(fact: StepFact, run: RunSummary) -> str:
    """The status of the step by its newest fact; where it has no end, the state of the run.

    A step that waited when its run ended was interrupted: nothing waits any more.
    """
    if isinstance(fact, StepEnd) and not _is_left(fact, run):
        return fact.status
    return RunState.INTERRUPTED.value if run.has_ended else run.status


def reason_in(fact: StepFact, run: RunSummary) -> str | None:
    """Why the step has that status; None: nothing is recorded, or its wait is over."""
    if not isinstance(fact, StepOutcome | StepOmission):
        return None
    return None if _is_left(fact, run) else fact.reason


def _is_left(fact: StepEnd, run: RunSummary) -> bool:
    """Whether the step waited, and its run has ended since."""
    return fact.status == StepStatus.IN_PROGRESS and run.status not in OPEN_STATES
