"""The hash chain of each journal: an honest one verifies, and what was changed in it is named."""

from __future__ import annotations

import itertools
import json
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import body_cipher
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.chain import (
    GENESIS,
    LARGEST_INLINE_BODY,
    ChainedRow,
    ChainHead,
    StoredChain,
    chained,
    hashed_body,
    link,
    link_of,
    verify_chain,
)
from minions.contracts.journal.journal import EntryDraft, Journal, body_text
from minions.data.errors import FencedError, JournalError
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock

Open = Callable[[], Journal]
Change = Callable[[str], None]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "sealed sqlite", "sealed postgres"])
async def opening(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Open]:
    """Each call opens the same store, as another process would; memory is one object."""
    cipher = body_cipher() if request.param.startswith("sealed") else None
    made: list[Journal] = []

    def make() -> Journal:
        if (kind := request.param.removeprefix("sealed ")) == "memory":
            made.append(made[0] if made else MemoryJournal(clock))
        elif kind == "sqlite":
            made.append(SqliteJournal(tmp_path / "journal.db", clock, cipher=cipher))
        else:
            url = request.getfixturevalue("postgres_url")
            made.append(PostgresJournal(url, clock, lease_clock=clock, cipher=cipher))
        return made[-1]

    yield make
    for journal in made:
        await journal.aclose()


@pytest.fixture
def journal(opening: Open) -> Journal:
    return opening()


@pytest.fixture
def change(request: pytest.FixtureRequest, tmp_path: Path) -> Change:
    """Carries out SQL beside the journal; `{}` stands for the schema."""

    def of_file(sql: str) -> None:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
            db.executescript(sql.replace("{}", ""))

    def of_server(sql: str) -> None:
        import psycopg

        url = request.getfixturevalue("postgres_url")
        with closing(psycopg.connect(url, autocommit=True)) as db:
            db.execute(sql.replace("{}", "minions.").replace("x'", "'\\x").encode())

    is_file = request.node.callspec.params["opening"] == "sqlite"
    return of_file if is_file else of_server


IN_DATABASES = pytest.mark.parametrize("opening", ["sqlite", "postgres"], indirect=True)

BODIES = ("plain", "ä \u2028 \x00", "half \ud83d", "long " * 10_000)


async def filled(journal: Journal, *, count: int = 6, is_released: bool = True) -> None:
    lease = await journal.acquire("ses_1", "run_1", "w1", ttl_s=60)
    for number in range(count):
        kind = "step" if number else "run"
        value = BODIES[number % len(BODIES)]
        draft = holding(value, key=str(number), kind=kind, state="finished")
        await journal.append(lease, draft)
    if is_released:
        await journal.release(lease)


async def fault_of(journal: Journal, session: str = "ses_1") -> tuple[int, str] | None:
    fault = (await journal.verify(session)).fault
    return None if fault is None else (fault.position, fault.what)


# --- honest journals -------------------------------------------------------------------------


async def test_an_honest_journal_verifies(journal: Journal) -> None:
    """A-171."""
    await filled(journal)
    report = await journal.verify("ses_1")
    assert (report.entries, report.uncovered, report.fault) == (6, 0, None)
    assert report.head == report.values[-1]
    assert await journal.chained_sessions() == ["ses_1"]
    end = await journal.chain_end("ses_1")
    assert end is not None
    assert (end.position, end.value.hex()) == (6, report.head)
    assert await journal.chain_end("ses_2") is None


async def test_all_journals_give_the_same_values(
    clock: FakeClock, tmp_path: Path, postgres_url: str
) -> None:
    heads = set()
    for journal in (
        MemoryJournal(clock),
        SqliteJournal(tmp_path / "journal.db", clock),
        PostgresJournal(postgres_url, clock, lease_clock=clock),
    ):
        await filled(journal)
        heads.add((await journal.verify("ses_1")).head)
        await journal.aclose()
    assert len(heads) == 1


async def test_a_chain_continues_under_other_leases_and_in_other_processes(
    opening: Open, clock: FakeClock
) -> None:
    """A-171: resumed, taken over from a worker that died, of another run."""
    here, there = opening(), opening()
    await filled(here, is_released=False)
    clock.advance(timedelta(seconds=61).total_seconds())
    for number, journal in enumerate((there, here, there)):
        lease = await journal.acquire("ses_1", f"run_{number}", f"w{number}", ttl_s=60)
        await journal.append_all(lease, [holding(n, key=str(n), kind="step") for n in range(9, 12)])
        await journal.append(lease, holding("end", key="run", kind="run"))
        await journal.release(lease)
    lease = await here.acquire("ses_1", "run_1", "w1", ttl_s=60, next_generation=True)
    await here.append(lease, holding("again", key="0", kind="step"))
    for journal in (here, there):
        report = await journal.verify("ses_1")
        assert (report.entries, report.fault) == (19, None)


async def test_two_journals_under_one_lease_write_one_chain(opening: Open) -> None:
    here, there = opening(), opening()
    lease = await here.acquire("ses_1", "run_1", "w1", ttl_s=60)
    for number, journal in enumerate((here, there, there, here, there)):
        await journal.append(lease, holding(number, key=str(number)))
    assert (await there.verify("ses_1")).fault is None


async def test_a_refused_fact_leaves_the_chain_as_it_was(
    journal: Journal, clock: FakeClock
) -> None:
    lease = await journal.acquire("ses_1", "run_1", "w1", ttl_s=60)
    await journal.append(lease, holding(1, key="a"))
    with pytest.raises(JournalError, match="already has the entry"):
        await journal.append(lease, holding(2, key="a"))
    await journal.append(lease, holding(3, key="b"))
    clock.advance(61)
    other = await journal.acquire("ses_1", "run_2", "w2", ttl_s=60)
    with pytest.raises(FencedError):
        await journal.append(lease, holding(4, key="c"))
    await journal.append(other, holding(5, key="d"))
    report = await journal.verify("ses_1")
    assert (report.entries, report.fault) == (3, None)


async def test_an_adopted_session_has_a_chain_of_its_own(
    journal: Journal, clock: FakeClock
) -> None:
    """A-171: of what it stores, which is not what the source stores where it is encrypted."""
    source = MemoryJournal(clock)
    await filled(source)
    await journal.adopt("ses_1", await source.entries("ses_1"))
    report = await journal.verify("ses_1")
    is_encrypted = getattr(journal, "cipher", None) is not None
    assert report.fault is None
    assert (report.head == (await source.verify("ses_1")).head) is not is_encrypted
    lease = await journal.acquire("ses_1", "run_2", "w1", ttl_s=60)
    await journal.append(lease, holding("more"))
    await journal.release(lease)
    assert await fault_of(journal) is None


async def test_a_removed_session_leaves_nothing_to_verify(journal: Journal) -> None:
    await filled(journal)
    await journal.remove_session("ses_1")
    report = await journal.verify("ses_1")
    assert (report.entries, report.head, report.fault) == (0, None, None)
    await filled(journal)
    assert await fault_of(journal) is None


# --- changed ones ----------------------------------------------------------------------------

TEXT = '\'{{"step_id":"a","status":"completed"}}\''

CHANGES: dict[str, tuple[str, tuple[int, str]]] = {
    "a key": ("UPDATE {}entries SET key = 'other' WHERE position = 3", (3, "changed")),
    "a run": ("UPDATE {}entries SET run_id = 'run_9' WHERE position = 1", (1, "changed")),
    "a generation": ("UPDATE {}entries SET generation = 2 WHERE position = 2", (2, "changed")),
    "a kind": ("UPDATE {}entries SET kind = 'route' WHERE position = 6", (6, "changed")),
    "a state": ("UPDATE {}entries SET state = 'failed' WHERE position = 5", (5, "changed")),
    "an epoch": ("UPDATE {}entries SET epoch = 7 WHERE position = 4", (4, "changed")),
    "a value": ("UPDATE {}entries SET chain = x'00' WHERE position = 4", (4, "changed")),
    "no value": ("UPDATE {}entries SET chain = NULL WHERE position = 4", (4, "inserted")),
    "no values": ("UPDATE {}entries SET chain = NULL", (6, "changed")),
    "no first values": ("UPDATE {}entries SET chain = NULL WHERE position < 3", (3, "changed")),
    "the first removed": ("DELETE FROM {}entries WHERE position = 1", (1, "removed")),
    "one removed": ("DELETE FROM {}entries WHERE position = 3", (3, "removed")),
    "some removed": ("DELETE FROM {}entries WHERE position IN (3, 4)", (3, "removed")),
    "the last removed": ("DELETE FROM {}entries WHERE position = 6", (6, "cut")),
    "all removed": ("DELETE FROM {}entries", (1, "cut")),
    "removed and closed up": (
        (
            "DELETE FROM {}entries WHERE position = 3;"
            "UPDATE {}entries SET position = position + 100 WHERE position > 3;"
            "UPDATE {}entries SET position = position - 101 WHERE position > 100"
        ),
        (3, "changed"),
    ),
    "swapped": (
        (
            "UPDATE {}entries SET position = 99 WHERE position = 2;"
            "UPDATE {}entries SET position = 2 WHERE position = 3;"
            "UPDATE {}entries SET position = 3 WHERE position = 99"
        ),
        (2, "swapped"),
    ),
}


@IN_DATABASES
@pytest.mark.parametrize("name", CHANGES)
async def test_a_changed_row_is_named(journal: Journal, change: Change, name: str) -> None:
    """A-171: one changed, removed or swapped row."""
    sql, expected = CHANGES[name]
    await filled(journal)
    change(sql)
    assert await fault_of(journal) == expected
    assert await journal.chained_sessions() == ["ses_1"]


COLUMNS = "session_id, position, run_id, generation, key, kind, state, body, epoch, at, chain"


@IN_DATABASES
@pytest.mark.parametrize(
    ("position", "chain"), [(3, "NULL"), (3, "chain"), (7, "NULL"), (7, "chain")]
)
async def test_an_inserted_row_is_named(
    journal: Journal, change: Change, position: int, chain: str
) -> None:
    """A-171."""
    await filled(journal)
    change(
        f"UPDATE {{}}entries SET position = position + 100 WHERE position >= {position};"
        f"UPDATE {{}}entries SET position = position - 99 WHERE position > 100;"
        f"INSERT INTO {{}}entries ({COLUMNS}) SELECT session_id, {position}, run_id, generation, "
        f"'extra', kind, state, body, epoch, at, {chain} FROM {{}}entries WHERE position = 2"
    )
    is_last = position == 7 and chain == "chain"
    assert await fault_of(journal) == (position, "changed" if is_last else "inserted")


@IN_DATABASES
async def test_a_changed_body_is_named(journal: Journal, change: Change, tmp_path: Path) -> None:
    """A-171."""
    await filled(journal)
    change(
        'UPDATE {}entries SET body = \'{"step_id":"a","status":"completed"}\' WHERE position = 2'
    )
    assert await fault_of(journal) == (2, "changed")


@IN_DATABASES
async def test_damage_is_told_apart_from_a_change(journal: Journal, change: Change) -> None:
    await filled(journal)
    change("UPDATE {}entries SET body = '{' WHERE position = 2")
    assert await fault_of(journal) == (2, "damaged")


@IN_DATABASES
async def test_what_follows_a_cut_end_does_not_hide_it(opening: Open, change: Change) -> None:
    """A-171: a later run continues the chain of the entries that were there."""
    await filled(opening())
    change("DELETE FROM {}entries WHERE position > 4")
    journal = opening()
    lease = await journal.acquire("ses_1", "run_2", "w1", ttl_s=60)
    for number in range(5):
        await journal.append(lease, holding(number, key=str(number)))
    await journal.release(lease)
    fault = await fault_of(journal)
    assert fault is not None
    assert (fault[0], fault[1] in ("changed", "removed")) == (5, True)


@IN_DATABASES
async def test_a_lease_under_which_nothing_is_stored_does_not_hide_a_cut_end(
    opening: Open, change: Change
) -> None:
    await filled(opening())
    change("DELETE FROM {}entries WHERE position > 4")
    journal = opening()
    await journal.release(await journal.acquire("ses_1", "run_2", "w1", ttl_s=60))
    assert await fault_of(journal) == (5, "cut")


@IN_DATABASES
async def test_what_follows_erased_values_does_not_hide_it(opening: Open, change: Change) -> None:
    """A-171: as if a version without chains had written them."""
    await filled(opening())
    change("UPDATE {}entries SET chain = NULL")
    journal = opening()
    lease = await journal.acquire("ses_1", "run_2", "w1", ttl_s=60)
    await journal.append(lease, holding("more"))
    await journal.release(lease)
    assert await fault_of(journal) == (7, "changed")


async def test_what_a_journal_object_knows_of_a_removed_session_does_not_count(
    opening: Open, clock: FakeClock
) -> None:
    here, there = opening(), opening()
    await filled(here, is_released=False)
    clock.advance(61)
    assert await there.remove_session("ses_1")
    lease = await there.acquire("ses_1", "run_2", "w2", ttl_s=60)
    for number, journal in enumerate((here, there, here)):
        await journal.append(lease, holding(number, key=str(number)))
    report = await there.verify("ses_1")
    assert (report.entries, report.fault) == (3, None)
    await there.release(lease)
    assert await fault_of(here) is None


@IN_DATABASES
async def test_a_session_of_a_version_without_chains_is_not_covered_and_not_wrong(
    opening: Open, change: Change
) -> None:
    await filled(opening())
    change("UPDATE {}entries SET chain = NULL; UPDATE {}leases SET chain = NULL")
    journal = opening()
    report = await journal.verify("ses_1")
    assert (report.entries, report.uncovered, report.head, report.fault) == (6, 6, None, None)
    lease = await journal.acquire("ses_1", "run_2", "w1", ttl_s=60)
    await journal.append(lease, holding("more"))
    await journal.release(lease)
    report = await opening().verify("ses_1")
    assert (report.entries, report.uncovered, report.fault) == (7, 6, None)
    change("UPDATE {}entries SET key = 'other' WHERE position = 7")
    assert await fault_of(journal) == (7, "changed")


async def test_a_large_body_that_was_changed_or_lost_is_named(
    tmp_path: Path, clock: FakeClock
) -> None:
    numbers = itertools.count()

    async def found_after(sql: str, data: bytes | None) -> tuple[int, str] | None:
        path = tmp_path / f"{next(numbers)}.db"
        journal = SqliteJournal(path, clock)
        await filled(journal)
        assert await fault_of(journal) is None
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(sql, () if data is None else (data,))
        fault = await fault_of(journal)
        await journal.aclose()
        return fault

    packed = zlib.compress(b'{"step_id":"a","status":"completed"}')
    assert await found_after("UPDATE blobs SET data = ?", packed) == (4, "changed")
    assert await found_after("UPDATE blobs SET data = ?", b"no zlib") == (4, "damaged")
    assert await found_after("DELETE FROM blobs", None) == (4, "damaged")
    odd = "UPDATE entries SET {} WHERE position = 3"
    assert await found_after(odd.format("epoch = 'x'"), None) == (3, "damaged")
    assert await found_after(odd.format("position = 'x'"), None) == (3, "damaged")
    assert await found_after(odd.format("key = x'ff'"), None) == (3, "damaged")


# --- the form that is hashed -----------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(0, 2**62)
ROWS = st.builds(
    ChainedRow,
    session_id=st.just("s"),
    position=st.just(0),
    run_id=TEXTS,
    generation=NUMBERS,
    key=TEXTS,
    kind=TEXTS,
    state=TEXTS,
    body=st.just("{}") | TEXTS.map(lambda text: json.dumps({"a": text}, ensure_ascii=False)),
    body_digest=st.none(),
    epoch=NUMBERS,
    at=NUMBERS,
    chain=st.none(),
)


@given(ROWS)
def test_the_hashed_form_is_plain_json(row: ChainedRow) -> None:
    """So that anybody can compute it without this program."""
    fields = (
        row.session_id, row.position, row.run_id, row.generation, row.key, row.kind, row.state,
        row.body, row.body_digest, row.epoch, row.at,
    )  # fmt: skip
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    assert link_of(GENESIS, row) == sha256(bytes(32) + text.encode()).digest()
    assert link(GENESIS, fields) == link_of(GENESIS, row)


@given(st.lists(ROWS, min_size=1, max_size=6), st.data())
def test_any_one_change_of_any_row_is_named(rows: list[ChainedRow], data: st.DataObject) -> None:
    """A-171."""
    honest = chained(replace(row, position=number) for number, row in enumerate(rows, 1))
    last = honest[-1]
    head = ChainHead(1, last.position, last.chain or b"")
    assert verify_chain("s", StoredChain(honest, head)).fault is None
    index = data.draw(st.integers(0, len(rows) - 1))
    kind = data.draw(st.sampled_from(["change", "hash", "remove", "insert", "swap"]))
    changed, first = [*honest], index + 1
    extra = replace(data.draw(ROWS), position=first, chain=honest[index].chain)
    if kind == "remove":
        del changed[index]
    elif kind == "insert":
        changed.insert(index, extra)
    elif kind == "swap":
        other = data.draw(st.integers(0, len(rows) - 1))
        changed[index], changed[other] = changed[other], changed[index]
        first = min(index, other) + 1
    else:
        before = honest[index - 1].chain if index else GENESIS
        value = link_of(before or b"", extra)  # as somebody computes it who changes one row only
        changed[index] = replace(extra, chain=value) if kind == "hash" else extra
    if kind in ("insert", "swap") or data.draw(st.booleans()):
        changed = [replace(row, position=number) for number, row in enumerate(changed, 1)]
    fault = verify_chain("s", StoredChain(changed, head)).fault
    if changed == honest:
        assert fault is None
        return
    assert fault is not None
    # One whose value fits it is seen by the next; so is one that is just like its neighbour.
    assert first <= fault.position <= first + (kind in ("hash", "insert", "remove"))


def plain_rows(count: int) -> list[ChainedRow]:
    return chained(
        ChainedRow(
            session_id="s",
            position=position,
            run_id="r",
            generation=1,
            key=f"{position}",
            kind="step",
            state="finished",
            body="{}",
            body_digest=None,
            epoch=1,
            at=0,
            chain=None,
        )
        for position in range(1, count + 1)
    )


def told(rows: list[ChainedRow], head: ChainHead | None = None) -> tuple[int, str, str]:
    fault = verify_chain("s", StoredChain(rows, head)).fault
    return (0, "", "") if fault is None else (fault.position, fault.what, fault.words)


def test_what_was_removed_is_counted() -> None:
    rows = plain_rows(5)
    assert told([rows[0], *rows[2:]]) == (2, "removed", "it was removed")
    assert told([rows[0], *rows[3:]]) == (2, "removed", "entries 2 to 3 were removed")
    end = ChainHead(1, 7, b"")
    words = "the end was removed: 7 entries were written, 5 are here"
    assert told(rows, end) == (6, "cut", words)


def test_a_row_without_a_position_is_damage_and_one_behind_a_gap_is_not() -> None:
    rows = plain_rows(3)
    odd = replace(rows[2], position=0, damage="no number")
    assert told([rows[0], rows[1], odd]) == (3, "damaged", "it cannot be read: no number")
    assert told([rows[0], rows[2], odd])[:2] == (2, "damaged")
    assert told([rows[0], replace(rows[2], damage="no text")])[:2] == (2, "removed")
    assert told([rows[0], rows[1], rows[1]])[:2] == (2, "inserted")


def test_the_stored_end_is_compared_with_the_row_at_its_place() -> None:
    rows = plain_rows(3)
    assert told(rows, ChainHead(1, 2, rows[1].chain or b"")) == (0, "", "")
    assert told(rows, ChainHead(1, 2, b"")) == (0, "", "")
    assert told([], ChainHead(1, 0, b"x")) == told(rows, ChainHead(1, 0, b"x")) == (0, "", "")
    for position in (1, 2, 3):
        assert told(rows, ChainHead(1, position, b"x"))[:2] == (position, "changed")


def test_a_body_of_just_the_largest_size_is_hashed_itself() -> None:
    text = "x" * LARGEST_INLINE_BODY
    assert hashed_body(text.encode()) == (text, None)
    assert hashed_body(f"{text}x".encode()) == (None, sha256(f"{text}x".encode()).hexdigest())


def test_a_fact_of_an_entry_is_hashed_as_it_is_stored() -> None:
    draft: EntryDraft = holding({"b": [1.5, "ä"]}, key="k")
    assert body_text(draft).endswith('"output":{"b":[1.5,"ä"]}}')
