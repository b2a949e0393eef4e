"""Bodies that several endpoints share, as classes. The OpenAPI document is made of these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

from attrs import field, frozen

from minions.contracts.budgets import LONGEST_USER
from minions.contracts.executions import RUN_STATE_SCHEMA
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, as_object, dumps
from minions.interfaces.http.http_answers import FaultView
from minions.interfaces.http.tokens import CallerRole, TokenScope

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


_COUNTED_AT_ONCE: Final = 1_000


def most_counted(limit: int, offset: int) -> int:
    """Where counting the entries of a list ends: at a full thousand behind the part."""
    return ((offset + limit) // _COUNTED_AT_ONCE + 1) * _COUNTED_AT_ONCE


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
    """Who sends the request, by a token or a proxy, and what they may do."""

    name: str | None
    """The name of the token or user; null: the only token of the server."""
    is_user: bool
    """Whether a proxy says who it is; false: a token does."""
    role: CallerRole | None
    """The role whose scopes these are, but for `all`; null: they are those of no role."""
    scopes: tuple[TokenScope, ...]
    user: str | None
    """The user for whom all runs of the caller are; null: each request may name one."""
    expires: datetime | None
    """From when on the token lets nobody in; null: it does not expire, or there is none."""


@frozen(kw_only=True)
class SystemView:
    """What the server runs with and executes now."""

    version: str
    journal: str
    """The place of the journal, without a password."""
    project: str | None = None
    """The folder of the project in which the server runs; None: it is not told to a token that sees
    one user's runs alone."""
    project_name: str | None = None
    """The name of the project whose database it is; None: the server has no table of projects."""
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
class WatchedScorerView:
    """What one scorer of a `watch` says of the recipe's newest scored runs."""

    scorer: str
    scored: int
    """Runs of the sample that it gave a score."""
    failed: int
    """Runs to which it gave none."""
    rate: float | None = None
    """The share that passed among the newest; null: none is scored."""
    low: float | None = None
    """The lower end of its interval at 95 %."""
    high: float | None = None
    before: float | None = None
    """The share of the first scored runs; null: there are too few, or a share is wanted."""
    alarm_since: str | None = None
    """Since when the newest are worse by the whole interval; null: they are not."""
    run_id: str | None = None
    """The newest run that did not pass; null: all did."""


@frozen(kw_only=True)
class WatchView:
    """What the last look at the recipe's runs found, in any process of the database."""

    looked_at: str
    scorers: tuple[WatchedScorerView, ...]


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
    watch: WatchView | None = None
    """How good its runs are; null: it has no `watch`, none of its runs was looked at, or the
    caller's token is bound to a user: the runs of all users count."""


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
    watch: WatchView | None = None
    """How good its runs are; null as in `RecipeRow`."""


# --- agents ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class AgentView:
    """A recipe as an agent that is called by its name."""

    name: str
    description: str
    is_chat: bool
    """Whether the agent takes `message` and remembers its session; else it takes `inputs`."""
    takes_tools: bool
    """Whether it calls tools that a request to `…/ag-ui` or `/v1` brings."""
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


# --- large values in responses -------------------------------------------------------------------


_NODE: Final = 4
"""Characters that each member of a list or an object counts for, beside its texts."""


@frozen(kw_only=True)
class CutQuery:
    """Whether large values are cut."""

    cut: int | None = field(default=None, metadata=number_schema(100, 10_000_000, "null"))
    """Leave of each value some so many characters, and say in `cut` what was left out; None: every
    value is whole."""


@frozen(kw_only=True)
class CutPart:
    """A text, list or object of which the response has only the beginning."""

    path: str
    """Its place in the response, as JSON Pointer (RFC 6901)."""
    shown: int
    """How many characters or members there are."""
    total: int
    """How many there are in the whole value."""
    digest: str
    """A digest of the whole value: equal values have equal digests."""


@frozen(kw_only=True)
class ValueAddress:
    """Which value of a run to return."""

    at: str = field(metadata=text_schema(2_000))
    """The `path` of the value in the response about the run or the step."""
    address: str | None = field(default=None, metadata=text_schema(1_000, "null"))
    """The step whose response has the path; None: the run's."""


@frozen(kw_only=True)
class ValueView:
    """A value of a run in whole."""

    value: JsonValue


def cut_at(document: JsonValue, places: Sequence[str], limit: int) -> JsonValue:
    """The document with large values cut, and its member `cut` filled with what was left out.

    Args:
        places: Pointers to the values that may be cut; `*` is every member of a list.
        limit: About how many characters are left of each of these values.
    """
    cut = Cut(limit)
    whole = as_object(document)
    shown: JsonValue = dict(whole)
    for place in places:
        shown = _replace(shown, place.split("/")[1:], "", cut)
    parts: list[JsonValue] = [
        {"path": each.path, "shown": each.shown, "total": each.total, "digest": each.digest}
        for each in cut.parts
    ]
    return {**as_object(shown), "cut": parts}


def _replace(value: JsonValue, place: Sequence[str], path: str, cut: Cut) -> JsonValue:
    """The value with what stands at the place below it cut."""
    if not place:
        return cut.value(value, path)
    name, rest = place[0], place[1:]
    if name == "*" and isinstance(value, list | tuple):
        return [_replace(each, rest, f"{path}/{at}", cut) for at, each in enumerate(value)]
    if isinstance(value, Mapping) and name in value:
        return {**value, name: _replace(value[name], rest, f"{path}/{name}", cut)}
    return value


class Cut:
    """Cuts values, each to about so many characters, and notes what it left out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self.parts: list[CutPart] = []

    def value(self, value: JsonValue, path: str) -> JsonValue:
        """The beginning of the value, or all of it."""
        self._left = self._limit
        return self._any(value, path)

    def _any(self, value: JsonValue, path: str) -> JsonValue:
        self._left -= _NODE
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, Mapping):
            return dict(self._members(value.items(), path, value))
        if isinstance(value, list | tuple):
            return [each for _, each in self._members(enumerate(value), path, value)]
        return value

    def _text(self, text: str, path: str) -> str:
        room = max(0, self._left)
        self._left -= len(text)
        if len(text) <= room:
            return text
        self._note(path, room, len(text), text)
        return text[:room]

    def _members(
        self,
        members: Iterable[tuple[object, JsonValue]],
        path: str,
        whole: Sequence[JsonValue] | Mapping[str, JsonValue],
    ) -> Iterator[tuple[str, JsonValue]]:
        for at, (name, each) in enumerate(members):
            if self._left <= 0:
                self._note(path, at, len(whole), whole)
                return
            self._left -= len(str(name))
            yield str(name), self._any(each, f"{path}/{_escape(str(name))}")

    def _note(self, path: str, shown: int, total: int, value: JsonValue) -> None:
        text = value if isinstance(value, str) else dumps(value)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
        self.parts.append(CutPart(path=path, shown=shown, total=total, digest=digest.hexdigest()))


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def value_at(document: JsonValue, pointer: str) -> JsonValue:
    """The value at that JSON Pointer.

    Raises:
        LookupError: There is none.
    """
    value = document
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901  # unescaped, RFC 6901
        if isinstance(value, Mapping):
            value = value[name]
        elif isinstance(value, list | tuple) and name.isascii() and name.isdigit():
            value = value[int(name)]
        else:
            raise LookupError(pointer)
    return value


# --- refusals of parts of a body ----------------------------------------------------------------


def unsupported(where: str, why: str) -> UsageError:
    """The refusal of a parameter that asks for what a recipe cannot do."""
    return UsageError(
        f"'{where}' is not supported here. {why}", code="unsupported-parameter", where=where
    )


def wrong(where: str, problem: str) -> UsageError:
    """The refusal of a parameter with a value that does not fit."""
    return UsageError(f"'{where}' {problem}", code="bad-body", where=where)
