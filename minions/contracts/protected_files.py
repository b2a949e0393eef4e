"""Files that tools do not write by default: they configure what runs outside of a step."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["PROTECTED_FILES", "matches_any"]

PROTECTED_FILES: Final = (
    "minions.toml",
    "pyproject.toml",
    ".env*",
    ".git",
    ".gitmodules",
    ".githooks",
    ".husky",
    ".pre-commit-config.yaml",
    ".venv",
)
"""Glob patterns: what configures Minions, the environment of its user, and what Git or a build
executes."""


def matches_any(parts: Sequence[str], patterns: Iterable[str]) -> bool:
    """Whether a glob pattern matches the path, a folder above it, or the name of one of them.

    Case is ignored: on some file systems `.GIT` is `.git`.
    """
    folded = [each.casefold() for each in patterns]
    for end in range(1, len(parts) + 1):
        names = (parts[end - 1].casefold(), "/".join(parts[:end]).casefold())
        if any(fnmatch.fnmatchcase(name, each) for each in folded for name in names):
            return True
    return False
