"""The repr of the package's attrs classes is what attrs itself would write."""

from __future__ import annotations

from typing import Final

import attrs
from attrs import evolve, field, frozen, mutable
from hypothesis import given
from hypothesis import strategies as st

from minions.data.field_repr import FieldsRepr


def _shouted(text: str) -> str:
    return text.upper()


@frozen(kw_only=True)
class _Written:
    one: object
    _two: object = None
    loud: str = field(default="quiet", repr=_shouted)
    secret: str = field(default="nobody sees it", repr=False)

    @frozen
    class Inner:
        value: object


@frozen(kw_only=True)
class _Shown(FieldsRepr):
    one: object
    _two: object = None
    loud: str = field(default="quiet", repr=_shouted)
    secret: str = field(default="nobody sees it", repr=False)

    @frozen
    class Inner(FieldsRepr):
        value: object


@mutable
class _Ring(FieldsRepr):
    next: object = None


@frozen
class _Child(_Shown):
    more: int = 3


@frozen
class _OfItsOwn(FieldsRepr):
    value: int

    def __repr__(self) -> str:
        return "its own"


_VALUES: Final = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)


@given(_VALUES, _VALUES)
def test_it_is_what_attrs_writes(one: object, two: object) -> None:
    written, shown = _Written(one=one, two=two), _Shown(one=one, two=two)
    assert repr(shown) == repr(written).replace("_Written", "_Shown")
    inner = repr(_Written.Inner(one)).replace("_Written", "_Shown")
    assert repr(_Shown.Inner(one)) == inner


def test_a_value_within_itself_is_an_ellipsis() -> None:
    ring = _Ring()
    ring.next = ring
    assert repr(ring) == "_Ring(next=...)"


def test_a_class_within_a_function_is_named_without_it() -> None:
    @frozen
    class Local(FieldsRepr):
        value: int

    assert repr(Local(1)) == "Local(value=1)"


def test_a_further_class_shows_its_fields_too_and_a_repr_of_its_own_is_kept() -> None:
    child = _Child(one=1, more=4)
    assert repr(child) == "_Child(one=1, _two=None, loud=QUIET, more=4)"
    assert repr(_OfItsOwn(1)) == "its own"
    assert evolve(child, more=5) == _Child(one=1, more=5) != child
    assert attrs.has(_Child)
