"""Entries of the PostgreSQL journal: how they are stored, looked up and read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from attrs import field, frozen
from msgspec.structs import replace

from minions.adapters.stores import postgres_rows
from minions.adapters.stores.body_cipher import BodyCipher, entry_names
from minions.adapters.stores.call_groups import GroupTerms
from minions.adapters.stores.postgres_groups import CallKind
from minions.adapters.stores.postgres_leases import Heads, fenced_error
from minions.adapters.stores.postgres_link import Attempt, DamageError
from minions.adapters.stores.stored_rows import folds_later, read_fact
from minions.contracts.journal.chain import (
    GENESIS,
    ChainedRow,
    ChainHead,
    StoredChain,
    hashed_body,
    link,
)
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease, body_text
from minions.contracts.journal.run_rows import JUDGED, LISTED, micros
from minions.data.errors import FencedError, JournalError

if TYPE_CHECKING:
    from psycopg import AsyncCursor
    from psycopg.rows import TupleRow

    from minions.adapters.stores.postgres_database import Connection

_LARGEST_INTEGER: Final = 2**63 - 1


def new_entry(lease: Lease, draft: EntryDraft, now: datetime) -> JournalEntry:
    """The entry of a draft, before its position is known."""
    return JournalEntry(
        session_id=lease.session_id,
        position=0,  # the database gives it
        run_id=lease.run_id,
        generation=lease.generation,
        key=draft.key,
        fact=draft.fact,
        epoch=lease.epoch,
        at=now,
    )


def stored_body(
    draft: EntryDraft | JournalEntry,
    session_id: str,
    run_id: str,
    generation: int,
    cipher: BodyCipher | None,
) -> bytes:
    """The body as it is stored in the row.

    Args:
        cipher: Encrypts it, bound to the session, run and generation; None: it is stored as it is.
    """
    text = body_text(draft)
    if cipher is not None:
        names = entry_names(session_id, run_id, generation, draft.key, draft.kind, draft.state)
        text = cipher.seal(text, *names)
    return text.encode("utf-8", "surrogatepass")


async def _append_singly(attempt: Attempt, append: Append) -> JournalEntry:
    """The lease is looked at, the next position taken and the row written, or nothing of it."""
    from psycopg.errors import UniqueViolation

    db, entry, heads = attempt.connection, append.entry, append.heads
    try:
        done = await (_append_listed if append.changes_rows else _append_alone)(db, append)
    except UniqueViolation:
        heads.pop(entry.session_id, None)
        stored = await _stored(db, entry)
        if attempt.is_again and _is_ours(stored, entry, append.body):
            return replace(entry, position=stored.position)
        raise duplicate_error(entry, stored.position) from None
    if done is not None:
        heads[entry.session_id] = done
        return replace(entry, position=done.position)
    heads.pop(entry.session_id, None)
    left = await find_entry(db, entry) if attempt.is_again else None
    if left is not None and _is_ours(left, entry, append.body):
        return replace(entry, position=left.position)  # stored, and then the lease was lost
    raise await fenced_error(db, append.lease)


async def _append_alone(db: Connection, append: Append) -> ChainHead | None:
    """None: the lease is not ours any more."""
    entry = append.entry
    head = append.heads.get(entry.session_id)
    if head is None or head.epoch != entry.epoch:
        head = await _read_head(db, append.lease)
    while head is not None:
        _refuse_earlier(append, head)
        after = append.head_after(head)
        values = [
            after.value, head.position, entry.session_id, entry.epoch, entry.run_id,
            entry.session_id, entry.run_id, entry.generation, entry.key, entry.kind,
            entry.state, append.body, entry.epoch, entry.at,
        ]  # fmt: skip
        if (await db.execute(_APPEND, values, binary=True)).rowcount:
            return after
        head = await _read_head(db, append.lease)
    return None


def _refuse_earlier(append: Append, head: ChainHead) -> None:
    """Refuse to append to a session that has fewer facts than this journal stored under the lease:
    the database was restored to an earlier time, and facts would be missing before the new one.

    Raises:
        FencedError: It is so; whoever takes the run up anew continues from what is there.
    """
    if not _is_earlier(append, head):
        return
    lease = append.lease
    raise FencedError(
        f"Worker '{lease.worker_id}' may no longer write run '{lease.run_id}' of session "
        f"'{lease.session_id}': it stored {append.heads[lease.session_id].position} facts, and the "
        f"database has {head.position} of them. It was restored to an earlier time. Nothing "
        "was stored; what is missing is done again when the run is resumed."
    )


def _is_earlier(append: Append, head: ChainHead) -> bool:
    known = append.heads.get(append.entry.session_id)
    return known is not None and known.epoch == head.epoch and known.position > head.position


async def _read_head(db: Connection, lease: Lease) -> ChainHead | None:
    """The end of the session's chain; None: the lease is not held any more."""
    found = await db.execute(
        "SELECT last_position, chain FROM minions.leases WHERE session_id = %s AND epoch = %s "
        "AND run_id = %s AND deadline IS NOT NULL",
        [lease.session_id, lease.epoch, lease.run_id],
        binary=True,
    )
    row = await found.fetchone()
    return None if row is None else ChainHead(lease.epoch, row[0], row[1] or GENESIS)


_APPEND: Final = """
WITH owned AS (
    UPDATE minions.leases SET last_position = last_position + 1, chain = %s
    WHERE last_position = %s AND session_id = %s AND epoch = %s AND run_id = %s
        AND deadline IS NOT NULL
    RETURNING last_position, chain, listened_until > clock_timestamp() AS is_listened_to
), added AS (
    INSERT INTO minions.entries
        (session_id, position, run_id, generation, key, kind, state, body, epoch, at, chain)
    SELECT %s, last_position, %s, %s, %s, %s, %s, %s, %s, %s, chain FROM owned
    RETURNING session_id, position
)
SELECT position, CASE WHEN is_listened_to THEN
    pg_notify('minions_facts', position || ' ' || session_id) END FROM added, owned
"""


async def _append_listed(db: Connection, append: Append) -> ChainHead | None:
    """With the rows of its run and session; None: the lease is not ours any more.

    They are made of what is read first, which only the holder of the lease changes: where the
    lease or its position is another one meanwhile, nothing is stored.
    """
    while known := await postgres_rows.rows_before(db, [append.lease]):
        _refuse_earlier(append, known[0].head)
        done = await _append_with_rows(db, append, known[0])
        if done.rowcount:
            return append.head_after(known[0].head)
    return None


async def _append_with_rows(
    db: Connection, append: Append, known: postgres_rows.KnownRows, *, waits: bool = True
) -> AsyncCursor[TupleRow]:
    """Store nothing where the session has another position than the rows that were read.

    Args:
        waits: Where another connection has locked the lease; else nothing is stored.
    """
    entry, head, after = append.entry, known.head, append.head_after(known.head)
    placed = replace(entry, position=after.position)
    values = [
        after.value, head.position, entry.session_id, entry.epoch, entry.run_id,
        entry.session_id, entry.run_id, entry.generation, entry.key, entry.kind,
        entry.state, append.body, entry.epoch, entry.at, *known.after(placed, append.cipher),
    ]  # fmt: skip
    return await db.execute(_APPEND_LISTED if waits else _APPEND_UNLOCKED, values, binary=True)


_APPEND_LISTED: Final = _APPEND.replace(
    "\n)\nSELECT", f"\n), {postgres_rows.KEEP_ROWS}\nSELECT", 1
).encode()
_APPEND_UNLOCKED: Final = _APPEND_LISTED.replace(
    b"WHERE last_position",
    b"WHERE session_id IN (SELECT session_id FROM minions.leases WHERE last_position",
    1,
).replace(b"IS NOT NULL", b"IS NOT NULL FOR UPDATE SKIP LOCKED)", 1)


@frozen
class _EntryRow:
    """What stands under a name."""

    position: int
    epoch: int
    at: datetime
    body: bytes


async def find_entry(db: Connection, entry: JournalEntry) -> _EntryRow | None:
    """The row with the key, kind, state and generation of an entry; None: there is none."""
    found = await db.execute(
        "SELECT position, epoch, at, body FROM minions.entries WHERE run_id = %s "
        "AND generation = %s AND key = %s AND kind = %s AND state = %s",
        [entry.run_id, entry.generation, entry.key, entry.kind, entry.state],
        binary=True,
    )
    row = await found.fetchone()
    return None if row is None else _EntryRow(*row)


async def _stored(db: Connection, entry: JournalEntry) -> _EntryRow:
    if (found := await find_entry(db, entry)) is None:
        raise DamageError(f"positions of session {entry.session_id!r} were used twice")
    return found


def _is_ours(stored: _EntryRow, entry: JournalEntry, body: bytes) -> bool:
    """Whether it is what an attempt before this one stored, whose answer was lost."""
    return (stored.epoch, stored.at, stored.body) == (entry.epoch, entry.at, body)


def duplicate_error(entry: JournalEntry, position: int) -> JournalError:
    """The error of a fact that its key has already."""
    return JournalError(
        f"Run '{entry.run_id}' (generation {entry.generation}) already has the entry "
        f"{entry.kind} '{entry.key}' {entry.state}, at position {position}. Nothing was stored.",
        code="duplicate-entry",
    )


@frozen
class EntriesQuery:
    """A query for entries, with its parameters."""

    sql: str
    parameters: Sequence[object]


def entries_query(
    session_id: str | None,
    run_id: str | None,
    after: int,
    until: int | None = None,
    kinds: Collection[str] | None = None,
    limit: int | None = None,
    *,
    newest_first: bool = False,
) -> EntriesQuery:
    """The query of `Journal.entries`."""
    conditions, parameters = ["position > %s"], list[object]([_integer(after)])
    for condition, value in (("session_id = %s", session_id), ("run_id = %s", run_id)):
        if value is not None:
            conditions.append(condition)
            parameters.append(value)
    if until is not None:
        conditions.append("position <= %s")
        parameters.append(_integer(until))
    if kinds is not None:
        conditions.append("kind = ANY(%s)")
        parameters.append(list(kinds))
        if LISTED.issuperset(kinds) and (run_id is None or session_id is not None):
            conditions.append("kind IN ('run', 'session')")  # as written in the index
        if JUDGED.issuperset(kinds) and run_id is None:
            conditions.append("kind IN ('mark', 'decision')")  # likewise
    order = "DESC" if newest_first else "ASC"
    if limit is not None:
        parameters.append(_integer(max(limit, 0)))
    sql = (
        f"{_SELECT} WHERE {' AND '.join(conditions)} "
        f"ORDER BY session_id {order}, position {order}{'' if limit is None else ' LIMIT %s'}"
    )
    return EntriesQuery(sql, parameters)


_SELECT: Final = (
    "SELECT session_id, position, run_id, generation, key, kind, state, body, epoch, at "
    "FROM minions.entries"
)

_CHAINED: Final = b"""
SELECT l.epoch, l.last_position, l.chain, e.session_id, e.position, e.run_id, e.generation, e.key,
    e.kind, e.state, e.body, e.epoch, e.at, e.chain
FROM (SELECT %s::text AS session_id) s LEFT JOIN minions.leases l USING (session_id)
LEFT JOIN minions.entries e USING (session_id) ORDER BY e.position
"""

CHAINED_SESSIONS: Final = (
    "SELECT DISTINCT session_id FROM minions.entries UNION SELECT session_id FROM minions.leases "
    "WHERE last_position > 0 ORDER BY session_id"
)


CHAIN_END: Final = (
    "SELECT epoch, position, chain FROM minions.entries WHERE session_id = %s "
    "ORDER BY position DESC LIMIT 1"
)


async def read_chain(db: Connection, session_id: str) -> StoredChain:
    """What is stored of a session, for `Journal.verify`."""
    rows = await (await db.execute(_CHAINED, [session_id], binary=True)).fetchall()
    epoch, last, value, *_ = rows[0]
    head = None if not last else ChainHead(epoch, last, value or b"")
    return StoredChain([_chained_row(row[3:]) for row in rows if row[4] is not None], head)


def _chained_row(row: postgres_rows.PostgresRow) -> ChainedRow:
    session_id, position, run_id, generation, key, kind, state, body, epoch, at, chain = row
    text, digest = hashed_body(body)
    return ChainedRow(
        session_id=session_id,
        position=position,
        run_id=run_id,
        generation=generation,
        key=key,
        kind=kind,
        state=state,
        body=text,
        body_digest=digest,
        epoch=epoch,
        at=micros(at),
        chain=chain,
        raw=body if text is None else None,
    )


LISTED_OF: Final = (
    f"{_SELECT} WHERE session_id = ANY(%s) AND kind IN ('run', 'session') "
    "ORDER BY session_id, position"
)


def _integer(number: int) -> int:
    """The nearest one that the database knows."""
    return max(min(number, _LARGEST_INTEGER), -_LARGEST_INTEGER)


async def read_entries(
    db: Connection, query: EntriesQuery, cipher: BodyCipher | None
) -> Sequence[JournalEntry]:
    """The entries that a query finds, oldest or newest first as it says.

    Args:
        cipher: Decrypts them; None: there is no key.
    Raises:
        JournalError: `journal-key-missing`, `journal-key-wrong`.
    """
    found = await db.execute(query.sql.encode(), query.parameters, binary=True)
    rows = await found.fetchall()
    return [_entry(row, cipher) for row in rows]


_Row = tuple[str, int, str, int, str, str, str, bytes, int, datetime]


def _entry(row: _Row, cipher: BodyCipher | None) -> JournalEntry:
    session_id, position, run_id, generation, key, kind, state, body, epoch, at = row
    if cipher is not None:
        body = cipher.open(body, *entry_names(session_id, run_id, generation, key, kind, state))
    return JournalEntry(
        session_id=session_id,
        position=position,
        run_id=run_id,
        generation=generation,
        key=key,
        fact=read_fact(kind, state, body),
        epoch=epoch,
        at=at.astimezone(UTC),
    )


# --- appends to the PostgreSQL journal -----------------------------------------------------------


@frozen
class Append:
    """One fact that is to be stored."""

    lease: Lease
    entry: JournalEntry
    """Without its position."""
    body: bytes
    heads: Heads = field(eq=False, repr=False)
    """The ends of the chains that its journal object knows."""
    cipher: BodyCipher | None = field(default=None, eq=False, repr=False)
    """Encrypts the words of rows."""

    @property
    def changes_rows(self) -> bool:
        """Whether rows of lists are stored with it, and not made of it later, for which somebody
        who only lists would need the key.
        """
        if self.entry.kind not in LISTED:
            return False
        return self.cipher is not None or not folds_later(self.lease)

    def head_after(self, head: ChainHead) -> ChainHead:
        """The end of the chain once it is stored behind `head`."""
        position = head.position + 1
        return ChainHead(
            self.entry.epoch, position, entry_link(head.value, self.entry, position, self.body)
        )


def entry_link(before: bytes, entry: JournalEntry, position: int, body: bytes) -> bytes:
    """The chain value of an entry at that position."""
    return link(
        before,
        (
            entry.session_id, position, entry.run_id, entry.generation, entry.key, entry.kind,
            entry.state, *hashed_body(body), entry.epoch, micros(entry.at),
        ),
    )  # fmt: skip


async def _append_together(db: Connection, appends: Sequence[Append]) -> Mapping[int, JournalEntry]:
    """Those whose lease is held and not locked; a duplicate among them makes it raise.

    Left out are those of sessions whose end is not known here.
    """
    if appends[0].changes_rows:
        return await _append_in_pipeline(db, appends)
    first, last = dict[str, tuple[Append, int]](), Heads()
    indexes, rows = list[int](), list[tuple[object, ...]]()
    for index, append in enumerate(appends):
        entry = append.entry
        session_id, head = entry.session_id, append.heads.get(entry.session_id)
        if session_id not in first and head is not None:
            first[session_id], last[session_id] = (append, head.position), head
        beside = first.get(session_id)
        # All of a session are of one lease: either all of them are placed, or none.
        if beside is None or head is None or head.epoch != entry.epoch:
            continue
        if beside[0].lease.run_id != entry.run_id:
            continue
        last[session_id] = append.head_after(last[session_id])
        indexes.append(index)
        rows.append(
            (
                session_id, entry.run_id, entry.epoch, entry.generation, entry.key, entry.kind,
                entry.state, append.body, entry.at, beside[1], last[session_id].value,
            )
        )  # fmt: skip
    if not rows:
        return {}
    columns = [list(column) for column in zip(*rows, strict=True)]
    found = await db.execute(_APPEND_TOGETHER, columns, binary=True)
    stored = {}
    for number, position, _ in await found.fetchall():
        index = indexes[number - 1]
        append = appends[index]
        stored[index] = replace(append.entry, position=position)
        append.heads[append.entry.session_id] = last[append.entry.session_id]
    return stored


# A lease whose row another connection has locked is left out: to wait for it would hold up the
# other runs, and two groups that wait for each other would never end. LATERAL: one look-up for each
# session, also by a plan that was made while the table was empty.
_APPEND_TOGETHER: Final = b"""
WITH appended AS (
    SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[],
        %s::text[], %s::text[], %s::bytea[], %s::timestamptz[], %s::bigint[], %s::bytea[])
        WITH ORDINALITY AS a (session_id, run_id, epoch, generation, key, kind, state, body, at,
        last_position, chain, number)
), held AS (
    SELECT l.* FROM (SELECT DISTINCT session_id FROM appended) a CROSS JOIN LATERAL (
        SELECT session_id, run_id, epoch, last_position,
            listened_until > clock_timestamp() AS is_listened_to
        FROM minions.leases
        WHERE session_id = a.session_id AND deadline IS NOT NULL FOR UPDATE SKIP LOCKED
    ) l
), placed AS (
    SELECT a.session_id, a.run_id, a.generation, a.key, a.kind, a.state, a.body, a.epoch, a.at,
        a.chain, a.number, h.is_listened_to, a.last_position
        + row_number() OVER (PARTITION BY a.session_id ORDER BY a.number) AS position
    FROM appended a JOIN held h USING (session_id, run_id, epoch, last_position)
), counted AS (
    UPDATE minions.leases l SET last_position = last.position, chain = last.chain
    FROM (SELECT DISTINCT ON (session_id) session_id, position, chain FROM placed
        ORDER BY session_id, position DESC) last
    WHERE l.session_id = last.session_id
), added AS (
    INSERT INTO minions.entries
        (session_id, position, run_id, generation, key, kind, state, body, epoch, at, chain)
    SELECT session_id, position, run_id, generation, key, kind, state, body, epoch, at, chain
    FROM placed ORDER BY number
)
SELECT number, position, CASE WHEN is_listened_to THEN
    pg_notify('minions_facts', position || ' ' || session_id) END FROM placed
ORDER BY number
"""


async def _append_in_pipeline(
    db: Connection, appends: Sequence[Append]
) -> Mapping[int, JournalEntry]:
    """One for each session, with its rows: a statement each, sent together as one transaction."""
    import psycopg

    if not psycopg.Pipeline.is_supported():  # libpq before 14
        return {}
    known = await postgres_rows.rows_before(db, [append.lease for append in appends])
    known = {  # the others are refused one by one
        number: before
        for number, before in known.items()
        if not _is_earlier(appends[number], before.head)
    }
    async with db.pipeline():
        done = {
            number: await _append_with_rows(db, appends[number], before, waits=False)
            for number, before in known.items()
        }
    stored = {}
    for number, cursor in done.items():
        if cursor.rowcount:
            append = appends[number]
            head = append.head_after(known[number].head)
            append.heads[append.entry.session_id] = head
            stored[number] = replace(append.entry, position=head.position)
    return stored


def _terms(append: Append) -> GroupTerms:
    entry, size = append.entry, len(append.body)
    if append.changes_rows:  # one for each session: the rows are those before it
        return GroupTerms(entry.session_id, entry.session_id, size, variety="listed")
    name = (entry.run_id, entry.generation, entry.key, entry.kind, entry.state)
    return GroupTerms(entry.session_id, name, size)


APPENDS: Final = CallKind(alone=_append_singly, together=_append_together, terms=_terms)
