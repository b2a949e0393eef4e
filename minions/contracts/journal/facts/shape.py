"""What all facts have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeAlias, TypeVar

from msgspec import Meta, Struct, UnsetType

from minions.data.json_values import JsonValue

Object: TypeAlias = Mapping[str, JsonValue]
"""A JSON object that other code interprets: usage, metrics, an error."""

T = TypeVar("T")

MessageCount: TypeAlias = Annotated[int, Meta(ge=0)]
"""The sequence of the last message that counts; 0: none does."""
MessageNumber: TypeAlias = Annotated[int, Meta(ge=1)]
"""The sequence of a message, counted from 1."""


# A field with its default is left out of the row: a field that is added later with a default does
# not change rows of old kinds, and rows that lack it stay readable.
class FactShape(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base of all facts."""

    kind: ClassVar[str]
    state: ClassVar[str]


class FactOfStep(FactShape, frozen=True, kw_only=True):
    """The base of facts that belong to a step."""

    step_id: str
    """The step's path in the whole run: `outer/inner` for a step of a nested recipe."""


def given(value: T | UnsetType) -> T | None:
    """The field's value; None where the row lacks the field."""
    return None if isinstance(value, UnsetType) else value
