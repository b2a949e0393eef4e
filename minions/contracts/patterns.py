"""Regular expressions from untrusted texts: bounded before they are compiled, matched with a
timeout.

Whether a pattern takes exponential time cannot be decided beforehand. Compiling has no timeout, so
the size of the pattern is limited instead: the engine writes out every required repetition.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias, cast

__all__ = [
    "PATTERN_TIME_S",
    "PatternNode",
    "check_engine",
    "pattern_tree",
    "search",
    "without_warnings",
]

PATTERN_TIME_S: Final = 0.5
"""Seconds for one pattern on one text."""

PatternNode: TypeAlias = tuple[object, object]
"""Operator and argument, in the form of the standard library's parser."""

_LONGEST: Final = 1_000
_DEEPEST: Final = 150
"""Levels of the parse tree, three for each nested group: both parsers recurse."""
_MOST_PARTS: Final = 10_000
"""Nodes of a pattern with `a{3}` written out as `aaa`: 20 MB and 10 ms of compiling."""


def pattern_tree(pattern: str) -> Sequence[PatternNode]:
    """The standard library's parse tree of a pattern; `re` has no public function for it.

    Raises:
        re.error: It is not a regular expression, or exceeds the limits.
    """
    if len(pattern) > _LONGEST:
        raise re.error(f"it has {len(pattern)} characters; at most {_LONGEST} are allowed")
    try:
        with without_warnings():
            tree = list(importlib.import_module("re._parser").parse(pattern))
    except (
        OverflowError,
        ValueError,
    ) as error:  # OverflowError: of a repetition; ValueError: of flags
        raise re.error(str(error)) from error
    except RecursionError:
        raise _too_deep() from None
    if _parts(tree, 0) > _MOST_PARTS:
        raise re.error(f"with its repetitions written out it has over {_MOST_PARTS} parts")
    return tree


@contextmanager
def without_warnings() -> Iterator[None]:
    """Both parsers warn of signs that may get a meaning: not those who run the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _too_deep() -> re.error:
    return re.error("its groups are nested too deep")


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


def check_engine(pattern: str) -> None:
    """Check that the engine of `search` accepts a pattern that `pattern_tree` accepted.

    Raises:
        ValueError: The engine refuses it.
    """
    import regex

    try:
        with without_warnings():
            regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def search(pattern: str, text: str) -> str | None:
    """The first match; None when nothing matches.

    Raises:
        TimeoutError: Matching took longer than `PATTERN_TIME_S`.
        ValueError: The engine refuses the pattern.
    """
    import regex  # an engine that stops when its time is up; the stdlib's does not

    check_engine(pattern)
    found = regex.search(pattern, text, timeout=PATTERN_TIME_S)
    return None if found is None else found[0]
