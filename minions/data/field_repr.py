"""The repr of attrs classes, by one function for all of them."""

from __future__ import annotations

from reprlib import recursive_repr

import attrs

__all__ = ["FieldsRepr"]


class FieldsRepr:
    """A base of attrs classes: their repr is as attrs would write it, `Name(first=1, second=2)`.

    attrs generates a function for each class and compiles it when the class is made: a tenth of
    what `minions run` takes to start. A class that has its own `__repr__` keeps it.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: object) -> None:  # of other bases
        """Let attrs find a repr in the class itself, so that it generates none."""
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = _fields_repr  # type: ignore[method-assign]  # as if written in it


@recursive_repr("...")
def _fields_repr(self: attrs.AttrsInstance) -> str:
    shown = (
        f"{each.name}={(repr if each.repr is True else each.repr)(getattr(self, each.name))}"
        for each in attrs.fields(type(self))
        if each.repr
    )
    return f"{type(self).__qualname__.rpartition('>.')[2]}({', '.join(shown)})"
