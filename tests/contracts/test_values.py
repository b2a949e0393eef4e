"""`frozen` gives what `attrs.frozen` gives."""

from __future__ import annotations

import attrs
import pytest
from attrs import field

from minions.contracts.values import frozen


@frozen(kw_only=True)
class Point:
    x: int
    y: int = 0
    label: str = field(default="", eq=False)
    secret: str = field(default="s", repr=False)


@frozen
class Other:
    x: int


@frozen(eq=False)
class Thing:
    x: int


@frozen
class Odd:
    x: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and self.x % 2 == other.x % 2

    def __hash__(self) -> int:
        return self.x % 2


def test_values_of_one_class_are_equal_where_their_fields_are() -> None:
    assert Point(x=1, label="a") == Point(x=1, label="b")
    assert hash(Point(x=1, label="a")) == hash(Point(x=1, label="b"))
    assert Point(x=1) != Point(x=2)
    assert Other(1) == Other(1)
    others: list[object] = [Other(1), 1]
    assert Point(x=1) not in others
    assert Other(2) not in others


def test_identity_counts_where_eq_is_switched_off() -> None:
    thing = Thing(1)
    assert thing == thing
    assert thing != Thing(1)
    assert len({thing, Thing(1)}) == 2


def test_methods_of_the_class_itself_win() -> None:
    assert Odd(1) == Odd(3)
    assert hash(Odd(1)) == hash(Odd(3))


def test_it_is_shown_as_attrs_shows_it() -> None:
    assert repr(Point(x=1, label="a")) == "Point(x=1, y=0, label='a')"

    @frozen
    class Local:
        x: int

    assert repr(Local(1)).endswith("Local(x=1)")


def test_what_is_made_stays_as_it_is() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(Point(x=1), "x", 2)  # noqa: B010  # checkers refuse the plain way
    assert attrs.evolve(Point(x=1), x=2) == Point(x=2)
    assert not hasattr(Point(x=1), "__dict__")
