"""What requests bring and answers hold, as values. The OpenAPI document is made of these."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias

from attrs import field, frozen

from minions.contracts.executions import RUN_STATE_SCHEMA
from minions.contracts.json_values import JsonValue
from minions.interfaces.server.http.problems import FaultView

__all__ = [
    "MAYBE_TEXT",
    "STATE",
    "After",
    "AgentView",
    "Agents",
    "Health",
    "InputView",
    "JsonObject",
    "Page",
    "RecipeRow",
    "RecipeView",
    "Recipes",
    "StepOfRecipe",
    "SystemView",
    "TaskRequest",
    "number_schema",
    "text_schema",
]

JsonObject: TypeAlias = Mapping[str, JsonValue]

_LARGEST: Final = 9_007_199_254_740_991
"""What every JSON reader takes for a whole number."""


def text_schema(most: int = 200, *kinds: str) -> dict[str, JsonObject]:
    """A schema instead of the type's own: a text that is not empty, or one of the other kinds."""
    kind: JsonValue = ["string", *kinds] if kinds else "string"
    return {"schema": {"type": kind, "minLength": 1, "maxLength": most}}


def number_schema(least: int, most: int = _LARGEST, *kinds: str) -> dict[str, JsonObject]:
    """Likewise a whole number within bounds, or one of the other kinds."""
    kind: JsonValue = ["integer", *kinds] if kinds else "integer"
    return {"schema": {"type": kind, "minimum": least, "maximum": most}}


MAYBE_TEXT: Final = text_schema(200, "null")
STATE: Final[Mapping[str, JsonObject]] = {"schema": RUN_STATE_SCHEMA}
"""The state of a run: one of `RunState`."""


# --- queries --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Page:
    """A part of a list."""

    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))


@frozen(kw_only=True)
class After:
    """Where a stream begins; the header Last-Event-ID counts before it."""

    after: int | None = field(default=None, metadata=number_schema(0, _LARGEST, "null"))


# --- system ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Health:
    """That the server answers."""

    status: Literal["ok", "stopping"]
    version: str


@frozen(kw_only=True)
class SystemView:
    """What the server is and does."""

    version: str
    journal: str
    """Where it is; never a password."""
    started_at: datetime
    active_runs: int
    max_runs: int
    followers: int
    """Streams that are open."""


# --- recipes --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class InputView:
    """One declared input."""

    name: str
    schema: JsonObject
    required: bool
    secret: bool
    """Takes `env:NAME` or `file:/path`, never the value."""
    default: JsonValue = None
    description: str = ""


@frozen(kw_only=True)
class RecipeRow:
    """One recipe of the list."""

    id: str
    ok: bool
    """Whether it can run."""
    version: str | None = None
    name: str = ""
    """What people call it; empty: its id."""
    description: str = ""
    steps: int = 0
    is_agent: bool = False
    """Whether one can talk with it in a session."""
    faults: tuple[FaultView, ...] = ()


@frozen(kw_only=True)
class Recipes:
    """A part of the recipes, by id."""

    recipes: tuple[RecipeRow, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class StepOfRecipe:
    """One step of a recipe."""

    id: str
    kind: str
    description: str
    depends_on: tuple[str, ...]


@frozen(kw_only=True)
class RecipeView:
    """One recipe."""

    id: str
    version: str
    name: str
    """What people call it; empty: its id."""
    description: str
    is_agent: bool
    inputs: tuple[InputView, ...]
    steps: tuple[StepOfRecipe, ...]
    links: Mapping[str, str]


# --- agents ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class AgentView:
    """A recipe by the name under which it is asked."""

    name: str
    description: str
    is_chat: bool
    """Whether it takes `message` and remembers its session; else it takes `inputs`."""
    links: Mapping[str, str]


@frozen(kw_only=True)
class Agents:
    """A part of the agents, by name."""

    agents: tuple[AgentView, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class TaskRequest:
    """What an agent is to do."""

    message: str | None = field(default=None, metadata=text_schema(500_000, "null"))
    """For an agent: what is said to it."""
    inputs: JsonObject = field(factory=dict)
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
