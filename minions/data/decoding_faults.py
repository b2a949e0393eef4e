"""The places where decoded data does not fit its type, as values, for messages of all kinds."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen
from cattrs import BaseValidationError, ClassValidationError, ForbiddenExtraKeysError
from cattrs.errors import IterableValidationError, IterableValidationNote

from minions.data.field_repr import FieldsRepr

Path: TypeAlias = tuple[str | int, ...]


class FaultKind(enum.Enum):
    """What is wrong at a place."""

    UNKNOWN = "unknown"
    """A key that the class does not have."""
    MISSING = "missing"
    """A key that the class needs."""
    WRONG = "wrong"
    """A value of another type, or one that a `Constraint` refuses."""


@frozen(kw_only=True)
class DecodingFault(FieldsRepr):
    """One place that does not fit."""

    kind: FaultKind
    path: Path
    """Keys and indices from the whole data to the place."""
    object_path: Path
    """Keys and indices to the innermost object around it that becomes a value of a class."""
    hint: object
    """The type that was expected there; of an unknown key the class that does not have it."""
    value: object = None
    """What stood there; None for a key that is missing."""


def decoding_faults(error: ValueError, value: object, target: object) -> Sequence[DecodingFault]:
    """Every fault behind an error of `decode`.

    Args:
        error: As `decode` raised it.
        value: What was decoded.
        target: The type it should have become.
    """
    cause = error.__cause__
    assert cause is not None  # noqa: S101  # `decode` raises from what cattrs raised
    return tuple(_faults(cause, _Place((), (), target), value))


@frozen
class _Place(FieldsRepr):
    """Where a value stands, and what it should become."""

    path: Path
    object_path: Path
    hint: object

    def fault(self, kind: FaultKind, value: object = None) -> DecodingFault:
        """A fault of that kind at this place."""
        return DecodingFault(
            kind=kind,
            path=self.path,
            object_path=self.object_path,
            hint=self.hint,
            value=value,
        )


def _faults(error: BaseException, place: _Place, value: object) -> Iterator[DecodingFault]:
    """The faults of the value at that place."""
    is_class = isinstance(error, ClassValidationError)
    if isinstance(error, KeyError):
        yield place.fault(FaultKind.MISSING)
    elif isinstance(error, ForbiddenExtraKeysError):
        for key in sorted(error.extra_fields):
            unknown = _Place((*place.path, key), place.path, error.cl)
            yield unknown.fault(FaultKind.UNKNOWN, _at(value, key))
    elif not isinstance(error, BaseValidationError) or (
        is_class and not isinstance(value, Mapping)
    ):
        yield place.fault(FaultKind.WRONG, value)
    else:
        yield from _faults_within(error, place, value)


def _faults_within(
    group: BaseValidationError, place: _Place, value: object
) -> Iterator[DecodingFault]:
    """The faults of its parts; an error that belongs to no part is one of the whole value."""
    assert isinstance(group, ClassValidationError | IterableValidationError)  # noqa: S101  # all
    around = place.path if isinstance(group, ClassValidationError) else place.object_path
    with_notes, others = group.group_exceptions()
    for error, note in with_notes:
        key = note.index if isinstance(note, IterableValidationNote) else note.name
        yield from _faults(error, _Place((*place.path, key), around, note.type), _at(value, key))
    for error in others:
        yield from _faults(error, place, value)


def _at(value: object, key: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(key)
    return value[key] if isinstance(value, Sequence) and isinstance(key, int) else None
