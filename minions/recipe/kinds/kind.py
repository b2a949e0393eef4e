"""What a kind of step is: its keys, how it is read, and what can be said of its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, TypedDict

from msgspec import Struct

from minions.contracts.json_values import JsonValue
from minions.contracts.retry import RetryConfig
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import StepDraft, TemplateUse
from minions.recipe.model import (
    DecisionToolSpec,
    ExecutionMode,
    LoopSpec,
    ModelConfig,
    OnErrorSpec,
    StepSpec,
    Where,
    WhileSpec,
)
from minions.recipe.text.key_types import Table
from minions.recipe.text.nodes import Node
from minions.recipe.text.sections import Report, Section

__all__ = ["CommonKeys", "KindReader", "Look", "StepKind", "given_mapping"]


class CommonKeys(TypedDict):
    """What every spec takes, whatever its kind: the fields of `StepSpec`."""

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
    timeout_s: float | None
    cache: bool
    idle_timeout_s: float | None
    retry: RetryConfig | None
    limits: Mapping[str, JsonValue]
    metadata: Mapping[str, JsonValue]
    where: Where


class Look(Struct, frozen=True, kw_only=True):
    """How steps of a kind look in pictures. Colours are CSS hex values."""

    light: str = "#64748b"
    """On a light page."""
    dark: str = "#94a3b8"
    """On a dark page."""
    outline: str = "#64748b"
    """In Mermaid charts, whose page may be light or dark."""
    brackets: tuple[str, str] = ("[", "]")
    """Mermaid's, around the text of a box: its shape."""


class KindReader(Struct, frozen=True, kw_only=True):
    """What `StepKind.read` reads with."""

    catalog: Catalog
    """What the recipe may name."""
    mode: ExecutionMode
    """The recipe's."""
    read_model: Callable[[Node], ModelConfig]
    """Reads a `model` key; its faults are reported."""
    templates: list[TemplateUse]
    """Of the step so far; what a kind finds besides is appended."""
    report: Report
    """Takes each fault."""


class StepKind(ABC):
    """One kind of step. What its steps hold and can tell is its spec's: see `StepSpec`.

    How its steps are run stands in the module of the same name in `engine/compile/kinds`.
    """

    name: ClassVar[str]
    """The key that makes a step one of this kind; also its word in pictures and messages."""
    spec: ClassVar[type[StepSpec]]
    """The class of its specs."""
    table: ClassVar[Table]
    """Its keys, beside those of every step."""
    templates: ClassVar[Sequence[str]] = ()
    """Those of its keys that hold templates, at any depth."""
    alias: ClassVar[tuple[str, str] | None] = None
    """An older spelling: another kind's key and the value that makes it this kind."""
    look: ClassVar[Look] = Look()
    tables: ClassVar[Mapping[str, Table]] = {}
    """Of mappings within its keys, by the names that `$ref` in `table` gives them."""
    editor_rules: ClassVar[Mapping[str, JsonValue]] = {}
    """JSON Schema that its keys do not say, for editors."""

    @property
    def module(self) -> str:
        """The name of its module, here and in `engine/compile/kinds`."""
        return type(self).__module__.rpartition(".")[2]

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """Check what the key table cannot say, and note what is known of the step's output.

        The default takes the keys as they are, and knows nothing of the output.
        """

    @abstractmethod
    def build(self, step: StepDraft, common: CommonKeys) -> StepSpec:
        """The spec of a step in which no fault was found."""

    def tool_names(self, step: StepDraft) -> Sequence[str]:
        """Full names of the tools that the step calls or offers to a model, as far as is known."""
        return ()

    def cache_problems(self, step: StepDraft) -> Iterator[str]:
        """Why its output cannot stand for the step when it is taken from the cache."""
        return iter(())


_NOTHING: Final[Mapping[str, JsonValue]] = {}


def given_mapping(section: Section, name: str) -> Mapping[str, JsonValue]:
    """A mapping as plain data; {} where it is not given."""
    value = section.plain(name)
    return value if isinstance(value, Mapping) else _NOTHING
