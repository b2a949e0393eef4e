"""How far a run is in its graph: the current step, what ran, how often."""

from __future__ import annotations

from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.graph import StepGraph
from minions.contracts.steps import Step


class StepProgress:
    """The current step, what ran, and how often. Only an `AgentExecutor` changes it."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self._current: Step[object] | None = graph.steps[0]
        self._executions: list[StepExecution[object]] = []
        self._latest: dict[str, int] = {}
        self._visits: dict[str, int] = {}
        self._failures = 0

    @property
    def current_step(self) -> Step[object] | None:
        """What runs next or now; None when the workflow is complete."""
        return self._current

    def set_current_step(self, step: Step[object] | str | None) -> None:
        """Go there; None or an id that the graph does not know completes the workflow."""
        self._current = self.graph.find(step) if isinstance(step, str) else step

    @property
    def is_workflow_complete(self) -> bool:
        """Whether no step comes next."""
        return self._current is None

    def set_workflow_complete(self) -> None:
        """End the workflow: no step comes next."""
        self._current = None

    def record(self, execution: StepExecution[object]) -> None:
        """Keep what came out of a step."""
        step_id = execution.step_id
        self._latest[step_id] = len(self._executions)
        self._executions.append(execution)
        if execution.status is StepStatus.FAILED or execution.is_partial:
            self._failures += 1
        self._visits[step_id] = self._visits.get(step_id, 0) + 1

    @property
    def has_failures(self) -> bool:
        """Whether any execution FAILED or was partial so far, those with a back edge left out."""
        return self._failures > 0

    def take_back_failure(self) -> None:
        """The run went back because of the last one: it is made good, or fails again."""
        self._failures -= 1

    @property
    def step_executions(self) -> tuple[StepExecution[object], ...]:
        """In order of their end, repeated steps each time."""
        return tuple(self._executions)

    def latest(self, step_id: str) -> StepExecution[object] | None:
        """The newest execution of that step; None if it has not run."""
        index = self._latest.get(step_id)
        return None if index is None else self._executions[index]

    def visits(self, step_id: str) -> int:
        """How often that step has run."""
        return self._visits.get(step_id, 0)

    def has_failed(self, step_id: str) -> bool:
        """Whether the newest execution of that step FAILED."""
        execution = self.latest(step_id)
        return execution is not None and execution.status is StepStatus.FAILED
