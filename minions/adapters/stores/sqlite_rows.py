"""Rows of runs and sessions in SQLite: kept with each entry, made anew where they may be wrong."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from minions.adapters.stores.body_cipher import BodyCipher
from minions.adapters.stores.row_queries import (
    FOUND,
    READ,
    RUN_COLUMNS,
    SESSION_COLUMNS,
    Dialect,
    Part,
    Place,
    Question,
    Search,
    SearchedPart,
    UsesPage,
    earlier_question,
    few_question,
    place_of,
    runs_count_question,
    runs_question,
    sessions_count_question,
    sessions_question,
    spent_question,
    totals_question,
    uses_question,
)
from minions.adapters.stores.sqlite_database import SqliteRow, readable_rows
from minions.adapters.stores.sqlite_file import DamageError
from minions.adapters.stores.stored_rows import (
    has_usage,
    name_key,
    project_key,
    removed_spending,
    rest_of_run,
    rest_of_session,
    run_of,
    search_key,
    session_of,
    started_key,
    stored_use,
    time_of,
    user_key,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_row_folds import folded, run_row_after, session_row_after
from minions.contracts.journal.run_rows import (
    MOST_DAYS,
    RunFilter,
    RunRow,
    SessionFilter,
    SessionRow,
    Spender,
    Spent,
    StateTotal,
    UseGroup,
    micros,
    time_at,
)

_SOME: Final = 100
"""Sessions whose rows are made anew at once: some 5 ms."""


class DamagedRowsError(Exception):
    """Rows hold what was never written to them."""


# --- writing ---------------------------------------------------------------------------------


class Known(NamedTuple):
    """What is stored of a session and of a run of it, before an entry."""

    last_position: object
    """Of all entries of the session."""
    run: RunRow | None
    session: SessionRow | None

    def keep(self, db: sqlite3.Connection, entry: JournalEntry, cipher: BodyCipher | None) -> None:
        """Store the rows after that entry, within its transaction and before it is stored."""
        _put_run(db, self.run, run_row_after(self.run, entry), cipher)
        _put_session(db, self.session, session_row_after(self.session, entry), cipher)


def known(db: sqlite3.Connection, session_id: str, run_id: str) -> Known:
    """By one look."""
    row = db.execute(_KNOWN, (session_id, run_id)).fetchone()
    run, session = row[1 : 1 + _OF_RUN], row[1 + _OF_RUN :]
    try:
        return Known(
            row[0],
            None if run[0] is None else _run(run),
            None if session[0] is None else _session(session),
        )
    except DamagedRowsError:
        doubt_all(db)
        return Known(row[0], None, None)


def _of(table: str, columns: str) -> str:
    return ", ".join(f"{table}.{column}" for column in columns.split(", "))


_KNOWN: Final = (
    "SELECT (SELECT max(position) FROM entries WHERE session_id = ?1), "  # noqa: S608  # constants
    f"{_of('r', RUN_COLUMNS)}, {_of('s', SESSION_COLUMNS)} FROM (SELECT 1) "
    "LEFT JOIN runs r ON r.run_id = ?2 LEFT JOIN sessions s ON s.session_id = ?1"
)


def _put_run(
    db: sqlite3.Connection, before: RunRow | None, row: RunRow | None, cipher: BodyCipher | None
) -> None:
    if row is None or row is before:
        return
    if before is not None and before.position == row.position:
        rest = rest_of_run(row, cipher)
        db.execute(_UPDATE_RUN, (row.status, rest, *_spent_values(row), row.run_id))
    else:
        db.execute(_PUT_RUN, _run_values(row, cipher))


def _put_session(
    db: sqlite3.Connection,
    before: SessionRow | None,
    row: SessionRow | None,
    cipher: BodyCipher | None,
) -> None:
    if row is None or row is before:
        return
    if before is None:
        db.execute(_PUT_SESSION, _session_values(row, cipher))
        return
    db.execute(
        "UPDATE sessions SET updated_at = ?, last_position = ?, expires_at = ?, rest = ? "
        "WHERE session_id = ?",
        (
            micros(row.updated_at),
            row.last_position,
            None if row.retain_s is None else _expiry(row),
            rest_of_session(row, cipher),
            row.session_id,
        ),
    )


_UPDATE_RUN: Final = (
    "UPDATE runs SET status = ?, rest = ?, day = ?, tokens = ?, cost_usd = ?, day_tokens = ?, "
    "day_cost_usd = ? WHERE run_id = ?"
)
_OF_RUN: Final = len(RUN_COLUMNS.split(", "))
_REST: Final = RUN_COLUMNS.split(", ").index("rest")


def _put(table: str, columns: str) -> str:
    """In the place of one that is there. `OR REPLACE` removes it, and no trigger is told."""
    key, *names = columns.split(", ")
    changes = ", ".join(f"{name} = excluded.{name}" for name in names)
    return (
        f"INSERT INTO {table} ({columns}) VALUES ({','.join('?' * (len(names) + 1))}) "  # noqa: S608  # constants
        f"ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )


_PUT_RUN: Final = _put("runs", RUN_COLUMNS)
_PUT_SESSION: Final = _put("sessions", SESSION_COLUMNS)


def _run_values(row: RunRow, cipher: BodyCipher | None) -> tuple[str | int | float | None, ...]:
    return (
        row.run_id, row.session_id, row.position, search_key(row.recipe), row.status,
        micros(row.started_at), rest_of_run(row, cipher), user_key(row), project_key(row),
        *_spent_values(row), None if row.schedule is row.token else started_key(row),
    )  # fmt: skip


def _spent_values(row: RunRow) -> tuple[int | float, ...]:
    return (row.day, *row.spent, *row.day_spent)


def _session_values(row: SessionRow, cipher: BodyCipher | None) -> tuple[str | int | None, ...]:
    return (
        row.session_id, name_key(row, cipher),
        None if row.parent is None else search_key(row.parent), micros(row.updated_at),
        row.last_position, user_key(row), project_key(row),
        None if row.retain_s is None else _expiry(row), rest_of_session(row, cipher),
    )  # fmt: skip


def _expiry(row: SessionRow) -> int | None:
    return None if row.expires_at is None else micros(row.expires_at)


def keep_spending(db: sqlite3.Connection, session_id: str, today: int) -> None:
    """What the runs of a session spent, before their rows are removed."""
    question = (
        f"SELECT {RUN_COLUMNS} FROM runs WHERE session_id = ? AND (tokens > 0 OR cost_usd > 0)"  # noqa: S608  # constants
    )
    rows = [_run(row) for row in readable_rows(db, question, (session_id,))]
    db.execute("DELETE FROM removed_spending WHERE day <= ?", (today - MOST_DAYS,))
    db.executemany(
        "INSERT INTO removed_spending VALUES (?,?,?,?,?,?,?)", removed_spending(rows, today)
    )


def remove_rows(db: sqlite3.Connection, session_ids: Iterable[str]) -> None:
    """Of these sessions."""
    ids = [(session_id,) for session_id in session_ids]
    db.executemany("DELETE FROM runs WHERE session_id = ?", ids)
    db.executemany("DELETE FROM sessions WHERE session_id = ?", ids)


def make_anew(
    db: sqlite3.Connection, entries: Iterable[JournalEntry], cipher: BodyCipher | None
) -> None:
    """The rows of sessions.

    Args:
        entries: All of these sessions that lists are made of, in order.
    """
    rows = folded(entries)
    db.executemany(_PUT_RUN, (_run_values(row, cipher) for row in rows.runs.values()))
    db.executemany(_PUT_SESSION, (_session_values(row, cipher) for row in rows.sessions.values()))


# --- what may be wrong -----------------------------------------------------------------------


def changed_sessions(db: sqlite3.Connection) -> int | None:
    """Those up to this id are some of the sessions whose rows are to be made anew; None: none is.

    Entries that were not looked at yet are looked at first, each once.
    """
    last, seen = db.execute(_UNSEEN).fetchone()
    if last > seen and (last - seen > _MANY or db.execute(_IS_LISTED, (seen,)).fetchone()):
        db.execute(_MARK_UNSEEN, (seen,))
        db.execute("UPDATE row_marks SET seen = ?", (last,))
    rows = db.execute(
        "SELECT max(id) FROM (SELECT id FROM changed_sessions ORDER BY id LIMIT ?)", (_SOME,)
    ).fetchone()
    return rows[0]  # type: ignore[no-any-return]  # an id, or NULL


_UNSEEN: Final = (
    "SELECT (SELECT ifnull(max(id), 0) FROM entries), ifnull(max(seen), 0) FROM row_marks"
)
_MANY: Final = 1_000
"""Entries that are looked at again rather than to note that they were seen."""
# By their ids alone: every index would be read from one end to the other.
_IS_LISTED: Final = (
    "SELECT 1 FROM entries NOT INDEXED WHERE id > ? AND kind IN ('run', 'session') LIMIT 1"
)
_MARK_UNSEEN: Final = (
    "INSERT OR IGNORE INTO changed_sessions (session_id) SELECT session_id FROM entries AS e "
    "NOT INDEXED WHERE id > ? AND kind IN ('run', 'session') AND NOT EXISTS (SELECT 1 FROM "
    "sessions AS s WHERE s.session_id = e.session_id AND s.last_position >= e.position)"
)


def mark_unseen(db: sqlite3.Connection, session_id: str) -> None:
    """Before the rows of a session are kept with an entry: mark them if they miss earlier ones."""
    db.execute(_MARK_IF_UNSEEN, (session_id,))


_MARK_IF_UNSEEN: Final = (
    "INSERT OR IGNORE INTO changed_sessions (session_id) SELECT ?1 WHERE EXISTS (SELECT 1 FROM "
    "entries WHERE session_id = ?1 AND kind IN ('run', 'session') AND position > "
    "ifnull((SELECT last_position FROM sessions WHERE session_id = ?1), 0))"
)


def forget_changed(db: sqlite3.Connection, last: int) -> None:
    """Their rows have been made anew."""
    db.execute("DELETE FROM changed_sessions WHERE id <= ?", (last,))


def doubt_all(db: sqlite3.Connection) -> None:
    """All rows are to be made anew."""
    db.execute(
        "INSERT OR IGNORE INTO changed_sessions (session_id) "
        "SELECT DISTINCT session_id FROM entries WHERE kind IN ('run', 'session')"
    )


# --- reading ---------------------------------------------------------------------------------


def _list_of(values: Collection[str]) -> str:
    return json.dumps(list(values))


_DIALECT: Final = Dialect(
    mark="?",
    schema="",
    one_of="{column} IN (SELECT value FROM json_each(?))",
    list_of=_list_of,
    time=micros,
    unordered="+{column}",
    like="LIKE",
    bytes_of="length(CAST({column} AS BLOB))",
    in_state="{column}",
)


def runs_page(
    db: sqlite3.Connection, wanted: RunFilter, after: Place | None, part: Part
) -> list[RunRow]:
    """Runs that fit, but for their text.

    Raises:
        DamagedRowsError: A row holds what was never written to it.
    """
    return [_run(row) for row in _rows(db, runs_question(_DIALECT, wanted, after, part))]


def searched_runs(
    db: sqlite3.Connection, wanted: RunFilter, after: Place | None, most: int
) -> SearchedPart[RunRow]:
    """Those of the next `most` runs that may fit.

    Raises:
        DamagedRowsError: A row holds what was never written to it.
    """
    end = Part(limit=1, offset=most - 1)
    edge = _edge(db, runs_question(_DIALECT, wanted, after, end, columns="started_at, run_id"))
    search = Search([*(wanted.text or "").split(), *wanted.phrases], edge)
    part = READ if wanted.bounds else FOUND
    question = runs_question(_DIALECT, wanted, after, Part(limit=part), search=search)
    rows = _rows(db, question)
    found = [_run(row) for row in rows if has_usage(row[_REST], wanted.bounds)]
    return SearchedPart(found, place_of(_run(rows[-1])) if len(rows) == part else edge)


def uses_page(
    db: sqlite3.Connection, wanted: RunFilter, by: UseGroup, after: Place | None, part: Part
) -> UsesPage:
    """What runs that fit used.

    Raises:
        DamagedRowsError: A row holds what was never written to it.
    """
    rows = _rows(db, uses_question(_DIALECT, wanted, by, after, part))
    try:
        uses = [stored_use(by, row[0], row[1], row[2], row[3]) for row in rows]
        behind = Place(time_of(rows[-1][2]), rows[-1][4]) if rows else None
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedRowsError from error
    return UsesPage(uses, behind)


def sessions_page(
    db: sqlite3.Connection,
    wanted: SessionFilter,
    after: Place | None,
    part: Part,
    cipher: BodyCipher | None,
) -> list[SessionRow]:
    """Sessions that fit, but for their text.

    Raises:
        DamagedRowsError: A row holds what was never written to it.
    """
    question = sessions_question(_DIALECT, wanted, after, part, cipher)
    return [_session(row) for row in _rows(db, question)]


def searched_sessions(
    db: sqlite3.Connection,
    wanted: SessionFilter,
    after: Place | None,
    most: int,
    cipher: BodyCipher | None,
) -> SearchedPart[SessionRow]:
    """Those of the next `most` sessions that may fit.

    Raises:
        DamagedRowsError: A row holds what was never written to it.
    """
    end = Part(limit=1, offset=most - 1)
    columns = "updated_at, session_id"
    edge = _edge(db, sessions_question(_DIALECT, wanted, after, end, cipher, columns=columns))
    search = Search((wanted.text or "").split(), edge)
    part = Part(limit=FOUND)
    question = sessions_question(_DIALECT, wanted, after, part, cipher, search=search)
    found = [_session(row) for row in _rows(db, question)]
    return SearchedPart(found, place_of(found[-1]) if len(found) == FOUND else edge)


def _edge(db: sqlite3.Connection, question: Question) -> Place | None:
    rows = _rows(db, question)
    try:
        return Place(time_of(rows[0][0]), rows[0][1]) if rows else None
    except (TypeError, OverflowError) as error:
        raise DamagedRowsError from error


def _rows(db: sqlite3.Connection, question: Question) -> list[SqliteRow]:
    return readable_rows(db, question.sql, _values(question.values))


def count_runs(db: sqlite3.Connection, wanted: RunFilter, at_most: int | None) -> int:
    """How many fit, but for their text; None: all of them are counted."""
    question = runs_count_question(_DIALECT, wanted, at_most)
    return _number(db, question.sql, question.values)


def is_ambiguous(db: sqlite3.Connection, start: str) -> bool:
    """Whether the ids of several runs start so."""
    question = few_question(_DIALECT, start)
    return _number(db, question.sql, question.values) > 1


def spent(db: sqlite3.Connection, spender: Spender, without: Collection[str]) -> Spent:
    """What the rows say."""
    question = spent_question(_DIALECT, spender, without)
    tokens, cost_usd = db.execute(question.sql, _values(question.values)).fetchone()
    found = Spent(tokens, float(cost_usd))
    if spender.day is not None and spender.days > 1:
        question = earlier_question(_DIALECT, spender, without)
        for row in readable_rows(db, question.sql, _values(question.values)):
            found = found.plus(spender.earlier_of(_run(row)))
    return found


def totals(db: sqlite3.Connection, wanted: RunFilter) -> dict[str, StateTotal]:
    """What the rows of each state say."""
    question = totals_question(_DIALECT, wanted)
    rows = db.execute(question.sql, _values(question.values)).fetchall()
    return {
        str(status): StateTotal(count, Spent(int(tokens), float(cost)))
        for status, count, tokens, cost in rows
    }


def count_sessions(
    db: sqlite3.Connection, wanted: SessionFilter, at_most: int | None, cipher: BodyCipher | None
) -> int:
    """How many fit, but for their text; None: all of them are counted."""
    question = sessions_count_question(_DIALECT, wanted, at_most, cipher)
    return _number(db, question.sql, question.values)


def _number(db: sqlite3.Connection, sql: str, values: Sequence[object]) -> int:
    (count,) = db.execute(sql, _values(values)).fetchone()
    return count  # type: ignore[no-any-return]  # of count(*)


def _values(values: Sequence[object]) -> tuple[str | int, ...]:
    return tuple(values)  # type: ignore[arg-type]  # the dialect makes texts and numbers only


def _run(row: SqliteRow) -> RunRow:
    try:
        run_id, session_id, position, recipe, status, started_at, *others = row
        return run_of(run_id, session_id, position, recipe, status, time_of(started_at), *others)
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedRowsError from error


def _session(row: SqliteRow) -> SessionRow:
    try:
        session_id, name, parent, updated_at, *others = row
        return session_of(session_id, name, parent, time_of(updated_at), *others)
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedRowsError from error


# --- times and numbers of the SQLite journal -----------------------------------------------------


def as_time(stored: int) -> datetime:
    """The time of a column in microseconds since 1970."""
    try:
        return time_at(stored)
    except (OverflowError, TypeError) as error:
        raise DamageError(f"its time is out of range ({error})") from error


def as_count(stored: object) -> int:
    """The largest number of some rows; 0 where there are none."""
    if stored is not None and not isinstance(stored, int):
        raise DamageError("a number in it is none")
    return stored or 0
