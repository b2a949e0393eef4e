"""What the name of a Claude model says of it."""

from __future__ import annotations

import re
from typing import Final

_LATEST: Final = (99, 0)


def claude_version(model: str) -> tuple[int, int]:
    """Major and minor version in the name of a Claude model; of other names the highest."""
    found = re.search(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)", model)
    return (int(found[1]), int(found[2] or 0)) if found else _LATEST


def takes_schema(model: str) -> bool:
    """Whether the model's answers can be bound to a schema: those from 4.5 on."""
    return claude_version(model) >= (4, 5)
