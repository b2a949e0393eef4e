"""The journal in one SQLite file: survives `kill -9`, shared by processes of one machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from minions.adapters.stores import sqlite_rows
from minions.adapters.stores.body_cipher import BodyCipher, entry_names, suppress_lost_keys
from minions.adapters.stores.row_queries import Part, Place, RowLookups, SearchedPart, UsesPage
from minions.adapters.stores.sqlite_database import damaged, readable_rows, transaction
from minions.adapters.stores.sqlite_entries import (
    CHAIN_END,
    CHAINED_SESSIONS,
    LISTED_OF,
    EntriesQuery,
    StoredBody,
    append_entries,
    as_text,
    compact,
    decompressed,
    drop_blobs,
    drop_bodies,
    entries_query,
    erase,
    find_blob,
    insert_entry,
    old_blobs,
    open_session,
    packed,
    put_blob,
    read_chain,
    read_entries,
    read_few_entries,
    rewrite_blob,
    stored_body,
    touch_blob,
    unpacked_blob,
    unpacks_to_more,
    useless_blobs,
)
from minions.adapters.stores.sqlite_file import DamageError, SqliteFile
from minions.adapters.stores.sqlite_leases import (
    Heads,
    LeaseRequest,
    acquire_lease,
    find_lease,
    list_held_leases,
    refuse_if_active,
    release_lease,
    renew_lease,
)
from minions.adapters.stores.sqlite_rows import as_count
from minions.adapters.stores.stored_rows import PendingRows, opened_run, opened_session, search_key
from minions.contracts.journal.chain import GENESIS, ChainHead, StoredChain
from minions.contracts.journal.entry_waiters import EntryWaiters
from minions.contracts.journal.facts import Fact
from minions.contracts.journal.journal import (
    SPARED_S,
    BlobCollection,
    EntryDraft,
    HeldLease,
    JournalEntry,
    Lease,
    OpenedRun,
    bad_entries,
    changed_entries,
    refuse_damaged,
    session_exists,
)
from minions.contracts.journal.run_rows import (
    RunFilter,
    RunRow,
    SessionFilter,
    SessionRow,
    Spender,
    Spent,
    StateTotal,
    UseGroup,
    day_of,
    micros,
)
from minions.contracts.runtime import Clock, Sleep, SystemClock
from minions.data.errors import JournalError, NotFoundError
from minions.data.json_parts import is_large

_LARGE_BLOB: Final = 262_144
"""Bytes that are compressed and written in a thread."""
_LOOK_EVERY_S: Final = 0.03
"""While somebody waits for facts of other processes; a look costs some 10 µs."""

_FRESH_MICROS: Final = 60_000_000
"""Microseconds for which a blob that was put need not be made young again: far less than new ones
are spared."""
_MOST_FRESH: Final = 256

T = TypeVar("T")

_LANDMARKS: Final = ("run", "step")
"""Kinds of entries before which it is made sure that the file is still there."""


class SqliteJournal(RowLookups):
    """Entries in a WAL-mode file, committed inline (some 50 µs); opened at its first use.

    While another process holds the write lock, calls wait between attempts and the event loop
    goes on. Deadlines of leases are times of `clock`, which all processes must share.
    """

    stores_together = True

    def __init__(
        self,
        path: str | PathLike[str],
        clock: Clock | None = None,
        *,
        busy_timeout_s: float = 30.0,
        sleep: Sleep = asyncio.sleep,
        migrations: Mapping[str, str] | None = None,
        cipher: BodyCipher | None = None,
    ) -> None:
        """No I/O here.

        Args:
            path: Of the database; created 0600, its missing directories 0700.
            clock: None: the machine's.
            busy_timeout_s: How long calls wait for a lock of another process, all together.
            migrations: SQL by name, oldest first; None: those of this package.
            cipher: Encrypts the words of runs; None: they are stored as they are.
        """
        self.path = Path(path)
        self.cipher = cipher
        self._clock = clock = clock or SystemClock()
        self._file = SqliteFile(
            self.path,
            busy_timeout_s=busy_timeout_s,
            sleep=sleep,
            monotonic=clock.monotonic,
            migrations=migrations,
        )
        self._sleep = sleep
        self._waiting = EntryWaiters(self._watch)
        self._pending_rows = PendingRows()
        self._heads: Heads = {}
        self._fresh: dict[str, tuple[int, int]] = {}
        """Blobs that this object put a short time ago: the opening of the file, and when."""

    async def acquire(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> Lease:
        """As the contract says; the same worker may acquire its own run again."""
        wanted = LeaseRequest(
            session_id=session_id,
            run_id=run_id,
            worker_id=worker_id,
            next_generation=next_generation,
            takes_over=takes_over,
        )
        return await self._file.run(
            lambda db: acquire_lease(db, wanted, self._clock.now(), ttl_s, self._heads),
            is_landmark=True,
        )

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        """As the contract says; a lease that ran out and that nobody took is kept."""
        await self._file.run(
            lambda db: renew_lease(db, lease, self._clock.now(), ttl_s), is_landmark=True
        )

    async def release(self, lease: Lease) -> None:
        """Let another run of the session begin."""
        head = self._heads.get(lease.session_id)
        await self._file.run(lambda db: release_lease(db, lease, head), is_landmark=True)
        self._heads.pop(lease.session_id, None)

    async def held_leases(self) -> Sequence[HeldLease]:
        """Found by an index of the leases that were not given back."""
        now = micros(self._clock.now())
        return await self._file.run(lambda db: list_held_leases(db, now))

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Committed when this returns; a body over 32 KiB is stored as a blob."""
        (entry,) = await self.append_all(lease, (draft,))
        return entry

    async def append_all(
        self, lease: Lease, drafts: Sequence[EntryDraft]
    ) -> Sequence[JournalEntry]:
        """All of them or none, in one transaction."""
        return await self._append_all(lease, drafts)

    async def close_run(self, lease: Lease, drafts: Sequence[EntryDraft]) -> Sequence[JournalEntry]:
        """In one transaction."""
        return await self._append_all(lease, drafts, is_last=True)

    async def open_run(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        drafts: Sequence[EntryDraft],
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> OpenedRun:
        """In one transaction where the session is new and its facts are neither large nor
        encrypted.
        """
        lease = Lease(session_id=session_id, run_id=run_id, worker_id=worker_id, epoch=1)
        bodies, now = list[StoredBody](), self._clock.now()
        for draft in drafts if self.cipher is None else ():
            if isinstance(draft.stored, StoredBody):
                bodies.append(draft.stored)
            elif not is_large(draft.fact):
                bodies.append(stored_body(draft))
        if len(bodies) == len(drafts):
            entries = await self._file.run(
                lambda db: open_session(db, lease, drafts, bodies, now, ttl_s, self._heads),
                is_landmark=True,
            )
            if entries is not None:
                self._waiting.tell(session_id, entries[-1].position)
                return OpenedRun(lease=lease, entries=entries)
        return await super().open_run(
            session_id,
            run_id,
            worker_id,
            ttl_s,
            drafts,
            next_generation=next_generation,
            takes_over=takes_over,
        )

    async def _append_all(
        self, lease: Lease, drafts: Sequence[EntryDraft], *, is_last: bool = False
    ) -> Sequence[JournalEntry]:
        bodies, is_landmark = list[StoredBody](), False
        for draft in drafts:
            body = draft.stored
            if not isinstance(body, StoredBody):
                body = await self._stored_body(draft, lease)
            bodies.append(body)
            is_landmark = is_landmark or draft.fact.kind in _LANDMARKS
        entries = await self._file.run(
            lambda db: append_entries(
                db, lease, drafts, bodies, self._clock.now(), self._heads, self.cipher, is_last
            ),
            is_landmark=is_landmark,
            is_at_once=True,
        )
        self._waiting.tell(lease.session_id, entries[-1].position)
        if self._pending_rows.is_due(lease, drafts[-1]):
            with contextlib.suppress(
                JournalError
            ):  # the facts are stored; a look-up tells the rest
                await self._file.run(partial(fold_damaged_rows, cipher=self.cipher))
        return entries

    def prepared(self, draft: EntryDraft) -> EntryDraft:
        """With its body as its row holds it; what encrypts it is bound to a lease."""
        body = stored_body(draft)
        return replace(draft, stored=body) if self.cipher is None else draft

    async def _stored_body(self, draft: EntryDraft, lease: Lease) -> StoredBody:
        """The body; a large one is made in a thread, and its blob is stored before its entry."""
        seal = None
        if self.cipher is not None:
            seal = self._seal(lease.session_id, lease.run_id, lease.generation, draft)
        if not is_large(draft.fact):
            return stored_body(draft, seal=seal)
        body = await self._file.compute(lambda: stored_body(draft, in_parts=True, seal=seal))
        if len(body.packed) > _LARGE_BLOB:
            digest, packed, now = body.digest or "", body.packed, micros(self._clock.now())
            await self._file.beside(lambda db: put_blob(db, digest, packed, now))
        return body

    def _seal(
        self, session_id: str, run_id: str, generation: int, draft: EntryDraft | JournalEntry
    ) -> Callable[[str], str] | None:
        """What encrypts the body of that entry; None: nothing does."""
        if (cipher := self.cipher) is None:
            return None
        names = entry_names(session_id, run_id, generation, draft.key, draft.kind, draft.state)
        return lambda text: cipher.seal(text, *names)

    async def entries(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        after: int = 0,
        until: int | None = None,
        kinds: Collection[str] | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        with_damaged: bool = False,
    ) -> Sequence[JournalEntry]:
        """Read in one statement, so in one state, also while another process writes."""
        query = entries_query(
            session_id, run_id, after, until, kinds, limit, newest_first=newest_first
        )
        found = await self._file.read(
            few=lambda db: read_few_entries(db, query, self.cipher),
            all=lambda db: read_entries(db, query, self.cipher, in_parts=True),
        )
        if not with_damaged:
            refuse_damaged(found, str(self.path))
        return found

    async def _runs_page(
        self, wanted: RunFilter, after: Place | None, part: Part
    ) -> Sequence[RunRow]:
        rows = await self._looked_up(lambda db: sqlite_rows.runs_page(db, wanted, after, part))
        return rows if self.cipher is None else [opened_run(row, self.cipher) for row in rows]

    async def _searched_runs(
        self, wanted: RunFilter, after: Place | None, most: int
    ) -> SearchedPart[RunRow]:
        found = await self._looked_up(lambda db: sqlite_rows.searched_runs(db, wanted, after, most))
        if self.cipher is None:
            return found
        return found._replace(rows=[opened_run(row, self.cipher) for row in found.rows])

    async def _uses_page(
        self, wanted: RunFilter, by: UseGroup, after: Place | None, part: Part
    ) -> UsesPage:
        return await self._looked_up(lambda db: sqlite_rows.uses_page(db, wanted, by, after, part))

    async def _count_runs(self, wanted: RunFilter, at_most: int | None) -> int:
        return await self._looked_up(lambda db: sqlite_rows.count_runs(db, wanted, at_most))

    async def is_ambiguous(self, start: str) -> bool:
        return await self._looked_up(lambda db: sqlite_rows.is_ambiguous(db, start))

    async def spent(self, spender: Spender, *, without: Collection[str] = ()) -> Spent:
        return await self._looked_up(lambda db: sqlite_rows.spent(db, spender, without))

    async def totals(self, wanted: RunFilter | None = None) -> Mapping[str, StateTotal]:
        return await self._looked_up(lambda db: sqlite_rows.totals(db, wanted or RunFilter()))

    async def _sessions_page(
        self, wanted: SessionFilter, after: Place | None, part: Part
    ) -> Sequence[SessionRow]:
        rows = await self._looked_up(
            lambda db: sqlite_rows.sessions_page(db, wanted, after, part, self.cipher)
        )
        return rows if self.cipher is None else [opened_session(row, self.cipher) for row in rows]

    async def _searched_sessions(
        self, wanted: SessionFilter, after: Place | None, most: int
    ) -> SearchedPart[SessionRow]:
        found = await self._looked_up(
            lambda db: sqlite_rows.searched_sessions(db, wanted, after, most, self.cipher)
        )
        if self.cipher is None:
            return found
        return found._replace(rows=[opened_session(row, self.cipher) for row in found.rows])

    async def _count_sessions(self, wanted: SessionFilter, at_most: int | None) -> int:
        return await self._looked_up(
            lambda db: sqlite_rows.count_sessions(db, wanted, at_most, self.cipher)
        )

    async def _looked_up(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """In rows that are right: those that may not be are made anew first, unless that needs a
        key that is not here: then they are shown as they are.
        """
        fold = partial(fold_damaged_rows, cipher=self.cipher)
        for _ in range(2):
            is_right = False
            with suppress_lost_keys():
                while not is_right:
                    is_right = not await self._file.run(fold, is_derived=True)
                    await asyncio.sleep(0)  # there may be many: others have their turn
            try:
                return await self._file.read(few=look, all=look)
            except sqlite_rows.DamagedRowsError:
                await self._file.run(mark_all_rows, is_derived=True)
        raise damaged(self.path, "rows of runs that were just made cannot be read")

    async def wait(self, session_id: str, after: int, timeout_s: float) -> bool:
        """Told by an append of this object; those of others are seen within some 30 ms."""

        async def look() -> int:
            found = await self._file.run(
                lambda db: last_positions(db, [session_id]), is_landmark=True
            )
            return found[session_id]

        return await self._waiting.wait(session_id, after, timeout_s, look)

    async def adopt(self, session_id: str, entries: Sequence[JournalEntry]) -> None:
        """In one transaction."""
        if (why := bad_entries(session_id, entries)) is not None:
            raise why
        bodies = self._stored_bodies(entries)
        await self._file.run(
            lambda db: adopt_entries(
                db, session_id, entries, bodies, self._clock.now(), self.cipher
            ),
            is_landmark=True,
        )
        self._waiting.tell(session_id, len(entries))

    def _stored_bodies(self, entries: Sequence[JournalEntry]) -> list[StoredBody]:
        return [
            stored_body(each, seal=self._seal(each.session_id, each.run_id, each.generation, each))
            for each in entries
        ]

    async def remove_session(self, session_id: str) -> bool:
        """In one transaction."""
        return await self._file.run(
            lambda db: remove_session(db, session_id, self._clock.now(), self.cipher),
            is_landmark=True,
        )

    async def forget_sessions(self, session_ids: Collection[str]) -> None:
        """In one statement."""
        ids = json.dumps(list(session_ids))
        await self._file.run(lambda db: forget_leases(db, ids), is_landmark=True)
        for session_id in session_ids:
            self._heads.pop(session_id, None)

    async def forget_spender(self, user: str) -> None:
        """In one statement."""
        await self._file.run(lambda db: forget_spender(db, search_key(user)), is_landmark=True)

    async def rewrite_session(
        self, session_id: str, change: Callable[[Fact], Fact] | None = None
    ) -> int:
        """In one transaction; what was there before is overwritten in the file."""
        if change is None and not await self._file.run(
            lambda db: has_old_bodies(db, session_id, self.cipher)
        ):
            return 0

        def changed(entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
            if change is None:
                return entries
            return changed_entries(entries, change)

        def rewrite(db: sqlite3.Connection) -> int:
            return rewrite_session(
                db, session_id, self._clock.now(), self.cipher, changed, self._stored_bodies
            )

        return await self._file.run(rewrite, is_landmark=True)

    async def rewrite_blobs(self) -> int:
        """One at a time."""
        if (cipher := self.cipher) is None:
            return 0
        names = await self._file.run(lambda db: old_blobs(db, cipher), is_landmark=True)
        now = micros(self._clock.now())
        for name in names:
            await self._file.run(
                partial(rewrite_blob, name=name, cipher=cipher, now=now), is_landmark=True
            )
        return len(names)

    async def stored_chain(self, session_id: str) -> StoredChain:
        """Read in a thread, in one state of the file."""
        return await self._file.beside(lambda db: read_chain(db, session_id))

    async def chain_end(self, session_id: str) -> ChainHead | None:
        """Found by the key of entries."""
        found = await self._file.beside(lambda db: db.execute(CHAIN_END, (session_id,)).fetchone())
        return None if found is None else ChainHead(found[0], found[1], found[2] or b"")

    async def chained_sessions(self) -> Sequence[str]:
        """Also those of which only the end of the chain is left."""
        rows = await self._file.beside(lambda db: readable_rows(db, CHAINED_SESSIONS, ()))
        return [as_text(session_id) for (session_id,) in rows]

    async def put_blob(self, data: bytes) -> str:
        """Stored compressed. One that was put within the last minute keeps its time: a recipe is
        put at the start of each of its runs.
        """
        digest = hashlib.sha256(data).hexdigest()
        now, fresh = micros(self._clock.now()), self._fresh
        opening, put_at = fresh.get(digest, (-1, 0))
        if opening == self._file.openings and 0 <= now - put_at < _FRESH_MICROS:
            return digest
        await self._put_blob(data, digest, now)
        if len(fresh) >= _MOST_FRESH:
            fresh.clear()
        fresh[digest] = (self._file.openings, now)
        return digest

    async def _put_blob(self, data: bytes, digest: str, now: int) -> None:
        name, pack = digest, packed
        if (cipher := self.cipher) is not None:
            name = cipher.name_of(digest)
            pack = partial(cipher.seal_blob, name=name)
        if await self._file.run(lambda db: touch_blob(db, name, now), is_landmark=True):
            return
        is_small = len(data) <= _LARGE_BLOB
        stored = pack(data) if is_small else await self._file.compute(lambda: pack(data))
        if len(stored) > _LARGE_BLOB:
            await self._file.beside(lambda db: put_blob(db, name, stored, now))
        else:
            await self._file.run(lambda db: put_blob(db, name, stored, now), is_landmark=True)

    async def get_blob(self, digest: str) -> bytes:
        """Decompressed."""
        name, stored = await self._file.run(lambda db: find_blob(db, digest, self.cipher))
        if stored is None:
            raise NotFoundError(f"{self.path} holds no blob {digest!r}.", code="unknown-blob")
        try:
            if len(stored) <= _LARGE_BLOB and not unpacks_to_more(stored, _LARGE_BLOB):
                return unpacked_blob(name, stored, self.cipher)
            return await self._file.compute(lambda: unpacked_blob(name, stored, self.cipher))
        except DamageError as error:
            raise damaged(self.path, str(error)) from error

    async def collect(
        self,
        *,
        dry_run: bool = False,
        spare_s: float = SPARED_S,
        only: Collection[str] | None = None,
    ) -> BlobCollection:
        """All bodies are read; nobody is kept from writing meanwhile."""
        self._fresh.clear()
        latest = micros(self._clock.now() - timedelta(seconds=spare_s))
        useless = await self._file.beside(lambda db: useless_blobs(db, latest, self.cipher, only))
        if not dry_run:
            await self._file.run(lambda db: drop_blobs(db, useless, latest), is_landmark=True)
        return BlobCollection(blobs=len(useless), bytes=sum(useless.values()))

    async def compact(self) -> int:
        """Where nobody else has the file open; otherwise the room is used again, and it is 0."""
        self._file.close_beside()
        return await self._file.run(lambda db: compact(db, self.path), is_landmark=True)

    async def erase(self) -> bool:
        """The whole file is written anew."""
        self._file.close_beside()
        return await self._file.run(erase, is_landmark=True)

    async def aclose(self) -> None:
        """Close the file; a later call opens it again."""
        await self._waiting.aclose()
        self._fresh.clear()
        self._file.close()

    async def _watch(self) -> None:
        """Looks for what others wrote while somebody of this event loop waits."""
        seen = None
        while sessions := self._waiting.sessions():
            version = await self._file.run(self._version)
            if version != seen:  # always at first: nobody may be missed
                found = await self._file.run(partial(last_positions, sessions=sessions))
                self._waiting.tell_all(found)
                seen = version
            await self._sleep(_LOOK_EVERY_S)

    def _version(self, db: sqlite3.Connection) -> tuple[int, int]:
        """Another one after each change by others."""
        return self._file.openings, data_version(db)


# --- whole sessions in the SQLite journal --------------------------------------------------------


def data_version(db: sqlite3.Connection) -> int:
    """Another number after each change by another connection."""
    (version,) = db.execute("PRAGMA data_version").fetchone()
    return as_count(version)


def last_positions(db: sqlite3.Connection, sessions: Collection[str]) -> Mapping[str, int]:
    """The position of the newest entry of each session; sessions without entries are left out."""
    rows = db.execute(
        "SELECT value, (SELECT max(position) FROM entries WHERE session_id = value) "
        "FROM json_each(?)",
        (json.dumps(list(sessions)),),
    )
    return {session_id: as_count(position) for session_id, position in rows}


def adopt_entries(
    db: sqlite3.Connection,
    session_id: str,
    entries: Sequence[JournalEntry],
    bodies: Sequence[StoredBody],
    now: datetime,
    cipher: BodyCipher | None,
) -> None:
    """Import the entries of a session, as `Journal.adopt` says."""
    with transaction(db):
        if last := last_positions(db, [session_id])[session_id]:
            raise session_exists(session_id, last)
        held = find_lease(db, session_id)
        if held is not None:
            refuse_if_active(held, session_id, None, None, now)
        value = _insert_all(db, entries, bodies, now)
        last_lease = max(entries, key=lambda entry: entry.epoch)
        epoch = max(last_lease.epoch, held.epoch if held else 0)
        db.execute(
            "INSERT OR REPLACE INTO leases "
            "(session_id, run_id, worker_id, epoch, generation, deadline, last_position, chain) "
            "VALUES (?,?,'',?,?,NULL,?,?)",
            (session_id, last_lease.run_id, epoch, last_lease.generation, len(entries), value),
        )
        _make_anew(db, [session_id], cipher)


def _insert_all(
    db: sqlite3.Connection,
    entries: Sequence[JournalEntry],
    bodies: Sequence[StoredBody],
    now: datetime,
) -> bytes:
    """The chain value of the last one."""
    value = GENESIS
    for entry, body in zip(entries, bodies, strict=True):
        value = insert_entry(db, entry, body, now, value)
    return value


def has_old_bodies(db: sqlite3.Connection, session_id: str, cipher: BodyCipher | None) -> bool:
    """Whether a body of the session is not encrypted under the first key."""
    rows = db.execute(
        "SELECT CAST(e.body AS BLOB), e.body_digest, b.data FROM entries e LEFT JOIN blobs b "
        "ON b.digest = e.body_digest WHERE e.session_id = ?",
        (session_id,),
    )
    return cipher is not None and not all(
        cipher.is_current(body if digest is None else decompressed(data, digest))
        for body, digest, data in rows
    )


def rewrite_session(
    db: sqlite3.Connection,
    session_id: str,
    now: datetime,
    cipher: BodyCipher | None,
    changed: Callable[[Sequence[JournalEntry]], Sequence[JournalEntry]],
    stored_bodies: Callable[[Sequence[JournalEntry]], Sequence[StoredBody]],
) -> int:
    """Store the entries of a session again, as `Journal.rewrite_session` says."""
    db.execute("PRAGMA secure_delete = ON")
    with transaction(db):
        held = find_lease(db, session_id)
        if held is not None:
            refuse_if_active(held, session_id, None, None, now)
        entries = read_entries(db, entries_query(session_id, None, 0), cipher)
        refuse_damaged(entries)
        entries = [*changed(entries)]
        bodies = stored_bodies(entries)
        drop_bodies(db, session_id)
        db.execute("DELETE FROM entries WHERE session_id = ?", (session_id,))
        value = _insert_all(db, entries, bodies, now)
        db.execute(
            "UPDATE leases SET last_position = ?, chain = ? WHERE session_id = ?",
            (len(entries), value, session_id),
        )
        _make_anew(db, [session_id], cipher)
    return len(entries)


def remove_session(
    db: sqlite3.Connection, session_id: str, now: datetime, cipher: BodyCipher | None
) -> bool:
    """Remove a session, as `Journal.remove_session` says; False: there is none."""
    db.execute("PRAGMA secure_delete = ON")  # what was removed is overwritten
    with transaction(db):
        held = find_lease(db, session_id)
        if held is not None:
            refuse_if_active(held, session_id, None, None, now)
        with suppress_lost_keys():
            _make_anew(db, [session_id], cipher)
        with contextlib.suppress(sqlite_rows.DamagedRowsError):
            sqlite_rows.keep_spending(db, session_id, day_of(now))
        drop_bodies(db, session_id)
        removed = db.execute("DELETE FROM entries WHERE session_id = ?", (session_id,)).rowcount
        # The row stays: epochs only grow.
        db.execute(
            "UPDATE leases SET deadline = NULL, last_position = NULL, chain = NULL "
            "WHERE session_id = ?",
            (session_id,),
        )
        _make_anew(db, [session_id], None)
    return removed > 0


def forget_leases(db: sqlite3.Connection, session_ids: str) -> None:
    """As `Journal.forget_sessions` says; their ids are a JSON list."""
    db.execute("PRAGMA secure_delete = ON")
    db.execute(
        "DELETE FROM leases WHERE session_id IN (SELECT value FROM json_each(?)) AND deadline IS "
        "NULL AND NOT EXISTS (SELECT 1 FROM entries e WHERE e.session_id = leases.session_id)",
        (session_ids,),
    )


def forget_spender(db: sqlite3.Connection, user: str) -> None:
    """As `Journal.forget_spender` says."""
    db.execute("PRAGMA secure_delete = ON")
    db.execute("UPDATE removed_spending SET user_name = NULL WHERE user_name = ?", (user,))


def _make_anew(
    db: sqlite3.Connection, session_ids: Collection[str], cipher: BodyCipher | None
) -> None:
    """The rows of these sessions, of all their entries."""
    ids = json.dumps(list(session_ids))
    query = EntriesQuery(LISTED_OF.format("SELECT value FROM json_each(?)"), (ids,))
    entries = read_entries(db, query, cipher)
    sqlite_rows.remove_rows(db, session_ids)
    sqlite_rows.make_anew(db, entries, cipher)
    db.execute(
        "DELETE FROM changed_sessions WHERE session_id IN (SELECT value FROM json_each(?))", (ids,)
    )


def fold_damaged_rows(db: sqlite3.Connection, cipher: BodyCipher | None = None) -> bool:
    """Make the rows of some sessions anew that somebody changed; whether there were any.

    All is done in SQL, by the numbers of the sessions: their ids may be damaged, too.
    """
    if sqlite_rows.changed_sessions(db) is None:
        return False
    with transaction(db):
        if (last := sqlite_rows.changed_sessions(db)) is None:
            return False
        some = "SELECT session_id FROM changed_sessions WHERE id <= ?"
        ids = [as_text(session_id) for (session_id,) in readable_rows(db, some, (last,))]
        query = EntriesQuery(LISTED_OF.format(some), (last,))
        entries = read_entries(db, query, cipher)
        sqlite_rows.remove_rows(db, ids)
        sqlite_rows.make_anew(db, entries, cipher)
        sqlite_rows.forget_changed(db, last)
    return True


def mark_all_rows(db: sqlite3.Connection) -> None:
    """Mark the rows of all sessions, which are folded from the entries at the next look."""
    with transaction(db):
        db.execute("DELETE FROM runs")
        db.execute("DELETE FROM sessions")
        sqlite_rows.doubt_all(db)
