"""What a run began to wait for, derived from the recorded ends of its executions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import RunBeginning, RunFinished, RunStarted
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.start_note import StartNote
from minions.contracts.waiting import RunWait
from minions.data.json_values import JsonValue


async def new_wait(journal: Journal, run_id: str, *, page: str | None = None) -> RunWait | None:
    """What the run began to wait for with its last execution; None: nothing, or it was resumed.

    A decision that the execution before waited for already is not new, so that a resume which does
    not make it tells nothing.

    Args:
        page: The address of the server's page; None: there is none.
    Raises:
        JournalError: The journal cannot be read.
    """
    rows = await journal.entries(run_id=run_id, kinds={"run"})
    ends = [row for row in rows if isinstance(row.fact, RunFinished)]
    if not ends or rows[-1] is not ends[-1] or is_case(rows):
        return None
    known = {_identity(each) for each in (_waiting(ends[-2]) if len(ends) > 1 else ())}
    decisions = tuple(each for each in _waiting(ends[-1]) if _identity(each) not in known)
    if not decisions:
        return None
    last = ends[-1]
    return RunWait(
        id=_id(run_id, last.position),
        run_id=run_id,
        session_id=last.session_id,
        recipe=next(row.fact.recipe for row in rows if isinstance(row.fact, RunBeginning)),
        since=last.at,
        decisions=decisions,
        address=None if page is None else f"{page}#/runs/{run_id}",
    )


async def due_reminder(
    journal: Journal, run_id: str, now: datetime, *, page: str | None = None
) -> tuple[RunWait | None, datetime | None]:
    """The reminder of a run that waits, None where none is due, and when the next one is due; None:
    there is none, because the recipe wants none or the run does not wait.

    Reminders that were missed are told as one: the number counts the times that are over.

    Args:
        page: The address of the server's page; None: there is none.
    Raises:
        JournalError: The journal cannot be read.
    """
    rows = await journal.entries(run_id=run_id, kinds={"run"})
    ends = [row for row in rows if isinstance(row.fact, RunFinished)]
    last = ends[-1] if ends and rows[-1] is ends[-1] else None
    fact = last.fact if last is not None else None
    if last is None or not isinstance(fact, RunFinished) or fact.remind_every_s is None:
        return None, None
    waiting = () if is_case(rows) else _waiting(last)
    if not waiting or fact.remind_every_s <= 0:
        return None, None
    present = {_identity(each) for each in waiting}
    first = last
    for end in reversed(ends[:-1]):  # since when it waits for one of these
        if present.isdisjoint(_identity(each) for each in _waiting(end)):
            break
        first = end
    number = int((now - first.at).total_seconds() // fact.remind_every_s)
    following = first.at + timedelta(seconds=fact.remind_every_s * (max(number, 0) + 1))
    if number < 1:
        return None, following
    wait = RunWait(
        id=f"{_id(run_id, first.position)}-{number}",
        run_id=run_id,
        session_id=last.session_id,
        recipe=next(row.fact.recipe for row in rows if isinstance(row.fact, RunBeginning)),
        since=first.at,
        decisions=tuple(waiting),
        reminder=number,
        address=None if page is None else f"{page}#/runs/{run_id}",
    )
    return wait, following


def is_case(rows: Sequence[JournalEntry]) -> bool:
    """Whether a run is a case of an evaluation. It asks nobody: it was to show what comes of the
    case, and a decision would carry out the call.

    Args:
        rows: Of the run, at least that of its start.
    """
    notes = (row.fact.note for row in rows if isinstance(row.fact, RunStarted))
    return any(StartNote.of(note).evaluation is not None for note in notes)


def _waiting(end: JournalEntry) -> Sequence[Mapping[str, JsonValue]]:
    """What persons are to decide: a result of the caller's own tool is the caller's matter."""
    fact = end.fact
    if not isinstance(fact, RunFinished) or fact.status != RunStatus.NEEDS_DECISION:
        return ()
    return [each for each in fact.waiting or () if each["what"] != "answer" or "tool" not in each]


def _identity(decision: Mapping[str, JsonValue]) -> tuple[JsonValue, ...]:
    deciders = decision.get("deciders") or ()
    asked = (*deciders,) if isinstance(deciders, list | tuple) else ()
    return (*(decision.get(name) for name in ("key", "digest", "question")), *asked)


def _id(run_id: str, position: int) -> str:
    return f"wait_{hashlib.sha256(f'{run_id} {position}'.encode()).hexdigest()[:24]}"
