"""The types of settings: how a text is parsed, and what messages say is expected."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Final

import attrs
from attrs import frozen

from minions.app.settings.settings import Settings
from minions.data.constraint import Constraint

_WORDS: Final[Mapping[object, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "a list of texts",
    Mapping: "a table of texts",
}


@frozen
class SettingType:
    """The type of a setting, without whether the key may be left out."""

    kind: object
    """A class, a container's class, or a union."""
    constraint: Constraint | None = None

    @classmethod
    def of(cls, hint: object) -> SettingType:
        """The type of a hint; of `X | None` it is that of X."""
        members = [each for each in typing.get_args(hint) if each is not type(None)]
        if _is_union(hint) and len(members) == 1:
            return cls.of(members[0])
        if typing.get_origin(hint) is typing.Annotated:
            constraints = (each for each in members if isinstance(each, Constraint))
            return cls(members[0], next(constraints, None))
        return cls(hint if _is_union(hint) else typing.get_origin(hint) or hint)

    @property
    def is_table(self) -> bool:
        """Whether it is a table, which only a file can hold."""
        return self.kind is Mapping or (isinstance(self.kind, type) and attrs.has(self.kind))

    def takes(self, value: object) -> bool:
        """Whether a value of this type fulfils the constraint."""
        return value is None or self.constraint is None or self.constraint.holds(value)

    @property
    def expected(self) -> str:
        """What is expected, in words for messages."""
        if self.constraint is not None:
            return self.constraint.expected
        if _is_union(self.kind):
            return " or ".join(
                SettingType.of(each).expected
                for each in typing.get_args(self.kind)
                if each is not type(None)
            )
        if isinstance(self.kind, type) and issubclass(self.kind, enum.Enum):
            return f"one of {', '.join(str(each.value) for each in self.kind)}"
        if isinstance(self.kind, type) and attrs.has(self.kind):
            return f"a table of {', '.join(each.name for each in attrs.fields(self.kind))}"
        return _WORDS[self.kind]


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


@functools.cache  # of the one class that there is
def setting_types() -> Mapping[str, SettingType]:
    """Each key of the settings with its type."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    return {each.name: SettingType.of(hints[each.name]) for each in attrs.fields(Settings)}
