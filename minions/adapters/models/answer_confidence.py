"""How sure a model was of its answer: the log-probabilities of tokens, taken to the values of JSON.

OpenAI's chat form has them under `logprobs` of a choice, a list of tokens for the whole answer or
for each piece of a stream (`logprobs: true` of the request). Nothing of it is trusted: where the
tokens do not make up the text of the answer, its confidence is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from minions.contracts.calls import Confidence
from minions.data.json_values import parse_json

MOST_TOKENS: Final = 32
"""Tokens of a text that is judged; a longer one can be said in many ways, each improbable."""
MOST_HELD: Final = 100_000
"""Tokens that are kept of one answer; of a longer one nothing is known."""
_DEEPEST: Final = 100
_BLANKS: Final = " \t\r\n"

Token: TypeAlias = tuple[bytes, float]
"""Its bytes, and the natural logarithm of its probability."""


def tokens_of(document: bytes) -> list[Token]:
    """The tokens that a JSON document of an answer tells the probabilities of; none, where it has
    none, or one of them is no such.
    """
    try:
        return _tokens_in(json.loads(document))
    except (ValueError, RecursionError):
        return []


def _tokens_in(document: object) -> list[Token]:
    choices = document.get("choices") if isinstance(document, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    told = choice.get("logprobs") if isinstance(choice, dict) else None
    content = told.get("content") if isinstance(told, dict) else None
    return [_token(each) for each in content] if isinstance(content, list) else []


def _token(said: object) -> Token:
    """The token.

    Raises:
        ValueError: It is none.
    """
    told: dict[str, object] = said if isinstance(said, dict) else {}
    log, held, text = told.get("logprob"), told.get("bytes"), told.get("token")
    if not isinstance(log, int | float) or isinstance(log, bool) or math.isnan(log):
        raise ValueError("it has no probability")
    if isinstance(held, list) and all(type(each) is int for each in held):
        return bytes(held), min(0.0, log)
    if not isinstance(text, str):
        raise ValueError("it has no text")
    return text.encode("utf-8", "surrogatepass"), min(0.0, log)


def confidence_of(text: str | None, tokens: Sequence[Token]) -> Confidence | None:
    """The least probable value of the answer; None: it is not JSON, it has no value that can be
    judged, or the tokens are not those of the text.
    """
    sent = (text or "").strip().encode("utf-8", "surrogatepass")
    whole = b"".join(said for said, _ in tokens)
    begin = whole.find(sent) if sent else -1
    if begin < 0:
        return None
    try:
        values = list(_values(sent.decode("utf-8", "surrogatepass")))
    except ValueError:
        return None
    return min(
        _confidences(values, tokens, begin), key=lambda found: found.probability, default=None
    )


def _confidences(
    values: Sequence[tuple[str, int, int, bool]], tokens: Sequence[Token], begin: int
) -> Iterator[Confidence]:
    """What is known of each value: tokens, which hold all of them, and values are walked side by
    side, once.
    """
    ends, at = list[int](), 0
    for said, _ in tokens:
        at += len(said)
        ends.append(at)
    number = 0
    for path, start, end, is_text in values:
        while ends[number] <= start + begin:
            number += 1
        last = number
        while ends[last] < end + begin:
            last += 1
        logs = [each for _, each in tokens[number : last + 1]]
        if not is_text or len(logs) <= MOST_TOKENS:
            yield Confidence(math.exp(sum(logs)), path)


def _values(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Each value of a JSON document without values in it: its JSON path, where it begins and ends
    in bytes of UTF-8, and whether it is a text, of which the marks around it are left out.

    Raises:
        ValueError: It is no JSON, or is nested too deeply.
    """
    parse_json(text)
    reader, bytes_at, seen = json.JSONDecoder(), 0, 0
    for path, start, end in _leaves(text, reader):
        is_text = text[start] == '"' and end - start > 2
        within = slice(start + 1, end - 1) if is_text else slice(start, end)
        bytes_at += len(text[seen : within.start].encode("utf-8", "surrogatepass"))
        size = len(text[within].encode("utf-8", "surrogatepass"))
        yield path, bytes_at, bytes_at + size, is_text
        bytes_at, seen = bytes_at + size, within.stop


_Path: TypeAlias = tuple[str | int, ...]


def _leaves(text: str, reader: json.JSONDecoder) -> Iterator[tuple[str, int, int]]:
    """Those values in order; the document is known to be JSON."""
    at = 0
    path: _Path = ()
    places: list[tuple[_Path, int | None]] = []
    """The objects (None) and lists (the number of the next item) around the place."""
    while True:
        at = _after_blanks(text, at)
        opening = text[at]
        inside = _after_blanks(text, at + 1)
        if opening in "[{" and text[inside] not in "]}":
            if len(places) >= _DEEPEST:
                raise ValueError("it is nested too deeply")
            places.append((path, 0 if opening == "[" else None))
            at = inside
        else:
            end = inside + 1 if opening in "[{" else reader.raw_decode(text, at)[1]
            yield _json_path(path), at, end
            at = _after_blanks(text, end)
            while places and text[at] in "]}":
                places.pop()
                at = _after_blanks(text, at + 1)
            if not places:
                return
            at = _after_blanks(text, at + 1)  # behind the comma
        around, number = places[-1]
        if number is None:
            name, end = reader.raw_decode(text, at)
            path = (*around, name)
            at = _after_blanks(text, end) + 1  # behind the colon
        else:
            path = (*around, number)
            places[-1] = around, number + 1


def _json_path(path: _Path) -> str:
    """As messages about outputs have it: `$.people[0].name`."""
    parts = (
        f"[{part}]"
        if isinstance(part, int)
        else f".{part}"
        if part.isidentifier()
        else f"[{part!r}]"
        for part in path
    )
    return f"${''.join(parts)}"[:_LONGEST_PATH]


_LONGEST_PATH: Final = 200


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at
