"""What templates can read at some place: values within values, with the expression of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import field, frozen

from minions.capture.json_places import is_equal
from minions.capture.template_writing import member
from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue
from minions.recipe.expressions.template import Templates

STATES: Final = frozenset(
    {"status", "state", "kind", "type", "category", "priority", "level", "result", "outcome"}
)
"""Names of fields that say of which kind a thing is."""
Scope: TypeAlias = Mapping[str, JsonValue]

MOST_TEXT: Final = 2_000
"""Characters of a text in which parts are looked for."""
_MOST_KNOWN: Final = 20_000
"""Values of one trace in which origins are looked for, the first ones."""


@frozen(kw_only=True)
class Known:
    """One value that a template can read."""

    text: str
    """The expression, without braces."""
    value: JsonValue
    root: str
    """The name that the expression starts with: `inputs`, a step, `loop`."""
    label: str
    """The last key of its path; empty: the whole result."""
    is_picked: bool = False
    """Whether it is of one item among several of a list, taken by its place."""


class KnownValues:
    """All that templates can read at some place, for look-ups by value."""

    def __init__(self) -> None:
        self.values: list[Known] = []
        self._by_value: dict[tuple[object, ...], list[Known]] = {}
        self.is_cut = False
        """Whether there was more than is kept."""

    def add(self, values: Iterable[Known]) -> None:
        """Take in more, up to a bound."""
        for each in values:
            if len(self.values) >= _MOST_KNOWN:
                self.is_cut = True
                return
            self.values.append(each)
            self._by_value.setdefault(_index_key(each.value), []).append(each)

    def equal_to(self, value: JsonValue) -> Iterator[Known]:
        """Those that are the same JSON."""
        for each in self._by_value.get(_index_key(value), ()):
            if is_equal(each.value, value):
                yield each


@frozen
class KnownThen:
    """What was known when a call was made."""

    values: KnownValues
    late: Collection[str] = ()
    """Names of steps whose results came later."""
    more: KnownValues = field(factory=KnownValues)
    """What only this call can read: the item of its loop."""

    def __iter__(self) -> Iterator[Known]:
        yield from self.more.values
        late = self.late
        yield from (each for each in self.values.values if each.root not in late)

    def equal_to(self, value: JsonValue) -> Iterator[Known]:
        """Those that are the same JSON."""
        yield from self.more.equal_to(value)
        yield from (each for each in self.values.equal_to(value) if each.root not in self.late)


@frozen(kw_only=True)
class Sight:
    """A value with all that was known when it was made."""

    value: JsonValue
    scope: Scope
    """What templates read: `inputs`, outputs by the names of steps, `loop` in a loop."""
    known: KnownThen = field(repr=False)
    """What of `scope` it may have been made of."""


@frozen
class Values:
    """Fills in templates."""

    templates: Templates = field(factory=Templates)
    _compiled: dict[str, object] = field(factory=dict, init=False, repr=False)

    def give(self, template: JsonValue, scope: Scope) -> JsonValue | None:
        """The template's value; None: it has none there."""
        try:
            return self.templates.compile(template).render(scope)
        except MinionsError:
            return None

    def holds(self, origin: str, sights: Sequence[Sight]) -> bool:
        """Whether the template gives the value of each sight."""
        return all(is_equal(self.give(origin, each.scope), each.value) for each in sights)


def leaves(
    text: str, value: JsonValue, root: str, *, label: str = "", is_picked: bool = False
) -> Iterator[Known]:
    """Every value within a value, the value itself first."""
    rest: list[tuple[str, JsonValue, str, bool]] = [(text, value, label, is_picked)]
    count = 0
    while rest and count < _MOST_KNOWN:
        at, each, name, picked = rest.pop()
        count += 1
        yield Known(text=at, value=each, root=root, label=name, is_picked=picked)
        if isinstance(each, Mapping):
            below = [(member(at, key), part, key, picked) for key, part in each.items()]
        elif isinstance(each, list | tuple):
            several = picked or len(each) > 1
            below = [(f"{at}[{place}]", part, name, several) for place, part in enumerate(each)]
        else:
            continue
        rest.extend(reversed(below))


def is_telling(value: JsonValue) -> bool:
    """Whether the value is unlikely to occur in two places by chance."""
    if isinstance(value, int | float):  # a truth value is 0 or 1
        return value != int(value) or abs(value) >= 10
    if isinstance(value, str):
        return len(value.strip()) >= 3
    return bool(value)


def is_alike(label: str, name: str) -> bool:
    """Whether a key and a parameter have the same name, or one that says the same."""
    left, right = _words(label), _words(name)
    return bool(left) and bool(right) and (left <= right or right <= left)


def _words(name: str) -> frozenset[str]:
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", name)
    return frozenset(part.lower().removesuffix("s") or part.lower() for part in parts)


def has_words(text: str, words: str) -> bool:
    """Whether the text holds these words, not within longer ones."""
    return pattern_of_words(words).search(text) is not None


def pattern_of_words(words: str) -> re.Pattern[str]:
    """Where a text holds these words, not within longer ones: names, paths and numbers are one."""
    return re.compile(rf"(?<![\w.@/-]){re.escape(words)}(?![\w@/-]|\.\w)")


def _index_key(value: JsonValue) -> tuple[object, ...]:
    """The same for values that are the same JSON."""
    match value:
        case bool() | None:
            return ("constant", value)
        case int() | float():
            return ("number", float(value) if abs(value) < 2**53 else value)
        case str():
            return ("text", value)
        case Mapping():
            return ("object", len(value))
        case _:
            return ("list", len(value))
