"""Folds of journal entries into the rows of runs and sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from minions.contracts.executions import RunState
from minions.contracts.journal.facts import (
    RunFinished,
    RunRejected,
    RunResumed,
    RunStarted,
    SessionForked,
    SessionOpened,
    UnreadableFact,
    given,
)
from minions.contracts.journal.journal import JournalEntry, unreadable_entry
from minions.contracts.journal.run_rows import (
    LISTED,
    MOST_DAYS,
    Number,
    RunRow,
    SessionRow,
    Spent,
    day_of,
)
from minions.contracts.journal.start_note import MARKS, SCHEDULE, TOKEN, name_noted
from minions.data.json_values import JsonValue, dumps

_BEGUN: Final = frozenset(("started", "rejected"))
_EXECUTED: Final = frozenset(("started", "resumed", "rejected"))
_IMPORTED: Final = "imported"
_LEVELS: Final = 160
"""Levels of nesting that are read for these words: each writes a character at least."""
_MEMBERS: Final = 20
"""Members of a list or an object of which these words are made."""
_READ: Final = 500
"""Characters of a text of which these words are made."""
_LONGEST_MESSAGE: Final = 200
"""Characters of an error's message in a row; the entry holds all of it."""
_LARGEST: Final = 10**12
_LONGEST_INPUT: Final = 60
"""Characters of one input in a row."""
_LONGEST_INPUTS: Final = 160
"""Characters of all inputs in a row."""


def run_row_after(row: RunRow | None, entry: JournalEntry) -> RunRow | None:
    """The row of the entry's run after that entry; None: the run has not started.

    Args:
        row: The row after all earlier entries of the run; None: there were none.
    """
    match entry.fact:
        case RunStarted() | RunRejected() as fact:
            return _begin_row(entry, fact)
        case RunResumed() as fact:
            return None if row is None else _resume_row(row, entry, fact)
        case RunFinished() as fact:
            return None if row is None else _end_row(row, entry, fact)
        case UnreadableFact(kind="run", state=state) if row is not None or state in _BEGUN:
            row = _unreadable_beginning(entry) if state in _BEGUN else row
            return _with_problem(row, entry) if row is not None else None
        case _:
            return row  # it does not change the state of the run


def _begin_row(entry: JournalEntry, fact: RunStarted | RunRejected) -> RunRow:
    is_rejected = isinstance(fact, RunRejected)
    code, message = _error(given(fact.error)) if isinstance(fact, RunRejected) else (None, None)
    return RunRow(
        run_id=entry.run_id,
        session_id=entry.session_id,
        position=entry.position,
        recipe=fact.recipe or "?",
        status=RunState.REJECTED.value if is_rejected else _open_state(fact).value,
        model=given(fact.model) if isinstance(fact, RunStarted) else None,
        started_at=entry.at,
        ended_at=entry.at if is_rejected else None,
        error_code=code,
        error_message=message,
        mark=_mark(fact.note),
        input_words=_input_words(fact) if isinstance(fact, RunStarted) else None,
        user=fact.user if isinstance(fact, RunStarted) else None,
        project=fact.project,
        day=day_of(entry.at),
        schedule=None if fact.note is None else name_noted(fact.note, SCHEDULE),
        token=None if fact.note is None else name_noted(fact.note, TOKEN),
        version=None if isinstance(fact, RunRejected) else fact.version,
        digest=None if isinstance(fact, RunRejected) else fact.recipe_digest,
    )


def _open_state(fact: RunStarted | RunResumed | RunRejected) -> RunState:
    """The state of a run that begins so and has no end: only leases tell that it is executed."""
    is_queued = not isinstance(fact, RunRejected) and bool(fact.queued)
    return RunState.QUEUED if is_queued else RunState.INTERRUPTED


def _input_words(fact: RunStarted | RunResumed) -> str | None:
    """The first words of the inputs, in their order; of an only input just its value.

    Of a child run its item stands before them.
    """
    item = fact.part.item if fact.part is not None else None
    own = [] if item is None or item.index is None else [(f"item {item.index}", item.value)]
    given = [*own, *(fact.inputs or {}).items()]
    if len(given) == 1:
        return _cut(given[0][1], _LONGEST_INPUTS) or None
    words: list[str] = []
    room = _LONGEST_INPUTS
    for name, value in given:
        if room <= 0:
            break
        words.append(f"{name}: {_cut(value, _LONGEST_INPUT)}")
        room -= len(words[-1])
    return " · ".join(words)[:_LONGEST_INPUTS] or None


def _cut(value: JsonValue, most: int) -> str:
    """The value as one line of at most so many characters."""
    text = value[:_READ] if isinstance(value, str) else dumps(_beginning(value))
    short = " ".join(text.split())
    return short if len(short) <= most else f"{short[: most - 1]}…"


def _beginning(value: JsonValue, depth: int = 0) -> JsonValue:
    """The first members: a list of a million items is not written out for a line."""
    if isinstance(value, str):
        return value[:_READ]
    if isinstance(value, Mapping | list | tuple) and depth == _LEVELS:
        return "…"
    if isinstance(value, Mapping):
        first = islice(value.items(), _MEMBERS)
        return {name: _beginning(each, depth + 1) for name, each in first}
    if isinstance(value, list | tuple):
        return [_beginning(each, depth + 1) for each in value[:_MEMBERS]]
    return value


def _unreadable_beginning(entry: JournalEntry) -> RunRow:
    return RunRow(
        run_id=entry.run_id,
        session_id=entry.session_id,
        position=entry.position,
        recipe=_text(entry.body, "recipe") or "?",
        project=_text(entry.body, "project"),
        started_at=entry.at,
        day=day_of(entry.at),
    )


def _with_problem(row: RunRow, entry: JournalEntry) -> RunRow:
    if row.problem is not None:
        return row
    return replace(row, status=RunState.UNREADABLE.value, problem=list_problem(entry))


def _resume_row(row: RunRow, entry: JournalEntry, fact: RunResumed) -> RunRow:
    day = day_of(entry.at)
    return replace(
        row if day == row.day else _on_another_day(row, day),
        status=_keep_status(row, _open_state(fact).value),
        model=given(fact.model),
        input_words=row.input_words if fact.inputs is None else _input_words(fact),
        ended_at=None,
        error_code=None,
        error_message=None,
        mark=_mark(fact.note),
        version=fact.version,
        digest=fact.recipe_digest,
    )


def _on_another_day(row: RunRow, day: int) -> RunRow:
    known = (*row.earlier, (row.day, row.day_spent))
    earlier = tuple(each for each in known if any(each[1]) and each[0] > day - MOST_DAYS)
    return replace(row, day=day, day_spent=Spent(), earlier=earlier)


def _end_row(row: RunRow, entry: JournalEntry, fact: RunFinished) -> RunRow:
    code, message = _error(given(fact.error))
    return replace(
        _with_spent(row, _sum_spent(fact)),
        status=_keep_status(row, fact.status),
        ended_at=entry.at,
        usage=_numbers(fact.usage),
        error_code=code,
        error_message=message,
    )


def _with_spent(row: RunRow, total: Spent) -> RunRow:
    if row.mark == _IMPORTED:  # another journal counts it
        return replace(row, foreign=total, spent=Spent(), day_spent=Spent())
    spent = _more(total, row.foreign)
    before = row.spent.plus(row.day_spent, -1)
    return replace(row, spent=spent, day_spent=_more(spent, before))


def _more(whole: Spent, part: Spent) -> Spent:
    """What the whole has more; a retry that an older program recorded may have less."""
    left = whole.plus(part, -1)
    return Spent(max(left.tokens, 0), max(left.cost_usd, 0.0))


def _sum_spent(fact: RunFinished) -> Spent:
    """What all executions of the run used."""
    usage = _numbers(fact.usage)
    known = _numbers(fact.spent) if fact.spent is not None else usage
    tokens = known.get("tokens" if fact.spent is not None else "total_tokens")
    if tokens is None:
        tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    cost_usd = known.get("cost_usd") or 0
    return Spent(int(_within(tokens)), float(_within(cost_usd)))


def _within(number: float) -> float:
    """Within what every database can add up; a damaged entry may say anything."""
    return min(max(number, 0), _LARGEST)


def _keep_status(row: RunRow, status: str) -> str:
    """The new status, except that an unreadable run stays unreadable whatever entries follow."""
    return status if row.problem is None else RunState.UNREADABLE.value


def session_row_after(row: SessionRow | None, entry: JournalEntry) -> SessionRow | None:
    """The row of the entry's session after that entry; None: no list shows the session.

    Args:
        row: The row after all earlier entries of the session; None: there were none.
    """
    if entry.kind not in LISTED:
        return row
    if row is None:
        row = _open_session(entry)
        changes: dict[str, object] = {}
    else:
        changes = {"last_at": max(row.last_at, entry.at), "last_position": entry.position}
    if entry.kind == "run":
        changes["updated_at"] = entry.at
        changes |= _of_its_run(row, entry)
    if row.status == RunState.UNREADABLE or isinstance(entry.fact, UnreadableFact):
        changes["status"] = RunState.UNREADABLE.value  # whatever entries follow
    return replace(row, **changes) if changes else row


def _open_session(entry: JournalEntry) -> SessionRow:
    fact = entry.fact
    opened = fact if isinstance(fact, SessionOpened | SessionForked) else None
    owned = fact if isinstance(fact, RunStarted) else opened
    placed = fact if isinstance(fact, RunRejected) else owned
    forked = fact if isinstance(fact, SessionForked) else None
    return SessionRow(
        session_id=entry.session_id,
        created_at=entry.at,
        updated_at=entry.at,
        last_at=entry.at,
        last_position=entry.position,
        name=given(opened.name) if opened is not None else None,
        parent=forked.parent if forked is not None else None,
        forked_at=forked.sequence if forked is not None else None,
        has_inputs=opened is not None and bool(opened.inputs),
        own_recipe=given(opened.recipe) if opened is not None else None,
        user=owned.user if owned is not None else None,
        project=placed.project if placed is not None else None,
    )


def _of_its_run(row: SessionRow, entry: JournalEntry) -> Mapping[str, object]:
    match entry.fact:
        case RunStarted(recipe=recipe) | RunResumed(recipe=recipe) as fact:
            changes = _with_run(row, entry, recipe, _open_state(fact))
            return changes if fact.retain_s is None else {**changes, **_with_age(row, fact)}
        case RunRejected(recipe=recipe):
            return _with_run(row, entry, recipe, RunState.REJECTED)
        case UnreadableFact(state=state) if state in _EXECUTED:
            return _with_run(row, entry, _text(entry.body, "recipe"), RunState.UNREADABLE)
        case RunFinished(status=status) if entry.run_id == row.last_run_id:
            return {"status": status}
        case _:
            return {}


def _with_age(row: SessionRow, fact: RunStarted | RunResumed) -> Mapping[str, object]:
    """A later run makes the time shorter, never longer."""
    ages = [each for each in (row.retain_s, fact.retain_s) if each is not None]
    return {"retain_s": min(ages)}


def _with_run(
    row: SessionRow, entry: JournalEntry, recipe: str | None, status: RunState
) -> Mapping[str, object]:
    return {
        "ran_recipe": recipe,
        "is_mixed": row.is_mixed or (row.last_run_id is not None and row.ran_recipe != recipe),
        "last_run_id": entry.run_id,
        "status": status.value,
    }


class FoldedRows(NamedTuple):
    """Rows by id: of runs and of sessions."""

    runs: dict[str, RunRow]
    sessions: dict[str, SessionRow]


def folded(entries: Iterable[JournalEntry]) -> FoldedRows:
    """The rows that these entries add up to.

    Args:
        entries: All entries of the sessions in question, or all of the kinds in `LISTED`; in order.
    """
    rows = FoldedRows({}, {})
    for entry in entries:
        run = run_row_after(rows.runs.get(entry.run_id), entry)
        if run is not None:
            rows.runs[entry.run_id] = run
        session = session_row_after(rows.sessions.get(entry.session_id), entry)
        if session is not None:
            rows.sessions[entry.session_id] = session
    return rows


def list_problem(entry: JournalEntry) -> str | None:
    """Why a run or session entry cannot be listed; None: it can."""
    fact = entry.fact
    if not isinstance(fact, UnreadableFact):
        return None
    return unreadable_entry(entry, fact.problem).message


def _text(body: Mapping[str, JsonValue], name: str) -> str | None:
    """The member if it is a text, else None: an unreadable entry must not break a list."""
    value = body.get(name)
    return value if isinstance(value, str) else None


def _numbers(usage: Mapping[str, object] | None) -> Mapping[str, Number]:
    return {
        name: value
        for name, value in (usage or {}).items()
        if value is None or isinstance(value, int | float)
    }


def _error(error: Mapping[str, object] | None) -> tuple[str | None, str | None]:
    code, message = ((error or {}).get(name) for name in ("code", "message"))
    return _show_text(code), _show_text(message)


def _show_text(text: object) -> str | None:
    return text[:_LONGEST_MESSAGE] if isinstance(text, str) else None


def _mark(note: Mapping[str, object] | None) -> str | None:
    return next((mark for mark in MARKS if note.get(mark)), None) if note else None
