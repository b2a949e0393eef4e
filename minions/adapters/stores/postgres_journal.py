"""The journal in a PostgreSQL database: shared by the workers of many machines."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import frozen

from minions.adapters.stores import postgres_rows
from minions.adapters.stores.body_cipher import (
    BodyCipher,
    entry_names,
    is_sealed,
    is_sealed_blob,
    key_missing,
    suppress_lost_keys,
    with_names,
)
from minions.adapters.stores.call_groups import GroupTerms
from minions.adapters.stores.postgres_database import damaged
from minions.adapters.stores.postgres_entries import (
    APPENDS,
    CHAIN_END,
    CHAINED_SESSIONS,
    LISTED_OF,
    Append,
    EntriesQuery,
    duplicate_error,
    entries_query,
    entry_link,
    find_entry,
    new_entry,
    read_chain,
    read_entries,
    stored_body,
)
from minions.adapters.stores.postgres_groups import CallKind, GroupedCalls
from minions.adapters.stores.postgres_leases import (
    ACQUISITIONS,
    RELEASES,
    Heads,
    LeaseRequest,
    busy_error,
    find_lease,
    list_held_leases,
    renew_lease,
)
from minions.adapters.stores.postgres_link import Attempt, DamageError, PostgresLink
from minions.adapters.stores.postgres_url import without_password
from minions.adapters.stores.row_queries import Part, Place, RowLookups, SearchedPart, UsesPage
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
    bad_entries,
    changed_entries,
    digests_in,
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
)
from minions.contracts.runtime import Clock, Sleep
from minions.data.errors import JournalError, NotFoundError

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection
    from minions.adapters.stores.postgres_side_tables import PostgresState

T = TypeVar("T")

_FAST_COMPRESSION: Final = 1


class PostgresJournal(RowLookups):
    """Entries in the schema `minions` of a database; connected at its first use.

    Deadlines of leases are times of the server, which all workers share. Where the connection is
    lost it is taken up again, once per call, and what became of the call is found out.
    """

    groups_appends = True

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        lease_clock: Clock | None = None,
        connect_timeout_s: float = 4.0,
        statement_timeout_s: float = 30.0,
        reconnect_within_s: float = 30.0,
        sleep: Sleep = asyncio.sleep,
        migrations: Mapping[str, str] | None = None,
        cipher: BodyCipher | None = None,
    ) -> None:
        """No I/O here, and psycopg is not loaded.

        Args:
            url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=…`, as libpq reads it.
            clock: Of the times of entries.
            lease_clock: Of deadlines; None: the server's, which is right unless time is played.
            connect_timeout_s: For a server that does not answer; `connect_timeout` in it wins.
            statement_timeout_s: How long a call may wait for other workers.
            reconnect_within_s: How long a server that went away may take to come back.
            migrations: SQL by name, oldest first; None: those of this package.
            cipher: Encrypts the words of runs; None: they are stored as they are.
        """
        self.url = url
        self.cipher = cipher
        self._clock = clock
        self._lease_clock = lease_clock
        self._sleep = sleep
        self._link = PostgresLink(
            url,
            connect_timeout_s=connect_timeout_s,
            statement_timeout_s=statement_timeout_s,
            reconnect_within_s=reconnect_within_s,
            sleep=sleep,
            migrations=migrations,
        )
        self._appends = GroupedCalls(self._link, APPENDS)
        self._acquisitions = GroupedCalls(self._link, ACQUISITIONS)
        self._releases = GroupedCalls(self._link, RELEASES)
        self._blobs = GroupedCalls(self._link, BLOBS)
        self._listener = PostgresListener(self._link, sleep=sleep)
        self._waiting = EntryWaiters(self._watch)
        self._pending_rows = PendingRows()
        self._heads: Heads = {}

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
            ttl_s=ttl_s,
            now=self._lease_now(),
            heads=self._heads,
        )
        # Done twice where the connection was lost: then the epoch grows by two, no more.
        return await self._acquisitions.call(wanted)

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        """As the contract says; a lease that ran out and that nobody took is kept."""
        await self._link.run(
            lambda attempt: renew_lease(attempt.connection, lease, self._lease_now(), ttl_s)
        )

    async def release(self, lease: Lease) -> None:
        """Let another run of the session begin."""
        await self._releases.call(lease)
        self._heads.pop(lease.session_id, None)

    async def held_leases(self) -> Sequence[HeldLease]:
        """Found by an index of the leases that were not given back; the server says the time."""
        now = self._lease_now()
        return await self._link.run(lambda attempt: list_held_leases(attempt.connection, now))

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Committed when this returns; facts that come together share a statement."""
        entry = new_entry(lease, draft, self._clock.now())
        body = stored_body(draft, lease.session_id, lease.run_id, lease.generation, self.cipher)
        append = Append(lease, entry, body, self._heads, self.cipher)
        stored = await self._appends.call(append)
        self._waiting.tell(stored.session_id, stored.position)
        if self._pending_rows.is_due(lease, draft):
            with contextlib.suppress(JournalError):  # the fact is stored; a look-up tells the rest
                await self._link.run(
                    lambda attempt: fold_damaged_rows(attempt.connection, self.cipher)
                )
        return stored

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
        """Read in one statement, so in one state, also while another worker writes."""
        query = entries_query(
            session_id, run_id, after, until, kinds, limit, newest_first=newest_first
        )
        found = await self._link.run(
            lambda attempt: read_entries(attempt.connection, query, self.cipher)
        )
        if not with_damaged:
            refuse_damaged(found, without_password(self._link.url))
        return found

    async def _runs_page(
        self, wanted: RunFilter, after: Place | None, part: Part
    ) -> Sequence[RunRow]:
        rows = await self._looked_up(lambda db: postgres_rows.runs_page(db, wanted, after, part))
        return rows if self.cipher is None else [opened_run(row, self.cipher) for row in rows]

    async def _searched_runs(
        self, wanted: RunFilter, after: Place | None, most: int
    ) -> SearchedPart[RunRow]:
        found = await self._looked_up(
            lambda db: postgres_rows.searched_runs(db, wanted, after, most)
        )
        if self.cipher is None:
            return found
        return found._replace(rows=[opened_run(row, self.cipher) for row in found.rows])

    async def _uses_page(
        self, wanted: RunFilter, by: UseGroup, after: Place | None, part: Part
    ) -> UsesPage:
        return await self._looked_up(
            lambda db: postgres_rows.uses_page(db, wanted, by, after, part)
        )

    async def _count_runs(self, wanted: RunFilter, at_most: int | None) -> int:
        return await self._looked_up(lambda db: postgres_rows.count_runs(db, wanted, at_most))

    async def is_ambiguous(self, start: str) -> bool:
        return await self._looked_up(lambda db: postgres_rows.is_ambiguous(db, start))

    async def spent(self, spender: Spender, *, without: Collection[str] = ()) -> Spent:
        return await self._looked_up(lambda db: postgres_rows.spent(db, spender, without))

    async def totals(self, wanted: RunFilter | None = None) -> Mapping[str, StateTotal]:
        return await self._looked_up(lambda db: postgres_rows.totals(db, wanted or RunFilter()))

    async def _sessions_page(
        self, wanted: SessionFilter, after: Place | None, part: Part
    ) -> Sequence[SessionRow]:
        rows = await self._looked_up(
            lambda db: postgres_rows.sessions_page(db, wanted, after, part, self.cipher)
        )
        return rows if self.cipher is None else [opened_session(row, self.cipher) for row in rows]

    async def _searched_sessions(
        self, wanted: SessionFilter, after: Place | None, most: int
    ) -> SearchedPart[SessionRow]:
        found = await self._looked_up(
            lambda db: postgres_rows.searched_sessions(db, wanted, after, most, self.cipher)
        )
        if self.cipher is None:
            return found
        return found._replace(rows=[opened_session(row, self.cipher) for row in found.rows])

    async def _count_sessions(self, wanted: SessionFilter, at_most: int | None) -> int:
        return await self._looked_up(
            lambda db: postgres_rows.count_sessions(db, wanted, at_most, self.cipher)
        )

    async def _looked_up(self, look: Callable[[Connection], Awaitable[T]]) -> T:
        """In rows that are right: those that may not be are made anew first, unless that needs a
        key that is not here: then they are shown as they are.

        Usually all rows are right: whether they are is asked in the same round trip.
        """

        async def look_once(attempt: Attempt) -> tuple[T] | None:
            """What was found; None: some rows are to be made anew first."""
            async with attempt.connection.pipeline():
                asked = await attempt.connection.execute(postgres_rows.CHANGED_SESSIONS)
                try:
                    found = await look(attempt.connection)
                except postgres_rows.DamagedRowsError:
                    if await asked.fetchone() is None:
                        raise
                    return None
                return (found,) if await asked.fetchone() is None else None

        for _ in range(2):
            try:
                if (found := await self._link.run(look_once)) is not None:
                    return found[0]
                with suppress_lost_keys():
                    while await self._link.run(
                        lambda attempt: fold_damaged_rows(attempt.connection, self.cipher)
                    ):
                        pass
                return await self._link.run(lambda attempt: look(attempt.connection))
            except postgres_rows.DamagedRowsError:
                await self._link.run(lambda attempt: postgres_rows.doubt_all(attempt.connection))
        raise damaged(self.url, "rows of runs that were just made cannot be read")

    def state_beside(self) -> PostgresState:
        """Texts in the same database, over the connection of this journal, which closes it."""
        from minions.adapters.stores.postgres_side_tables import PostgresState

        return PostgresState(self.url, link=self._link)

    async def wait(self, session_id: str, after: int, timeout_s: float) -> bool:
        """The server tells of facts of other workers, over one more connection of this object.

        While that one is lost, it is looked for them every two seconds.
        """

        async def look() -> int:
            return (await self._last_positions([session_id])).get(session_id, 0)

        return await self._waiting.wait(session_id, after, timeout_s, look)

    async def adopt(self, session_id: str, entries: Sequence[JournalEntry]) -> None:
        """In one transaction."""
        if (why := bad_entries(session_id, entries)) is not None:
            raise why
        bodies = stored_bodies(entries, self.cipher)
        now = self._lease_now()
        await self._link.run(
            lambda attempt: adopt_entries(attempt, session_id, entries, bodies, now, self.cipher)
        )
        self._waiting.tell(session_id, len(entries))

    async def remove_session(self, session_id: str) -> bool:
        """In one transaction."""
        return await self._link.run(
            lambda attempt: remove_session(
                attempt.connection, session_id, self._lease_now(), self._clock.now(), self.cipher
            )
        )

    async def forget_sessions(self, session_ids: Collection[str]) -> None:
        """In one statement."""
        sql = (
            "DELETE FROM minions.leases l WHERE session_id = ANY(%s) AND deadline IS NULL AND NOT "
            "EXISTS (SELECT 1 FROM minions.entries e WHERE e.session_id = l.session_id)"
        )
        await self._link.run(lambda attempt: attempt.connection.execute(sql, [list(session_ids)]))
        for session_id in session_ids:
            self._heads.pop(session_id, None)

    async def forget_spender(self, user: str) -> None:
        """In one statement."""
        sql = "UPDATE minions.removed_spending SET user_name = NULL WHERE user_name = %s"
        await self._link.run(lambda attempt: attempt.connection.execute(sql, [search_key(user)]))

    async def rewrite_session(
        self, session_id: str, change: Callable[[Fact], Fact] | None = None
    ) -> int:
        """In one transaction."""
        if self.cipher is None and change is None:
            return 0
        return await self._link.run(
            lambda attempt: rewrite_session(
                attempt.connection, session_id, self._lease_now(), self.cipher, change
            )
        )

    async def rewrite_blobs(self) -> int:
        """One at a time."""
        if (cipher := self.cipher) is None:
            return 0
        names = await self._link.run(lambda attempt: old_blobs(attempt.connection, cipher))
        for name in names:
            rewrite = partial(rewrite_blob, name=name, cipher=cipher, now=self._lease_now())
            await self._link.run(rewrite)
        return len(names)

    async def stored_chain(self, session_id: str) -> StoredChain:
        """Read in one statement."""
        return await self._link.run(lambda attempt: read_chain(attempt.connection, session_id))

    async def chain_end(self, session_id: str) -> ChainHead | None:
        """Found by the key of entries."""

        async def read(attempt: Attempt) -> ChainHead | None:
            cursor = await attempt.connection.execute(CHAIN_END, [session_id], binary=True)
            found = await cursor.fetchone()
            return None if found is None else ChainHead(found[0], found[1], found[2] or b"")

        return await self._link.run(read)

    async def chained_sessions(self) -> Sequence[str]:
        """Also those of which only the end of the chain is left."""

        async def read(attempt: Attempt) -> list[str]:
            rows = await (await attempt.connection.execute(CHAINED_SESSIONS)).fetchall()
            return [session_id for (session_id,) in rows]

        return await self._link.run(read)

    async def put_blob(self, data: bytes) -> str:
        """Stored compressed."""
        digest = name = hashlib.sha256(data).hexdigest()
        if self.cipher is None:
            packed = zlib.compress(data, _FAST_COMPRESSION)
        else:
            name = self.cipher.name_of(digest)
            packed = self.cipher.seal_blob(data, name)
        await self._blobs.call(PackedBlob(name, packed, self._lease_now()))
        return digest

    async def get_blob(self, digest: str) -> bytes:
        """Decompressed."""
        data = await self._link.run(
            lambda attempt: get_blob(attempt.connection, digest, self.cipher)
        )
        if data is None:
            raise NotFoundError(
                f"{without_password(self.url)} holds no blob {digest!r}.", code="unknown-blob"
            )
        return data

    async def collect(
        self,
        *,
        dry_run: bool = False,
        spare_s: float = SPARED_S,
        only: Collection[str] | None = None,
    ) -> BlobCollection:
        """All bodies are read, by and by, over a connection of its own; nobody waits meanwhile."""
        now = self._lease_now()
        return await self._link.beside(
            lambda db: collect_blobs(db, now, spare_s, self.cipher, only, dry_run=dry_run)
        )

    async def erase(self) -> bool:
        """The server does that, in its own time, or by its administrator's `VACUUM FULL`."""
        return False

    async def aclose(self) -> None:
        """Close the connections; a later call connects again."""
        await self._waiting.aclose()
        await self._link.aclose()

    async def _watch(self) -> None:
        await self._listener.listen(self._waiting, self._last_positions)

    async def _last_positions(self, sessions: Collection[str]) -> Mapping[str, int]:
        return await self._link.run(
            lambda attempt: positions_listened_to(attempt.connection, sessions)
        )

    def _lease_now(self) -> datetime | None:
        return None if self._lease_clock is None else self._lease_clock.now()


# --- who listens to what other workers store -----------------------------------------------------


_LOOK_EVERY_S: Final = 2.0
"""Also while it listens: a connection may be dead without a word."""
_LINGERS_S: Final = 60.0
"""Most who waited wait again: connecting each time would cost more than the waiting."""


class PostgresListener:
    """Tells a room of new facts, at once where the server tells of them."""

    def __init__(self, link: PostgresLink, *, sleep: Sleep = asyncio.sleep) -> None:
        """No I/O here."""
        self._link = link
        self._sleep = sleep

    async def listen(
        self,
        room: EntryWaiters,
        look: Callable[[Collection[str]], Awaitable[Mapping[str, int]]],
    ) -> None:
        """Until nobody has waited for a minute.

        Args:
            look: Gives the last positions of some sessions, by another connection.
        Raises:
            JournalError: The database is gone and does not come back.
        """
        idle_s = 0.0
        connection: Connection | None = None
        try:
            while idle_s < _LINGERS_S:
                if connection is None:
                    connection = await self._connect()
                if sessions := room.sessions():  # after the server was told: nothing is missed
                    room.tell_all(await look(sessions))
                idle_s = 0.0 if sessions else idle_s + _LOOK_EVERY_S
                if connection is None:
                    await self._sleep(_LOOK_EVERY_S)
                elif not await _heard(connection, room):
                    await connection.close()
                    connection = None
        finally:
            if connection is not None:
                await connection.close()

    async def _connect(self) -> Connection | None:
        """None where it cannot be had now: then it is looked instead."""
        import psycopg

        try:
            connection = await self._link.connect()
        except JournalError:
            return None
        try:
            await connection.execute("LISTEN minions_facts")
        except psycopg.Error:
            await connection.close()
            return None
        except BaseException:  # such as a cancellation: nobody waits any more
            await connection.close()
            raise
        return connection


async def _heard(connection: Connection, room: EntryWaiters) -> bool:
    """Whether the connection still stood at the end of a while of listening."""
    import psycopg

    try:
        async for notify in connection.notifies(timeout=_LOOK_EVERY_S):
            position, _, session_id = notify.payload.partition(" ")
            room.tell(session_id, int(position))
    except psycopg.Error:
        return False
    return True


# --- blobs of the PostgreSQL journal -------------------------------------------------------------


@frozen
class PackedBlob:
    """A blob that is to be stored."""

    digest: str
    packed: bytes
    now: datetime | None
    """When it is stored; None: by the server's clock."""


async def _put_alone(attempt: Attempt, blob: PackedBlob) -> None:
    await _put_together(attempt.connection, [blob])


async def _put_together(db: Connection, blobs: Sequence[PackedBlob]) -> Mapping[int, None]:
    """Whoever puts a blob again is about to name it: it is young again."""
    # In one order, as by everybody: two groups that wait for each other would never end.
    rows = {blob.digest: blob for blob in sorted(blobs, key=lambda blob: blob.digest)}.values()
    await db.execute(
        "INSERT INTO minions.blobs (digest, data, put_at) "
        "SELECT digest, data, coalesce(now, clock_timestamp()) "
        "FROM unnest(%s::text[], %s::bytea[], %s::timestamptz[]) AS b (digest, data, now) "
        "ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at",
        [[row.digest for row in rows], [row.packed for row in rows], [row.now for row in rows]],
        binary=True,
    )
    return dict.fromkeys(range(len(blobs)))


BLOBS: Final = CallKind(
    alone=_put_alone,
    together=_put_together,
    terms=lambda blob: GroupTerms(blob.digest, None, len(blob.packed)),
)


async def get_blob(db: Connection, digest: str, cipher: BodyCipher | None) -> bytes | None:
    """The bytes of a blob; None: there is none."""
    names = [digest] if cipher is None else [*cipher.names_of(digest), digest]
    found = await db.execute(
        "SELECT digest, data FROM minions.blobs WHERE digest = ANY(%s)", [names], binary=True
    )
    rows: dict[str, bytes] = dict(await found.fetchall())
    name = next((each for each in names if each in rows), None)
    return None if name is None else _unpacked(name, rows[name], cipher)


def _unpacked(name: str, data: bytes, cipher: BodyCipher | None) -> bytes:
    if is_sealed_blob(data):
        if cipher is None:
            raise key_missing(data)
        return cipher.open_blob(data, name)
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise DamageError(f"the blob {name} cannot be unpacked ({error})") from error


async def old_blobs(db: Connection, cipher: BodyCipher) -> list[str]:
    """The names of blobs that are not encrypted under the first key."""
    found = await db.execute("SELECT digest, substr(data, 1, 100) FROM minions.blobs", binary=True)
    return [name for name, start in await found.fetchall() if not cipher.is_current(start)]


async def rewrite_blob(
    attempt: Attempt, name: str, cipher: BodyCipher, now: datetime | None
) -> None:
    """Store a blob under the first key in place of the one under the old name."""
    db = attempt.connection
    async with db.transaction():
        found = await db.execute(
            "SELECT data FROM minions.blobs WHERE digest = %s FOR UPDATE", [name], binary=True
        )
        if (row := await found.fetchone()) is None:
            return
        data = _unpacked(name, row[0], cipher)
        new = cipher.name_of(hashlib.sha256(data).hexdigest())
        await _put_together(db, [PackedBlob(new, cipher.seal_blob(data, new), now)])
        await db.execute("DELETE FROM minions.blobs WHERE digest = %s", [name])


async def collect_blobs(
    db: Connection,
    now: datetime | None,
    spare_s: float,
    cipher: BodyCipher | None,
    only: Collection[str] | None,
    *,
    dry_run: bool,
) -> BlobCollection:
    """The young ones are left out twice, by the time at the beginning: one may be put again while
    the bodies are read, however long that takes.
    """
    found = await db.execute(
        "SELECT coalesce(%s::timestamptz, clock_timestamp()) - make_interval(secs => %s)",
        [now, spare_s],
    )
    (latest,) = await found.fetchone() or (now,)
    found = await db.execute(
        "SELECT digest, octet_length(data) FROM minions.blobs WHERE put_at <= %s", [latest]
    )
    sizes: dict[str, int] = dict(await found.fetchall())
    named = await _find_named(db, cipher) if sizes else set()
    if only is not None and cipher is not None:
        only = with_names(only, cipher)
    useless = {
        digest: size
        for digest, size in sizes.items()
        if digest not in named and (only is None or digest in only)
    }
    names = sorted(useless) if not dry_run else []
    for at in range(0, len(names), _DELETED_AT_ONCE):  # a transaction each
        await db.execute(_DELETE_OLD, [latest, names[at : at + _DELETED_AT_ONCE]])
    return BlobCollection(blobs=len(useless), bytes=sum(useless.values()))


_DELETED_AT_ONCE: Final = 500
"""Blobs: whoever puts one of them waits no longer than their deletion takes."""
_DELETE_OLD: Final = b"""
DELETE FROM minions.blobs WHERE put_at <= %s AND digest IN (
    SELECT digest FROM minions.blobs WHERE digest = ANY (%s) ORDER BY digest FOR UPDATE
)
"""


async def _find_named(db: Connection, cipher: BodyCipher | None) -> set[str]:
    """What any body or blob names.

    Raises:
        JournalError: `journal-key-missing`; one of them is encrypted.
    """
    named: set[str] = set()
    rest: set[str] = set()
    async with db.transaction(), db.cursor("bodies", binary=True) as cursor:
        await cursor.execute(
            "SELECT body, session_id, run_id, generation, key, kind, state FROM minions.entries"
        )
        async for body, *names in cursor:
            if is_sealed(body):
                if cipher is None:
                    raise key_missing(body)
                body = cipher.open(body, *entry_names(*names))  # noqa: PLW2901  # in clear
            rest |= digests_in(body)
    while rest:
        named |= rest
        found = [await get_blob(db, digest, cipher) for digest in rest]
        rest = digests_in(*(data for data in found if data is not None)) - named
    if cipher is not None:
        named.update(*(cipher.names_of(digest) for digest in named))
    return named


# --- whole sessions in the PostgreSQL journal ----------------------------------------------------


async def last_positions(db: Connection, sessions: Collection[str]) -> Mapping[str, int]:
    """The position of the newest entry of each session; sessions without entries are left out."""
    found = await db.execute(
        "SELECT session_id, last_position FROM minions.leases WHERE session_id = ANY(%s)",
        [list(sessions)],
        binary=True,
    )
    return dict(await found.fetchall())


async def positions_listened_to(db: Connection, sessions: Collection[str]) -> Mapping[str, int]:
    """As `last_positions`; of later entries the server tells for half a minute at least."""
    from psycopg.errors import ReadOnlySqlTransaction

    asked = [list(sessions)]
    found = await (await db.execute(_POSITIONS, asked, binary=True)).fetchall()
    if not all(is_listened_to for *_, is_listened_to in found):
        with contextlib.suppress(ReadOnlySqlTransaction):  # a standby tells of nothing
            await db.execute(_LISTEN, asked)
        found = await (await db.execute(_POSITIONS, asked, binary=True)).fetchall()
    return {session_id: position for session_id, position, _ in found}


_POSITIONS: Final = b"""
SELECT session_id, last_position,
    coalesce(listened_until > clock_timestamp() + interval '30 s', false)
FROM minions.leases WHERE session_id = ANY (%s)
"""
# An append that is under way holds the row, which is waited for: it may not know of the listener.
# Rows are locked in the order of their sessions, as by everybody.
_LISTEN: Final = b"""
UPDATE minions.leases SET listened_until = clock_timestamp() + interval '60 s'
WHERE session_id IN (
    SELECT session_id FROM minions.leases WHERE session_id = ANY (%s) ORDER BY session_id FOR UPDATE
)
"""


async def adopt_entries(
    attempt: Attempt,
    session_id: str,
    entries: Sequence[JournalEntry],
    bodies: Sequence[bytes],
    now: datetime | None,
    cipher: BodyCipher | None,
) -> None:
    """Import the entries of a session, as `Journal.adopt` says."""
    db = attempt.connection
    async with db.transaction():
        await _lock_lease(db, session_id, now)
        if stored := (await last_positions(db, [session_id])).get(session_id, 0):
            if attempt.is_again and await _is_same(db, session_id, entries, bodies):
                return  # stored, and then the connection was lost
            raise session_exists(session_id, stored)
        value = await _insert_as_they_were(db, entries, bodies)
        last = max(entries, key=lambda entry: entry.epoch)
        await db.execute(
            "INSERT INTO minions.leases AS held (session_id, run_id, worker_id, epoch, "
            "generation, deadline, last_position, chain) VALUES (%s, %s, '', %s, %s, NULL, %s, %s) "
            "ON CONFLICT (session_id) DO UPDATE SET deadline = NULL, "
            "epoch = greatest(held.epoch, excluded.epoch), last_position = excluded.last_position, "
            "chain = excluded.chain",
            [session_id, last.run_id, last.epoch, last.generation, len(entries), value],
        )
        await postgres_rows.make_anew(db, [session_id], entries, cipher)
        await db.execute(
            "SELECT pg_notify('minions_facts', %s || ' ' || %s)", [str(len(entries)), session_id]
        )


async def _insert_as_they_were(
    db: Connection, entries: Sequence[JournalEntry], bodies: Sequence[bytes]
) -> bytes:
    """The chain value of the last one; they get values of this journal."""
    from psycopg.errors import UniqueViolation

    rows, value = list[tuple[object, ...]](), GENESIS
    for entry, body in zip(entries, bodies, strict=True):
        value = entry_link(value, entry, entry.position, body)
        rows.append(
            (
                entry.session_id, entry.position, entry.run_id, entry.generation, entry.key,
                entry.kind, entry.state, body, entry.epoch, entry.at, value,
            )
        )  # fmt: skip
    try:
        async with db.transaction(), db.cursor() as cursor:
            await cursor.executemany(_INSERT, rows)
    except UniqueViolation:
        for entry in entries:
            if (found := await find_entry(db, entry)) is not None:
                raise duplicate_error(entry, found.position) from None
        raise
    return value


_INSERT: Final = """
INSERT INTO minions.entries
    (session_id, position, run_id, generation, key, kind, state, body, epoch, at, chain)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


async def _is_same(
    db: Connection, session_id: str, entries: Sequence[JournalEntry], bodies: Sequence[bytes]
) -> bool:
    found = await db.execute(
        "SELECT run_id, key, kind, state, body FROM minions.entries WHERE session_id = %s "
        "ORDER BY position",
        [session_id],
        binary=True,
    )
    wanted = [
        (entry.run_id, entry.key, entry.kind, entry.state, body)
        for entry, body in zip(entries, bodies, strict=True)
    ]
    return await found.fetchall() == wanted


async def remove_session(
    db: Connection,
    session_id: str,
    now: datetime | None,
    today: datetime,
    cipher: BodyCipher | None,
) -> bool:
    """Remove a session, as `Journal.remove_session` says; False: there is none."""
    async with db.transaction():
        await _lock_lease(db, session_id, now)
        with suppress_lost_keys():
            listed = await read_entries(db, EntriesQuery(LISTED_OF, [[session_id]]), cipher)
            await postgres_rows.make_anew(db, [session_id], listed, cipher)
        with contextlib.suppress(postgres_rows.DamagedRowsError):
            await postgres_rows.keep_spending(db, session_id, day_of(today))
        removed = await db.execute(
            "DELETE FROM minions.entries WHERE session_id = %s", [session_id]
        )
        await db.execute(  # the row stays: epochs only grow
            "UPDATE minions.leases SET deadline = NULL, last_position = 0, chain = NULL "
            "WHERE session_id = %s",
            [session_id],
        )
        await postgres_rows.make_anew(db, [session_id], (), None)
    return removed.rowcount > 0


def stored_bodies(entries: Sequence[JournalEntry], cipher: BodyCipher | None) -> list[bytes]:
    """The bodies of entries as they are stored."""
    return [
        stored_body(each, each.session_id, each.run_id, each.generation, cipher) for each in entries
    ]


async def rewrite_session(
    db: Connection,
    session_id: str,
    now: datetime | None,
    cipher: BodyCipher | None,
    change: Callable[[Fact], Fact] | None,
) -> int:
    """Store the entries of a session again, as `Journal.rewrite_session` says."""
    async with db.transaction():
        await _lock_lease(db, session_id, now)
        found = await db.execute(
            "SELECT substr(body, 1, 100) FROM minions.entries WHERE session_id = %s",
            [session_id],
            binary=True,
        )
        starts = [start for (start,) in await found.fetchall()]
        if change is None and (cipher is None or all(map(cipher.is_current, starts))):
            return 0
        entries = await read_entries(db, entries_query(session_id, None, 0), cipher)
        if change is None:
            refuse_damaged(entries)
        else:
            entries = changed_entries(entries, change)
        bodies = stored_bodies(entries, cipher)
        await db.execute("DELETE FROM minions.entries WHERE session_id = %s", [session_id])
        value = await _insert_as_they_were(db, entries, bodies)
        await db.execute(
            "UPDATE minions.leases SET last_position = %s, chain = %s WHERE session_id = %s",
            [len(entries), value, session_id],
        )
        await postgres_rows.make_anew(db, [session_id], entries, cipher)
    return len(entries)


async def fold_damaged_rows(db: Connection, cipher: BodyCipher | None) -> bool:
    """Make the rows of some sessions anew that somebody changed; whether there were any."""
    if not await postgres_rows.changed_sessions(db):
        return False
    async with db.transaction():
        ids = await postgres_rows.changed_sessions(db)
        await db.execute(  # nobody appends to them meanwhile
            "SELECT 1 FROM minions.leases WHERE session_id = ANY(%s) ORDER BY session_id "
            "FOR UPDATE",
            [ids],
        )
        await postgres_rows.make_anew(
            db, ids, await read_entries(db, EntriesQuery(LISTED_OF, [ids]), cipher), cipher
        )
    return True


async def _lock_lease(db: Connection, session_id: str, now: datetime | None) -> None:
    """Nobody begins, and nobody is at work there."""
    found = await db.execute(
        "SELECT coalesce(deadline > coalesce(%s::timestamptz, clock_timestamp()), false) "
        "FROM minions.leases WHERE session_id = %s FOR UPDATE",
        [now, session_id],
    )
    row = await found.fetchone()
    if row is not None and row[0]:
        raise busy_error(await find_lease(db, session_id), session_id, None)
