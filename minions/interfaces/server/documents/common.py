"""Bodies that several endpoints share, as classes. The OpenAPI document is made of these."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias

from attrs import field, frozen

from minions.contracts.budgets import LONGEST_USER
from minions.contracts.executions import RUN_STATE_SCHEMA
from minions.data.json_values import JsonValue
from minions.interfaces.http.problems import FaultView
from minions.interfaces.http.tokens import TokenScope

JsonObject: TypeAlias = Mapping[str, JsonValue]

_LARGEST: Final = 9_007_199_254_740_991
"""The largest number that every JSON reader reads as a whole number."""
MOST_DIGITS: Final = len(str(_LARGEST))
"""The most digits of a position in a header or a path."""


def text_schema(most: int = 200, *kinds: str) -> dict[str, JsonObject]:
    """The schema of a text that is not empty, or of one of the other kinds, for field metadata."""
    kind: JsonValue = ["string", *kinds] if kinds else "string"
    return {"schema": {"type": kind, "minLength": 1, "maxLength": most}}


def number_schema(least: int, most: int = _LARGEST, *kinds: str) -> dict[str, JsonObject]:
    """The schema of a whole number within bounds, or of another kind, for field metadata."""
    kind: JsonValue = ["integer", *kinds] if kinds else "integer"
    return {"schema": {"type": kind, "minimum": least, "maximum": most}}


MAYBE_TEXT: Final = text_schema(200, "null")
USER: Final = text_schema(LONGEST_USER, "null")
STATE: Final[Mapping[str, JsonObject]] = {"schema": RUN_STATE_SCHEMA}
"""The schema of a run's state: one of `RunState`."""


# --- queries --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Page:
    """Which part of a list to return."""

    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))


@frozen(kw_only=True)
class After:
    """The position after which a stream begins; the header Last-Event-ID wins over it."""

    after: int | None = field(default=None, metadata=number_schema(0, _LARGEST, "null"))


# --- system ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Health:
    """The state of the server."""

    status: Literal["ok", "stopping"]
    version: str


@frozen(kw_only=True)
class Ready:
    """The server takes runs."""

    status: Literal["ready"]


@frozen(kw_only=True)
class CallerView:
    """What the token of the request lets its holder do."""

    name: str | None
    """The name of the token; null: the only token of the server."""
    scopes: tuple[TokenScope, ...]
    user: str | None
    """The user for whom all runs of the token are; null: each request may name one."""


@frozen(kw_only=True)
class SystemView:
    """What the server runs with and executes now."""

    version: str
    journal: str
    """The place of the journal, without a password."""
    project: str | None = None
    """The folder of the project in which the server runs; None: it is not told to a token that sees
    one user's runs alone."""
    started_at: datetime
    active_runs: int
    """For a token that sees one user's runs alone those of that user."""
    max_runs: int
    followers: int | None = None
    """The number of open streams; None: it is not told to a token that sees one user's runs alone.
    """
    models: tuple[str, ...]
    """The models that a caller may choose for a turn of a conversation."""
    caller: CallerView


# --- recipes --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class InputView:
    """A declared input of a recipe."""

    name: str
    schema: JsonObject
    required: bool
    secret: bool
    """Whether the input takes `env:NAME` or `file:/path` instead of the value."""
    default: JsonValue = None
    description: str = ""


@frozen(kw_only=True)
class RecipeRow:
    """A recipe in the list."""

    id: str
    ok: bool
    """Whether the recipe can be run."""
    version: str | None = None
    name: str = ""
    """The name for people; empty: show the id."""
    description: str = ""
    steps: int = 0
    is_agent: bool = False
    """Whether the recipe can be used for a conversation in a session."""
    fault_count: int = 0
    """How many faults it has. What they are is in the server's log, and `minions validate` says it:
    a caller does not own the file."""
    warnings: tuple[FaultView, ...] = ()
    """What `minions validate` warns of in a recipe that can be run."""


@frozen(kw_only=True)
class Recipes:
    """A part of the list of recipes, ordered by id."""

    recipes: tuple[RecipeRow, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class StepOfRecipe:
    """A step of a recipe."""

    id: str
    kind: str
    description: str
    depends_on: tuple[str, ...]


@frozen(kw_only=True)
class RecipeView:
    """A recipe with its inputs and steps."""

    id: str
    version: str
    name: str
    """The name for people; empty: show the id."""
    description: str
    is_agent: bool
    inputs: tuple[InputView, ...]
    steps: tuple[StepOfRecipe, ...]
    warnings: tuple[FaultView, ...]
    """What `minions validate` warns of."""
    links: Mapping[str, str]


# --- agents ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class AgentView:
    """A recipe as an agent that is called by its name."""

    name: str
    description: str
    is_chat: bool
    """Whether the agent takes `message` and remembers its session; else it takes `inputs`."""
    links: Mapping[str, str]


@frozen(kw_only=True)
class Agents:
    """A part of the list of agents, ordered by name."""

    agents: tuple[AgentView, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class TaskRequest:
    """A task for an agent."""

    message: str | None = field(default=None, metadata=text_schema(500_000, "null"))
    """The message for a chat agent; None: `inputs` has everything."""
    inputs: JsonObject = field(factory=dict)
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
    user: str | None = field(default=None, metadata=USER)
    """The label of the user for whom it runs; None: none."""
