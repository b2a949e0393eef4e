"""Facts beside the work: warnings, chosen examples, marks."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from minions.contracts.journal.facts.shape import FactShape
from minions.data.json_values import JsonValue


class WarningRecorded(FactShape, frozen=True, kw_only=True):
    """Something that a person should know and that does not stop the run."""

    kind: ClassVar[str] = "warning"
    state: ClassVar[str] = "recorded"

    code: str
    message: str


class PinnedExample(Struct, frozen=True, kw_only=True, gc=False):
    """A question with its answer, taken from a recorded run."""

    question: str
    answer: JsonValue
    run: str
    """The id of the run."""
    address: str
    """The address of the step or item in it."""


class ExamplesPinned(FactShape, frozen=True, kw_only=True):
    """The examples from recorded runs that a step's model is shown, in every call of this run."""

    kind: ClassVar[str] = "examples"
    state: ClassVar[str] = "pinned"

    recipe: str
    """The id of the recipe that has the step: the run's own, or a nested one."""
    step: str
    """The id of the step in that recipe."""
    fingerprint: str
    """Of the step's goal, output and bounds, as far as they decide which examples fit."""
    examples: tuple[PinnedExample, ...] = ()
    """In the order in which they are shown."""


class MarkFact(FactShape, frozen=True, kw_only=True):
    """What a person says of the work of a run: it is good, or bad."""

    kind: ClassVar[str] = "mark"

    verdict: Literal["good", "bad"]
    address: str | None = None
    """The address of the step or item that is meant; None: the whole run."""
    note: str | None = None
    """Why, in the person's words; None: nothing was said."""
    by: str | None = None
    """Who marked it, as they say themselves; None: it is not known."""


class MarkRecorded(MarkFact, frozen=True, kw_only=True):
    """The mark was set in this journal."""

    state: ClassVar[str] = "recorded"


class MarkImported(MarkFact, frozen=True, kw_only=True):
    """The mark was set in another journal: it is shown, and counts for nothing here."""

    state: ClassVar[str] = "imported"
