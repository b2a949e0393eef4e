"""Conversations that a process read before: the next read takes only the rows after them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from attrs import define

from minions.contracts.journal.facts import SessionForked
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.engine.history.session_messages import CONVERSATION_KINDS, SessionConversation

_MOST: Final = 32
"""Conversations of one journal that are kept."""


@define
class _KnownConversation:
    conversation: SessionConversation
    last: JournalEntry
    """The newest row that is in it."""


class ConversationCache:
    """Folded conversations by journal and session; rows are only ever added to a session.

    A session that was removed and created again has other rows, and all of them are read.
    """

    def __init__(self) -> None:
        self._journals: WeakKeyDictionary[Journal, OrderedDict[str, _KnownConversation]] = (
            WeakKeyDictionary()
        )
        self._changing = threading.Lock()

    async def read(self, journal: Journal, session_id: str) -> SessionConversation | None:
        """The conversation, which the caller may change; None: it is a fork, and is not kept.

        Raises:
            JournalError: `corrupt-entry`; an entry cannot be read.
        """
        known = self._of(journal).get(session_id)
        if known is not None:
            last = known.last
            rows = await journal.entries(
                session_id, kinds=CONVERSATION_KINDS, after=last.position - 1
            )
            if (found := self._continued(known, last, rows)) is not None:
                return found
        return self._kept(
            journal, session_id, await journal.entries(session_id, kinds=CONVERSATION_KINDS)
        )

    def _of(self, journal: Journal) -> OrderedDict[str, _KnownConversation]:
        return self._journals.setdefault(journal, OrderedDict())

    def _continued(
        self, known: _KnownConversation, last: JournalEntry, rows: Sequence[JournalEntry]
    ) -> SessionConversation | None:
        """With these rows; None where they do not continue it."""
        with self._changing:
            if known.last is not last or not rows or not _is_same(rows[0], last):
                return None
            known.conversation.apply_all(rows[1:])
            known.last = rows[-1]
            return known.conversation.copy()

    def _kept(
        self, journal: Journal, session_id: str, rows: Sequence[JournalEntry]
    ) -> SessionConversation | None:
        if rows and isinstance(rows[0].fact, SessionForked):
            return None
        conversation = SessionConversation(session_id)
        conversation.apply_all(rows)
        if rows:
            with self._changing:
                kept = self._of(journal)
                kept[session_id] = _KnownConversation(conversation, rows[-1])
                kept.move_to_end(session_id)
                while len(kept) > _MOST:
                    kept.popitem(last=False)
        return conversation.copy()


def _is_same(one: JournalEntry, other: JournalEntry) -> bool:
    def identity(entry: JournalEntry) -> tuple[object, ...]:
        return entry.position, entry.run_id, entry.generation, entry.key, entry.state, entry.at

    return identity(one) == identity(other)


CONVERSATIONS: Final = ConversationCache()
"""Those of this process; a journal that is no longer used takes its conversations along."""
