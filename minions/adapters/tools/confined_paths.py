"""Paths below a root: as a model gives them, and resolved."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen

from minions.data.errors import ToolError


@frozen
class Place:
    """A resolved path, without links."""

    root: str
    """The root, absolute and resolved."""
    parts: tuple[str, ...]
    """Names below the root; empty: the root itself."""
    asked: tuple[str, ...] = field(default=(), eq=False)
    """The names as they were asked for, which may be those of links."""

    @property
    def relative(self) -> str:
        """The path below the root with `/`; `.` for the root."""
        return shown_name("/".join(self.parts) or ".")

    @property
    def path(self) -> Path:
        """The absolute path. Only for looking: it may have become a link since."""
        return Path(self.root, *self.parts)


def shown_name(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 become `�`."""
    return os.fsencode(name).decode("utf-8", "replace")


_LONGEST_PATH: Final = 4_096
"""Bytes of a path: Linux opens none that is longer."""


_MOST_PARTS: Final = 256
"""Names in a path: each is looked up for links, and compared with the patterns of `exclude`."""


def refuse_long(path: str) -> None:
    """Refuse a path that no system opens, before anything is looked up.

    Raises:
        ToolError: `bad-path`.
    """
    parts = path.count("/") + 1
    if len(path) <= _LONGEST_PATH and parts <= _MOST_PARTS:
        return
    raise ToolError(
        f"The path '{path[:60]}…' has {len(path):,} characters and {parts:,} parts; at most "
        f"{_LONGEST_PATH:,} and {_MOST_PARTS} are allowed.",
        code="bad-path",
    )


def is_encodable(path: str) -> bool:
    """Whether the path can be given to the system."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


# --- glob patterns over the parts of a path ------------------------------------------------------


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
