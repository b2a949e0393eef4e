"""What all journals share of taking whole sessions in and of finding which blobs are named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from minions.contracts.errors import JournalError
from minions.contracts.journal import JournalEntry

__all__ = ["bad_entries", "digests_in", "session_exists"]

_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_DIGEST_IN_BYTES: Final = re.compile(_DIGEST.pattern.encode())


def digests_in(*texts: str | bytes) -> set[str]:
    """All that may be names of blobs; whatever looks like one counts, so that none is missed."""
    found: set[str] = set()
    for text in texts:
        if isinstance(text, str):
            found.update(_DIGEST.findall(text))
        else:
            found.update(each.decode() for each in _DIGEST_IN_BYTES.findall(text))
    return found


def bad_entries(session_id: str, entries: Sequence[JournalEntry]) -> JournalError | None:
    """Why they are not all facts of that session; None: they are."""
    why = None
    strangers = {entry.session_id for entry in entries} - {session_id}
    positions = [entry.position for entry in entries]
    names = {(e.run_id, e.generation, e.key, e.kind, e.state) for e in entries}
    if not entries:
        why = "there are none"
    elif strangers:
        why = f"there are some of session '{min(strangers)}'"
    elif positions != list(range(1, len(entries) + 1)):
        why = "their positions are not 1, 2, 3 …"
    elif len(names) < len(entries):
        why = "one of them is there twice"
    if why is None:
        return None
    return JournalError(
        f"These are not the facts of session '{session_id}': {why}. Nothing was stored.",
        code="bad-entries",
    )


def session_exists(session_id: str, count: int) -> JournalError:
    """It cannot be taken in."""
    return JournalError(
        f"Session '{session_id}' is here already, with {count} facts. Nothing was stored.",
        code="session-exists",
    )
