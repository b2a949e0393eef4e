"""Entries of an imported session: history is stored as it is, grants are removed.

A session file comes from a stranger. Which tools run, in which folder, at what cost and with whose
approval is decided by the person who resumes the run, never by the file.
"""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec import UNSET
from msgspec.structs import asdict, replace

from minions.contracts.journal.facts import (
    DecisionImported,
    DecisionRecorded,
    FileChangeImported,
    FileChangeRecorded,
    MarkImported,
    MarkRecorded,
    RecipeChange,
    RunBeginning,
    RunRejected,
    RunResumed,
    RunStarted,
    ScoreImported,
    ScoreRecorded,
    SessionForked,
    SessionOpened,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.start_note import StartNote

_KEPT_IN_NOTES: Final = frozenset({"command", "extensions"})
"""What a note says of the command that began the run and that grants nothing; all else, such as
`approve`, `cwd`, `max_cost_usd` or `model` (which may name a file), is dropped. `imported` is
added: no server resumes the run unasked."""

R = TypeVar("R", bound=RunBeginning)


def imported_entry(entry: JournalEntry, project: str | None) -> JournalEntry:
    """The entry as the importing journal stores it: without decisions, marks, grants, directory
    and changes of files that could be undone.

    The label of a user is one of the journal that it comes from; budgets here do not know it.

    Args:
        project: The folder of the project that imports it; None: none.
    """
    match fact := entry.fact:
        case DecisionRecorded():
            return replace(entry, fact=DecisionImported(**asdict(fact)))
        case FileChangeRecorded():  # else a stranger's file could have any file here overwritten
            return replace(entry, fact=FileChangeImported(**asdict(fact)))
        case MarkRecorded():  # else a stranger would choose what models here are shown as good
            return replace(entry, fact=MarkImported(**asdict(fact)))
        case RecipeChange():
            return replace(entry, fact=replace(fact, directory=UNSET, by=None))
        case ScoreRecorded():
            return replace(entry, fact=ScoreImported(**asdict(fact)))
        case RunResumed():
            return replace(entry, fact=_without_votes(_without_grants(fact)))
        case RunStarted():
            started = replace(_without_grants(fact), project=project)
            return replace(entry, fact=started)
        case RunRejected():
            return replace(entry, fact=replace(fact, project=project))
        case SessionOpened() | SessionForked():
            return replace(entry, fact=replace(fact, user=None, project=project))
        case _:
            return entry


def _without_votes(fact: RunResumed) -> RunResumed:
    return replace(
        fact, decisions=None, by=None, person=None, roles=None, way=None, is_claimed=None
    )


def _without_grants(fact: R) -> R:
    allowed = {name: value for name, value in (fact.note or {}).items() if name in _KEPT_IN_NOTES}
    note = {**allowed, **StartNote(is_imported=True, is_strangers=True).to_json()}
    return replace(fact, note=note, user=None, directory=UNSET, queued=None, trace=None)
