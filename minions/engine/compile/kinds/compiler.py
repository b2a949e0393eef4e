"""The contract of a kind of step: how its steps are built, and how a dry run shows them.

The compiler of a kind is in the module of the kind's name, which is loaded when a recipe needs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from minions.contracts.instructions import OutputInstructions
from minions.contracts.steps import USUAL_SEARCH, Step, ToolSearch
from minions.contracts.tools import Toolbox
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.prompt_sections import PromptPart
from minions.engine.compile.recipe_step import WrittenStep
from minions.recipe.checks.flows import UntrustedText
from minions.recipe.expressions.template import Templates
from minions.recipe.kinds.kind_registry import KINDS
from minions.recipe.model import StepSpec
from minions.recipe.model_config import ModelConfig

if TYPE_CHECKING:
    from minions.engine.compile.planned_step import HiddenTools, PlannedPrompt, PlannedStep


S_contra = TypeVar("S_contra", bound=StepSpec, contravariant=True)


class BuildParts(Struct, frozen=True, kw_only=True):
    """What a step is built from besides its spec."""

    saved: Mapping[str, str]
    """Names under `save_as`, each with the id of its step."""
    tools: Toolbox
    """All tools of the recipe."""
    extensions: Extensions
    """The extensions that the operator registered."""
    read_by_control: frozenset[str]
    """Ids of the steps whose output `when`, `loop` or `while` reads."""
    untrusted: UntrustedText
    """Where the texts of the recipe's steps hold untrusted text."""
    templates: Templates
    """Compiles the texts of the recipe."""
    directory: str | None = None
    """The recipe's folder, for files that its steps read; None: it has none."""


def tool_names(names: Iterable[str], tools: Toolbox) -> Iterator[str]:
    """The full names of tools that a step names; the prefix of a toolset means all its tools.

    Raises:
        UsageError: There is no such tool.
    """
    for name in names:
        family = [
            each.spec.name
            for each in tools
            if each.spec.name.startswith(f"{name}__") and each.spec.is_offered
        ]
        if family and name not in tools:
            yield from family
        else:
            yield tools.get(name).spec.name


class PromptUse(Struct, frozen=True, kw_only=True):
    """What stands in a step's prompt besides its own texts."""

    shown: Sequence[str] = ()
    """Steps whose outputs are appended."""
    output: OutputInstructions[object] | None = None
    tools: Collection[str] = ()
    search: ToolSearch = USUAL_SEARCH
    """How the model comes to the tools."""
    model: ModelConfig | None = None
    """The step's own model settings."""
    waits_for_signal: bool = False


class Planner(ABC):
    """What a dry run knows when it plans a step."""

    tools: Toolbox
    """All tools of the recipe."""

    @abstractmethod
    def shown(self, value: JsonValue) -> JsonValue:
        """The value with its templates filled in as far as possible; the rest as `<path>`."""

    @abstractmethod
    def is_known(self, value: JsonValue) -> bool:
        """Whether all values that its templates read are known."""

    @abstractmethod
    def prompt(self, own: Sequence[PromptPart], use: PromptUse) -> PlannedPrompt:
        """The first prompt of a step.

        Args:
            own: The step's own texts; in them, what is not known yet stands as `<path>`.
        """

    @abstractmethod
    def hidden_tools(self, use: PromptUse) -> HiddenTools | None:
        """The tools that the model of a step finds; None: it is offered all."""

    @abstractmethod
    def model(self, own: ModelConfig | None) -> str | None:
        """The name of the model that a step with these settings asks; None: it is not known."""


class StepCompiler(ABC, Generic[S_contra]):
    """Builds and plans the steps of one kind. Each kind's module has one, named `COMPILER`."""

    @abstractmethod
    def build(self, spec: S_contra, parts: BuildParts) -> WrittenStep[object]:
        """Build the step of a spec; templates are compiled here, once.

        Raises:
            UsageError: The spec names a tool, link or class that does not exist.
        """

    @abstractmethod
    def plan(self, spec: S_contra, step: Step[object], planner: Planner) -> PlannedStep:
        """What a run would do for the step, without doing it."""

    def known_output(self, spec: S_contra, planner: Planner) -> tuple[JsonValue, ...]:
        """The output as its only item, if it is known without a run; empty: it is not known."""
        return ()


_PACKAGE = __name__.rpartition(".")[0]


def compiler_of(spec: StepSpec) -> StepCompiler[StepSpec]:
    """The compiler of a spec's kind, from the module with the kind's name.

    Raises:
        UsageError: `unknown-kind`; the kind is not registered.
    """
    kind = KINDS.get(spec.kind)
    if kind is None or not isinstance(spec, kind.spec):
        raise UsageError(
            f"Step '{spec.id}' is of a kind that is not registered: {type(spec).__name__}. Kinds "
            f"are: {', '.join(KINDS)}.",
            code="unknown-kind",
        )
    module = import_module(f"{_PACKAGE}.{kind.module}")
    compiler: StepCompiler[StepSpec] = module.COMPILER
    return compiler
