"""Bodies of responses about one step of a run, and about the items of a loop, as classes."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from minions.data.json_values import JsonValue
from minions.interfaces.server.documents.common import JsonObject, number_schema, text_schema
from minions.interfaces.server.documents.cut_values import CutPart, CutQuery
from minions.interfaces.server.documents.runs import PromptOfRun, StepOfRun


@frozen(kw_only=True)
class ItemsPage:
    """Which part of the items of a loop to return."""

    step: str = field(metadata=text_schema(1_000))
    """The address of the loop, as in its events: `each`, `outer[1]/each`."""
    status: Literal["running", "interrupted", "completed", "failed", "in_progress"] | None = None
    """`in_progress`: the item waits for a decision, or was cut off."""
    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))


@frozen(kw_only=True)
class StepAddress(CutQuery):
    """Which step of a run to return."""

    address: str = field(metadata=text_schema(1_000))
    """`step`, `outer/inner`, or of an item `each[3]`, `sub[1]/each[2]`."""


@frozen(kw_only=True)
class ItemRow:
    """One item of a loop, or one iteration of a `while`."""

    index: int
    address: str
    """For `GET /runs/{run_id}/steps?address=`, which has its prompt and answer."""
    status: str
    words: str
    """The first words that set its prompt apart from those of other items, else the arguments of
    its first tool call; empty: it has neither."""
    error: JsonValue
    usage: JsonObject
    duration_ms: float | None
    model_calls: int
    tool_calls: int


@frozen(kw_only=True)
class ItemTotalsView:
    """How far a loop has come."""

    total: int | None
    """The number of items; None: it is not known, as of a `while`."""
    ended: int
    failed: int
    usage: JsonObject
    """The usage of the items that have ended."""


@frozen(kw_only=True)
class Items:
    """A part of the items of a loop, by index."""

    items: tuple[ItemRow, ...]
    totals: ItemTotalsView
    """Of all items, whatever the filter."""
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class StepView:
    """One step of a run, or one item of a loop, with what it sent and received."""

    step: StepOfRun
    messages: tuple[JsonObject, ...]
    """As the model's provider saw them, in the order of recording."""
    prompts: tuple[PromptOfRun, ...]
    cut: tuple[CutPart, ...] = ()
    """What `?cut=` left out."""


@frozen(kw_only=True)
class SearchQuery:
    """What to search in a run."""

    text: str = field(metadata=text_schema())
    """The text, in any case."""
    limit: int = field(default=100, metadata=number_schema(1, 1_000))


@frozen(kw_only=True)
class SearchHitView:
    """One place where the text occurs."""

    address: str | None
    """The step or item; None: the run's inputs, output or error."""
    part: str
    """`prompt`, `response`, `tools`, `output`, `attempts`, or `run`."""
    before: str
    match: str
    """The text as it stands there."""
    after: str


@frozen(kw_only=True)
class SearchHits:
    """The places where the text occurs, in the order of recording."""

    hits: tuple[SearchHitView, ...]
    has_more: bool
    """Whether there are more than the limit."""
