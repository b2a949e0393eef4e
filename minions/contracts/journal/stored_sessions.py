"""What all journals share: checks of imported sessions, digests
of blobs in texts, damaged entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from minions.contracts.journal.facts import UnreadableFact
from minions.contracts.journal.journal import JournalEntry
from minions.data.errors import JournalError
from minions.data.words import shell_word

_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_DIGEST_IN_BYTES: Final = re.compile(_DIGEST.pattern.encode())


def digests_in(*texts: str | bytes) -> set[str]:
    """Everything in the texts that looks like a digest of a blob,
    so that no reference is missed.
    """
    found: set[str] = set()
    for text in texts:
        if isinstance(text, str):
            found.update(_DIGEST.findall(text))
        else:
            found.update(each.decode() for each in _DIGEST_IN_BYTES.findall(text))
    return found


def bad_entries(session_id: str, entries: Sequence[JournalEntry]) -> JournalError | None:
    """The error if these are not all entries of that session; None: they are."""
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


def refuse_damaged(entries: Iterable[JournalEntry], journal: str | None = None) -> None:
    """Refuse entries that cannot be read.

    Args:
        journal: Location of the journal, for the message.
    Raises:
        JournalError: `corrupt-entry`, for the first unreadable entry.
    """
    for entry in entries:
        if isinstance(entry.fact, UnreadableFact):
            raise unreadable_entry(entry, entry.fact.problem, journal)


def unreadable_entry(entry: JournalEntry, problem: str, journal: str | None = None) -> JournalError:
    """The error for an entry whose content is not what its kind and state require."""
    place = f" in {journal}" if journal is not None else ""
    return JournalError(
        f"Entry {entry.position} of session '{entry.session_id}' ({entry.kind} {entry.state} of "
        f"run '{entry.run_id}'){place} cannot be read: {problem}. Other runs are not "
        "affected. Restore a backup, or remove this session: "
        f"minions sessions rm {shell_word(entry.session_id)}",
        code="corrupt-entry",
        where=journal,
    )


def session_exists(session_id: str, count: int) -> JournalError:
    """The error for importing a session that is already in the journal."""
    return JournalError(
        f"Session '{session_id}' is here already, with {count} facts. Nothing was stored.",
        code="session-exists",
    )
