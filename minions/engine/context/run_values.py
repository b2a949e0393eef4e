"""What templates of one recipe may read during the run: its inputs, and what its steps gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from minions.contracts.executions import StepStatus
from minions.contracts.secrets import Secrets
from minions.contracts.steps import PythonStep, Step
from minions.data.errors import FailureInfo
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.engine.context.iterations import Feedback
from minions.recipe.artifacts import artifacts_of
from minions.recipe.expressions.values import MissingValueError, Reference, resolve

_RESERVED: Final = ("inputs", "steps", "run", "feedback")
"""Names that a step of the same id does not hide; `steps.<id>.output` still reads that step."""


class RunValues:
    """The names that templates may read. Each step's result is published here when it ends."""

    def __init__(
        self, inputs: Mapping[str, JsonValue], run: Mapping[str, JsonValue], secrets: Secrets
    ) -> None:
        """Begin with the inputs alone.

        Args:
            inputs: Checked, with defaults.
            run: What templates read as `run`.
            secrets: References to them are disarmed in what a model says.
        """
        self._inputs = dict(inputs)
        self.has_large: bool = bool(inputs) and is_large(self._inputs)
        """Whether any value has been large so far: only then is it looked at what a step reads."""
        self._secrets = secrets
        self._has_secrets = bool(secrets)
        self._feedback: Feedback | None = None
        self._steps: dict[str, dict[str, JsonValue]] = {}
        self._names: dict[str, JsonValue] = {
            "feedback": None,
            "inputs": self._inputs,
            "steps": self._steps,
            "run": dict(run),
        }

    @property
    def inputs(self) -> Mapping[str, JsonValue]:
        """Checked, with defaults."""
        return self._inputs

    @property
    def names(self) -> Mapping[str, JsonValue]:
        """Each name with its present value: one mapping, which changes as steps end."""
        return self._names

    @property
    def feedback(self) -> Feedback | None:
        """Why steps run again after a back edge; None: they do not."""
        return self._feedback

    def give_feedback(self, feedback: Feedback) -> None:
        """Let the steps that run again read why."""
        self._feedback, self._names["feedback"] = feedback, feedback.to_json()

    def end_feedback(self, step_id: str) -> None:
        """That step ended without a back edge: if the feedback was about it, nobody reads it."""
        if self._feedback is not None and self._feedback.step_id == step_id:
            self._feedback = self._names["feedback"] = None

    def publish(
        self,
        step: Step[object],
        status: StepStatus,
        output: JsonValue,
        save_as: str | None = None,
        error: FailureInfo | None = None,
        *,
        with_artifacts: bool = False,
    ) -> None:
        """Let later steps read how a step ended.

        Args:
            output: Of a COMPLETED step, or of a FAILED loop whose results are readable; else None.
            save_as: A further name of the output; it may hide any other name.
            error: Why it FAILED.
            with_artifacts: Whether templates read the artifacts in the output.
        """
        if status is StepStatus.SKIPPED or (status is not StepStatus.COMPLETED and output is None):
            self._publish_status(step.id, status, error)
            return
        self.has_large = self.has_large or is_large(output)
        if self._has_secrets and not isinstance(step, PythonStep):
            output = self._secrets.disarm(output)  # a model's words must not move a secret
        failure = dict(error.to_document()) if error is not None else None
        record: dict[str, JsonValue] = {
            "status": status._value_,
            "output": output,
            "error": failure,
        }
        if with_artifacts:
            record["artifacts"] = artifacts_of(output)
        self._steps[step.id] = record
        if step.id not in _RESERVED:
            self._names[step.id] = output
        if save_as is not None:
            self._names[save_as] = output

    def ended(self, step_id: str) -> Mapping[str, JsonValue] | None:
        """What templates read as `steps.ID`; None: the step has not ended."""
        return self._steps.get(step_id)

    def reads_much(
        self, references: Iterable[Reference], values: Mapping[str, JsonValue] | None = None
    ) -> bool:
        """Whether what these references read is large: then nothing is computed from it at once.

        Args:
            values: What they read; None: the run's.
        """
        if not self.has_large:
            return False
        names = self._names if values is None else values
        return any(is_large(_known(each, names)) for each in references)

    def _publish_status(self, step_id: str, status: StepStatus, error: FailureInfo | None) -> None:
        before = self._steps.get(step_id) or {}
        if status is StepStatus.SKIPPED and "output" in before:
            # In a graph of transitions it may have run before: its newest output stays readable.
            self._steps[step_id] = {**before, "status": status.value, "error": None}
            return
        failure = dict(error.to_document()) if error is not None else None
        self._steps[step_id] = {"status": status.value, "error": failure}
        if status is StepStatus.FAILED and step_id not in _RESERVED:
            self._names.pop(step_id, None)

    def restore(
        self, step_id: str, record: Mapping[str, JsonValue], save_as: str | None = None
    ) -> None:
        """Let a child run read what a step of the run around it gave.

        Args:
            record: What templates read there as `steps.ID`.
            save_as: As of `publish`.
        """
        self._steps[step_id] = {**record}
        if "output" not in record:
            return
        if step_id not in _RESERVED:
            self._names[step_id] = record["output"]
        if save_as is not None:
            self._names[save_as] = record["output"]

    def withdraw(self, step_id: str, save_as: str | None = None) -> None:
        """Remove the result of a step that runs again, under each of its names."""
        for name in (step_id, save_as):
            if name is not None and name not in _RESERVED:
                self._names.pop(name, None)
        self._steps.pop(step_id, None)


def _known(reference: Reference, names: Mapping[str, JsonValue]) -> JsonValue:
    """What the reference reads, as far as its path is constant; null where nothing is there."""
    try:
        return resolve(reference.path, names)
    except MissingValueError:
        return None
