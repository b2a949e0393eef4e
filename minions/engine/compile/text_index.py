"""A full-text index of texts by their words: BM25. It is pure: the same words find the same texts
in every process.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from attrs import frozen

_MOST_LENGTH: Final = 10
"""How many times as many words count as the length of a field."""
_LENGTH_SHARE: Final = 0.5
"""How much the length of a field counts against it (BM25's b)."""
_SATURATION: Final = 2.0
"""How soon further places of a word stop counting (BM25's k1)."""


@frozen(kw_only=True)
class TextField:
    """One of the fields that each text of an index has."""

    weight: float = 1.0
    """What a word in it counts."""
    most_words: int
    """Words of it that find the text. Who writes more gains nothing: what stands behind them finds
    nothing, and the length counts against the text."""


class TextIndex:
    """Scores texts by the words that they share with a query; the rarer a word, the more it counts.

    A query costs in proportion to its words and to the texts that have them.
    """

    def __init__(
        self, fields: Mapping[str, TextField], texts: Sequence[Mapping[str, Iterable[str]]]
    ) -> None:
        """Read the texts.

        Args:
            texts: Each with its words (`words_of`) by field.
        """
        self._count = len(texts)
        known = [
            {
                name: list(islice(each[name], _MOST_LENGTH * field.most_words))
                for name, field in fields.items()
            }
            for each in texts
        ]
        mean = {  # of what counts: a long text makes no other one short
            name: max(
                1.0,
                sum(min(field.most_words, len(each[name])) for each in known) / max(1, len(known)),
            )
            for name, field in fields.items()
        }
        self._places: dict[str, list[tuple[int, float]]] = {}
        """For each word the texts with it, and how much it counts there before it saturates."""
        for at, each in enumerate(known):
            weights: dict[str, float] = {}
            for name, field in fields.items():
                words = each[name]
                length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * len(words) / mean[name]
                for word, count in Counter(words[: field.most_words]).items():
                    weights[word] = weights.get(word, 0.0) + field.weight * count / length
            for word, weight in weights.items():
                self._places.setdefault(word, []).append((at, weight))

    def score(self, query: Mapping[str, float]) -> Mapping[int, float]:
        """The positions of the texts that have words of the query, and how well each fits.

        Args:
            query: Words, and the part that each counts.
        """
        scores: dict[int, float] = {}
        for word, share in query.items():
            places = self._places.get(word, ())
            rarity = math.log1p((self._count - len(places) + 0.5) / (len(places) + 0.5))
            for at, weight in places:
                counts = share * rarity * weight / (weight + _SATURATION)
                scores[at] = scores.get(at, 0.0) + counts
        # Rounded: texts that fit equally well differ by how their sums were added up.
        return {at: round(score, 9) for at, score in scores.items()}


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
            yield stem_of(word[:_MOST_LETTERS])


def stem_of(word: str) -> str:
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
