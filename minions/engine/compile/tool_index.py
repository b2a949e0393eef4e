"""Finds tools by words: an index over their names, descriptions and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.engine.compile.text_index import TextField, TextIndex, stem_of, words_of

_FIELDS: Final = {
    "name": TextField(weight=2.0, most_words=12),
    "description": TextField(most_words=60),
    "parameters": TextField(weight=0.3, most_words=60),
}
_ALIKE: Final = 0.5
"""What a word counts that means about the same as one of the query."""
_MOST_QUERY: Final = 64
"""Words of a query that count."""
_LEAST_SHARE: Final = 0.5
"""Of the score of the best tool, which others need to be found."""


class ToolIndex:
    """Finds tools by words: BM25 over their texts, where a name counts more than what is said."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        """Read the texts of the tools; some 50 µs for each."""
        self._names = [spec.name for spec in specs]
        self._index = TextIndex(_FIELDS, [_words_by_field(spec) for spec in specs])

    def find(self, query: str, most: int) -> tuple[str, ...]:
        """The names of the tools that the words fit, best first; empty: no word is known.

        Tools that fit equally well stand in the order in which they were given.
        """
        scores = self._index.score(_query_words(query))
        ranked = sorted((-score, at) for at, score in scores.items())
        least = -ranked[0][0] * _LEAST_SHARE if ranked else 0.0
        return tuple(self._names[at] for score, at in ranked[:most] if -score >= least)


def _query_words(query: str) -> Mapping[str, float]:
    """The words of a query and what each counts; those that mean about the same count less."""
    own = dict.fromkeys(list(words_of(query))[:_MOST_QUERY])
    shares: dict[str, float] = {}
    for word in own:
        for other in _ALIKE_WORDS.get(word, ()):
            shares[other] = max(shares.get(other, 0.0), _ALIKE)
    shares.update(dict.fromkeys(own, 1.0))
    return shares


def _words_by_field(spec: ToolSpec) -> dict[str, Iterator[str]]:
    return {
        "name": words_of(spec.name),
        "description": words_of(spec.description),
        "parameters": _parameter_words(spec.parameters),
    }


def _parameter_words(schema: Mapping[str, JsonValue]) -> Iterator[str]:
    """The names and descriptions of the parameters, and the values that they take."""
    properties = schema.get("properties")
    for name, each in properties.items() if isinstance(properties, Mapping) else ():
        yield from words_of(name)
        if isinstance(each, Mapping):
            said, values = each.get("description"), each.get("enum")
            if isinstance(said, str):
                yield from words_of(said)
            for value in values if isinstance(values, list | tuple) else ():
                if isinstance(value, str):
                    yield from words_of(value)


# --- words of one meaning ----------------------------------------------------------------------


_MEANINGS: Final = (
    "create make new add open start build generate insert put report submit raise register",
    "delete remove erase drop forget clear destroy discard",
    "update change modify edit alter replace adjust close",
    "get read fetch retrieve load show look view see display print give what content inside",
    "list show enumerate browse all overview which what every",
    "search find look query locate where lookup which",
    "send post write tell notify publish say announce",
    "write save store put insert",
    "run execute start call invoke",
    "move rename relocate",
    "copy duplicate clone fork",
    "upload attach push",
    "download fetch pull",
    "directory folder dir",
    "repository repo project",
    "image picture photo screenshot graphic",
    "audio sound recording music video media",
    "media image audio picture photo screenshot",
    "web url page site website internet link online",
    "user people person member who someone somebody",
    "database db sql sqlite row",
    "message chat text mail",
    "comment reply respond answer note",
    "time clock hour date today when",
    "issue bug ticket problem error",
    "schema structure column",
    "meeting event appointment calendar",
    "compare difference diff",
    "size large big",
    "execute run query select",
)
"""Words that tools and their users choose among for the same; each line is of one meaning."""


def _alike_words() -> dict[str, tuple[str, ...]]:
    alike: dict[str, set[str]] = {}
    for line in _MEANINGS:
        stems = {stem_of(word) for word in line.split()}
        for each in stems:
            alike.setdefault(each, set()).update(stems - {each})
    return {word: tuple(sorted(others)) for word, others in alike.items()}


_ALIKE_WORDS: Final = _alike_words()
