"""Entries of an imported session: what happened stays, what would grant something does not count.

A session file comes from a stranger. Who may call what, in which folder, at what cost and with
whose consent is said by whoever resumes the run, never by the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import evolve

from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue

__all__ = ["IMPORTED", "imported_entry"]

IMPORTED: Final = "imported"
"""The state of a decision that another journal recorded. It is shown, and decides nothing."""

_KEPT_IN_NOTES: Final = frozenset({"command", "extensions"})
"""What a note says of the command that began the run and that grants nothing; all else, such as
`approve`, `cwd`, `max_cost_usd` or `model` (which may name a file), is dropped. `imported` is
added: no server resumes the run unasked."""

_GRANTS: Final = frozenset({"directory", "decisions"})
"""Of a run's start: the folder that relative paths begin in, and decisions about open calls."""


def imported_entry(entry: JournalEntry) -> JournalEntry:
    """The entry as it is stored in the journal that takes it in."""
    if entry.kind == "decision" and entry.state == "recorded":
        return evolve(entry, state=IMPORTED)
    if entry.kind == "run" and entry.state in ("started", "resumed"):
        return evolve(entry, body=_without_grants(entry.body))
    return entry


def _without_grants(body: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    note = body.get("note")
    known = note.items() if isinstance(note, Mapping) else ()
    kept = {name: value for name, value in known if name in _KEPT_IN_NOTES}
    rest = {name: value for name, value in body.items() if name not in _GRANTS}
    return {**rest, "note": {**kept, "imported": True}}
