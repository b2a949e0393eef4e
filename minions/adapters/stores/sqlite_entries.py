"""Entries of the SQLite journal: how they are stored, looked up and read."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from minions.adapters.stores import sqlite_rows
from minions.adapters.stores.body_cipher import (
    BodyCipher,
    entry_names,
    is_sealed,
    is_sealed_blob,
    key_missing,
    with_names,
)
from minions.adapters.stores.sqlite_database import is_busy, readable_rows, some_rows, transaction
from minions.adapters.stores.sqlite_file import DamageError
from minions.adapters.stores.sqlite_leases import (
    Heads,
    check_owner,
    find_lease,
    insert_first_lease,
    read_head,
    release_if_owned,
    release_lease,
)
from minions.adapters.stores.sqlite_rows import as_time
from minions.adapters.stores.stored_rows import folds_later, read_fact
from minions.contracts.journal.chain import (
    GENESIS,
    LARGEST_INLINE_BODY,
    ChainedRow,
    ChainHead,
    StoredChain,
    hashed_body,
    link,
)
from minions.contracts.journal.facts import Fact, UnreadableFact
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease, body_text, digests_in
from minions.contracts.journal.run_rows import EPOCH, JUDGED, LISTED, MICROSECOND, micros
from minions.data.errors import FencedError, JournalError

_LARGEST_INTEGER: Final = 2**63 - 1
_MOST_ROWS: Final = 200
_MOST_BLOBS: Final = 4
_MOST_BYTES: Final = 131_072
"""Rows, and bytes of their bodies and packed blobs, that are read at once: some milliseconds."""


class StoredBody(Struct, frozen=True):
    """A body as its row holds it."""

    text: str | bytes | None
    """Bytes where the text is not valid Unicode; None: too large for the row."""
    digest: str | None = None
    packed: bytes = b""
    """The blob that `digest` is of, compressed."""


def stored_body(
    draft: EntryDraft | JournalEntry,
    *,
    in_parts: bool = False,
    seal: Callable[[str], str] | None = None,
) -> StoredBody:
    """The body as it is stored: in the row, or as a blob if it is large.

    Args:
        in_parts: In a thread beside an event loop, which goes on.
        seal: Encrypts it; None: it is stored as it is.
    """
    text = body_text(draft, in_parts=in_parts)
    if seal is not None:
        text = seal(text)
    # A larger one is a blob, so that reading the rows beside it stays quick.
    if len(text) * 4 <= LARGEST_INLINE_BODY and text.isascii():
        return StoredBody(text)
    # A lone surrogate has no UTF-8: SQLite takes its bytes, not the text.
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > LARGEST_INLINE_BODY:
        return StoredBody(None, hashlib.sha256(data).hexdigest(), packed(data))
    return StoredBody(text if _is_unicode(text) else data)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def append_entries(
    db: sqlite3.Connection,
    lease: Lease,
    drafts: Sequence[EntryDraft],
    bodies: Sequence[StoredBody],
    now: datetime,
    heads: Heads,
    cipher: BodyCipher | None,
    is_last: bool,
) -> Sequence[JournalEntry]:
    """Store entries under a lease, all of them or none, as `Journal.append_all` says.

    Args:
        cipher: Encrypts the words of rows; these are not left to a later fold, for which somebody
            who only lists would need the key.
        is_last: The lease is released with them.
    """
    session_id = lease.session_id
    if (cipher is None and folds_later(lease)) or not any(draft.kind in LISTED for draft in drafts):
        head = heads[session_id] if session_id in heads else None  # noqa: SIM401  # a call less
        if head is not None and head.epoch == lease.epoch:
            stored = _append_at_once(db, lease, drafts, bodies, now, head, heads, is_last=is_last)
            if stored is not None:
                return stored
    entries = list[JournalEntry]()
    with transaction(db):
        try:
            held = check_owner(db, lease)
        except FencedError:
            heads.pop(session_id, None)
            raise
        head = read_head(db, session_id, lease.epoch, held.head, heads.get(session_id))
        for draft, body in zip(drafts, bodies, strict=True):
            entry = JournalEntry(
                session_id=session_id,
                position=head.position + 1,
                run_id=lease.run_id,
                generation=lease.generation,
                key=draft.key,
                fact=draft.fact,
                epoch=lease.epoch,
                at=draft.at or now,
            )
            if draft.kind in LISTED:
                known = sqlite_rows.known(db, session_id, lease.run_id)
                sqlite_rows.mark_unseen(db, session_id)
                known.keep(db, entry, cipher)
            value = insert_entry(db, entry, body, now, head.value)
            head = ChainHead(lease.epoch, entry.position, value)
            entries.append(entry)
        if is_last:
            release_lease(db, lease, head)
    if is_last:
        heads.pop(session_id, None)
    else:
        heads[session_id] = head
    return entries


def open_session(
    db: sqlite3.Connection,
    lease: Lease,
    drafts: Sequence[EntryDraft],
    bodies: Sequence[StoredBody],
    now: datetime,
    ttl_s: float,
    heads: Heads,
) -> Sequence[JournalEntry] | None:
    """Take the first lease of a session and store its first entries, in one transaction.

    None where something is in the way, and nothing was done; what it is, another way will tell.
    """
    made = _entries_of(lease, drafts, bodies, now, ChainHead(1, 0, GENESIS))
    if made is None:
        return None
    try:
        with transaction(db):
            if not insert_first_lease(db, lease, now, ttl_s):
                return None
            db.execute(_insert_after(len(drafts)), made.values)
    except sqlite3.IntegrityError:
        return None
    heads[lease.session_id] = made.head
    return made.entries


class _NewRows(NamedTuple):
    """Entries with what their statement is given."""

    entries: list[JournalEntry]
    values: list[str | bytes | int | None]
    head: ChainHead
    """The end of the chain behind them."""


def _entries_of(
    lease: Lease,
    drafts: Sequence[EntryDraft],
    bodies: Sequence[StoredBody],
    now: datetime,
    head: ChainHead,
) -> _NewRows | None:
    """None: one is large, or no Unicode."""
    session_id, run_id, generation, epoch = (
        lease.session_id, lease.run_id, lease.generation, lease.epoch
    )  # fmt: skip
    position, value, entries = head.position, head.value, list[JournalEntry]()
    values: list[str | bytes | int | None] = [session_id, run_id, generation, epoch, position]
    for draft, body in zip(drafts, bodies, strict=True):
        if body.digest is not None or type(body.text) is not str:
            return None
        key, fact, text, at = draft.key, draft.fact, body.text, draft.at or now
        kind, state, time = fact.kind, fact.state, (at - EPOCH) // MICROSECOND
        position += 1
        value = link(
            value,
            (session_id, position, run_id, generation, key, kind, state, text, None, epoch, time),
        )
        values += (key, kind, state, text, time, value)
        entries += (
            JournalEntry(
                session_id=session_id, position=position, run_id=run_id, generation=generation,
                key=key, fact=fact, epoch=epoch, at=at,
            ),
        )  # fmt: skip
    return _NewRows(entries, values, ChainHead(epoch, position, value))


def _append_at_once(
    db: sqlite3.Connection,
    lease: Lease,
    drafts: Sequence[EntryDraft],
    bodies: Sequence[StoredBody],
    now: datetime,
    head: ChainHead,
    heads: Heads,
    *,
    is_last: bool,
) -> list[JournalEntry] | None:
    """The entries, by one statement that is its own transaction: a third of the time. The last ones
    by two: that which releases the lease looks at it as well.

    None where something is in the way; what it is, the statements one by one will tell.
    """
    made = _entries_of(lease, drafts, bodies, now, head)
    if made is None:
        return None
    try:
        if not is_last:
            if db.execute(_insert_if_owned(len(drafts)), made.values).rowcount < 1:
                return None
            heads[lease.session_id] = made.head
            return made.entries
        with transaction(db):
            if not release_if_owned(db, lease, head, made.head):
                return None
            db.execute(_insert_after(len(drafts)), made.values)
    except sqlite3.IntegrityError:
        return None
    heads.pop(lease.session_id, None)
    return made.entries


@functools.cache
def _insert_after(count: int) -> str:
    """With the values of `_insert_if_owned`, where the transaction has looked at the lease."""
    rows = ", ".join(
        f"(?1, ?5 + {number}, ?2, ?3, ?{at}, ?{at + 1}, ?{at + 2}, ?{at + 3}, NULL, ?4, "
        f"?{at + 4}, ?{at + 5})"
        for number, at in enumerate(range(6, 6 * count + 6, 6), 1)
    )
    return f"{_INSERT_INTO} VALUES {rows}"


@functools.cache
def _insert_if_owned(count: int) -> str:
    # Numbered, for those of the lease are used twice.
    places = [
        ", ".join(f"?{at + number}" for number in range(6)) for at in range(6, 6 * count + 6, 6)
    ]
    rows = ", ".join(f"({number}, {each})" for number, each in enumerate(places, 1))
    return (
        f"{_INSERT_INTO} WITH added (number, key, kind, state, body, at, chain) AS "  # noqa: S608  # numbers
        f"(VALUES {rows}) SELECT ?1, added.number + ?5, ?2, ?3, added.key, added.kind, "
        "added.state, added.body, NULL, ?4, added.at, added.chain FROM added WHERE EXISTS (SELECT "
        "1 FROM leases WHERE session_id = ?1 AND epoch = ?4 AND run_id = ?2 AND deadline IS NOT "
        "NULL) AND ifnull((SELECT max(position) FROM entries WHERE session_id = ?1), 0) = ?5"
    )


def insert_entry(
    db: sqlite3.Connection, entry: JournalEntry, body: StoredBody, now: datetime, before: bytes
) -> bytes:
    """One entry, within a transaction; gives its chain value.

    Args:
        now: When its blob is put.
        before: The chain value of the entry before it.
    """
    if body.digest is not None:
        put_blob(db, body.digest, body.packed, micros(now))
    text, digest, at = body.text, body.digest, micros(entry.at)
    if isinstance(text, bytes):
        text, digest = hashed_body(text)
    names = (
        entry.session_id, entry.position, entry.run_id, entry.generation, entry.key, entry.kind,
        entry.state,
    )  # fmt: skip
    value = link(before, (*names, text, digest, entry.epoch, at))
    row = (*names, body.text, body.digest, entry.epoch, at, value)
    try:
        db.execute(_INSERT, row)
    except sqlite3.IntegrityError as error:
        raise duplicate_error(db, entry) from error
    return value


_INSERT_INTO: Final = (
    "INSERT INTO entries (session_id, position, run_id, generation, key, kind, state, body, "
    "body_digest, epoch, at, chain)"
)
_INSERT: Final = f"{_INSERT_INTO} VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"


def duplicate_error(db: sqlite3.Connection, entry: JournalEntry) -> JournalError:
    """The error of a fact that its key has already."""
    row = db.execute(
        "SELECT position FROM entries WHERE run_id = ? AND generation = ? AND key = ? "
        "AND kind = ? AND state = ?",
        (entry.run_id, entry.generation, entry.key, entry.kind, entry.state),
    ).fetchone()
    if row is None:
        raise DamageError(f"an index of the entries of session {entry.session_id!r} is wrong")
    (position,) = row
    return JournalError(
        f"Run '{entry.run_id}' (generation {entry.generation}) already has the entry "
        f"{entry.kind} '{entry.key}' {entry.state}, at position {position}. Nothing was stored.",
        code="duplicate-entry",
    )


class EntriesQuery(Struct, frozen=True):
    """A query for entries, with its parameters."""

    sql: str
    parameters: tuple[str | int, ...]


def _kind_condition(
    kinds: Collection[str], parameters: list[str | int], *, is_of_one_run: bool
) -> str:
    parameters.extend(kinds)
    condition = f"e.kind IN ({','.join('?' * len(kinds))})"
    if LISTED.issuperset(kinds) and not is_of_one_run:  # which an index of its own finds
        # As written in the index: bound values alone would not use it.
        condition += " AND e.kind IN ('run', 'session')"
    if JUDGED.issuperset(kinds) and not is_of_one_run:
        condition += " AND e.kind IN ('mark', 'decision')"
    return condition


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
    conditions, parameters = ["e.position > ?"], list[str | int]([_integer(after)])
    for condition, value in (("e.session_id = ?", session_id), ("e.run_id = ?", run_id)):
        if value is not None:
            conditions.append(condition)
            parameters.append(value)
    if until is not None:
        conditions.append("e.position <= ?")
        parameters.append(_integer(until))
    if kinds is not None:
        is_of_one_run = run_id is not None and session_id is None
        conditions.append(_kind_condition(kinds, parameters, is_of_one_run=is_of_one_run))
    order = "DESC" if newest_first else "ASC"
    if limit is not None:
        parameters.append(_integer(max(limit, 0)))
    sql = (
        f"{_SELECT} WHERE {' AND '.join(conditions)} "
        f"ORDER BY e.session_id {order}, e.position {order}"
        f"{'' if limit is None else ' LIMIT ?'}"
    )
    return EntriesQuery(sql, tuple(parameters))


_SELECT: Final = (
    "SELECT e.session_id, e.position, e.run_id, e.generation, e.key, e.kind, e.state, "
    "CAST(e.body AS BLOB), e.body_digest, b.data, e.epoch, e.at "
    "FROM entries e LEFT JOIN blobs b ON b.digest = e.body_digest"
)

LISTED_OF: Final = (
    f"{_SELECT} WHERE e.session_id IN ({{}}) AND e.kind IN ('run', 'session') "
    "ORDER BY e.session_id, e.position"
)


def _integer(number: int) -> int:
    """The nearest one that SQLite knows."""
    return max(min(number, _LARGEST_INTEGER), -_LARGEST_INTEGER)


_Row = tuple[str, int, str, int, str, str, str, bytes | None, str | None, bytes | None, int, int]


def read_entries(
    db: sqlite3.Connection,
    query: EntriesQuery,
    cipher: BodyCipher | None,
    *,
    in_parts: bool = False,
) -> list[JournalEntry]:
    """The entries that a query finds, oldest or newest first as it says.

    Args:
        cipher: Decrypts them; None: there is no key.
        in_parts: In a thread beside an event loop, which goes on.
    Raises:
        JournalError: `journal-key-missing`, `journal-key-wrong`.
    """
    rows = readable_rows(db, query.sql, query.parameters)
    return [_entry(row, cipher, in_parts=in_parts) for row in rows]


def read_few_entries(
    db: sqlite3.Connection, query: EntriesQuery, cipher: BodyCipher | None
) -> list[JournalEntry] | None:
    """As above; None: they are more than are read at once."""
    rows = some_rows(db, query.sql, query.parameters, _MOST_ROWS, _MOST_BYTES)
    if rows is None:
        return None
    blobs = [row[9] for row in rows if row[8] is not None]
    if len(blobs) > _MOST_BLOBS or any(unpacks_to_more(each, _MOST_BYTES) for each in blobs):
        return None
    return [_entry(row, cipher) for row in rows]


_COLUMNS: Final = (
    ("session_id", str), ("position", int), ("run_id", str), ("generation", int), ("key", str),
    ("kind", str), ("state", str),
)  # fmt: skip

_KINDS: Final = tuple(kind for _, kind in _COLUMNS)


def _entry(row: _Row, cipher: BodyCipher | None, *, in_parts: bool = False) -> JournalEntry:
    if tuple(map(type, row[:7])) != _KINDS or type(row[10]) is not int:
        return _odd_entry(row)
    (
        session_id, position, run_id, generation, key, kind, state,
        body, digest, data, epoch, at,
    ) = row  # fmt: skip
    fact: Fact | UnreadableFact
    try:
        stored = body if digest is None else decompressed(data, digest)
        if cipher is not None and stored is not None:
            names = entry_names(session_id, run_id, generation, key, kind, state)
            stored = cipher.open(stored, *names)
        fact, time = read_fact(kind, state, stored or b"", in_parts=in_parts), as_time(at)
    except DamageError as error:
        fact, time = UnreadableFact(kind=kind, state=state, problem=str(error)), EPOCH
    return JournalEntry(
        session_id=session_id,
        position=position,
        run_id=run_id,
        generation=generation,
        key=key,
        fact=fact,
        epoch=epoch,
        at=time,
    )


def read_chain(db: sqlite3.Connection, session_id: str) -> StoredChain:
    """What is stored of a session, for `Journal.verify`."""
    db.execute("BEGIN")
    try:
        held = find_lease(db, session_id)
        rows = readable_rows(db, _CHAINED, (session_id,))
    finally:
        db.execute("ROLLBACK")
    return StoredChain([_chained_row(row) for row in rows], held.head if held else None)


_CHAINED: Final = f"{_SELECT} WHERE e.session_id = ? ORDER BY e.position".replace(
    "e.at FROM", "e.at, e.chain FROM"
)

CHAIN_END: Final = (
    "SELECT epoch, position, chain FROM entries WHERE session_id = ? ORDER BY position DESC LIMIT 1"
)

CHAINED_SESSIONS: Final = (
    "SELECT DISTINCT session_id FROM entries UNION SELECT session_id FROM leases "
    "WHERE last_position > 0 ORDER BY session_id"
)


def _chained_row(row: Sequence[object]) -> ChainedRow:
    """Columns that cannot be hashed are damage."""
    *names, body, digest, data, epoch, at, chain = row
    odd = [
        f"its {name} is {as_text(value)[:40]!r} ({type(value).__name__})"
        for (name, kind), value in zip(
            [*_COLUMNS, ("epoch", int), ("at", int)], [*names, epoch, at], strict=True
        )
        if type(value) is not kind
    ]
    text: str | None = None
    stored = body if isinstance(body, bytes) else b""
    try:
        if digest is None:
            text, digest = hashed_body(stored)
        else:  # its own digest: one that is another than its name is seen by the chain
            stored = decompressed(data if isinstance(data, bytes) else None, as_text(digest))
            digest = hashlib.sha256(stored).hexdigest()
    except DamageError as error:
        odd.append(f"{error}")
    session_id, position, run_id, generation, key, kind, state = names
    return ChainedRow(
        session_id=as_text(session_id),
        position=_as_number(position),
        run_id=as_text(run_id),
        generation=_as_number(generation),
        key=as_text(key),
        kind=as_text(kind),
        state=as_text(state),
        body=text,
        body_digest=None if digest is None else as_text(digest),
        epoch=_as_number(epoch),
        at=_as_number(at),
        chain=None if chain is None else chain if isinstance(chain, bytes) else b"",
        damage=", ".join(odd) or None,
        raw=stored if text is None else None,
    )


def _odd_entry(row: Sequence[object]) -> JournalEntry:
    """One with values of another kind in its columns, which SQLite keeps as they are."""
    names = [*_COLUMNS, ("epoch", int)]
    values = [*row[:7], row[10]]
    odd = [
        f"its {name} is {as_text(value)[:40]!r} ({type(value).__name__})"
        for (name, kind), value in zip(names, values, strict=True)
        if type(value) is not kind
    ]
    session_id, position, run_id, generation, key, kind, state, epoch = values
    return JournalEntry(
        session_id=as_text(session_id),
        position=_as_number(position),
        run_id=as_text(run_id),
        generation=_as_number(generation),
        key=as_text(key),
        fact=UnreadableFact(kind=as_text(kind), state=as_text(state), problem=", ".join(odd)),
        epoch=_as_number(epoch),
        at=EPOCH,
    )


def as_text(stored: object) -> str:
    """A column that must be text."""
    return stored.decode(errors="replace") if isinstance(stored, bytes) else str(stored)


def _as_number(stored: object) -> int:
    """0, which no entry has, where it is none."""
    return stored if isinstance(stored, int) else 0


# --- the blobs of a SQLite journal, which of them nothing names, and the room that they leave ----


_FAST_COMPRESSION: Final = 1


def packed(data: bytes) -> bytes:
    """The bytes as they are stored."""
    return zlib.compress(data, _FAST_COMPRESSION)


def touch_blob(db: sqlite3.Connection, digest: str, now: int) -> bool:
    """Whether it is there. Whoever puts it again is about to name it: it is young again."""
    touched = db.execute("UPDATE blobs SET put_at = ? WHERE digest = ?", (now, digest))
    return touched.rowcount > 0


def put_blob(db: sqlite3.Connection, digest: str, data: bytes, now: int) -> None:
    """Store it once.

    Args:
        data: Packed.
    """
    if not touch_blob(db, digest, now):
        db.execute(
            "INSERT INTO blobs (digest, data, put_at) VALUES (?, ?, ?) "
            "ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at",
            (digest, data, now),
        )


def useless_blobs(
    db: sqlite3.Connection,
    latest: int,
    cipher: BodyCipher | None,
    only: Collection[str] | None = None,
) -> Mapping[str, int]:
    """Each with its size, in one state of the database.

    Args:
        only: The digests of those that may be among them; None: of all.
    Raises:
        JournalError: `journal-key-missing`; what names a blob is encrypted.
    """
    db.execute("BEGIN")
    try:
        named = set[str]()
        rest = _named_by_entries(db, cipher)
        while rest:
            named |= rest
            found = (get_blob(db, digest, cipher) for digest in rest)
            rest = digests_in(*(data for data in found if data is not None)) - named
        if cipher is not None:
            named.update(*(cipher.names_of(digest) for digest in named))
            only = None if only is None else with_names(only, cipher)
        old = db.execute("SELECT digest, length(data) FROM blobs WHERE put_at <= ?", (latest,))
        return {
            digest: size
            for digest, size in old
            if digest not in named and (only is None or digest in only)
        }
    finally:
        db.execute("ROLLBACK")


def drop_bodies(db: sqlite3.Connection, session_id: str) -> None:
    """The large bodies of a session that no entry of another one has, before its entries go."""
    db.execute(
        "DELETE FROM blobs WHERE digest IN (SELECT e.body_digest FROM entries e WHERE "
        "e.session_id = ?1 AND e.body_digest IS NOT NULL AND NOT EXISTS (SELECT 1 FROM entries o "
        "WHERE o.body_digest = e.body_digest AND o.session_id <> ?1))",
        (session_id,),
    )


def _named_by_entries(db: sqlite3.Connection, cipher: BodyCipher | None) -> set[str]:
    named = set[str]()
    if cipher is None:
        for body, body_digest in db.execute("SELECT body, body_digest FROM entries"):
            if body_digest is not None:
                named.add(body_digest)
            elif is_sealed(body):
                raise key_missing(body)
            else:
                named |= digests_in(body)
        return named
    for row in db.execute(_SELECT):
        session_id, _, run_id, generation, key, kind, state, body, digest, data, *_ = row
        stored = body if digest is None else decompressed(data, digest)
        names = entry_names(session_id, run_id, generation, key, kind, state)
        named |= digests_in(cipher.open(stored, *names))
        if digest is not None:
            named.add(digest)
    return named


def drop_blobs(db: sqlite3.Connection, digests: Collection[str], latest: int) -> None:
    """Those of them that nobody has put again since `latest`."""
    db.execute("PRAGMA secure_delete = ON")  # what was removed is overwritten
    with transaction(db):
        db.executemany(
            "DELETE FROM blobs WHERE digest = ? AND put_at <= ?",
            [(digest, latest) for digest in digests],
        )


def get_blob(db: sqlite3.Connection, digest: str, cipher: BodyCipher | None = None) -> bytes | None:
    """Its bytes, if there is one."""
    name, data = find_blob(db, digest, cipher)
    return None if data is None else unpacked_blob(name, data, cipher)


def find_blob(
    db: sqlite3.Connection, digest: str, cipher: BodyCipher | None
) -> tuple[str, bytes | None]:
    """The name under which it is stored and its bytes as they are stored, if there is one."""
    for name in (digest,) if cipher is None else (*cipher.names_of(digest), digest):
        row = db.execute("SELECT data FROM blobs WHERE digest = ?", (name,)).fetchone()
        if row is not None:
            return name, row[0] or b""
    return digest, None


def unpacked_blob(name: str, data: bytes, cipher: BodyCipher | None) -> bytes:
    """The bytes that were put.

    Raises:
        DamageError: They are not what was stored.
        JournalError: `journal-key-missing`, `journal-key-wrong`.
    """
    if cipher is not None and is_sealed_blob(data):
        return cipher.open_blob(data, name)
    return decompressed(data, name)


def old_blobs(db: sqlite3.Connection, cipher: BodyCipher) -> Sequence[str]:
    """The names of blobs that are not encrypted under the first key, without bodies of entries."""
    rows = db.execute(
        "SELECT digest, substr(data, 1, 100) FROM blobs WHERE digest NOT IN "
        "(SELECT body_digest FROM entries WHERE body_digest IS NOT NULL)"
    )
    return [name for name, start in rows if not cipher.is_current(start)]


def rewrite_blob(db: sqlite3.Connection, name: str, cipher: BodyCipher, now: int) -> None:
    """Store a blob under the first key; the one under the old name is overwritten in the file."""
    db.execute("PRAGMA secure_delete = ON")
    with transaction(db):
        row = db.execute("SELECT data FROM blobs WHERE digest = ?", (name,)).fetchone()
        if row is None:
            return
        data = unpacked_blob(name, row[0], cipher)
        new = cipher.name_of(hashlib.sha256(data).hexdigest())
        put_blob(db, new, cipher.seal_blob(data, new), now)
        db.execute("DELETE FROM blobs WHERE digest = ?", (name,))


def decompressed(data: bytes | None, digest: str) -> bytes:
    """The bytes that were put.

    Raises:
        DamageError: They are not what was stored.
    """
    try:
        return zlib.decompress(data or b"")
    except (zlib.error, TypeError) as error:
        if isinstance(data, bytes) and is_sealed_blob(data):
            raise key_missing(data) from None
        raise DamageError(f"the blob {digest} cannot be unpacked ({error})") from error


def unpacks_to_more(data: bytes | None, most: int) -> bool:
    """Whether these packed bytes are more than so many; False where they cannot be unpacked."""
    unpacking = zlib.decompressobj()
    try:
        return len(unpacking.decompress(data or b"", most + 1)) > most
    except (zlib.error, TypeError):
        return False


def compact(db: sqlite3.Connection, path: Path) -> int:
    """Make the file smaller where nobody else has it open; by how many bytes."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.stat().st_size
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    if not free:
        return 0
    with _not_when_busy():  # only who is alone may leave the mode in which several write
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("VACUUM")
    with _not_when_busy():
        db.execute("PRAGMA journal_mode = WAL")
    return max(before - path.stat().st_size, 0)


def erase(db: sqlite3.Connection) -> bool:
    """Write the file anew, and empty its log; whether nobody was in the way."""
    try:
        db.execute("VACUUM")
        busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        return False
    return not busy


@contextlib.contextmanager
def _not_when_busy() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
