"""Glob patterns over the parts of a path: `*`, `?`, `[…]` in a name, `**` for any folders."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final

from minions.data.errors import ToolError

_LONGEST: Final = 1_000
"""Characters of a pattern: models write them, and matching must be quick."""
_CLASS: Final = re.compile(r"\[!?+\]?+[^\]]*\]")


class GlobPattern:
    """One compiled pattern. Case matters; names with a leading dot match too."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern.

        Raises:
            ToolError: It is empty, too long, or can match nothing below a root.
        """
        if len(pattern) > _LONGEST:
            raise ToolError(
                f"The pattern {pattern[:40]!r}… has {len(pattern)} characters; at most {_LONGEST} "
                "are allowed. Use '*' and '**' for names, or ask several times.",
                code="bad-pattern",
            )
        segments = [segment for segment in pattern.split("/") if segment not in ("", ".")]
        if not segments or pattern.startswith("/") or ".." in segments:
            raise ToolError(
                f"The pattern {pattern!r} must be relative to the root and stay below it, "
                "such as '**/*.py'.",
                code="bad-pattern",
            )
        if _has_choice(pattern):
            raise ToolError(
                f"The pattern {pattern!r} uses braces, which are not known here. Ask once for "
                "each choice.",
                code="bad-pattern",
            )
        if any("[" in _CLASS.sub("", segment) for segment in segments):
            raise ToolError(
                f"The pattern {pattern!r} opens a '[' that is not closed in the same name. Write "
                "'[[]' for the character itself.",
                code="bad-pattern",
            )
        self._segments = [
            None if segment == "**" else re.compile(fnmatch.translate(segment))
            for segment in segments
        ]

    def matches(self, parts: Sequence[str]) -> bool:
        """Whether the whole path matches. The time is proportional to names
        times segments of the pattern.
        """
        reached = self._with_skipped({0})
        for part in parts:
            reached = self._with_skipped(
                {next_at for at in reached for next_at in self._after(at, part)}
            )
        return len(self._segments) in reached

    def _after(self, at: int, part: str) -> Sequence[int]:
        if at == len(self._segments):
            return ()
        segment = self._segments[at]
        if segment is None:
            return (at,)
        return (at + 1,) if segment.match(part) else ()

    def _with_skipped(self, reached: set[int]) -> set[int]:
        """The positions reached when `**` matches no folder."""
        result = set(reached)
        for at, segment in enumerate(self._segments):
            if at in result and segment is None:
                result.add(at + 1)
        return result


def _has_choice(pattern: str) -> bool:
    """Whether braces contain a comma. Linear in the length of the pattern."""
    return any("," in piece.partition("{")[2] for piece in pattern.split("}")[:-1])
