"""Random operations on every journal and on a few dictionaries come to the same."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from attrs import field, frozen, mutable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import EntryDraft, Journal, JournalEntry, Lease
from minions.data.errors import FencedError, JournalError, LeaseHeldError, NotFoundError
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock
from postgres import PostgresServer

T = TypeVar("T")


@mutable
class Held:
    """Who has a session, and until when; None: given back."""

    lease: Lease
    deadline: float | None


@frozen
class Oracle:
    """What a journal should say, in the plainest words."""

    entries: list[JournalEntry] = field(factory=list)
    held: dict[str, Held] = field(factory=dict)
    blobs: dict[str, bytes] = field(factory=dict)

    def of(self, session: str) -> list[JournalEntry]:
        return [entry for entry in self.entries if entry.session_id == session]

    def owns(self, lease: Lease) -> bool:
        held = self.held.get(lease.session_id)
        return held is not None and held.deadline is not None and held.lease == lease

    def has(self, lease: Lease, draft: EntryDraft) -> bool:
        return any(
            (entry.run_id, entry.generation) == (lease.run_id, lease.generation)
            and (entry.key, entry.kind, entry.state) == (draft.key, draft.kind, draft.state)
            for entry in self.entries
        )

    def generation(self, run: str) -> int:
        return max((entry.generation for entry in self.entries if entry.run_id == run), default=0)


# A run lives in one session: that is how they are made.
RUNS = st.sampled_from([("ses_a", "run_1"), ("ses_a", "run_2"), ("ses_b", "run_3")])
WORKERS = st.sampled_from(["w1", "w2"])
DRAFTS = st.builds(
    lambda name, **rest: holding(kind=name[0], state=name[1], **rest),
    name=st.sampled_from(
        [(kind, state) for kind in ("run", "step") for state in ("started", "finished")]
        + [("model_call", "finished"), ("model_call", "failed")]
    ),
    key=st.sampled_from(["a", "b", "c"]),
    value=st.dictionaries(
        st.text(max_size=3),
        st.integers()
        | st.text(max_size=5)
        | st.lists(st.floats(allow_nan=False, allow_infinity=False, width=16)),
        max_size=2,
    )
    | st.just("x").map(lambda text: {"large": text * 40_000}),
)


class JournalAgainstOracle(RuleBasedStateMachine):
    """One journal, driven at random."""

    leases = Bundle("leases")

    def make(self, folder: Path) -> Journal:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.journal = self.make(Path(self.folder.name))
        self.oracle = Oracle()

    def teardown(self) -> None:
        self.wait(self.journal.aclose())
        self.loop.close()
        self.folder.cleanup()

    def wait(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(_awaited(work))

    @rule(
        target=leases,
        run=RUNS,
        worker=WORKERS,
        ttl=st.sampled_from([5.0, 60.0]),
        is_next=st.booleans(),
        victim=st.none() | WORKERS,
    )
    def acquire(
        self, run: tuple[str, str], worker: str, ttl: float, is_next: bool, victim: str | None
    ) -> Lease:
        session, run_id = run
        held = self.oracle.held.get(session)
        doing = self.journal.acquire(
            session, run_id, worker, ttl, next_generation=is_next, takes_over=victim
        )
        if held is not None and not self._may_take(held, run_id, worker, victim):
            with pytest.raises(LeaseHeldError) as caught:
                self.wait(doing)
            assert caught.value.worker_id == held.lease.worker_id
            return held.lease
        lease = self.wait(doing)
        written = self.oracle.generation(run_id)
        assert lease == Lease(
            session_id=session,
            run_id=run_id,
            worker_id=worker,
            epoch=held.lease.epoch + 1 if held else 1,
            generation=written + 1 if is_next else max(written, 1),
        )
        self.oracle.held[session] = Held(lease, self.clock.monotonic() + ttl)
        return lease

    def _may_take(self, held: Held, run_id: str, worker: str, victim: str | None) -> bool:
        is_over = held.deadline is None or held.deadline <= self.clock.monotonic()
        is_same = (held.lease.run_id, held.lease.worker_id) == (run_id, worker)
        return is_over or is_same or held.lease.worker_id == victim

    @rule(lease=leases, ttl=st.sampled_from([5.0, 60.0]))
    def renew(self, lease: Lease, ttl: float) -> None:
        doing = self.journal.renew(lease, ttl)
        if not self.oracle.owns(lease):
            with pytest.raises(FencedError):
                self.wait(doing)
            return
        self.wait(doing)
        self.oracle.held[lease.session_id].deadline = self.clock.monotonic() + ttl

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        self.wait(self.journal.release(lease))
        if self.oracle.owns(lease):
            self.oracle.held[lease.session_id].deadline = None

    @rule(lease=leases, draft=DRAFTS)
    def append(self, lease: Lease, draft: EntryDraft) -> None:
        doing = self.journal.append(lease, draft)
        if not self.oracle.owns(lease):
            with pytest.raises(FencedError):
                self.wait(doing)
            return
        if self.oracle.has(lease, draft):
            with pytest.raises(JournalError) as caught:
                self.wait(doing)
            assert caught.value.error_code == "duplicate-entry"
            return
        stored = self.wait(doing)
        assert stored == JournalEntry(
            session_id=lease.session_id,
            position=len(self.oracle.of(lease.session_id)) + 1,
            run_id=lease.run_id,
            generation=lease.generation,
            key=draft.key,
            fact=draft.fact,
            epoch=lease.epoch,
            at=self.clock.now(),
        )
        self.oracle.entries.append(stored)

    @rule(seconds=st.sampled_from([0.000_001, 4.0, 30.0, 100.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(data=st.binary(max_size=5) | st.just(b"x").map(lambda data: data * 50_000))
    def put_blob(self, data: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()
        assert self.wait(self.journal.put_blob(data)) == digest
        self.oracle.blobs[digest] = data

    @rule(data=st.binary(max_size=5))
    def get_blob(self, data: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()
        if digest in self.oracle.blobs:
            assert self.wait(self.journal.get_blob(digest)) == data
            return
        with pytest.raises(NotFoundError):
            self.wait(self.journal.get_blob(digest))

    @rule(
        run=st.none() | RUNS,
        after=st.integers(-1, 6),
        until=st.none() | st.integers(-1, 6),
        kinds=st.none() | st.lists(st.sampled_from(["run", "step", "none"]), max_size=2),
        limit=st.none() | st.integers(0, 3),
        newest_first=st.booleans(),
    )
    def read_some(
        self,
        run: tuple[str, str] | None,
        after: int,
        until: int | None,
        kinds: list[str] | None,
        limit: int | None,
        newest_first: bool,
    ) -> None:
        session, run_id = run or (None, None)
        read = self.wait(
            self.journal.entries(
                session,
                run_id=run_id,
                after=after,
                until=until,
                kinds=kinds,
                limit=limit,
                newest_first=newest_first,
            )
        )
        chosen = [
            entry
            for name in sorted({entry.session_id for entry in self.oracle.entries})
            for entry in self.oracle.of(name)
            if (session is None or entry.session_id == session)
            and (run_id is None or entry.run_id == run_id)
            and entry.position > after
            and (until is None or entry.position <= until)
            and (kinds is None or entry.kind in kinds)
        ]
        assert list(read) == chosen[:: -1 if newest_first else 1][:limit]

    @rule(session=st.sampled_from(["ses_a", "ses_b"]), after=st.integers(0, 6))
    def look_for_news(self, session: str, after: int) -> None:
        is_there = self.wait(self.journal.wait(session, after, 0))
        assert is_there == (len(self.oracle.of(session)) > after)

    @rule(session=st.sampled_from(["ses_a", "ses_b"]))
    def remove(self, session: str) -> None:
        if self._is_active(session):
            with pytest.raises(LeaseHeldError):
                self.wait(self.journal.remove_session(session))
            return
        known = self.oracle.of(session)
        assert self.wait(self.journal.remove_session(session)) == bool(known)
        for entry in known:
            self.oracle.entries.remove(entry)
        if (held := self.oracle.held.get(session)) is not None:
            held.deadline = None

    def _is_active(self, session: str) -> bool:
        held = self.oracle.held.get(session)
        return bool(held and held.deadline and held.deadline > self.clock.monotonic())

    @rule(session=st.sampled_from(["ses_a", "ses_b"]))
    def remove_and_take_in_again(self, session: str) -> None:
        known = self.oracle.of(session)
        if not known or self._is_active(session):
            return
        self.wait(self.journal.remove_session(session))
        self.wait(self.journal.adopt(session, known))
        self.oracle.held[session].deadline = None

    @rule()
    def open_again(self) -> None:
        """Nothing for a journal that lives as long as its process."""

    @invariant()
    def all_is_there(self) -> None:
        if hasattr(self, "journal"):
            assert len(self.wait(self.journal.entries())) == len(self.oracle.entries)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


class MemoryJournalAgainstOracle(JournalAgainstOracle):
    def make(self, folder: Path) -> Journal:
        return MemoryJournal(self.clock)


class SqliteJournalAgainstOracle(JournalAgainstOracle):
    def make(self, folder: Path) -> Journal:
        self.path = folder / "journal.db"
        return SqliteJournal(self.path, self.clock)

    @rule()
    def open_again(self) -> None:
        """As another process would, while the first one has it open."""
        before, self.journal = self.journal, SqliteJournal(self.path, self.clock)
        self.wait(before.aclose())


def _case(machine: type[JournalAgainstOracle], examples: int) -> Callable[[], object]:
    machine.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=25, deadline=None
    )
    return machine.TestCase


TestMemoryJournalAgainstOracle = _case(MemoryJournalAgainstOracle, 60)
TestSqliteJournalAgainstOracle = _case(SqliteJournalAgainstOracle, 30)


def test_postgres_journal_against_oracle(postgres: PostgresServer) -> None:
    class PostgresJournalAgainstOracle(JournalAgainstOracle):
        def make(self, folder: Path) -> Journal:
            self.lending = postgres.journal()
            self.url = self.lending.__enter__()
            return PostgresJournal(self.url, self.clock, lease_clock=self.clock)

        def teardown(self) -> None:
            super().teardown()
            self.lending.__exit__(None, None, None)

        @rule()
        def open_again(self) -> None:
            """As another worker would, while the first one is connected."""
            before, self.journal = (
                self.journal,
                PostgresJournal(self.url, self.clock, lease_clock=self.clock),
            )
            self.wait(before.aclose())

    run_state_machine_as_test(
        PostgresJournalAgainstOracle,
        settings=settings(max_examples=10, stateful_step_count=25, deadline=None),
    )
