"""A quick yes for values that fit a plain schema, made once per schema.

It knows the words of which schemas of outputs mostly consist, and says yes only where the full
check would, too. Whatever it does not know, or does not find to fit, is left to the full check,
which also words the errors.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from minions.data.json_values import JsonValue, as_object

Fits: TypeAlias = Callable[[object], bool]
"""Whether a value fits for sure."""
_Schema: TypeAlias = Mapping[str, JsonValue]
_Measure: TypeAlias = Callable[..., object]  # its types are looked up beside it
_Compare: TypeAlias = Callable[..., bool]  # of a number, or a length

_DEEPEST: Final = 32
"""Levels of a schema; a recursive one is deeper than any."""
_MOST_PARTS: Final = 2_000
_SAYS_NOTHING: Final = frozenset(
    {"title", "description", "default", "examples", "$defs", "definitions", "format", "deprecated"}
)
_TYPES: Final[Mapping[str, type[object] | tuple[type[object], ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


_PLAIN_REFERENCE: Final = re.compile(r"#/(\$defs|definitions)/([A-Za-z0-9_.-]+)")


class _UnknownWordError(Exception):
    """The schema says something that only the full check knows."""


def quick_check(schema: _Schema) -> Fits | None:
    """The check of the schema; None: it says more than a quick check knows."""
    try:
        return _Compiler(schema).check(schema, 0).holds
    except (_UnknownWordError, TypeError):
        return None


class _Check(Struct, frozen=True):
    """What a value has to be. Most values have to be of a type alone, which takes no call."""

    kinds: frozenset[type[object]] | None = None
    """The exact classes; None: any."""
    more: Fits | None = None
    """What else has to hold; None: nothing."""

    def holds(self, value: object) -> bool:
        """Whether it is that."""
        if self.kinds is not None and type(value) not in self.kinds:
            return False
        return self.more is None or self.more(value)


class _Compiler:
    """Makes the checks of one schema; a small schema that refers to itself is given up."""

    def __init__(self, root: _Schema) -> None:
        self._root = root
        self._parts = 0

    def check(self, schema: JsonValue, depth: int) -> _Check:
        self._parts += 1
        if not isinstance(schema, Mapping) or depth > _DEEPEST or self._parts > _MOST_PARTS:
            raise _UnknownWordError
        words = {word: item for word, item in schema.items() if word not in _SAYS_NOTHING}
        kinds = _kinds_of(words.pop("type")) if "type" in words else None
        checks: list[Fits] = []
        if {"properties", "required", "additionalProperties"} & set(words):
            named = words.pop("properties", {})
            required, others = words.pop("required", []), words.pop("additionalProperties", True)
            checks.append(self._object(named, required, others, depth))
        checks += [self._word(word, item, depth) for word, item in words.items()]
        if len(checks) <= 1:
            return _Check(kinds, checks[0] if checks else None)
        return _Check(kinds, lambda value: all(fits(value) for fits in checks))

    def _object(self, named: JsonValue, required: JsonValue, others: JsonValue, depth: int) -> Fits:
        if not isinstance(named, Mapping) or not isinstance(required, list | tuple):
            raise _UnknownWordError
        if not isinstance(others, bool):
            raise _UnknownWordError
        checks = {name: self.check(item, depth + 1) for name, item in named.items()}
        needed = frozenset(required)

        def fits(value: object) -> bool:
            if type(value) is not dict:
                return False
            for name in needed:
                if name not in value:
                    return False
            for name in value:
                if name in checks:
                    check, item = checks[name], value[name]
                    if check.kinds is not None and type(item) not in check.kinds:
                        return False
                    if check.more is not None and not check.more(item):
                        return False
                elif not others:
                    return False
            return True

        return fits

    def _word(self, word: str, item: JsonValue, depth: int) -> Fits:
        if word == "items":
            return _of_items(self.check(item, depth + 1))
        if word == "enum" and isinstance(item, list | tuple):
            return _of_texts(item)
        if word == "const":
            return _of_texts([item])
        if word == "anyOf" and isinstance(item, list | tuple):
            if sum(not _is_leaf(one) for one in item) > 1:  # each level would double the work
                raise _UnknownWordError
            checks = [self.check(one, depth + 1) for one in item]
            return lambda value: any(check.holds(value) for check in checks)
        if word == "$ref" and isinstance(item, str):
            return self.check(self._definition(item), depth + 1).holds
        if word in _BOUNDS and isinstance(item, int | float) and not isinstance(item, bool):
            return _of_bound(word, item)
        raise _UnknownWordError

    def _definition(self, reference: str) -> JsonValue:
        """What a reference to a plain name means; others are pointers with escapes, or anchors."""
        found = _PLAIN_REFERENCE.fullmatch(reference)
        if found is None:
            raise _UnknownWordError
        try:
            return as_object(as_object(self._root)[found[1]])[found[2]]
        except KeyError:
            raise _UnknownWordError from None


def _is_leaf(schema: JsonValue) -> bool:
    """Whether it says nothing of what a value contains."""
    words = set(schema) - _SAYS_NOTHING if isinstance(schema, Mapping) else {"?"}
    return words <= {"type", "enum", "const"}


def _of_items(check: _Check) -> Fits:
    kinds, more = check.kinds, check.more

    def fits(value: object) -> bool:
        if type(value) is not list:
            return False
        for one in value:
            if kinds is not None and type(one) not in kinds:
                return False
            if more is not None and not more(one):
                return False
        return True

    return fits


def _kinds_of(names: JsonValue) -> frozenset[type[object]]:
    """By the exact class: a bool is no integer, and whether 1.0 is one the full check says."""
    kinds: set[type[object]] = set()
    for name in names if isinstance(names, list | tuple) else [names]:
        kind = _TYPES.get(str(name))
        if kind is None:
            raise _UnknownWordError
        kinds.update(kind if isinstance(kind, tuple) else (kind,))
    return frozenset(kinds)


def _of_texts(choices: list[JsonValue] | tuple[JsonValue, ...]) -> Fits:
    """Texts alone are compared: 1, 1.0 and true are equal in Python."""
    texts = frozenset(each for each in choices if isinstance(each, str))
    return lambda value: type(value) is str and value in texts


def _of_bound(word: str, bound: float) -> Fits:
    """A bound says something of its own types alone; not a number is within all bounds."""
    kinds, measure, is_beyond = _BOUNDS[word]
    return lambda value: type(value) not in kinds or not is_beyond(measure(value), bound)


def _itself(value: object) -> object:
    return value


_NUMBERS: Final = (int, float)
_BOUNDS: Final[Mapping[str, tuple[tuple[type[object], ...], _Measure, _Compare]]] = {
    "minimum": (_NUMBERS, _itself, operator.lt),
    "maximum": (_NUMBERS, _itself, operator.gt),
    "exclusiveMinimum": (_NUMBERS, _itself, operator.le),
    "exclusiveMaximum": (_NUMBERS, _itself, operator.ge),
    "minLength": ((str,), len, operator.lt),
    "maxLength": ((str,), len, operator.gt),
    "minItems": ((list,), len, operator.lt),
    "maxItems": ((list,), len, operator.gt),
}
"""By word the types of which it says something, what is measured, and what is beyond the bound."""
