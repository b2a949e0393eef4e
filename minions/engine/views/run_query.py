"""The search syntax of lists of runs: `status:failed cost>0.01 recipe:triage "two words"`."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from attrs import define, field
from msgspec.structs import replace

from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter, UsageBound
from minions.data.errors import UsageError, did_you_mean
from minions.data.texts import seconds_of

KEYS: Final = ("status", "recipe", "user", "project", "session", "since", "cost", "tokens")
"""What a search can name, besides words."""

_STATES: Final = tuple(state.value for state in RunState)
_USAGE: Final[dict[str, Literal["total_tokens", "cost_usd"]]] = {
    "cost": "cost_usd",
    "tokens": "total_tokens",
}
_SIGNS: Final[dict[str, Literal[">", ">=", "<", "<="]]] = {
    sign: sign for sign in (">", ">=", "<", "<=")
}
_KEY: Final = re.compile(r"([A-Za-z_]+)(:|[<>]=?)")
_VALUE: Final = re.compile(r'"([^"]*)"|[^\s"]+')
_BLANKS: Final = re.compile(r"\s*")


def run_filter_of(query: str, now: datetime, base: RunFilter | None = None) -> RunFilter:
    """The filter that a search means; all its terms hold, of several states one.

    Args:
        query: Terms with blanks between them: `key:value`, `cost>0.01`, words, `"some words"`.
        now: From when `since:2d` counts back.
        base: What is asked for besides.

    Raises:
        UsageError: `bad-search`, with the number of the character where the term begins.
    """
    reader = _QueryReader(now, base or RunFilter())
    at = _end_of_blanks(query, 0)
    while at < len(query):
        key = _KEY.match(query, at)
        begin = at if key is None else key.end()
        value = _VALUE.match(query, begin)
        if value is None:
            why = "the quotation mark is not closed" if begin < len(query) else "a value is missing"
            if begin < len(query) and query[begin].isspace():
                why = "a value is missing"
            raise _bad_search(query[at : at + 60].strip(), at, why)
        term = query[at : value.end()]
        if key is None:
            reader.take_words(value[0], value[1])
        else:
            text = value[0] if value[1] is None else value[1]
            reader.take(term, at, key[1].lower(), key[2], text)
        at = _end_of_blanks(query, value.end())
    return reader.found()


def time_since(text: str, now: datetime) -> datetime:
    """The time that is so long ago, or that is written; at the earliest that of the year 1.

    Raises:
        UsageError: `bad-time`; it is neither.
    """
    try:
        return now - timedelta(seconds=seconds_of(text))
    except OverflowError:  # of `timedelta` or `datetime`
        return datetime.min.replace(tzinfo=UTC)
    except UsageError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text}: write how long ago (90m, 2h, 7d) or a time (2026-01-31, 2026-01-31T08:00).",
            code="bad-time",
        ) from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _end_of_blanks(query: str, at: int) -> int:
    found = _BLANKS.match(query, at)
    return at if found is None else found.end()


def _bad_search(term: str, at: int, why: str) -> UsageError:
    return UsageError(f"{term} (character {at + 1} of the search): {why}", code="bad-search")


@define
class _QueryReader:
    """Collects the terms of a search."""

    now: datetime
    base: RunFilter
    statuses: set[str] = field(factory=set)
    words: list[str] = field(factory=list)
    phrases: list[str] = field(factory=list)
    bounds: list[UsageBound] = field(factory=list)

    def take_words(self, word: str, phrase: str | None) -> None:
        if phrase is None:
            self.words.append(word)
        elif phrase.strip():
            self.phrases.append(phrase.strip())

    def take(self, term: str, at: int, key: str, sign: str, value: str) -> None:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or f" There are {', '.join(KEYS)}."
            why = f'no search has the key {key!r}.{hint} Words with such a sign: "{term[:60]}"'
            raise _bad_search(term[:60], at, why)
        if (key in _USAGE) != (sign in _SIGNS):
            like = f"{key}>100" if key in _USAGE else f"{key}:VALUE"
            raise _bad_search(term[:60], at, f"write {like}")
        if key in _USAGE:
            number = _number(value)
            if number is None:
                raise _bad_search(
                    term[:60], at, f"{value[:30]!r} is no number such as 1000 or 0.01"
                )
            self.bounds.append(UsageBound(name=_USAGE[key], sign=_SIGNS[sign], value=number))
        elif key == "status":
            if value not in _STATES:
                hint = did_you_mean(value, _STATES) or f" There are {', '.join(_STATES)}."
                raise _bad_search(term[:60], at, f"{value[:30]!r} is no state.{hint}")
            if self.base.statuses is not None:
                raise _bad_search(term[:60], at, "the state is asked for beside the search, too")
            self.statuses.add(value)
        elif key == "since":
            self._refuse_second(term, at, self.base.since)
            self.base = replace(self.base, since=self._time(term, at, value))
        elif key == "recipe":
            self._refuse_second(term, at, self.base.recipe)
            self.base = replace(self.base, recipe=value)
        elif key == "user":
            self._refuse_second(term, at, self.base.user)
            self.base = replace(self.base, user=value)
        elif key == "project":
            self._refuse_second(term, at, self.base.project)
            self.base = replace(self.base, project=value)
        else:
            self._refuse_second(term, at, self.base.session_id)
            self.base = replace(self.base, session_id=value)

    def _time(self, term: str, at: int, value: str) -> datetime:
        try:
            return time_since(value, self.now)
        except UsageError as error:
            raise _bad_search(term[:60], at, error.message) from error

    def _refuse_second(self, term: str, at: int, first: object) -> None:
        if first is not None:
            raise _bad_search(term[:60], at, "it is asked for twice")

    def found(self) -> RunFilter:
        text = " ".join(self.words)
        return replace(
            self.base,
            statuses=frozenset(self.statuses) if self.statuses else self.base.statuses,
            text=f"{self.base.text or ''} {text}".strip() or None,
            phrases=(*self.base.phrases, *self.phrases),
            bounds=(*self.base.bounds, *self.bounds),
        )


def _number(text: str) -> float | None:
    if not (text.isascii() and text[:1] in "0123456789."):
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
