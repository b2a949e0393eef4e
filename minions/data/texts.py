"""Texts for people and of strangers: characters that are not seen, TOML, times, pasted words.

A text with characters that are not seen reads otherwise than it acts: `rm U+202E gnp.exe` looks
like a picture, and two names with a zero-width space between them look like one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from minions.data.errors import UsageError

HIDDEN: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
"""The class of these characters, for a pattern: soft hyphens, marks of direction (Unicode's
Bidi_Control), zero-width and invisible characters, tags. The joiners U+200C
and U+200D are not among them: see `_JOINERS`."""
_LATIN: Final = "\\x00-\u02ff"
_JOINERS: Final = f"(?<![^{_LATIN}])[\u200c\u200d]|[\u200c\u200d](?![^{_LATIN}])"
"""Joiners that join nothing: in Persian, Indic scripts and emoji they stand between characters that
are not of the Latin script. (A class of all the others takes Python ten times as long.)"""
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
"""Characters that a terminal obeys instead of showing them; newline and tab are not among them."""
UNSEEN: Final = re.compile(f"[\x7f-\x9f\u2028\u2029\u200c\u200d{HIDDEN}]")
"""All that is not seen, controls a terminal, or ends a line, from U+007F on."""
_LINES: Final = re.compile("[\\t\\n\\r\u2028\u2029]")
_HIDDEN: Final = re.compile(f"[{HIDDEN}]|{_JOINERS}")


def shown_text(text: str) -> str:
    r"""The text with such characters as escapes: `\u202e`, beyond U+FFFF `\U000e0041`."""
    return text if text.isascii() else _HIDDEN.sub(lambda found: escaped(found[0]), text)


def printable_text(text: str) -> str:
    r"""The text with control characters, but newline and tab, escaped, too: `\x1b`."""
    return _CONTROL.sub(lambda found: escaped(found[0]), shown_text(text))


def one_line(text: str) -> str:
    r"""The text in one line: ends of lines and tabs are escapes, too, as `\n`."""
    return joined_lines(printable_text(text))


def joined_lines(text: str) -> str:
    r"""The text with its ends of lines, and tabs, as escapes: `\n`."""
    return _LINES.sub(lambda found: _SHORT.get(found[0]) or escaped(found[0]), text)


def escaped(character: str) -> str:
    r"""The escape of a character as Python and JSON have it: `\x1b`, `\u202e`, `\U000e0041`."""
    code = ord(character)
    if code < 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# --- TOML of strangers, which the standard library parses in quadratic time for long keys --------


_MOST_DOTS: Final = 200
"""Dots of one line: a key `a.a.a…` of 50,000 parts takes half a minute."""


def parse_toml(text: str) -> dict[str, object]:
    """The values of a TOML text.

    Raises:
        ValueError: It is not TOML, is nested too deep, or has a line of more than 200 dots.
    """
    import tomllib

    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


# --- times as people write them ------------------------------------------------------------------


_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S: Final = 1e12
"""31,000 years: a longer duration counts as this one, for JSON has no infinite number."""
_FORM: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")


def seconds_of(text: str) -> float:
    """The duration in seconds.

    Raises:
        UsageError: `text` has another form, or is zero.
    """
    found = _FORM.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"{text!r} is not a duration. Write seconds or 90s, 10m, 2h.")
    return min(seconds, _LONGEST_S)


def write_duration(seconds: float) -> str:
    """A duration as people write it, for `seconds_of`: `90s`, `2h`, `1d`."""
    for unit in ("d", "h", "m"):
        count = seconds / _UNITS[unit]
        if count >= 1 and count == int(count):
            return f"{count:.0f}{unit}"
    return f"{seconds:g}s"


def spoken(duration_ms: float) -> str:
    """A duration in short form for people: `12 ms`, `1.2 s`, `3 min 5 s`."""
    if duration_ms < 999.5:  # what is shown is rounded, and never 1000 ms or 60 s
        return f"{duration_ms:.0f} ms"
    if duration_ms < 59_950:
        return f"{duration_ms / 1_000:.1f} s"
    minutes, rest = divmod(round(duration_ms / 1_000), 60)
    return f"{minutes} min {rest} s"


def has_words(text: str | None, *places: str | None, phrases: Iterable[str] = ()) -> bool:
    """Whether each word of `text`, and each of the phrases, occurs in one of `places`, in
    any case; None matches everything.
    """
    where = "\n".join(place for place in places if place is not None).casefold()
    wanted = [*(text or "").split(), *phrases]
    return all(each.casefold() in where for each in wanted)


def shell_word(text: str) -> str:
    """The text as one word of a command that is printed to be copied: what a stranger wrote into
    it, such as `run_1; touch x #`, a shell takes as a name.
    """
    import shlex  # here: most commands print no other one

    return shlex.quote(one_line(text))


_QUOTED: Final = re.compile(r"`minions \w+ (\w+)[^`]*")


def with_options(text: str, run_id: str, options: str) -> str:
    """The text, where commands about the run have these options, to be pasted as they stand: those
    between backticks, and those that are a line of their own.

    Args:
        options: As they are typed, with a blank before them; empty: none are needed.
    """
    if not options:
        return text

    def longer(found: re.Match[str]) -> str:
        return found[0] + options if found[1] == run_id else found[0]

    lines = (_longer_line(line, run_id, options) for line in text.split("\n"))
    return _QUOTED.sub(longer, "\n".join(lines))


def _longer_line(line: str, run_id: str, options: str) -> str:
    words = line.split(None, 3)
    if not line.startswith(" ") or words[:1] != ["minions"] or words[2:3] != [run_id]:
        return line
    command, blanks, remark = line.rpartition("  (")  # what it does, for people
    if blanks and remark.endswith(")"):
        return f"{command}{options}{blanks}{remark}"
    return f"{line}{options}"
