"""What a caller was offered who began a run, over HTTP or MCP: the run opens nothing else.

The offer is stored in the note of the run's start, so that it holds wherever the run is executed
later: resumed on the command line, queued for a worker, or as a child run. A run without one was
begun by the operator.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from attrs import field, frozen

from minions.data.json_values import JsonValue

_OFFER: Final = "offer"
"""The key of the note."""


@frozen(kw_only=True)
class Offer:
    """What the operator offers a caller who begins a run, beside what the recipe itself says."""

    way: str
    """How the caller came in: `http` or `mcp`; for messages."""
    folders: tuple[str, ...] = field(default=())
    """Folders beneath which values of the caller may choose one: absolute, without links. Relative
    paths start at the first one."""
    brings_recipe: bool = False
    """Whether the caller sent the recipe with the request: then it is a stranger's text, too."""

    @classmethod
    def beneath(cls, folders: Iterable[str | Path], *, way: str) -> Self:
        """The offer of these folders; the first one is where relative paths start."""
        return cls(way=way, folders=tuple(map(os.path.realpath, folders)))

    def place_of(self, path: object) -> str | None:
        """The folder that is meant, absolute and without links; None: it is not offered.

        Whether a folder exists is not told: a missing one beneath an offered one is offered.
        """
        if not isinstance(path, str) or "\0" in path:
            return None
        start = self.folders[0] if self.folders else os.sep
        found = os.path.realpath(Path(start) / os.path.expanduser(path))  # noqa: PTH111  # never fails
        is_offered = any(os.path.commonpath([found, each]) == each for each in self.folders)
        return found if is_offered else None

    def to_note(self) -> dict[str, JsonValue]:
        """The entry of the note."""
        own: dict[str, JsonValue] = {"way": self.way, "folders": list(self.folders)}
        if self.brings_recipe:
            own["brings_recipe"] = True
        return {_OFFER: own}

    @classmethod
    def of_note(cls, note: Mapping[str, JsonValue]) -> Self | None:
        """What was stored; None: there is no such entry. One of another form offers nothing."""
        if _OFFER not in note:
            return None
        own = note[_OFFER]
        known = own if isinstance(own, Mapping) else {}
        way, folders = known.get("way"), known.get("folders")
        listed = folders if isinstance(folders, list | tuple) else ()
        return cls(
            way=way if isinstance(way, str) else "http",
            folders=tuple(each for each in listed if isinstance(each, str) and os.path.isabs(each)),  # noqa: PTH117
            brings_recipe=known.get("brings_recipe", False) is not False,
        )
