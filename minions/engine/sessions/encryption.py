"""Stores what a journal holds again as new entries are stored: encrypted under the first key."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from minions.contracts.journal.journal import Journal
from minions.data.errors import JournalError, LeaseHeldError


@frozen(kw_only=True)
class Rewritten:
    """What was encrypted under the first key."""

    sessions: int
    """Sessions of which an entry was not before."""
    entries: int
    """All entries of these."""
    blobs: int
    left: tuple[tuple[str, str], ...]
    """Sessions that stay as they are, with the reason."""


async def rewrite_journal(
    journal: Journal, on_session: Callable[[str], None] = lambda _: None
) -> Rewritten:
    """Encrypt all sessions under the first key, each by itself, and then the blobs.

    A session in which a row was changed, removed or inserted stays as it is: its new chain would
    hide that. So does one that is active.

    Args:
        on_session: Told of each session that was rewritten.
    Raises:
        JournalError: The journal cannot be used, or a key is missing.
    """
    sessions = entries = 0
    left = list[tuple[str, str]]()
    for session_id in await journal.chained_sessions():
        report = await journal.verify(session_id)
        if (fault := report.fault) is not None:
            left.append((session_id, f"row {fault.position} is {fault.what}"))
            continue
        try:
            count = await journal.rewrite_session(session_id)
        except LeaseHeldError:
            left.append((session_id, "a run of it is active"))
            continue
        except JournalError as error:
            if error.error_code != "corrupt-entry":
                raise
            left.append((session_id, "an entry cannot be read"))
            continue
        if count:
            sessions, entries = sessions + 1, entries + count
            on_session(session_id)
    blobs = await journal.rewrite_blobs()
    return Rewritten(sessions=sessions, entries=entries, blobs=blobs, left=tuple(left))
