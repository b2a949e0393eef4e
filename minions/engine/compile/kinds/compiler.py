"""What a kind of step needs to be run: how its steps are built, and what a dry run tells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from attrs import frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.steps import Step
from minions.contracts.tools import Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import WrittenStep
from minions.recipe.model import ModelConfig, StepSpec

__all__ = ["BuildParts", "Planner", "StepCompiler"]

S_contra = TypeVar("S_contra", bound=StepSpec, contravariant=True)


@frozen(kw_only=True)
class BuildParts:
    """What a step is built from besides its spec."""

    saved: Mapping[str, str]
    """`save_as` names to the ids of their steps."""
    tools: Toolbox
    """All tools of the recipe."""
    extensions: Extensions
    """What the operator registered."""
    read_by_control: frozenset[str]
    """Ids of the steps whose output `when`, `loop` or `while` reads."""


class Planner(ABC):
    """What a dry run knows when it comes to a step."""

    tools: Toolbox
    """All tools of the recipe."""

    @abstractmethod
    def shown(self, value: JsonValue) -> JsonValue:
        """Templates filled in as far as their values are known; the rest as `<path>`."""

    @abstractmethod
    def is_known(self, value: JsonValue) -> bool:
        """Whether all that its templates read is known."""

    @abstractmethod
    def model(self, own: ModelConfig | None) -> str | None:
        """The name of the model that a step with these settings asks; None: nobody knows it."""


class StepCompiler(ABC, Generic[S_contra]):
    """Makes the steps of one kind. Its module has it as `COMPILER`."""

    @abstractmethod
    def build(self, spec: S_contra, parts: BuildParts) -> WrittenStep[object]:
        """The step of that spec: templates are compiled here, once.

        Raises:
            UsageError: It names what is not there.
        """

    @abstractmethod
    def plan(self, spec: S_contra, step: Step[object], planner: Planner) -> PlannedStep:
        """What a run would do for it, without doing any of it."""

    def known_output(self, spec: S_contra, planner: Planner) -> tuple[JsonValue, ...]:
        """The output, where it is known without a run; empty: only a run can know."""
        return ()
