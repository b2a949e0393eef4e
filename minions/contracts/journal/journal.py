"""The append-only journal: the single source of truth about every run.

Here are its contract, leases, and how damage is refused; facts are in `facts`, rows in `run_rows`.
"""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import frozen
from msgspec import Struct
from msgspec.structs import replace

from minions.contracts.journal.chain import (
    ChainedRow,
    ChainHead,
    ChainReport,
    StoredChain,
    chained,
    hashed_body,
    verify_chain,
)
from minions.contracts.journal.facts import Fact, UnreadableFact, body_of
from minions.data.errors import JournalError
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, encoder_of
from minions.data.texts import shell_word

if TYPE_CHECKING:
    from minions.contracts.journal.run_rows import (
        RunFilter,
        RunRow,
        RunUse,
        SessionFilter,
        SessionRow,
        Spender,
        Spent,
        StateTotal,
        UseGroup,
    )

T = TypeVar("T")

SPARED_S: Final = 3_600.0
"""Seconds for which a new blob is never collected: a run stores
a blob before the fact that names it.
"""


class EntryDraft(Struct, frozen=True, kw_only=True, gc=False):
    """A fact that is to be stored."""

    key: str
    """Path of the work; unique in the run together with kind, state and generation."""
    fact: Fact
    at: datetime | None = None
    """When it came about; None: when it is stored."""
    stored: object = None
    """What its journal made of it before; None: nothing."""

    @property
    def kind(self) -> str:
        """`session`, `run`, `step`, `model_call`, `tool_call`, `message` and so on."""
        return self.fact.kind

    @property
    def state(self) -> str:
        """`started`, `finished`, `failed`, `skipped` and so on."""
        return self.fact.state


class JournalEntry(Struct, frozen=True, kw_only=True, gc=False):
    """A stored fact. Never changes."""

    session_id: str
    position: int
    """Number of the entry in its session, from 1 without gaps."""
    run_id: str
    generation: int
    """The run's generation, from 1. A retry starts the next one, which hides what it supersedes."""
    key: str
    fact: Fact | UnreadableFact
    epoch: int
    """Epoch of the lease under which the entry was written."""
    at: datetime
    """When the entry was stored, in UTC."""

    @property
    def kind(self) -> str:
        """Kind of the fact: `session`, `run`, `step`, `model_call` and so on."""
        return self.fact.kind

    @property
    def state(self) -> str:
        """State of the fact: `started`, `finished`, `failed` and so on."""
        return self.fact.state

    @property
    def body(self) -> Mapping[str, JsonValue]:
        """The fact as JSON, for views. Computed at each access."""
        return body_of(self.fact)


@frozen(kw_only=True)
class Lease(FieldsRepr):
    """The right to append entries of one run."""

    session_id: str
    run_id: str
    worker_id: str
    epoch: int
    """Grows with every acquisition; the journal refuses appends under an older epoch."""
    generation: int = 1
    """The generation of all entries that are appended under this lease."""


class OpenedRun(Struct, frozen=True, kw_only=True):
    """A run that was opened with its first facts."""

    lease: Lease
    entries: Sequence[JournalEntry]
    """The facts as they are stored, in their order."""


class HeldLease(Struct, frozen=True, kw_only=True):
    """A lease that was not released."""

    lease: Lease
    has_expired: bool
    """Whether its time is over, so that any worker may take it."""
    expires_at: datetime | None = None
    """When its time is over, which each renewal puts off; None: the journal does not say."""


class BlobCollection(Struct, frozen=True, kw_only=True):
    """Blobs that no fact names."""

    blobs: int
    bytes: int
    """Their stored size in total."""


class Journal(ABC):
    """Stores facts in order. One run of a session is active at a time.

    Cost and bytes of an append do not grow with the length of the run.
    """

    is_shared: bool = True
    """Whether other processes may append to it meanwhile."""
    stores_together: bool = False
    """Whether `append_all` stores several facts in the time of one, all of them or none. A run then
    hands in facts upon which nothing acts yet, such as the end of a step, with the next one; and
    one that makes its session asks for its lease with its first facts."""
    groups_appends: bool = False
    """Whether facts that are handed in together are stored together, those of one lease in the
    order in which they came. A run then hands in facts of parallel steps at once; False: one at a
    time.
    """

    @abstractmethod
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
        """Become the writer of a run. A lease that has expired is taken over.

        The lease's generation is the newest one with entries of the run; 1 where there are none.

        Args:
            ttl_s: Seconds until the lease expires unless it is renewed.
            next_generation: Start the next generation, in which all keys are free again.
            takes_over: A worker that is known to be dead: its lease is taken over before it
                expires.
        Raises:
            LeaseHeldError: Another run of the session, or another worker of this run, is active.
            JournalError: The journal cannot be written.
        """

    @abstractmethod
    async def renew(self, lease: Lease, ttl_s: float) -> None:
        """Extend the lease; it expires `ttl_s` seconds from now.

        Raises:
            FencedError: Another worker took over the run.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Release the lease. One that was taken over is ignored."""

    @abstractmethod
    async def held_leases(self) -> Sequence[HeldLease]:
        """Leases that were not released, in no particular order.

        Their holders are at work, or died, or lost the database. Costs as much as there are such
        leases, not as much as was ever recorded.
        """

    @abstractmethod
    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Store one fact. When this returns, the fact survives the death of the process.

        Raises:
            FencedError: The lease's epoch is outdated; nothing was stored.
            JournalError: The key exists already, or the journal cannot be written; nothing was
                stored.
        """

    async def append_all(
        self, lease: Lease, drafts: Sequence[EntryDraft]
    ) -> Sequence[JournalEntry]:
        """Store several facts in this order; of those behind one that is refused, none.

        This one stores them one after another; a journal that `stores_together` overrides it.

        Raises:
            FencedError, JournalError: As of `append`.
        """
        return [await self.append(lease, draft) for draft in drafts]

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
        """Acquire the lease of a run and store its first facts. Where one of these is refused, the
        lease is not held either.

        This one does so one after the other; a journal that `stores_together` overrides it where
        one transaction can do both.

        Args:
            drafts: At least one; in the order in which they are stored.
            next_generation: As of `acquire`.
            takes_over: As of `acquire`.
        Raises:
            LeaseHeldError, JournalError: As of `acquire` and `append_all`.
        """
        lease = await self.acquire(
            session_id,
            run_id,
            worker_id,
            ttl_s,
            next_generation=next_generation,
            takes_over=takes_over,
        )
        try:
            return OpenedRun(lease=lease, entries=await self.append_all(lease, drafts))
        except BaseException:
            with contextlib.suppress(JournalError):
                await self.release(lease)
            raise

    async def close_run(self, lease: Lease, drafts: Sequence[EntryDraft]) -> Sequence[JournalEntry]:
        """Store the last facts of an execution and release its lease. Where one of these is
        refused, the lease is held as before.

        This one does so one after the other, and a lease that cannot be released expires; a journal
        that `stores_together` overrides it where one transaction can do both.

        Args:
            drafts: At least one; in the order in which they are stored.
        Raises:
            FencedError, JournalError: As of `append_all`.
        """
        entries = await self.append_all(lease, drafts)
        with contextlib.suppress(JournalError):
            await self.release(lease)
        return entries

    def prepared(self, draft: EntryDraft) -> EntryDraft:
        """The fact as it will be handed to `append_all` later: what cannot be stored is refused
        now, and nothing is made twice.

        Raises:
            JournalError: It cannot be stored.
        """
        return draft

    @abstractmethod
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
        """Entries in order of session and position.

        Args:
            session_id: Only of this session; None: of all.
            run_id: Only of this run; None: of all.
            after: Only positions greater than this.
            until: Only positions up to this.
            limit: At most this many, from the start of the requested order.
            newest_first: Reverse the order. With a limit, reading the last entries of one session
                costs the same however long it is.
            with_damaged: Also return entries that hold an `UnreadableFact`: for lists, in which one
                damaged run must not hide the others.
        Raises:
            JournalError: The journal cannot be read, or (`corrupt-entry`) one of the entries.
        """

    @abstractmethod
    async def runs(
        self,
        wanted: RunFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: RunRow | None = None,
    ) -> Sequence[RunRow]:
        """Rows of runs for lists, newest first; runs that started at the same time, by id.

        The rows are stored with the entries in the same transaction, so that no entry is read.
        Costs as much as is returned; with a `text`, as much as is searched.

        Args:
            wanted: Which runs; None: all.
            limit: At most this many.
            offset: Skip this many.
            after: Only rows behind this one in the list, whether or not it still exists.
        """

    @abstractmethod
    async def count_runs(
        self, wanted: RunFilter | None = None, *, at_most: int | None = None
    ) -> int:
        """The number of runs that `wanted` selects; None: of all.

        Args:
            at_most: Counting ends with this number, so that the cost does not depend on how many
                there are; None: all of them are counted.
        """

    async def is_ambiguous(self, start: str) -> bool:
        """Whether the ids of several runs start so.

        This one asks for the newest two; a journal that would look at all of them for that
        overrides it.
        """
        from minions.contracts.journal.run_rows import RunFilter

        return len(await self.runs(RunFilter(id_start=start), limit=2)) > 1

    @abstractmethod
    async def sessions(
        self,
        wanted: SessionFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: SessionRow | None = None,
    ) -> Sequence[SessionRow]:
        """Rows of sessions for lists, by the time at which a run last started or ended, newest
        first.

        A session in which only messages were stored is in no list.

        Args:
            wanted: Which sessions; None: all.
            limit: At most this many.
            offset: Skip this many.
            after: Only rows behind this one in the list, whether or not it still exists.
        """

    @abstractmethod
    async def count_sessions(
        self, wanted: SessionFilter | None = None, *, at_most: int | None = None
    ) -> int:
        """The number of sessions that `wanted` selects; None: of all.

        Args:
            at_most: As with `count_runs`.
        """

    async def spent(self, spender: Spender, *, without: Collection[str] = ()) -> Spent:
        """What the rows of runs say that somebody spent, by the last end of each run.

        This one adds up all rows, page by page; a journal that holds many overrides it.

        Args:
            without: Ids of runs that are left out.
        """
        return await _sum_of_rows(self, spender, without)

    async def totals(self, wanted: RunFilter | None = None) -> Mapping[str, StateTotal]:
        """How many runs are in each state, and what they spent, by state; without a `text`.

        Runs that a worker executes count as `interrupted`: only leases tell. This one adds up all
        rows that match, page by page; a journal that holds many overrides it.
        """
        return await _totals_of_rows(self, wanted)

    async def uses(self, wanted: RunFilter, by: UseGroup, *, limit: int) -> Sequence[RunUse]:
        """What the newest runs used, each with its recipe, model, user or project: for sums.

        This one makes them of rows, page by page; a journal that holds many overrides it.

        Args:
            wanted: Which runs; without a `text`, `phrases` or `bounds`.
            by: What stands in `group`.
            limit: At most this many.
        """
        return await _uses_of_rows(self, wanted, by, limit)

    async def read_lists(self, read: Callable[[Journal], Awaitable[T]]) -> T:
        """The result of `read`, which asks for lists, numbers and held leases and stores nothing.

        This one gives itself; a journal with a copy may give that, and itself where the copy fails:
        so `read` may be called twice.

        Args:
            read: Is given a journal with all that is stored now.
        """
        return await read(self)

    @abstractmethod
    async def wait(self, session_id: str, after: int, timeout_s: float) -> bool:
        """Wait until the session has an entry after that position; returns at once if it has.

        Any number of callers may wait at the same time at little cost.

        Returns:
            Whether there is such an entry. False: the time is over, or the journal was closed.
        Raises:
            JournalError: The journal cannot be read.
        """

    @abstractmethod
    async def adopt(self, session_id: str, entries: Sequence[JournalEntry]) -> None:
        """Store all entries of a session of another journal, each at its position, or none of
        them.

        Args:
            entries: All entries of that session, and no others, without gaps from position 1.
        Raises:
            JournalError: `session-exists`: the session has entries here; `duplicate-entry`: one of
                its runs is here in another session; `bad-entries`: they are not as specified; or
                the journal cannot be written.
            LeaseHeldError: A run of the session is about to start.
        """

    @abstractmethod
    async def remove_session(self, session_id: str) -> bool:
        """Delete all entries of a session. Its blobs stay until `collect`.

        What its runs spent still counts for budgets of days, weeks and months, as figures.

        Returns:
            False where there were none.
        Raises:
            LeaseHeldError: A run of the session is active; nothing was deleted.
        """

    async def forget_sessions(self, session_ids: Collection[str]) -> None:
        """Remove what is left of removed sessions: their ids, which may be names that people gave,
        and the epochs of their leases. One that has entries, or is held, is left alone.
        """

    async def forget_spender(self, user: str) -> None:
        """Let what removed runs of a user spent count as spent by nobody in particular."""

    async def rewrite_session(
        self, session_id: str, change: Callable[[Fact], Fact] | None = None
    ) -> int:
        """Store the entries of a session again as this journal stores new ones: encrypted under
        the key for these. The chain of the session gets new values.

        Args:
            change: The fact in the place of each one; None: all of them as they are.
        Returns:
            How many entries; 0: nothing was to be done, as in a journal that does not encrypt.
        Raises:
            LeaseHeldError: A run of the session is active; nothing was changed.
            JournalError: An entry cannot be read; nothing was changed.
        """
        return 0

    async def rewrite_blobs(self) -> int:
        """Store the blobs again as new ones are stored; how many."""
        return 0

    async def stored_chain(self, session_id: str) -> StoredChain:
        """The rows of a session with their chain values, and the end that is stored beside them.

        This one computes the values of the entries; a journal that stores values overrides it.
        """
        found = await self.entries(session_id, with_damaged=True)
        return StoredChain(chained(row_of(entry) for entry in found))

    async def chain_end(self, session_id: str) -> ChainHead | None:
        """The last entry of a session with its chain value; None: it has no entry.

        This one reads the session; a journal that finds the entry at once overrides it.

        Raises:
            JournalError: The journal cannot be read.
        """
        rows = (await self.stored_chain(session_id)).rows
        if not rows:
            return None
        return ChainHead(rows[-1].epoch, rows[-1].position, rows[-1].chain or b"")

    async def chained_sessions(self) -> Sequence[str]:
        """The ids of all sessions of which anything is stored.

        This one gives those that are listed; a journal that knows of others overrides it.
        """
        return sorted(row.session_id for row in await self.sessions())

    async def verify(self, session_id: str) -> ChainReport:
        """Compare the entries of a session with its chain: each was stored with a value that covers
        all that it says, and the value of the entry before it.

        Costs as much as reading the session. One of which nothing is stored has nothing wrong.

        Raises:
            JournalError: The journal cannot be read.
        """
        return verify_chain(session_id, await self.stored_chain(session_id))

    @abstractmethod
    async def collect(
        self,
        *,
        dry_run: bool = False,
        spare_s: float = SPARED_S,
        only: Collection[str] | None = None,
    ) -> BlobCollection:
        """Delete the blobs that no fact names, neither directly nor through another blob.

        Args:
            dry_run: Only count them.
            spare_s: Blobs younger than this many seconds stay.
            only: The digests of those that are deleted; None: of all.
        """

    async def erase(self) -> bool:
        """Overwrite what was removed, where the store still holds it in free space or in a log.

        Returns:
            Whether that is done; False: somebody uses the store just now, or only its
            administrator can.
        """
        return True

    async def compact(self) -> int:
        """Return the space of deleted rows to the disk.

        Returns:
            Number of bytes; 0: there was nothing to return.
        """
        return 0

    @abstractmethod
    async def put_blob(self, data: bytes) -> str:
        """Store bytes under their SHA-256, once; returns the hash in hex."""

    @abstractmethod
    async def get_blob(self, digest: str) -> bytes:
        """The bytes of that hash.

        Raises:
            NotFoundError: There is no such blob.
        """

    async def aclose(self) -> None:
        """Close files and connections."""


_PAGE: Final = 500
"""Rows that are added up at once."""


async def _sum_of_rows(journal: Journal, spender: Spender, without: Collection[str]) -> Spent:
    from minions.contracts.journal.run_rows import RunFilter, Spent

    total = Spent()
    after: RunRow | None = None
    wanted = RunFilter(session_id=spender.session_id)
    while rows := await journal.runs(wanted, limit=_PAGE, after=after):
        for row in rows:
            if row.run_id not in without:
                total = total.plus(spender.of(row))
        after = rows[-1]
    return total


async def _uses_of_rows(
    journal: Journal, wanted: RunFilter, by: UseGroup, limit: int
) -> list[RunUse]:
    from minions.contracts.journal.run_rows import use_of

    found: list[RunUse] = []
    after: RunRow | None = None
    while rows := await journal.runs(wanted, limit=min(_PAGE, limit - len(found)), after=after):
        found += [use_of(row, by) for row in rows]
        after = rows[-1]
    return found


async def _totals_of_rows(journal: Journal, wanted: RunFilter | None) -> dict[str, StateTotal]:
    from minions.contracts.journal.run_rows import StateTotal

    found: dict[str, StateTotal] = {}
    after: RunRow | None = None
    while rows := await journal.runs(wanted, limit=_PAGE, after=after):
        for row in rows:
            runs, spent = found.get(row.status, StateTotal())
            found[row.status] = StateTotal(runs + 1, spent.plus(row.spent))
        after = rows[-1]
    return found


_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_DIGEST_IN_BYTES: Final = re.compile(_DIGEST.pattern.encode())


def digests_in(*texts: str | bytes) -> set[str]:
    """Everything in the texts that looks like a digest of a blob,
    so that no reference is missed.
    """
    found: set[str] = set()
    for text in texts:
        if isinstance(text, str):
            found.update(_DIGEST.findall(text))
        else:
            found.update(each.decode() for each in _DIGEST_IN_BYTES.findall(text))
    return found


def bad_entries(session_id: str, entries: Sequence[JournalEntry]) -> JournalError | None:
    """The error if these are not all entries of that session; None: they are."""
    why = None
    strangers = {entry.session_id for entry in entries} - {session_id}
    positions = [entry.position for entry in entries]
    names = {(e.run_id, e.generation, e.key, e.kind, e.state) for e in entries}
    if not entries:
        why = "there are none"
    elif strangers:
        why = f"there are some of session '{min(strangers)}'"
    elif positions != list(range(1, len(entries) + 1)):
        why = "their positions are not 1, 2, 3 …"
    elif len(names) < len(entries):
        why = "one of them is there twice"
    if why is None:
        return None
    return JournalError(
        f"These are not the facts of session '{session_id}': {why}. Nothing was stored.",
        code="bad-entries",
    )


def refuse_damaged(entries: Iterable[JournalEntry], journal: str | None = None) -> None:
    """Refuse entries that cannot be read.

    Args:
        journal: Location of the journal, for the message.
    Raises:
        JournalError: `corrupt-entry`, for the first unreadable entry.
    """
    for entry in entries:
        if isinstance(entry.fact, UnreadableFact):
            raise unreadable_entry(entry, entry.fact.problem, journal)


def changed_entries(
    entries: Iterable[JournalEntry], change: Callable[[Fact], Fact]
) -> list[JournalEntry]:
    """The entries with other facts.

    Args:
        change: The fact in the place of each one.
    Raises:
        JournalError: `corrupt-entry`, for the first unreadable entry.
    """
    changed = []
    for entry in entries:
        if isinstance(entry.fact, UnreadableFact):
            raise unreadable_entry(entry, entry.fact.problem)
        changed.append(replace(entry, fact=change(entry.fact)))
    return changed


def unreadable_entry(entry: JournalEntry, problem: str, journal: str | None = None) -> JournalError:
    """The error for an entry whose content is not what its kind and state require."""
    place = f" in {journal}" if journal is not None else ""
    return JournalError(
        f"Entry {entry.position} of session '{entry.session_id}' ({entry.kind} {entry.state} of "
        f"run '{entry.run_id}'){place} cannot be read: {problem}. Other runs are not "
        "affected. Restore a backup, or remove this session: "
        f"minions sessions rm {shell_word(entry.session_id)}",
        code="corrupt-entry",
        where=journal,
    )


def session_exists(session_id: str, count: int) -> JournalError:
    """The error for importing a session that is already in the journal."""
    return JournalError(
        f"Session '{session_id}' is here already, with {count} facts. Nothing was stored.",
        code="session-exists",
    )


# --- the row of an entry ---------------------------------------------------------------------


def row_of(entry: JournalEntry, *, text: str | None = None) -> ChainedRow:
    """The row of an entry, without its value.

    Args:
        text: Its body, as it is stored; None: as this version writes it.
    """
    damage = body = digest = None
    try:
        stored = body_text(entry) if text is None else text
        body, digest = hashed_body(stored.encode("utf-8", "surrogatepass"))
    except JournalError as error:
        damage = f"{error}"
    return ChainedRow(
        session_id=entry.session_id,
        position=entry.position,
        run_id=entry.run_id,
        generation=entry.generation,
        key=entry.key,
        kind=entry.kind,
        state=entry.state,
        body=body,
        body_digest=digest,
        epoch=entry.epoch,
        at=(entry.at - _EPOCH) // _MICROSECOND,
        chain=None,
        damage=damage,
    )


def body_text(draft: EntryDraft | JournalEntry, *, in_parts: bool = False) -> str:
    """The body as JSON, short: as it is stored and hashed.

    Args:
        in_parts: In a thread beside an event loop, where others work meanwhile.
    Raises:
        JournalError: It is none, or an entry that nobody could read.
    """
    if isinstance(draft.fact, UnreadableFact) and draft.fact.body is None:
        raise JournalError(
            f"What {draft.kind} '{draft.key}' {draft.state} holds cannot be read: "
            f"{draft.fact.problem}. Nothing was stored.",
            code="corrupt-entry",
        )
    try:
        body = body_of(draft.fact)
        if in_parts:
            from minions.data.json_parts import encoded_parts

            return "".join(encoded_parts(body, _encode_body))
        return _encode_body(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise JournalError(
            f"The body of {draft.kind} '{draft.key}' {draft.state} is not JSON: {error}. "
            "Nothing was stored.",
            code="body-not-json",
        ) from error


def _plain(value: object) -> object:
    """Mappings and sequences other than dict and list, which the type of a body allows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no JSON value")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_encode_body: Final = encoder_of(
    json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
)
