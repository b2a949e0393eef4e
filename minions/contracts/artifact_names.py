"""Names of artifacts that steps declare."""

from __future__ import annotations

import re

__all__ = ["is_path"]


def is_path(artifact: str) -> bool:
    """Whether an artifact's name is that of a file: it has a folder or an extension."""
    return "/" in artifact or re.fullmatch(r"[^\s/]*\.\w{1,10}", artifact) is not None
