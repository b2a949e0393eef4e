"""The contract of a kind of step: its keys, how it is read, and what its steps do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, TypedDict

from msgspec import Struct

from minions.contracts.retry_config import RetryConfig
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import StepDraft, TemplateUse
from minions.recipe.expressions.template import Templates
from minions.recipe.model import (
    DecisionToolSpec,
    ExecutionMode,
    LoopSpec,
    OnErrorSpec,
    StepSpec,
    Where,
    WhileSpec,
)
from minions.recipe.model_config import ModelConfig
from minions.recipe.text.key_types import Table
from minions.recipe.text.nodes import Node
from minions.recipe.text.sections import Report, Section


class CommonKeys(TypedDict):
    """The fields of `StepSpec`, which the spec of every kind takes."""

    id: str
    description: str
    depends_on: tuple[str, ...]
    declared: tuple[str, ...]
    after: tuple[str, ...]
    when: str | None
    loop: LoopSpec | None
    repeat: WhileSpec | None
    on_error: OnErrorSpec
    route: str | None
    decision_tool: DecisionToolSpec | None
    save_as: str | None
    optional: bool
    endorse: tuple[str, ...]
    timeout_s: float | None
    cache: bool
    idle_timeout_s: float | None
    retry: RetryConfig | None
    distribute: bool
    limits: Mapping[str, JsonValue]
    metadata: Mapping[str, JsonValue]
    where: Where


class Look(Struct, frozen=True, kw_only=True):
    """How steps of a kind look in pictures. Colours are CSS hex values."""

    light: str = "#64748b"
    """Colour on a light page."""
    dark: str = "#94a3b8"
    """Colour on a dark page."""
    outline: str = "#64748b"
    """Colour of the outline in Mermaid charts, whose page may be light or dark."""
    brackets: tuple[str, str] = ("[", "]")
    """Mermaid's brackets around the text of a box, which choose its shape."""


class KindReader(Struct, frozen=True, kw_only=True):
    """What `StepKind.read` needs besides the step."""

    catalog: Catalog
    """The names that the recipe may use."""
    mode: ExecutionMode
    """The recipe's execution mode."""
    read_model: Callable[[Node], ModelConfig]
    """Reads a `model` key and reports its faults."""
    templates: list[TemplateUse]
    """The step's templates so far; a kind appends those that it finds."""
    recipe_templates: Templates
    """Compiles the texts of the recipe."""
    report: Report
    """Called with each fault."""


class StepKind(ABC):
    """One kind of step. Questions about a single step are answered by its `StepSpec`.

    How its steps are executed is in the module of the same kind in `engine/compile/kinds`.
    """

    name: ClassVar[str]
    """The key that makes a step one of this kind; also its name in pictures and messages."""
    spec: ClassVar[type[StepSpec]]
    """The class of this kind's specs."""
    table: ClassVar[Table]
    """The keys of this kind, besides those of every step."""
    templates: ClassVar[Sequence[str]] = ()
    """The keys that hold templates, at any depth."""
    alias: ClassVar[tuple[str, str] | None] = None
    """An older spelling: a key of another kind and the value that
    makes the step one of this kind.
    """
    look: ClassVar[Look] = Look()
    tables: ClassVar[Mapping[str, Table]] = {}
    """Tables of nested mappings, by the names that `$ref` in `table` uses."""
    editor_rules: ClassVar[Mapping[str, JsonValue]] = {}
    """Parts of the JSON Schema for editors that the key table cannot express."""

    @property
    def module(self) -> str:
        """The name of its module in `engine/compile/kinds`; its own ends in `_kind`."""
        return type(self).__module__.rpartition(".")[2].removesuffix("_kind")

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """Check what the key table cannot express, and set what is known of the step's output.

        The default checks nothing and knows nothing of the output.
        """

    @abstractmethod
    def build(self, step: StepDraft, common: CommonKeys) -> StepSpec:
        """The spec of a step without faults."""

    def tool_names(self, step: StepDraft) -> Sequence[str]:
        """Full names of the tools that the step calls or offers to a model, as far as known."""
        return ()

    def cache_problems(self, step: StepDraft) -> Iterator[str]:
        """Why a cached output cannot replace an execution of the step; empty: it can."""
        return iter(())


_NOTHING: Final[Mapping[str, JsonValue]] = {}


def given_mapping(section: Section, name: str) -> Mapping[str, JsonValue]:
    """A mapping as plain data; {} where it is missing."""
    value = section.plain(name)
    return value if isinstance(value, Mapping) else _NOTHING
