"""Where a value came from: expressions over what was known, that gave it each time it was seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

from attrs import evolve, frozen

from minions.capture.json_places import is_equal
from minions.capture.known_values import (
    MOST_TEXT,
    STATES,
    Known,
    Sight,
    Values,
    is_alike,
    is_telling,
    pattern_of_words,
)
from minions.capture.template_writing import joined_template, member, quoted, text_of
from minions.data.json_values import JsonValue, dumps

PERCENT: Final = "percent"
"""Name of an input that is a percentage of the task."""
_MOST_SPACES: Final = 6
"""Spaces of a text of which parts are taken at other places than ends of lines."""
_MOST_EXAMPLES: Final = 3
"""Sights of which candidates are made."""
_MOST_PAIRS: Final = 60
"""Numbers of which two are tried in sums, differences, products and quotients."""
_SEPARATORS: Final = (
    ", ",
    ",",
    "; ",
    ";",
    ": ",
    ":",
    "/",
    "@",
    " - ",
    "-",
    "|",
    "\n",
    "=",
    "_",
    " ",
)


class Kind(IntEnum):
    """How a value came about; of two explanations the smaller one is simpler."""

    PATH = 0
    """It is what stands at a path."""
    FILTER = 1
    """A part or another form of such a value."""
    LOOKUP = 2
    """Of the item of a list that has a known value."""
    COMPUTED = 3
    """A number made of known ones."""
    TEXT = 4
    """A text around known values."""


@frozen(kw_only=True)
class Origin:
    """An expression that gives the value, wherever it was seen."""

    kind: Kind
    template: str
    """With its braces, as a recipe has it."""
    roots: frozenset[str]
    is_alike: bool = False
    """Whether what it reads has the name of what it is for."""
    is_said: bool = False
    """Whether it reads an input that stands for words of the task."""

    @property
    def order(self) -> tuple[int, bool, int]:
        """The simplest first."""
        return (self.kind, not self.is_alike, len(self.template))


def origins_of(sights: Sequence[Sight], name: str, values: Values) -> list[Origin]:
    """The expressions that give the value of every sight, the simplest kind alone.

    Args:
        sights: At least one; candidates are made of a few, and tried on all.
        name: The parameter or field that it is for.
    """
    for candidates in (_paths, _forms, _lookups, _aggregates, _pairs, _texts):
        for example in _examples(sights):
            tried = {each.template: each for each in candidates(example, name)}
            found = [each for each in tried.values() if values.holds(each.template, sights)]
            if found:
                return sorted(found, key=lambda each: each.order)
    return []


def _examples(sights: Sequence[Sight]) -> Iterator[Sight]:
    """A few sights with different values: 100 / 10 does not show that quotients are rounded, and an
    empty list not of what it is; another one may.
    """
    values: list[JsonValue] = []
    for each in sights:
        if len(values) < _MOST_EXAMPLES and not any(is_equal(each.value, one) for one in values):
            values.append(each.value)
            yield each


def _origin(kind: Kind, text: str, known: Sequence[Known], name: str) -> Origin:
    return Origin(
        kind=kind,
        template=f"{{{{ {text} }}}}",
        roots=frozenset(each.root for each in known),
        is_alike=any(is_alike(each.label, name) for each in known),
        is_said=any(each.root == "said" for each in known),
    )


def _is_usable(known: Known, name: str) -> bool:
    return is_telling(known.value) or is_alike(known.label, name) or known.root in ("loop", "said")


def _paths(sight: Sight, name: str) -> Iterator[Origin]:
    for known in sight.known.equal_to(sight.value):
        if _is_usable(known, name) and not known.is_picked:
            yield _origin(Kind.PATH, known.text, [known], name)


def _texts_of(sight: Sight) -> Iterator[tuple[Known, str]]:
    for known in sight.known:
        if isinstance(known.value, str) and not known.is_picked and len(known.value) <= MOST_TEXT:
            yield known, known.value


_CASES: Final[Sequence[tuple[str, Callable[[str], str]]]] = (
    ("trim", str.strip),
    ("lower", str.lower),
    ("upper", str.upper),
    ("title", str.title),
    ("capitalize", str.capitalize),
)


def _forms(sight: Sight, name: str) -> Iterator[Origin]:
    """Other forms of one known value: case, number and text, part of a text, list of fields."""
    value = sight.value
    if isinstance(value, str) and len(value) > MOST_TEXT:
        return
    if isinstance(value, str) and is_telling(value):
        folded = value.strip().casefold()
        for known, text in _texts_of(sight):
            is_like = len(text) < len(value) + 40 and text.strip().casefold() == folded
            for name_of, change in _CASES if is_like else ():
                if change(text) == value:
                    yield _origin(Kind.FILTER, f"{known.text} | {name_of}", [known], name)
            yield from _parts(known, text, value, name)
        for known in sight.known:
            number = known.value
            is_number = _is_number(number) and not known.is_picked
            if is_number and dumps(number) == value:
                yield _origin(Kind.FILTER, f"{known.text} | string", [known], name)
        yield from _joined(sight, value, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        for known, text in _texts_of(sight):
            if re.fullmatch(r"\s*-?[0-9]+(\.[0-9]+)?\s*", text) and float(text) == value:
                form = "float" if "." in text else "int"
                yield _origin(Kind.FILTER, f"{known.text} | {form}", [known], name)
        yield from _rounded(sight, float(value), name)
    elif isinstance(value, list | tuple) and value:
        yield from _mapped(sight, list(value), name)


def _parts(known: Known, text: str, value: str, name: str) -> Iterator[Origin]:
    if value == text or value not in text:
        return
    if len(value) >= 4 and re.match(r"[0-9]{4}-[0-9]{2}", text):  # of a date and time
        at = text.index(value)
        start = "" if at == 0 else str(at)
        end = "" if at + len(value) == len(text) else str(at + len(value))
        yield _origin(Kind.FILTER, f"{known.text}[{start}:{end}]", [known], name)
        return
    is_prose = text.count(" ") > _MOST_SPACES  # the place of a word in it means nothing
    for separator in ("\n",) if is_prose else _SEPARATORS:
        parts = text.split(separator)
        if 1 < len(parts) <= 20 and parts.count(value) == 1:
            place = parts.index(value)
            shown = separator.replace("\n", "\\n")
            at = place if place < len(parts) - 1 or place < 2 else -1
            yield _origin(Kind.FILTER, f"({known.text} | split('{shown}'))[{at}]", [known], name)
            return


def _joined(sight: Sight, value: str, name: str) -> Iterator[Origin]:
    for known, path, items in _lists(sight):
        if len(items) < 2 or text_of(items[0]) not in value or text_of(items[-1]) not in value:
            continue
        texts = [text_of(each) for each in items]
        for separator in (", ", ",", "; ", " ", "\n", " and ", "/"):
            if separator.join(texts) == value:
                shown = separator.replace("\n", "\\n")
                yield _origin(Kind.FILTER, f"{path} | join('{shown}')", [known], name)


def _rounded(sight: Sight, value: float, name: str) -> Iterator[Origin]:
    for known in sight.known:
        number = known.value
        if known.is_picked or not isinstance(number, float) or not is_telling(number):
            continue
        for digits in (0, 1, 2):
            if round(number, digits) == value != number:
                yield _origin(Kind.FILTER, f"{known.text} | round({digits})", [known], name)
                break


def _lists(sight: Sight) -> Iterator[tuple[Known, str, list[JsonValue]]]:
    """Lists of plain values: those that are known, and fields of the items of known ones."""
    for known in sight.known:
        if not isinstance(known.value, list | tuple) or known.is_picked or not known.value:
            continue
        items = list(known.value)
        if not any(isinstance(each, Mapping | list | tuple) for each in items):
            yield known, known.text, items
        elif all(isinstance(each, Mapping) for each in items):
            for key in _keys_of(items):
                fields = [each[key] for each in items if isinstance(each, Mapping)]
                if not any(isinstance(each, Mapping | list | tuple) for each in fields):
                    label = evolve(known, label=key)
                    yield label, f"{known.text} | map(attribute={quoted(key)})", fields


def _keys_of(items: Sequence[JsonValue]) -> list[str]:
    """The keys that every item has."""
    first = items[0]
    keys = list(first) if isinstance(first, Mapping) else []
    return [
        key
        for key in keys
        if "." not in key and all(isinstance(each, Mapping) and key in each for each in items)
    ]


def _mapped(sight: Sight, value: list[JsonValue], name: str) -> Iterator[Origin]:
    for known, path, items in _lists(sight):
        if "map(" in path and is_equal(items, value):
            yield _origin(Kind.FILTER, f"{path} | list", [known], name)
        if len(items) == len(value) and not is_equal(items, value):
            if all(isinstance(each, str) for each in items) and sorted(items, key=str) == value:
                yield _origin(Kind.FILTER, f"{path} | sort", [known], name)
            if is_equal(items[::-1], value):
                yield _origin(Kind.FILTER, f"{path} | reverse", [known], name)


def _lookups(sight: Sight, name: str) -> Iterator[Origin]:
    """A field of the one item of a list that has another known value in one of its fields."""
    if not is_telling(sight.value):
        return
    roots = {each.root for each in sight.known.equal_to(sight.value) if each.is_picked}
    for known in sight.known if roots else ():
        items = known.value
        if known.root not in roots or known.is_picked:
            continue
        if not isinstance(items, list | tuple) or len(items) < 2:
            continue
        for path, item in _items_with(items, sight.value):
            for key, part in item.items():
                by = _by_which(sight, part, known.root)
                if by is None or "." in key:
                    continue
                if sum(1 for each in items if _field_is(each, key, part)) == 1:
                    found = f"{known.text} | selectattr({quoted(key)}, 'eq', {by.text}) | first"
                    label = evolve(known, label=path.rpartition(".")[2].strip("[]'"))
                    yield _origin(Kind.LOOKUP, f"({found}){path}", [label, by], name)


def _by_which(sight: Sight, part: JsonValue, root: str) -> Known | None:
    """The first known value that a field equals, from elsewhere than the list itself."""
    if not is_telling(part) or not isinstance(part, str | int):
        return None
    found = (each for each in sight.known.equal_to(part) if not each.is_picked)
    return next((each for each in found if each.root != root), None)


def _field_is(item: JsonValue, key: str, value: JsonValue) -> bool:
    return isinstance(item, Mapping) and key in item and is_equal(item[key], value)


def _items_with(
    items: Sequence[JsonValue], value: JsonValue
) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    """Items of a list that hold the value in a field, with the path of the field in the item."""
    for item in items:
        if isinstance(item, Mapping):
            for key, part in item.items():
                if is_equal(part, value):
                    yield member("", key), item


def _aggregates(sight: Sight, name: str) -> Iterator[Origin]:
    """Numbers made of a list, and items that are the first of it by a field."""
    value = sight.value
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        for known in sight.known:
            items = known.value if isinstance(known.value, list | tuple) else ()
            if len(items) == value and len(items) > 1 and not known.is_picked:
                yield _origin(Kind.COMPUTED, f"{known.text} | length", [known], name)
        for known, path, items in _lists(sight):
            numbers = [each for each in items if _is_number(each)]
            if len(numbers) != len(items) or len(items) < 2:
                continue
            added = sum(float(each) for each in numbers if isinstance(each, int | float))
            for digits in (None, 2):
                total = added if digits is None else round(added, digits)
                if total == value:
                    form = "" if digits is None else f" | round({digits})"
                    yield _origin(Kind.COMPUTED, f"{path} | sum{form}", [known], name)
                    break
            for form, of in (("max", max), ("min", min)):
                if of(float(each) for each in numbers if isinstance(each, int | float)) == value:
                    yield _origin(Kind.COMPUTED, f"{path} | {form}", [known], name)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pairs(sight: Sight, name: str) -> Iterator[Origin]:
    """Sums, differences, products and quotients of two known numbers."""
    value = sight.value
    if not isinstance(value, int | float) or isinstance(value, bool) or not is_telling(value):
        return
    numbers = [
        each
        for each in sight.known
        if _is_number(each.value) and not each.is_picked and each.value not in (0, 1)
    ][:_MOST_PAIRS]
    for at, left in enumerate(numbers):
        for right in numbers[at + 1 :]:
            for text, result in _results(left, right):
                if result == value:
                    yield _origin(Kind.COMPUTED, text, [left, right], name)
                elif round(result, 2) == value:
                    yield _origin(Kind.COMPUTED, f"({text}) | round(2)", [left, right], name)


def _results(first: Known, second: Known) -> Iterator[tuple[str, float]]:
    """What two numbers give together; of a said percentage only its share, off it and on it."""
    left, right = first.text, second.text
    one, other = (
        float(each.value) if isinstance(each.value, int | float) else 0.0
        for each in (first, second)
    )
    for known, whole, share, part in ((first, one, second, other), (second, other, first, one)):
        if share.root == "said" and share.label.startswith(PERCENT):
            of, result = f"{known.text} * {share.text} / 100", whole * part / 100
            yield of, result
            yield f"{known.text} - {of}", whole - result
            yield f"{known.text} + {of}", whole + result
            return
    yield f"{left} + {right}", one + other
    yield f"{left} - {right}", one - other
    yield f"{right} - {left}", other - one
    yield f"{left} * {right}", one * other
    yield f"{left} * {right} / 100", one * other / 100
    if other:
        yield f"{left} / {right}", one / other
    if one:
        yield f"{right} / {left}", other / one


# --- texts around known values -------------------------------------------------------------------


def _texts(sight: Sight, _name: str) -> Iterator[Origin]:
    """A text of known values with constant words around them, the longest values first."""
    value = sight.value
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        return
    pieces: list[str | Known] = [value]
    held = [each for each in sight.known if _may_stand_in(each, value)]
    for known in sorted(held, key=_size, reverse=True):
        words = re.compile(rf"(?<!\w){re.escape(text_of(known.value))}(?!\w)")
        pieces = [part for piece in pieces for part in _cut(piece, words, known)]
    for known in sight.known:
        if isinstance(known.value, list | tuple) and len(known.value) > 1 and not known.is_picked:
            counted = evolve(known, text=f"{known.text} | length", value=len(known.value))
            words = pattern_of_words(str(len(known.value)))  # no part of a name: 2 of A-2
            pieces = [part for piece in pieces for part in _cut(piece, words, counted)]
    used = [piece for piece in pieces if isinstance(piece, Known)]
    if not used:
        return
    if len(pieces) == 1 and not isinstance(used[0].value, str):
        pieces = [evolve(used[0], text=f"{used[0].text} | string")]
    written = joined_template(
        [(each, False) if isinstance(each, str) else (each.text, True) for each in pieces]
    )
    yield Origin(
        kind=Kind.TEXT,
        template=written,
        roots=frozenset(each.root for each in used),
        is_said=any(each.root == "said" for each in used),
    )


def _may_stand_in(known: Known, value: str) -> bool:
    """Whether a text may have been written around a known value."""
    part = known.value
    if known.is_picked or isinstance(part, list | tuple | Mapping | bool) or part is None:
        return False
    text = part if isinstance(part, str) else dumps(part)
    if len(text) < 2 or text not in value:
        return False
    if known.label.lower() in STATES:
        return False  # a word like others: "we have paid back" does not say the order's status
    return known.root == "said" or is_telling(part)


def _size(known: Known) -> int:
    return len(known.value) if isinstance(known.value, str) else 4


def _cut(piece: str | Known, words: re.Pattern[str], known: Known) -> Iterator[str | Known]:
    if not isinstance(piece, str):
        yield piece
        return
    at = 0
    for match in words.finditer(piece):
        if match.start() > at:
            yield piece[at : match.start()]
        yield known
        at = match.end()
    if at < len(piece):
        yield piece[at:]
