"""Changes inputs into others: bytes, words, lines, JSON values; the same for the same seed.

No coverage is measured: `guided` does that where `atheris` is installed, with these changes, too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from fuzz.target import Target
from minions.data.json_values import JsonValue

__all__ = ["Mutator", "inputs_of"]

_COMMON: Final = (
    *("{", "}", "[", "]", "(", ")", ":", ",", '"', "'", "`", "\\", "/", "*", "?", "|", "&", "#"),
    *(" ", "\t", "\n", "\r\n", "\x00", "\x7f", "\x85", "\u2028", "\ufeff", "é", "ß", "İ", "🙂"),
    *("null", "true", "false", "NaN", "-Infinity", "1e999", "-0", "0x1F", "1_000", "٣", "²"),
    *("0", "-1", "2147483648", "9223372036854775808", "1" * 400, "9" * 5_000, "0.1", "1e-400"),
    *(
        "..",
        "../",
        "/etc/passwd",
        "~",
        "file:///",
        "\\ud800",
        "\\u0000",
        "%00",
        "%2e%2e",
        "{{ a }}",
    ),
)
_BYTES: Final = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xef\xbb\xbf",
    b"\xf4\x90\x80\x80",
)
_VALUES: Final[tuple[JsonValue, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, 1e-320),
    *("", "x", "a/b", "\ud800", "\x00", "{{ a }}", "1", [], {}, [[]], {"": None}, ["x", "x"]),
)
_OPENINGS: Final = ("[", "{", "(", '{"a":', "[[", "- ", "{{", "(?:", "a: {", "not ", "-", "<", "**")

_Step: TypeAlias = Callable[["Mutator", bytes], bytes]


def inputs_of(target: Target, seed: int, more: Sequence[bytes] = ()) -> Iterator[bytes]:
    """First the seeds themselves, then changes of them without end.

    Args:
        more: Further inputs from which to start, such as a kept corpus.
    """
    pool = [each[: target.most_bytes] for each in (*target.seeds(), *more)] or [b""]
    yield from pool
    mutator = Mutator(random.Random(f"{target.name}-{seed}"), pool, target)
    while True:
        made = mutator.changed(mutator.chance.choice(pool))
        yield made
        if mutator.chance.random() < 0.05 and len(made) < target.most_bytes // 2:
            pool.append(made)  # changes of changes
            if len(pool) > 2_000:
                pool.pop(mutator.chance.randrange(len(pool)))


@frozen
class Mutator:
    """Changes one input, by chance."""

    chance: random.Random
    others: Sequence[bytes]
    """Inputs of which pieces are taken."""
    target: Target
    _words: Sequence[bytes] = field(init=False)

    @_words.default
    def _known_words(self) -> Sequence[bytes]:
        own = [each.encode("utf-8", "surrogatepass") for each in self.target.words]
        common = [each.encode("utf-8", "surrogatepass") for each in _COMMON]
        # Those of the target's language as often as all others.
        return [*own * max(1, len(common) // (len(own) or 1)), *common, *_BYTES]

    def changed(self, data: bytes) -> bytes:
        """A few changes, one after the other."""
        of_values = self.target.is_json and self.chance.random() < 0.8
        steps = (Mutator.change_json,) if of_values else _STEPS
        for _ in range(self.chance.choice((1, 1, 1, 2, 2, 3, 5, 8))):
            data = self.chance.choice(steps)(self, data)[: self.target.most_bytes]
        return data

    def _span(self, data: bytes, most: int = 64) -> tuple[int, int]:
        start = self.chance.randint(0, len(data))
        length = self.chance.choice((0, 1, 2, 4, self.chance.randint(0, most)))
        return start, min(len(data), start + length)

    # --- bytes ----------------------------------------------------------------------------------

    def flip_bit(self, data: bytes) -> bytes:
        """Another byte in place of one."""
        if not data:
            return data
        at = self.chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.chance.randrange(8)]) + data[at + 1 :]

    def remove(self, data: bytes) -> bytes:
        """Without a piece."""
        start, end = self._span(data)
        return data[:start] + data[end:]

    def cut(self, data: bytes) -> bytes:
        """Without the end, as what breaks off."""
        return data[: self.chance.randint(0, len(data))]

    def put_word(self, data: bytes) -> bytes:
        """A word in place of a piece, or between two."""
        start, end = self._span(data, most=8)
        end = end if self.chance.random() < 0.5 else start
        return data[:start] + self.chance.choice(self._words) + data[end:]

    def splice(self, data: bytes) -> bytes:
        """A piece of another input."""
        other = self.chance.choice(self.others)
        first, last = self._span(other, most=max(64, len(other)))
        start, end = self._span(data)
        return data[:start] + other[first:last] + data[end:]

    def repeat(self, data: bytes) -> bytes:
        """A piece several times, now and then as often as there is room."""
        start, end = self._span(data)
        if start == end:
            return data
        room = max(1, (self.target.most_bytes - len(data)) // (end - start))
        count = self.chance.choice((2, 3, 10, 100, room))
        return data[:start] + data[start:end] * min(count, room) + data[end:]

    def nest(self, data: bytes) -> bytes:
        """A word at one place as often as there is room."""
        words = self._words if self.chance.random() < 0.5 else [each.encode() for each in _OPENINGS]
        word = self.chance.choice(words)
        room = max(1, (self.target.most_bytes - len(data)) // len(word))
        at = self.chance.randint(0, len(data))
        count = min(self.chance.choice((10, 150, 1_100, room)), room)
        return data[:at] + word * count + data[at:]

    # --- lines ----------------------------------------------------------------------------------

    def change_lines(self, data: bytes) -> bytes:
        """A line removed, doubled, moved, indented, or taken from another input."""
        lines = data.split(b"\n")
        at, to = self.chance.randrange(len(lines)), self.chance.randrange(len(lines))
        line = lines[at]
        match self.chance.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(to, line)
            case 2:
                lines[at], lines[to] = lines[to], line
            case 3:
                lines[at] = b"  " + line if self.chance.random() < 0.5 else line[2:]
            case _:
                lines.insert(to, self.chance.choice(self.chance.choice(self.others).split(b"\n")))
        return b"\n".join(lines)

    # --- JSON -----------------------------------------------------------------------------------

    def change_json(self, data: bytes) -> bytes:
        """Of JSON a value replaced, removed, doubled, or taken from another input."""
        document = _parsed(data)
        places = list(_places(document))
        if not places:
            return self.put_word(data)
        self._change_at(self.chance.choice(places))
        try:
            return json.dumps(document).encode()
        except RecursionError:  # it was nested several times
            return data

    def _change_at(self, place: _Place) -> None:
        holder, key = place.holder, place.key
        match self.chance.randrange(7):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(holder[key])
            case 1 | 2:
                holder[key] = self._other_value()
            case 3 if isinstance(holder, dict):
                holder[self._word()] = holder.pop(key)
            case 3 | 4:
                holder[key] = self.chance.choice(_VALUES)
            case 5:
                holder[key] = self._nested(holder[key])
            case _:
                holder[key] = self._word()

    def _nested(self, value: JsonValue) -> JsonValue:
        """The value in so many lists, or objects with one key."""
        word = self._word() if self.chance.random() < 0.7 else None
        for _ in range(self.chance.choice((1, 5, 60, 300))):
            value = [value] if word is None else {word: value}
        return value

    def _word(self) -> str:
        return self.chance.choice(self._words).decode("utf-8", "replace")

    def _other_value(self) -> JsonValue:
        places = list(_places(_parsed(self.chance.choice(self.others))))
        if not places:
            return self.chance.choice(_VALUES)
        place = self.chance.choice(places)
        found: JsonValue = place.holder[place.key]
        return found


_STEPS: Final[tuple[_Step, ...]] = (
    Mutator.flip_bit,
    Mutator.remove,
    Mutator.cut,
    Mutator.put_word,
    Mutator.put_word,
    Mutator.splice,
    Mutator.repeat,
    Mutator.nest,
    Mutator.change_lines,
    Mutator.change_lines,
    Mutator.change_json,
    Mutator.change_json,
    Mutator.change_json,
)


def _parsed(data: bytes) -> JsonValue:
    """The document; None: it is none, or too deep to be walked."""
    if data.count(b"[") + data.count(b"{") > 2_000:
        return None
    try:
        value: JsonValue = json.loads(data)
        json.dumps(value)  # numbers of very many digits cannot be written again
    except (ValueError, RecursionError):
        return None
    return value


@frozen
class _Place:
    """A value that can be replaced or removed, by what holds it."""

    holder: Any  # Any: a list or a dict, and the key is of its kind
    key: Any  # Any: as above


def _places(value: JsonValue) -> Iterator[_Place]:
    """Everything that can be replaced or removed."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict):
            yield from (_Place(holder, key) for key in holder)
            waiting += holder.values()
        elif isinstance(holder, list):
            yield from (_Place(holder, at) for at in range(len(holder)))
            waiting += holder
