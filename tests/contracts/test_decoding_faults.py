"""Where decoded data does not fit, as values; and constraints, which are part of a type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import pytest
from attrs import frozen

from minions.data.codec import Constraint, decode
from minions.data.decoding_faults import DecodingFault, FaultKind, decoding_faults
from minions.data.json_values import JsonValue

Even = Annotated[int, Constraint(lambda number: number % 2 == 0, "an even number")]


@frozen
class Part:
    """One of several."""

    size: Even
    name: str = ""


@frozen
class Whole:
    """All of them."""

    parts: Mapping[str, Part]
    sizes: tuple[Even, ...] = ()
    most: Even | None = None


def faults_of(value: JsonValue) -> list[DecodingFault]:
    with pytest.raises(ValueError, match=r"\$") as caught:
        decode(value, Whole)
    return list(decoding_faults(caught.value, value, Whole))


def test_a_constraint_is_part_of_the_type() -> None:
    read = decode({"parts": {"a": {"size": 2}}, "sizes": [4], "most": None}, Whole)
    assert read == Whole({"a": Part(2)}, (4,), None)
    with pytest.raises(ValueError, match=r"expected an even number, got number 3 @ \$.most"):
        decode({"parts": {}, "most": 3}, Whole)


def test_what_is_unknown_missing_and_wrong_has_its_place_and_its_object() -> None:
    found = faults_of({"parts": {"a": {"nam": "x"}, "b": {"size": 3}}, "sizes": [2, "4"]})
    assert [(fault.kind, fault.path, fault.object_path, fault.value) for fault in found] == [
        (FaultKind.MISSING, ("parts", "a", "size"), ("parts", "a"), None),
        (FaultKind.UNKNOWN, ("parts", "a", "nam"), ("parts", "a"), "x"),
        (FaultKind.WRONG, ("parts", "b", "size"), ("parts", "b"), 3),
        (FaultKind.WRONG, ("sizes", 1), (), "4"),
    ]


@pytest.mark.parametrize("value", [5, None, [1], "text"])
def test_what_is_no_object_is_one_fault(value: JsonValue) -> None:
    """Not one for each key that it does not have."""
    (fault,) = faults_of({"parts": {"a": value}})
    assert fault == DecodingFault(
        kind=FaultKind.WRONG, path=("parts", "a"), object_path=(), hint=Part, value=value
    )
    (whole,) = faults_of(value)
    assert (whole.path, whole.hint, whole.value) == ((), Whole, value)


def test_a_container_of_another_kind_is_one_fault() -> None:
    for value in ("text", 5, {"a": 1}):
        (fault,) = faults_of({"parts": {}, "sizes": value})
        assert (fault.path, fault.value) == (("sizes",), value)
    (fault,) = faults_of({"parts": [1]})
    assert (fault.path, fault.value) == (("parts",), [1])
