"""A full-text index over the names, descriptions and parameters of tools. It is pure: the same
words find the same tools in every process.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue

_MOST_WORDS: Final = {"name": 12, "description": 60, "parameters": 60}
"""Words of each text that find a tool. Who writes more gains nothing: what stands behind them finds
nothing, and the length counts against the tool.
"""
_MOST_LENGTH: Final = 10
"""How many times as many words count as its length."""
_WEIGHTS: Final = {"name": 2.0, "description": 1.0, "parameters": 0.3}
_LENGTH_SHARE: Final = 0.5
"""How much the length of a text counts against it (BM25's b)."""
_SATURATION: Final = 2.0
"""How soon further places of a word stop counting (BM25's k1)."""
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
        texts = [_words_by_text(spec) for spec in specs]
        mean = {  # of what counts: a long text makes no other one short
            name: max(1.0, sum(min(most, len(each[name])) for each in texts) / max(1, len(texts)))
            for name, most in _MOST_WORDS.items()
        }
        self._places: dict[str, list[tuple[int, float]]] = {}
        """For each word the tools with it, and how much it counts there before it saturates."""
        for at, each in enumerate(texts):
            weights: dict[str, float] = {}
            for name, words in each.items():
                length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * len(words) / mean[name]
                for word, count in Counter(words[: _MOST_WORDS[name]]).items():
                    weights[word] = weights.get(word, 0.0) + _WEIGHTS[name] * count / length
            for word, weight in weights.items():
                self._places.setdefault(word, []).append((at, weight))

    def find(self, query: str, most: int) -> tuple[str, ...]:
        """The names of the tools that the words fit, best first; empty: no word is known.

        Tools that fit equally well stand in the order in which they were given.
        """
        scores: dict[int, float] = {}
        for word, share in _query_words(query).items():
            places = self._places.get(word, ())
            rarity = math.log1p((len(self._names) - len(places) + 0.5) / (len(places) + 0.5))
            for at, weight in places:
                counts = share * rarity * weight / (weight + _SATURATION)
                scores[at] = scores.get(at, 0.0) + counts
        # Rounded: tools that fit equally well differ by how their sums were added up.
        ranked = sorted((-round(score, 9), at) for at, score in scores.items())
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


def _words_by_text(spec: ToolSpec) -> dict[str, list[str]]:
    texts = {
        "name": words_of(spec.name),
        "description": words_of(spec.description),
        "parameters": _parameter_words(spec.parameters),
    }
    return {
        name: list(islice(words, _MOST_LENGTH * _MOST_WORDS[name])) for name, words in texts.items()
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


# --- words -------------------------------------------------------------------------------------


_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
"""Words of a text, of `snake_case`, `camelCase` and `HTTPServer`."""
_STOP_WORDS: Final = frozenset(
    """
    a an and any are as at be been but by can could do does for from had has have i if in into is it
    its me my of on only or our out please so some than that the their them then there these they
    this those to up us was we were when will with would you your
    """.split()  # noqa: SIM905  # sixty quotes would hide the words
)
_MOST_LETTERS: Final = 40
_MOST_CHARACTERS: Final = 20_000


def words_of(text: str) -> Iterator[str]:
    """The words of a text as they are compared: without case, accents and English endings; of a
    long one those of its beginning.
    """
    text = text[:_MOST_CHARACTERS]
    if not text.isascii():
        text = "".join(
            c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)
        )
    for found in _PARTS.finditer(text):
        word = found[0].lower()
        if word not in _STOP_WORDS:
            yield _stem(word[:_MOST_LETTERS])


def _stem(word: str) -> str:
    """The word without an English ending; what is left need be no word."""
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = f"{word[:-3]}y"
    elif word.endswith(("sses", "xes", "ches", "shes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ingly", "edly", "ing", "ed", "ly"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) > 2 and any(letter in "aeiouy" for letter in rest):
            word = rest
            if len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "aeioulsz":
                word = rest[:-1]
            break
    if word.endswith(("tion", "sion")) and len(word) > 5:
        word = word[:-3]
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


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
        stems = {_stem(word) for word in line.split()}
        for each in stems:
            alike.setdefault(each, set()).update(stems - {each})
    return {word: tuple(sorted(others)) for word, others in alike.items()}


_ALIKE_WORDS: Final = _alike_words()
