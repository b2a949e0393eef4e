"""The changelog: the notes of a version, and whether what went was deprecated early enough."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from packaging.version import Version

NOTICE: Final = 2
"""Minor versions for which something stays after it was deprecated; from 1.0 on until the next
major one, too."""


def notes(changelog: str, version: str) -> str:
    """What the changelog says of a version, without its heading.

    Raises:
        ValueError: It has no section of that version.
    """
    found = re.search(
        rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section [{version}].")
    return found[1].strip() + "\n"


def unannounced(promises: Iterable[str], changelog: str, version: str) -> list[str]:
    """Those of the broken promises that were not deprecated early enough: no section `Deprecated`
    of a version that is old enough says `` `part object member` ``.
    """
    now = Version(version)
    early = [
        text
        for each in re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
        if _is_early(Version(each), now)
        for text in re.findall(
            r"^### Deprecated\n(.*?)(?=^### |\Z)", notes(changelog, each), re.MULTILINE | re.DOTALL
        )
    ]
    return [each for each in promises if not any(f"`{each}`" in text for text in early)]


def _is_early(told: Version, now: Version) -> bool:
    if now.major > told.major:
        return True
    return now.major == 0 and now.minor >= told.minor + NOTICE
