"""Regular expressions of strangers: bounded before they are compiled, matched within a time.

Whether a pattern takes exponential time cannot be decided beforehand, so none is refused for its
form: matching has a time, for one text and for all texts of one piece of work. Compiling has none,
so the size of a pattern is limited instead: the engine writes out every required repetition.

On a thread that runs an event loop, matching gets a few milliseconds; `match_beside_loop` does what
needs more in another thread.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time
from typing import TYPE_CHECKING, Final, TypeVar, cast

from msgspec import Struct

if TYPE_CHECKING:
    import regex


PATTERN_TIME_S: Final = 0.5
"""Seconds for one pattern on one text."""
IN_ALL_S: Final = 2.0
"""Seconds for all patterns on all texts of one value."""
AT_ONCE_S: Final = 0.01
"""The same where an event loop waits: what needs more is done in a thread, or not at all."""

_SHORTEST_S: Final = 0.001
"""Seconds for one pattern whose compiling took all that was left."""

T = TypeVar("T")

_LONGEST: Final = 4_000
"""Characters of a pattern: compiling takes some 5 µs for each."""
_LONGEST_AT_ONCE: Final = 1_000
"""Characters of a pattern that is compiled where an event loop waits."""
_DEEPEST: Final = 150
"""Levels of the parse tree, three for each nested group: both parsers recurse."""
_MOST_PARTS: Final = 10_000
"""Nodes of a pattern with `a{3}` written out as `aaa`: 20 MB and 10 ms of compiling."""
_MOST_COMPILED: Final = 200
"""Patterns that are kept compiled."""
_ECMA: Final = re.compile(r"\\[pP]\{[\w=:-]{1,60}\}|\\.|\(\?<(?![=!])", re.DOTALL)
"""What only the dialect of JSON Schema has: classes of Unicode, named groups; and other escapes."""


# --- compiling ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=_MOST_COMPILED)  # of the text alone
def compiled_pattern(pattern: str) -> regex.Pattern[str]:
    """The pattern, compiled by an engine that stops when its time is up; the stdlib's does not.

    Raises:
        ValueError: It is not a regular expression, or exceeds the limits.
    """
    import regex

    refuse_large_pattern(pattern)
    try:
        with without_warnings():
            return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def refuse_large_pattern(pattern: str) -> None:
    """Refuse a pattern that takes long, or much memory, to be compiled.

    Raises:
        ValueError: It exceeds the limits, or is not a regular expression.
    """
    if len(pattern) > _LONGEST:
        raise ValueError(f"it has {len(pattern)} characters; at most {_LONGEST} are allowed")
    try:
        with without_warnings():  # `re` has no public function that only parses
            tree = list(importlib.import_module("re._parser").parse(_ECMA.sub(_as_of_re, pattern)))
    except (re.error, OverflowError) as error:  # OverflowError: of a repetition
        raise ValueError(str(error)) from error
    except RecursionError:
        raise _too_deep() from None
    if _parts(tree, 0) > _MOST_PARTS:
        raise ValueError(f"with its repetitions written out it has over {_MOST_PARTS} parts")


def _as_of_re(found: re.Match[str]) -> str:
    """What counts as one part for the parser of the standard library, too."""
    text = found[0]
    if text == "(?<":
        return "(?P<"
    return r"\w" if len(text) > 2 else text


@contextmanager
def without_warnings() -> Iterator[None]:
    """Both parsers warn of signs that may get a meaning: not those who run the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _too_deep() -> ValueError:
    return ValueError("its groups are nested too deep")


def _parts(argument: object, depth: int) -> int:
    """Number of nodes in a tree, a node, or a part of one, with repetitions written out."""
    if depth > _DEEPEST:
        raise _too_deep()
    if not isinstance(argument, tuple | list) and not hasattr(argument, "getwidth"):
        return 0
    items = list(cast("Sequence[object]", argument))
    if len(items) == 2 and str(items[0]).endswith("_REPEAT"):
        low, _, body = cast("tuple[int, int, object]", items[1])
        return 1 + max(1, low) * _parts(body, depth + 1)
    return 1 + sum(_parts(item, depth + 1) for item in items)


# --- matching -------------------------------------------------------------------------------------


class _NeedsThreadError(BaseException):
    """Matching takes longer than an event loop may wait; never leaves `match_beside_loop`.

    What handles any `Exception` of an application on the way must not take it for one.
    """


class MatchTime(Struct):
    """What matching may still take, of all that one piece of work matches."""

    left_s: float
    """Seconds; below zero: nothing is matched any more."""
    is_first_try: bool = False
    """Whether the work is done again in a thread where this is not enough."""

    def compiled(self, pattern: str) -> regex.Pattern[str]:
        """The pattern, compiled within that time unless it is known already.

        Raises:
            TimeoutError: Nothing is left.
            ValueError: It is not a regular expression, or exceeds the limits.
        """
        if self.left_s <= 0:
            raise self._over()
        if self.is_first_try and len(pattern) > _LONGEST_AT_ONCE:
            raise _NeedsThreadError
        begin = thread_time()
        try:
            return compiled_pattern(pattern)
        finally:
            self.left_s -= thread_time() - begin

    def search(self, pattern: str, text: str) -> str | None:
        """The first match; None when nothing matches.

        Raises:
            TimeoutError: Matching took longer than `PATTERN_TIME_S`, or than what is left.
            ValueError: It is not a regular expression, or exceeds the limits.
        """
        known = self.compiled(pattern)
        begin = thread_time()
        limit_s = max(_SHORTEST_S, min(PATTERN_TIME_S, self.left_s))
        try:
            found = known.search(text, timeout=limit_s)
        except TimeoutError:
            raise self._over() from None
        finally:
            self.left_s -= thread_time() - begin
        return None if found is None else found[0]

    def _over(self) -> BaseException:
        return _NeedsThreadError() if self.is_first_try else TimeoutError()


_FIRST_TRY: Final[ContextVar[MatchTime | None]] = ContextVar("minions_match_time", default=None)


def match_time() -> MatchTime:
    """The time of one piece of work that begins now, by where it is done."""
    first_try = _FIRST_TRY.get()
    if first_try is not None:
        return first_try
    return MatchTime(AT_ONCE_S if _is_on_loop() else IN_ALL_S)


def compile_time() -> MatchTime:
    """The time for all patterns of one schema that is checked now, by where that is done."""
    return _FIRST_TRY.get() or MatchTime(IN_ALL_S)


def _is_on_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # not loaded: no loop runs
    return (
        asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001  # public by its documentation
    )


def search(pattern: str, text: str) -> str | None:
    """The first match; None when nothing matches.

    Raises:
        TimeoutError: Matching took too long.
        ValueError: It is not a regular expression, or exceeds the limits.
    """
    return match_time().search(pattern, text)


async def match_beside_loop(work: Callable[[], T]) -> T:
    """What the work gives, which matches patterns: here if that takes a few milliseconds; else it
    is begun again in a thread, where all patterns have their time.

    Args:
        work: Has no effect before its last pattern is matched.
    """
    token = _FIRST_TRY.set(MatchTime(AT_ONCE_S, is_first_try=True))
    try:
        return work()
    except _NeedsThreadError:
        pass
    finally:
        _FIRST_TRY.reset(token)
    import asyncio  # here: checking a recipe needs no event loop

    return await asyncio.to_thread(work)
