"""Session files without chains: as an older version writes them, or somebody who changes rows."""

from __future__ import annotations

import json
from collections.abc import Iterable

__all__ = ["without_chain"]


def without_chain(lines: Iterable[str | bytes]) -> list[bytes]:
    """The lines of a session file, in the form of version 1."""
    first, *rest = [json.loads(line) for line in lines]
    first["version"] = 1
    for size in first["sessions"]:
        del size["head"]
    for line in rest:
        line.pop("chain", None)
        line.pop("text", None)
    return [f"{json.dumps(line)}\n".encode() for line in (first, *rest)]
