"""Paths below a root: as a model gives them, and resolved."""

from __future__ import annotations

import os
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
