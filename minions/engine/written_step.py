"""What the steps of a recipe that was read have in common."""

from __future__ import annotations

from collections.abc import Mapping

from minions.contracts.json_values import JsonValue, dumps
from minions.recipe.expressions import (
    Reference,
)
from minions.recipe.model import (
    StepSpec,
)

__all__ = ["WrittenStep", "as_text", "step_named"]


class WrittenStep:
    """What every step of a recipe has from its spec."""

    spec: StepSpec

    @property
    def description(self) -> str:
        """As written."""
        return self.spec.description

    @property
    def is_optional(self) -> bool:
        """As written."""
        return self.spec.optional

    @property
    def metadata(self) -> Mapping[str, object]:
        """The step's metadata and limits, which the executor reads as one."""
        spec = self.spec
        times = {"timeout_s": spec.timeout_s} if spec.timeout_s is not None else {}
        return {**spec.metadata, **spec.limits, **times}


def step_named(reference: Reference, saved: Mapping[str, str]) -> str:
    """The id of the step that a reference reads."""
    path = reference.path
    root = str(path[1]) if path[0] == "steps" and len(path) > 1 else str(path[0])
    return saved.get(root, root)


def as_text(value: JsonValue) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else dumps(value)
