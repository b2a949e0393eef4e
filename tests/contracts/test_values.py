"""`frozen` gives what `attrs.frozen` gives."""

from __future__ import annotations

import copy
import inspect
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import pytest
from attrs import field

from minions.contracts.values import frozen

T = TypeVar("T")


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


# --- what attrs generates later -------------------------------------------------------------------


class Named(ABC):
    @property
    @abstractmethod
    def name(self) -> str:
        """A field may stand for it."""


def _positive(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value <= 0:
        raise ValueError(f"{attribute.name} must be positive")


def _length_of_content(box: Any) -> int:  # Any: made by either decorator
    return len(box._content)


def family(decorated: Callable[..., Any]) -> tuple[type[Any], ...]:  # Any: made by either
    """Classes of every shape that is used, made by one decorator or the other."""

    @decorated(kw_only=True)
    class Base(Named):
        kind: ClassVar[str] = "base"
        name: str
        size: int = field(default=1, validator=_positive)

        def text(self) -> str:
            return f"{self.kind} {self.name}"

    @decorated(kw_only=True)
    class Child(Base):
        kind: ClassVar[str] = "child"
        tags: tuple[str, ...] = field(default=(), converter=tuple)
        cache: dict[str, int] = field(factory=dict, init=False, repr=False, eq=False)

        def __attrs_post_init__(self) -> None:
            self.cache["size"] = self.size

        def text(self) -> str:
            return f"{super().text()} of {__class__.__name__}"  # type: ignore[name-defined]  # a cell that the compiler makes

    @decorated
    class Box(Generic[T]):
        _content: T = field(alias="content")
        size: int = field(default=attrs.Factory(_length_of_content, takes_self=True))

        def __repr__(self) -> str:
            return "a box"

    @decorated(eq=False)
    class Node:
        children: list[object] = field(factory=list)

    @decorated
    class Made:
        x: int

        def __init__(self, text: str) -> None:
            self.__attrs_init__(int(text))  # type: ignore[attr-defined]  # attrs makes it

    return Base, Child, Box, Node, Made


@pytest.mark.parametrize("at", range(5))
def test_a_class_is_what_attrs_makes_of_it(at: int) -> None:
    own, usual = family(frozen)[at], family(attrs.frozen)[at]

    assert sorted(own.__slots__) == sorted(usual.__slots__)
    assert inspect.signature(own) == inspect.signature(usual)
    assert attrs.fields(own) == attrs.fields(usual)
    assert own.__match_args__ == usual.__match_args__
    assert own.__qualname__ == usual.__qualname__
    assert inspect.isabstract(own) is inspect.isabstract(usual)
    assert vars(own).keys() ^ vars(usual).keys() <= {"__ne__"}  # Python's own will do


def test_fields_stand_for_abstract_properties_and_super_finds_the_base() -> None:
    _, child, *_ = family(frozen)
    made = child(name="a", tags=["t"], size=2)
    assert made.text() == "child a of Child"
    assert (made.tags, made.cache) == (("t",), {"size": 2})
    with pytest.raises(ValueError, match="size must be positive"):
        child(name="a", size=0)
    with pytest.raises(TypeError, match="nmae"):
        child(nmae="a")


def test_defaults_generics_and_own_methods_are_kept() -> None:
    _, _, box, node, made = family(frozen)
    assert box[str]("four") == box("four", 4)
    assert repr(box("four")) == "a box"
    assert node().children is not node().children
    assert made("3").x == 3


def test_a_subclass_that_nobody_decorated_is_made_like_its_base() -> None:
    class Nearer(Point):
        def __init__(self) -> None:
            super().__init__(x=7)

    assert attrs.fields(Nearer) is attrs.fields(Point)
    assert Nearer().x == 7


def test_values_can_be_copied_and_pickled() -> None:
    point = Point(x=1, label="a", secret="b")
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
    assert pickle.loads(pickle.dumps(point)).secret == "b"


def test_a_class_may_be_used_first_by_many_threads_at_once() -> None:
    for _ in range(20):
        base, *_ = family(frozen)
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda size, base=base: base(name="n", size=size + 1), range(8)))
        assert [each.size for each in made] == [*range(1, 9)]
