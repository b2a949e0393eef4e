"""Rows of runs and sessions in PostgreSQL: kept with each entry, made anew where they may be wrong.

Who writes rows of a session has the row of its lease: an append changes it, and what makes rows
anew locks it. So no two write them at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

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
    user_key,
)
from minions.contracts.journal.chain import GENESIS, ChainHead
from minions.contracts.journal.journal import JournalEntry, Lease
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
)

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection

PostgresRow: TypeAlias = Sequence[Any]  # Any: as the driver gives it


_SOME: Final = 200
"""Sessions whose rows are made anew at once."""


class DamagedRowsError(Exception):
    """Rows hold what was never written to them."""


# --- writing ---------------------------------------------------------------------------------


class KnownRows(NamedTuple):
    """The rows of a run and its session before an entry."""

    head: ChainHead
    """The end of the session's chain."""
    run: RunRow | None
    session: SessionRow | None
    rest: str | None
    """Of the session's row, as it is stored."""

    def after(self, entry: JournalEntry, cipher: BodyCipher | None) -> list[object]:
        """The values for `KEEP_ROWS`."""
        run, session = run_row_after(self.run, entry), session_row_after(self.session, entry)
        return [
            *([None] * _OF_RUN if run is None else _run_values(run, cipher)),
            run is not None,
            *([None] * _OF_SESSION if session is None else _session_values(session, cipher)),
            session is not None,
            None if self.session is None else self.session.last_position,
            self.rest,
        ]


async def rows_before(db: Connection, leases: Sequence[Lease]) -> dict[int, KnownRows]:
    """What is known of each lease's run and session, by its index.

    One that is not held any more is left out.
    """
    columns = (
        [lease.session_id for lease in leases],
        [lease.epoch for lease in leases],
        [lease.run_id for lease in leases],
    )
    found = await db.execute(_KNOWN, columns, binary=True)
    rows = await found.fetchall()
    try:
        return {row[0] - 1: _known_rows(_head(row), row[4:]) for row in rows}
    except DamagedRowsError:
        await doubt_all(db)
        return {row[0] - 1: KnownRows(_head(row), None, None, None) for row in rows}


def _head(row: PostgresRow) -> ChainHead:
    return ChainHead(row[1], row[2], row[3] or GENESIS)


def _known_rows(head: ChainHead, columns: PostgresRow) -> KnownRows:
    run, session = columns[:_OF_RUN], columns[_OF_RUN:]
    return KnownRows(
        head,
        None if run[0] is None else _run(run),
        None if session[0] is None else _session(session),
        session[-1],
    )


def _prefix(prefix: str, columns: str) -> str:
    return ", ".join(f"{prefix}.{column}" for column in columns.split(", "))


# LATERAL: one look-up for each session, also by a plan of the time when the table was empty.
_KNOWN: Final = (
    f"SELECT h.number, h.epoch, l.last_position, l.chain, {_prefix('r', RUN_COLUMNS)}, "  # noqa: S608  # constants
    f"{_prefix('s', SESSION_COLUMNS)} FROM unnest(%s::text[], %s::bigint[], %s::text[]) "
    "WITH ORDINALITY AS h (session_id, epoch, run_id, number) CROSS JOIN LATERAL (SELECT "
    "last_position, chain FROM minions.leases WHERE session_id = h.session_id AND epoch = h.epoch "
    "AND run_id = h.run_id AND deadline IS NOT NULL) l "
    "LEFT JOIN minions.runs r ON r.run_id = h.run_id "
    "LEFT JOIN minions.sessions s ON s.session_id = h.session_id"
).encode()


def _run_values(row: RunRow, cipher: BodyCipher | None) -> list[object]:
    return [
        row.run_id, row.session_id, row.position, search_key(row.recipe), row.status,
        row.started_at, rest_of_run(row, cipher), user_key(row), project_key(row), row.day,
        *row.spent, *row.day_spent, None if row.schedule is row.token else started_key(row),
    ]  # fmt: skip


def _session_values(row: SessionRow, cipher: BodyCipher | None) -> list[object]:
    return [
        row.session_id, name_key(row, cipher),
        None if row.parent is None else search_key(row.parent), row.updated_at,
        row.last_position, user_key(row), project_key(row), row.expires_at,
        rest_of_session(row, cipher),
    ]  # fmt: skip


async def make_anew(
    db: Connection,
    session_ids: Collection[str],
    entries: Iterable[JournalEntry],
    cipher: BodyCipher | None,
) -> None:
    """The rows of these sessions.

    Args:
        entries: All of these sessions that lists are made of, in order.
    """
    rows, ids = folded(entries), list(session_ids)
    for table in ("runs", "sessions", "changed_sessions"):
        sql = f"DELETE FROM minions.{table} WHERE session_id = ANY(%s)"  # noqa: S608  # constants
        # A plan that was made while the tables were empty would read all of them.
        await db.execute(sql.encode(), [ids], prepare=False)
    for statement, values in (
        (_PUT_RUNS, [_run_values(row, cipher) for row in rows.runs.values()]),
        (_PUT_SESSIONS, [_session_values(row, cipher) for row in rows.sessions.values()]),
    ):
        if values:  # in one statement, column by column
            await db.execute(statement, [list(column) for column in zip(*values, strict=True)])


async def keep_spending(db: Connection, session_id: str, today: int) -> None:
    """What the runs of a session spent, before their rows are removed."""
    sql = (
        f"SELECT {RUN_COLUMNS} FROM minions.runs WHERE session_id = %s "  # noqa: S608  # constants
        "AND (tokens > 0 OR cost_usd > 0)"
    )
    found = await db.execute(sql.encode(), [session_id], binary=True)
    rows = [_run(row) for row in await found.fetchall()]
    await db.execute("DELETE FROM minions.removed_spending WHERE day <= %s", [today - MOST_DAYS])
    async with db.cursor() as cursor:
        await cursor.executemany(
            "INSERT INTO minions.removed_spending VALUES (%s, %s, %s, %s, %s, %s, %s)",
            list(removed_spending(rows, today)),
        )


def _put(table: str, columns: str, kinds: str, values: str) -> str:
    """Rows in the place of those that are there.

    Args:
        values: `{}` in it is where the columns go.
    """
    key, *names = columns.split(", ")
    typed = ", ".join(f"%s::{kind}" for kind in kinds.split(", "))
    changes = ", ".join(f"{name} = excluded.{name}" for name in names)
    return (
        f"INSERT INTO minions.{table} ({columns}) {values.format(typed)} "
        f"ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )


def _put_many(table: str, columns: str, kinds: str) -> bytes:
    lists = ", ".join(f"{kind}[]" for kind in kinds.split(", "))
    return _put(table, columns, lists, "SELECT * FROM unnest({})").encode()


_KINDS_OF_RUN: Final = (
    "text, text, bigint, text, text, timestamptz, text, "
    "text, text, bigint, bigint, float8, bigint, float8, text"
)
_RUN: Final = ("runs", RUN_COLUMNS, _KINDS_OF_RUN)
_OF_RUN: Final = len(RUN_COLUMNS.split(", "))
_REST: Final = RUN_COLUMNS.split(", ").index("rest")
_SESSION: Final = (
    "sessions", SESSION_COLUMNS,
    "text, text, text, timestamptz, bigint, text, text, timestamptz, text",
)  # fmt: skip
_OF_SESSION: Final = len(SESSION_COLUMNS.split(", "))
_PUT_RUNS: Final = _put_many(*_RUN)
_PUT_SESSIONS: Final = _put_many(*_SESSION)

KEEP_ROWS: Final = (
    f"kept_run AS ({_put(*_RUN, 'SELECT {} FROM owned WHERE %s')}), "  # noqa: S608  # constants
    f"kept_session AS ({_put(*_SESSION, 'SELECT {} FROM owned WHERE %s')} "
    "WHERE sessions.last_position = %s::bigint AND sessions.rest = %s::text)"
)
"""Parts of the statement that appends an entry.

Where somebody made the rows anew since they were read, the session's stays as it is. The trigger
sees that it is not of this entry, and both are made anew once more.
"""


# --- what may be wrong -----------------------------------------------------------------------


CHANGED_SESSIONS: Final = (
    f"SELECT session_id FROM minions.changed_sessions ORDER BY session_id LIMIT {_SOME}"  # noqa: S608  # a number
)
"""Some of the sessions whose rows are to be made anew."""


async def changed_sessions(db: Connection) -> list[str]:
    """Some of the sessions whose rows are to be made anew."""
    found = await db.execute(CHANGED_SESSIONS)
    return [session_id for (session_id,) in await found.fetchall()]


async def doubt_all(db: Connection) -> None:
    """All rows are to be made anew."""
    await db.execute(
        "INSERT INTO minions.changed_sessions (session_id) SELECT DISTINCT session_id "
        "FROM minions.entries WHERE kind IN ('run', 'session') ON CONFLICT DO NOTHING"
    )


# --- reading ---------------------------------------------------------------------------------


def _as_it_is(at: datetime) -> datetime:
    return at


_DIALECT: Final = Dialect(
    mark="%s",
    schema="minions.",
    one_of="{column} = ANY(%s)",
    list_of=list,
    time=_as_it_is,
    unordered="{column}",
    like="ILIKE",
    bytes_of="octet_length({column})",
    in_state="({column} AT TIME ZONE 'UTC')",
)


async def runs_page(
    db: Connection, wanted: RunFilter, after: Place | None, part: Part
) -> list[RunRow]:
    """Runs that fit, but for their text.

    Raises:
        DamagedRowsError: A row holds what was never written to it.
    """
    return [_run(row) for row in await _rows(db, runs_question(_DIALECT, wanted, after, part))]


async def searched_runs(
    db: Connection, wanted: RunFilter, after: Place | None, most: int
) -> SearchedPart[RunRow]:
    """Those of the next `most` runs that may fit.

    Raises:
        DamagedRowsError: A row holds what was never written to it.
    """
    end = Part(limit=1, offset=most - 1)
    columns = "started_at, run_id"
    edge = await _edge(db, runs_question(_DIALECT, wanted, after, end, columns=columns))
    search = Search([*(wanted.text or "").split(), *wanted.phrases], edge)
    part = READ if wanted.bounds else FOUND
    question = runs_question(_DIALECT, wanted, after, Part(limit=part), search=search)
    rows = await _rows(db, question)
    found = [_run(row) for row in rows if has_usage(str(row[_REST]), wanted.bounds)]
    return SearchedPart(found, place_of(_run(rows[-1])) if len(rows) == part else edge)


async def uses_page(
    db: Connection, wanted: RunFilter, by: UseGroup, after: Place | None, part: Part
) -> UsesPage:
    """What runs that fit used.

    Raises:
        DamagedRowsError: A row holds what was never written to it.
    """
    rows: list[PostgresRow] = [*await _rows(db, uses_question(_DIALECT, wanted, by, after, part))]
    try:
        uses = [stored_use(by, row[0], row[1], micros(_utc(row[2])), row[3]) for row in rows]
        behind = Place(_utc(rows[-1][2]), rows[-1][4]) if rows else None
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedRowsError from error
    return UsesPage(uses, behind)


async def sessions_page(
    db: Connection,
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
    return [_session(row) for row in await _rows(db, question)]


async def searched_sessions(
    db: Connection,
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
    question = sessions_question(_DIALECT, wanted, after, end, cipher, columns=columns)
    edge = await _edge(db, question)
    search = Search((wanted.text or "").split(), edge)
    part = Part(limit=FOUND)
    question = sessions_question(_DIALECT, wanted, after, part, cipher, search=search)
    found = [_session(row) for row in await _rows(db, question)]
    return SearchedPart(found, place_of(found[-1]) if len(found) == FOUND else edge)


async def _edge(db: Connection, question: Question) -> Place | None:
    rows = await _rows(db, question)
    return Place(_utc(rows[0][0]), str(rows[0][1])) if rows else None


async def count_runs(db: Connection, wanted: RunFilter, at_most: int | None) -> int:
    """How many fit, but for their text; None: all of them are counted."""
    return await _number(db, runs_count_question(_DIALECT, wanted, at_most))


async def is_ambiguous(db: Connection, start: str) -> bool:
    """Whether the ids of several runs start so."""
    return await _number(db, few_question(_DIALECT, start)) > 1


async def spent(db: Connection, spender: Spender, without: Collection[str]) -> Spent:
    """What the rows say."""
    ((tokens, cost_usd),) = await _rows(db, spent_question(_DIALECT, spender, without))
    found = Spent(int(str(tokens)), float(str(cost_usd)))
    if spender.day is not None and spender.days > 1:
        for row in await _rows(db, earlier_question(_DIALECT, spender, without)):
            found = found.plus(spender.earlier_of(_run(row)))
    return found


async def totals(db: Connection, wanted: RunFilter) -> dict[str, StateTotal]:
    """What the rows of each state say."""
    rows = await _rows(db, totals_question(_DIALECT, wanted))
    return {
        str(status): StateTotal(int(str(count)), Spent(int(str(tokens)), float(str(cost))))
        for status, count, tokens, cost in rows
    }


async def count_sessions(
    db: Connection, wanted: SessionFilter, at_most: int | None, cipher: BodyCipher | None
) -> int:
    """How many fit, but for their text; None: all of them are counted."""
    return await _number(db, sessions_count_question(_DIALECT, wanted, at_most, cipher))


async def _rows(db: Connection, question: Question) -> list[tuple[object, ...]]:
    found = await db.execute(question.sql.encode(), question.values, binary=True)
    return await found.fetchall()


async def _number(db: Connection, question: Question) -> int:
    ((count,),) = await _rows(db, question)
    return int(str(count))


def _run(row: PostgresRow) -> RunRow:
    try:
        run_id, session_id, position, recipe, status, started_at, *others = row
        return run_of(run_id, session_id, position, recipe, status, _utc(started_at), *others)
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedRowsError from error


def _session(row: PostgresRow) -> SessionRow:
    try:
        session_id, name, parent, updated_at, *others = row
        return session_of(session_id, name, parent, _utc(updated_at), *others)
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedRowsError from error


def _utc(at: object) -> datetime:
    if not isinstance(at, datetime):
        raise TypeError("it has no time")
    return at.astimezone(UTC)
