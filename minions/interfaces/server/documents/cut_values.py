"""Large values in responses: cut where a caller asks for it, and one of them in whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from attrs import field, frozen

from minions.data.json_values import JsonValue, dumps
from minions.interfaces.server.documents.common import number_schema, text_schema

_NODE: Final = 4
"""Characters that each member of a list or an object counts for, beside its texts."""


@frozen(kw_only=True)
class CutQuery:
    """Whether large values are cut."""

    cut: int | None = field(default=None, metadata=number_schema(100, 10_000_000, "null"))
    """Leave of each value some so many characters, and say in `cut` what was left out; None: every
    value is whole."""


@frozen(kw_only=True)
class CutPart:
    """A text, list or object of which the response has only the beginning."""

    path: str
    """Its place in the response, as JSON Pointer (RFC 6901)."""
    shown: int
    """How many characters or members there are."""
    total: int
    """How many there are in the whole value."""
    digest: str
    """A digest of the whole value: equal values have equal digests."""


@frozen(kw_only=True)
class ValueAddress:
    """Which value of a run to return."""

    at: str = field(metadata=text_schema(2_000))
    """The `path` of the value in the response about the run or the step."""
    address: str | None = field(default=None, metadata=text_schema(1_000, "null"))
    """The step whose response has the path; None: the run's."""


@frozen(kw_only=True)
class ValueView:
    """A value of a run in whole."""

    value: JsonValue


def cut_at(document: JsonValue, places: Sequence[str], limit: int) -> JsonValue:
    """The document with large values cut, and its member `cut` filled with what was left out.

    Args:
        places: Pointers to the values that may be cut; `*` is every member of a list.
        limit: About how many characters are left of each of these values.
    """
    cut = Cut(limit)
    whole = cast("Mapping[str, JsonValue]", document)
    shown: JsonValue = dict(whole)
    for place in places:
        shown = _replaced(shown, place.split("/")[1:], "", cut)
    parts: list[JsonValue] = [
        {"path": each.path, "shown": each.shown, "total": each.total, "digest": each.digest}
        for each in cut.parts
    ]
    return {**cast("Mapping[str, JsonValue]", shown), "cut": parts}


def _replaced(value: JsonValue, place: Sequence[str], path: str, cut: Cut) -> JsonValue:
    """The value with what stands at the place below it cut."""
    if not place:
        return cut.value(value, path)
    name, rest = place[0], place[1:]
    if name == "*" and isinstance(value, list | tuple):
        return [_replaced(each, rest, f"{path}/{at}", cut) for at, each in enumerate(value)]
    if isinstance(value, Mapping) and name in value:
        return {**value, name: _replaced(value[name], rest, f"{path}/{name}", cut)}
    return value


class Cut:
    """Cuts values, each to about so many characters, and notes what it left out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self.parts: list[CutPart] = []

    def value(self, value: JsonValue, path: str) -> JsonValue:
        """The beginning of the value, or all of it."""
        self._left = self._limit
        return self._any(value, path)

    def _any(self, value: JsonValue, path: str) -> JsonValue:
        self._left -= _NODE
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, Mapping):
            return dict(self._members(value.items(), path, value))
        if isinstance(value, list | tuple):
            return [each for _, each in self._members(enumerate(value), path, value)]
        return value

    def _text(self, text: str, path: str) -> str:
        room = max(0, self._left)
        self._left -= len(text)
        if len(text) <= room:
            return text
        self._note(path, room, len(text), text)
        return text[:room]

    def _members(
        self,
        members: Iterable[tuple[object, JsonValue]],
        path: str,
        whole: Sequence[JsonValue] | Mapping[str, JsonValue],
    ) -> Iterator[tuple[str, JsonValue]]:
        for at, (name, each) in enumerate(members):
            if self._left <= 0:
                self._note(path, at, len(whole), whole)
                return
            self._left -= len(str(name))
            yield str(name), self._any(each, f"{path}/{_escaped(str(name))}")

    def _note(self, path: str, shown: int, total: int, value: JsonValue) -> None:
        text = value if isinstance(value, str) else dumps(value)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
        self.parts.append(CutPart(path=path, shown=shown, total=total, digest=digest.hexdigest()))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def value_at(document: JsonValue, pointer: str) -> JsonValue:
    """The value at that JSON Pointer.

    Raises:
        LookupError: There is none.
    """
    value = document
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901  # unescaped, RFC 6901
        if isinstance(value, Mapping):
            value = value[name]
        elif isinstance(value, list | tuple) and name.isascii() and name.isdigit():
            value = value[int(name)]
        else:
            raise LookupError(pointer)
    return value
