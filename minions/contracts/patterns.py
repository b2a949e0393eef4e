"""Patterns of strangers: bounded before they are compiled, matched within a time.

Which ones explode cannot be told beforehand. Compiling has no time limit, so what it has to do is
limited instead: the engine writes out every repetition that must be there.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Final, TypeAlias, cast

__all__ = ["PATTERN_TIME_S", "PatternNode", "check_engine", "pattern_tree", "search"]

PATTERN_TIME_S: Final = 0.5
"""For one pattern on one text."""

PatternNode: TypeAlias = tuple[object, object]
"""Operator and argument, as the stdlib's parser has them."""

_LONGEST: Final = 1_000
_DEEPEST: Final = 150
"""Levels of the parse tree, three for a group in a group: both parsers recurse."""
_MOST_PARTS: Final = 10_000
"""What a pattern is when `a{3}` is written out as `aaa`: 20 MB, 10 ms."""


def pattern_tree(pattern: str) -> Sequence[PatternNode]:
    """The stdlib's own parse tree: `re` has no public door to it.

    Raises:
        re.error: Not a regular expression, or a larger one than is taken.
    """
    if len(pattern) > _LONGEST:
        raise re.error(f"it has {len(pattern)} characters; at most {_LONGEST} are taken")
    try:
        tree = list(importlib.import_module("re._parser").parse(pattern))
    except (OverflowError, ValueError) as error:  # of a repetition; of flags
        raise re.error(str(error)) from error
    except RecursionError:
        raise _too_deep() from None
    if _parts(tree, 0) > _MOST_PARTS:
        raise re.error(f"with its repetitions written out it has over {_MOST_PARTS} parts")
    return tree


def _too_deep() -> re.error:
    return re.error("its groups are nested too deep")


def _parts(argument: object, depth: int) -> int:
    """Of a tree, a node, or anything in one."""
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
    """That the engine of `search` takes the pattern; `pattern_tree` was asked before.

    Raises:
        ValueError: It does not.
    """
    import regex

    try:
        regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def search(pattern: str, text: str) -> str | None:
    """What matched first; None when nothing does.

    Raises:
        TimeoutError: The time is up.
        ValueError: No pattern that the engine knows.
    """
    import regex  # an engine that stops when its time is up; the stdlib's does not

    check_engine(pattern)
    found = regex.search(pattern, text, timeout=PATTERN_TIME_S)
    return None if found is None else found[0]
