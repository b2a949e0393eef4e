"""JSON of any size, written and read in parts: others can work in between, beside an event loop.

The C code of the standard library holds the interpreter from a text's first character to its last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]  # typeshed leaves `scanstring` out
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # typeshed leaves it out
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

LONG_TEXT: Final = 131_072
"""Characters of a text that is decoded in parts."""
_WINDOW: Final = 65_536
"""Characters that are decoded at once."""
_PART: Final = 4_096
"""Values that are encoded at once."""
_CHARACTERS: Final = 64
"""Characters of a text that count as one value."""
_ATOMS: Final = frozenset((bool, int, float, type(None)))
_BLANKS: Final = " \t\n\r"


def is_large(value: object, most: int = 2_000) -> bool:
    """Whether a value has more than so many values, or as many times 64 characters.

    Takes no longer than a value of that size; fields of our own classes are looked at, too.
    """
    if type(value) in _ATOMS:
        return False
    if type(value) is str:
        return len(value) > most * _CHARACTERS
    rest, left = [value], most
    # Most values are small and plain JSON: their kinds are told by type, without a call each.
    for each in rest:  # which grows
        if each is None:
            continue
        if type(each) is str or type(each) is bytes:
            left -= len(each) // _CHARACTERS
        elif type(each) is dict:
            left -= len(each)
            if left >= 0:
                rest += each.values()
        elif type(each) is list or type(each) is tuple:
            left -= len(each)
            if left >= 0:
                rest += each
        elif type(each) not in _ATOMS:
            kind = type(each)
            parts = _PARTS[kind] if kind in _PARTS else _parts_of(kind)
            if parts is None:
                continue
            items = parts(each)
            left -= len(items)
            if left >= 0:
                rest += items
        if left < 0:
            return True
    return False


_Decoded: TypeAlias = Any  # Any: as the decoder itself
_Encode: TypeAlias = Callable[..., str]  # of what it encodes
_Parts: TypeAlias = Callable[..., Collection[object]]  # each takes its own class
_PARTS: Final[dict[type, _Parts | None]] = {}
"""How the parts of a value that is no plain JSON are read, by its class; None: it has none."""
_MOST_CLASSES: Final = 1_024


def _parts_of(kind: type) -> _Parts | None:
    """How the parts of values of that class are read; None: it has none."""
    parts: _Parts | None
    if issubclass(kind, Mapping):
        parts = kind.values
    elif issubclass(kind, str | bytes):
        parts = _runs_of_characters
    elif issubclass(kind, list | tuple):
        parts = _itself
    else:
        fields: Sequence[str] | None = getattr(kind, "__struct_fields__", None)
        if fields is None:
            fields = [each.name for each in getattr(kind, "__attrs_attrs__", ())]
        parts = attrgetter(*fields) if len(fields) > 1 else None
        if len(fields) == 1:  # of one alone `attrgetter` gives the value itself
            one = attrgetter(fields[0])
            parts = lambda value: (one(value),)  # noqa: E731  # as its neighbours
    if len(_PARTS) >= _MOST_CLASSES:
        _PARTS.clear()
    _PARTS[kind] = parts
    return parts


def _itself(value: Collection[object]) -> Collection[object]:
    return value


def _runs_of_characters(value: str | bytes) -> Collection[object]:
    return range(len(value) // _CHARACTERS)


def encoded_parts(value: object, encode: _Encode) -> Iterator[str]:
    """The JSON text of a value, in parts.

    Args:
        encode: Encodes a value as compact JSON; it is called with parts of limited size, and with
            whatever is no list, tuple or dict.
    """
    if not is_large(value, _PART):
        yield encode(value)
    elif isinstance(value, list | tuple):
        yield from _list_parts(value, encode)
    elif type(value) is dict:
        mark = "{"
        for key, each in value.items():
            yield mark + encode({key: 0})[1:-2]
            yield from encoded_parts(each, encode)
            mark = ","
        yield "}"
    else:
        yield encode(value)


def _list_parts(items: Sequence[object], encode: _Encode) -> Iterator[str]:
    """As above, of a list: small neighbours are encoded together."""
    mark, begin, left = "[", 0, _PART
    for at, each in enumerate(items):
        is_long = type(each) not in _ATOMS and is_large(each, _PART // 16)
        left -= 1 if type(each) in _ATOMS else _PART // 128
        if left > 0 and not is_long:
            continue
        end = at if is_long else at + 1
        if begin < end:
            yield mark + encode(items[begin:end])[1:-1]
            mark = ","
        if is_long:
            yield mark
            yield from encoded_parts(each, encode)
            mark = ","
        begin, left = at + 1, _PART
    if begin < len(items):
        yield mark + encode(items[begin:])[1:-1]
    yield "]"


def decode_in_parts(text: str, decoder: json.JSONDecoder) -> _Decoded:
    """As `decoder.decode(text)`, in parts between which others can work.

    Raises:
        ValueError: As the decoder raises.
        RecursionError: It is nested too deep.
    """
    value, end = raw_decode_in_parts(text, _after_blanks(text, 0), decoder)
    end = _after_blanks(text, end)
    if end != len(text):
        raise JSONDecodeError("Extra data", text, end)
    return value


def raw_decode_in_parts(text: str, begin: int, decoder: json.JSONDecoder) -> tuple[_Decoded, int]:
    """As `decoder.raw_decode(text, begin)`, in parts where much of the text is left.

    Raises:
        ValueError, RecursionError: As above.
    """
    if len(text) - begin < LONG_TEXT:
        return decoder.raw_decode(text, begin)
    return _Decoding(text, decoder).value(begin)


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


class _Decoding:
    """Decodes one long text: whole members of a list or object are taken by the window, in C."""

    def __init__(self, text: str, decoder: json.JSONDecoder) -> None:
        self._text = text
        self._decoder = decoder
        self._scan = py_make_scanner(decoder)
        self._left = 2 * len(text) + 16 * _WINDOW
        """Characters that may be looked at in vain; then the standard library's Python code does
        the rest, which looks at each once, and takes ten times as long."""

    def value(self, at: int) -> tuple[_Decoded, int]:
        """The value that begins there, and where it ends."""
        text = self._text
        if text[at : at + 1] not in ("[", "{"):
            return self._decoder.raw_decode(text, at)
        if self._left > 0:
            window = text[at : at + _WINDOW]
            try:
                value, end = self._decoder.raw_decode(window)
            except ValueError:
                self._left -= len(window)
                return self._members(at)
            return value, at + end
        try:
            found: tuple[_Decoded, int] = self._scan(text, at)
        except StopIteration as error:
            raise JSONDecodeError("Expecting value", text, error.value) from None
        return found

    def _members(self, at: int) -> tuple[_Decoded, int]:
        """A list or object that does not end within its window."""
        text, is_object = self._text, self._text[at] == "{"
        close = "}" if is_object else "]"
        pairs: list[tuple[str, object]] = []
        items: list[object] = []
        at = _after_blanks(text, at + 1)
        is_empty = text[at : at + 1] == close
        while not is_empty:
            at, is_over = self._several(at, pairs if is_object else None, items)
            if is_over:
                break
            if is_object:
                at = self._pair(at, pairs)
            else:
                item, at = self.value(at)
                items.append(item)
            at = _after_blanks(text, at)
            if text[at : at + 1] == close:
                break
            if text[at : at + 1] != ",":
                raise JSONDecodeError("Expecting ',' delimiter", text, at)
            at = _after_blanks(text, at + 1)
        if not is_object:
            return items, at + 1
        hook = cast(
            "Callable[[list[tuple[str, object]]], object] | None",  # typeshed: never None
            self._decoder.object_pairs_hook,
        )
        return dict(pairs) if hook is None else hook(pairs), at + 1

    def _several(
        self, at: int, pairs: list[tuple[str, object]] | None, items: list[object]
    ) -> tuple[int, bool]:
        """Take the whole members in the next window, but for the last of them; where it begins.
        True: where the list or object ends, as it does within the window.
        """
        text, opening, close = self._text, *(("[", "]") if pairs is None else ("{", "}"))
        for mark in (",", "},", "],"):
            found = text.rfind(mark, at, at + _WINDOW)
            end = found + len(mark) - 1
            chunk = text[at:end] if found >= 0 else ""
            if self._left <= 0 or not chunk or chunk.isspace():
                continue
            # Between brackets of its own it is a whole list, or object, only where it was cut
            # between two members, or ends: else a text or a member within it would have no end.
            try:
                found_members, length = self._decoder.raw_decode(f"{opening}{chunk}{close}")
            except ValueError:
                self._left -= len(chunk)
                continue
            if pairs is None:
                items += found_members
            else:
                pairs += found_members.items()
            if length < len(chunk) + 2:
                self._left -= len(chunk) - length
                return at + length - 2, True
            return _after_blanks(text, end + 1), False
        return at, False

    def _pair(self, at: int, pairs: list[tuple[str, object]]) -> int:
        text = self._text
        if text[at : at + 1] != '"':
            expected = "Expecting property name enclosed in double quotes"
            raise JSONDecodeError(expected, text, at)
        name, at = scanstring(text, at + 1, True)
        at = _after_blanks(text, at)
        if text[at : at + 1] != ":":
            raise JSONDecodeError("Expecting ':' delimiter", text, at)
        value, at = self.value(_after_blanks(text, at + 1))
        pairs.append((name, value))
        return at
