"""The SQLite journal on files that are locked, read-only, damaged, gone, and on full disks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import minions
from minions.adapters.stores.sqlite_database import bundled_migrations, open_database
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.facts import RunStarted, UnreadableFact
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.data.errors import JournalError, LeaseHeldError, MinionsError
from minions.data.json_values import JsonValue
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock
from read_only import IS_ROOT, contents_of, open_folder, without_rights

ROOT = str(Path(minions.__file__).parent.parent)
MIGRATIONS = bundled_migrations()


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqliteJournal]:
    made = journal_at(tmp_path / "journal.db")
    yield made
    await made.aclose()


def journal_at(path: Path, *, busy_timeout_s: float = 0.3) -> SqliteJournal:
    """Waits by moving its clock; the migrations are read already."""
    clock = FakeClock()
    return SqliteJournal(
        path, clock, busy_timeout_s=busy_timeout_s, sleep=clock.sleep, migrations=MIGRATIONS
    )


def draft(key: str, *, kind: str = "model_call", **body: JsonValue) -> EntryDraft:
    return holding(body, kind=kind, key=key)


async def lease_of(journal: SqliteJournal, worker: str = "w1") -> Lease:
    return await journal.acquire("ses_1", "run_1", worker, ttl_s=60)


def begun() -> EntryDraft:
    return EntryDraft(key="run", fact=RunStarted(recipe="adds", steps={"a": "1"}))


async def fill(journal: SqliteJournal, count: int = 60) -> list[JournalEntry]:
    """Entries of all sizes and a blob, in a file that is closed again."""
    lease = await lease_of(journal)
    for n in range(count):
        size = 40_000 if n % 7 == 0 else n * 40
        await journal.append(lease, draft(f"k{n}", text="x" * size))
    await journal.put_blob(b"b" * 100_000)
    await journal.release(lease)
    stored = list(await journal.entries())
    await journal.aclose()
    return stored


async def refused(code: str, doing: Awaitable[object]) -> JournalError:
    with pytest.raises(JournalError) as caught:
        await doing
    assert caught.value.error_code == code
    return caught.value


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


# --- locked ------------------------------------------------------------------------------------

_LOCKER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute(sys.argv[2])
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE leases SET epoch = epoch")
print("locked", flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
"""
_NORMAL, _EXCLUSIVE = "PRAGMA locking_mode=NORMAL", "PRAGMA locking_mode=EXCLUSIVE"


@contextlib.contextmanager
def locked_by_a_process(path: Path, mode: str = _NORMAL) -> Iterator[subprocess.Popen[str]]:
    with child(_LOCKER, path, mode) as process:
        assert line_of(process) == "locked"
        try:
            yield process
        finally:
            process.communicate("")


async def test_a_lock_of_another_process_that_lasts_is_reported(journal: SqliteJournal) -> None:
    lease = await lease_of(journal)
    with locked_by_a_process(journal.path):
        for doing in (
            journal.append(lease, draft("a")),
            journal.renew(lease, 60),
            journal.put_blob(b"data"),
            journal.acquire("ses_2", "run_2", "w1", 60),
        ):
            error = await refused("database-busy", doing)
            assert "Another process keeps it locked. End that process" in error.message
        assert await journal.entries() == []  # reading goes on beside a writer
    assert (await journal.append(lease, draft("a"))).position == 1


async def test_all_calls_together_wait_for_a_lock_once(tmp_path: Path) -> None:
    """A-124: what a failed call leads to (a failure is stored, a lease given back) fails soon."""
    clock = FakeClock()
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, clock, busy_timeout_s=5, sleep=clock.sleep, migrations=MIGRATIONS)
    lease = await lease_of(journal)
    with locked_by_a_process(path):
        await refused("database-busy", journal.append(lease, draft("a")))
        assert 4 < clock.monotonic() <= 5
        await journal.entries()  # a reader is not in the way, and ends no lock
        await refused("database-busy", journal.append(lease, draft("b")))
        await refused("database-busy", journal.release(lease))
        assert clock.monotonic() <= 5.5
    await journal.append(lease, draft("a"))
    begin = clock.monotonic()
    with locked_by_a_process(path):  # another lock: it is waited for anew
        await refused("database-busy", journal.append(lease, draft("b")))
        assert clock.monotonic() - begin > 4
    await journal.aclose()


async def test_a_lock_long_after_another_one_is_waited_for_anew(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, clock, busy_timeout_s=5, sleep=clock.sleep, migrations=MIGRATIONS)
    lease = await lease_of(journal)
    with locked_by_a_process(path):
        await refused("database-busy", journal.append(lease, draft("a")))
        clock.advance(6)
        begin = clock.monotonic()
        await refused("database-busy", journal.append(lease, draft("a")))
        assert clock.monotonic() - begin > 4
    await journal.aclose()


async def test_a_database_that_is_locked_when_it_is_opened_is_reported(
    journal: SqliteJournal,
) -> None:
    await fill(journal, 1)
    with locked_by_a_process(journal.path, _EXCLUSIVE):
        await refused("database-busy", journal.entries())
        await refused("database-busy", lease_of(journal))
    assert len(await journal.entries()) == 1


async def test_while_a_lock_is_waited_for_the_event_loop_goes_on(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", FakeClock(), busy_timeout_s=20)
    lease = await lease_of(journal)
    with locked_by_a_process(journal.path) as process:
        appending = asyncio.ensure_future(journal.append(lease, draft("a")))
        ticks = 0
        while ticks < 30:
            await asyncio.sleep(0.002)
            ticks += 1
        assert not appending.done()
        tell(process, "let go")
        assert (await appending).position == 1
    await journal.aclose()


async def test_a_call_that_waits_for_a_lock_can_be_cancelled(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", FakeClock(), busy_timeout_s=20)
    lease = await lease_of(journal)
    with locked_by_a_process(journal.path), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await journal.append(lease, draft("a"))
    assert (await journal.append(lease, draft("b"))).position == 1
    await journal.aclose()


# --- owned -------------------------------------------------------------------------------------

_RACER = """
import asyncio, json, sys
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.data.errors import JournalError
from minions.testing.virtual_time import FakeClock

async def main(path, worker):
    journal = SqliteJournal(path, FakeClock())
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        lease = await journal.acquire("ses_1", "run_1", worker, 60)
        print(json.dumps([lease.epoch, worker]), flush=True)
    except JournalError as error:
        print(json.dumps([error.error_code, error.message]), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_of_two_processes_one_gets_the_run_and_the_other_hears_who(tmp_path: Path) -> None:
    """The file does not even exist when they begin."""
    path = tmp_path / "journal.db"
    with child(_RACER, path, "first") as first, child(_RACER, path, "second") as second:
        assert [line_of(first), line_of(second)] == ["ready", "ready"]
        tell(first, "go")
        tell(second, "go")
        said = [json.loads(line_of(first)), json.loads(line_of(second))]
    ((epoch, winner),) = [answer for answer in said if answer[0] != "lease-held"]
    ((_, message),) = [answer for answer in said if answer[0] == "lease-held"]
    assert epoch == 1
    assert f"run 'run_1' is active on worker '{winner}' until 2026-01-01T00:01:00" in message
    journal = journal_at(path)
    with pytest.raises(LeaseHeldError) as caught:
        await lease_of(journal, "third")
    assert caught.value.worker_id == winner
    await journal.aclose()


# --- read-only ---------------------------------------------------------------------------------


@pytest.fixture
def common_folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


def names_of(path: Path) -> list[Path]:
    """The database and the files beside it, which have its mode."""
    return sorted(path.parent.glob(f"{path.name}*"))


def close(folder: Path) -> None:
    folder.chmod(0o555)


async def test_a_read_only_file_can_be_read_and_not_written(common_folder: Path) -> None:
    journal = journal_at(common_folder / "journal.db")
    with without_rights():
        stored = await fill(journal, 3)
        journal.path.chmod(0o444)
        assert await journal.entries() == stored
        error = await refused("read-only", lease_of(journal))
        assert "beside it, or its directory is read-only. Make all writable." in error.message
        await journal.aclose()
        for file in names_of(journal.path):
            file.chmod(0o600)
        assert (await lease_of(journal)).epoch == 2
        await journal.aclose()


async def test_a_database_in_a_read_only_folder_is_read_and_left_as_it_is(
    common_folder: Path,
) -> None:
    journal = journal_at(common_folder / "journal.db")
    with without_rights():
        await journal.append(await lease_of(journal), begun())
        stored = await fill(journal, 3)
    close(common_folder)
    before = contents_of(common_folder)
    with without_rights():
        assert await journal.entries() == stored
        assert [row.run_id for row in await journal.runs()] == ["run_1"]  # their rows are made now
        assert await journal.entries() == stored
        error = await refused("read-only", lease_of(journal))
        assert "its directory is read-only. Make all writable. Until then its" in error.message
        await refused("read-only", journal.put_blob(b"data"))
        error = await refused("cannot-open", journal_at(common_folder / "new.db").entries())
        assert "Permission denied" in error.message
        await journal.aclose()
    assert contents_of(common_folder) == before


async def test_on_a_read_only_file_system_the_same_holds(small_disk: Path) -> None:
    journal = journal_at(small_disk / "journal.db")
    await journal.append(await lease_of(journal), begun())
    stored = await fill(journal, 3)
    remount(small_disk, "ro")
    assert await journal.entries() == stored
    assert [row.run_id for row in await journal.runs()] == ["run_1"]
    await refused("read-only", lease_of(journal))
    await refused("read-only", journal_at(small_disk / "new.db").entries())
    await journal.aclose()


@pytest.mark.parametrize("lost", [(), ("-shm",)], ids=["with -shm", "without -shm"])
async def test_what_only_the_log_of_a_killed_process_holds_is_read_in_a_read_only_folder(
    common_folder: Path, lost: tuple[str, ...]
) -> None:
    journal = journal_at(common_folder / "journal.db")
    with child(_WRITER, journal.path) as process:
        assert line_of(process) == "written"
        process.kill()
    assert journal.path.with_name("journal.db-wal").stat().st_size > 0
    for end in lost:
        journal.path.with_name(f"journal.db{end}").unlink()
    for file in names_of(journal.path):
        file.chmod(0o444)
    close(common_folder)
    before = contents_of(common_folder)
    with without_rights():
        assert [entry.key for entry in await journal.entries()] == ["k"]
        assert [row.run_id for row in await journal.runs()] == ["run_1"]
        await refused("read-only", lease_of(journal))
        await journal.aclose()
    assert contents_of(common_folder) == before


async def test_what_another_process_writes_is_seen_by_a_reader_that_may_not(
    common_folder: Path,
) -> None:
    writer, reader = (journal_at(common_folder / "journal.db") for _ in range(2))
    await writer.append(await lease_of(writer), begun())
    await writer.aclose()
    for file in (common_folder, writer.path):
        file.chmod(file.stat().st_mode & 0o555 | 0o444)

    async def seen() -> tuple[int, int]:
        with without_rights():
            return len(await reader.entries()), len(await reader.runs())

    try:
        if not IS_ROOT:
            pytest.skip("only root may write where the reader may not")
        assert await seen() == (1, 1)
        lease = await lease_of(writer)
        await writer.append(lease, draft("b"))
        assert await seen() == (2, 1)
        await writer.append(await writer.acquire("ses_2", "run_2", "w1", 60), begun())
        assert await seen() == (3, 2)
        await writer.aclose()  # the log is gone with it
        assert await seen() == (3, 2)
    finally:
        await reader.aclose()


async def test_an_older_database_in_a_read_only_folder_is_read_as_a_new_one(
    common_folder: Path,
) -> None:
    older = dict(list(MIGRATIONS.items())[:1])
    path = common_folder / "journal.db"
    with without_rights(), closing(open_database(path, older)):
        pass
    close(common_folder)
    before = contents_of(common_folder)
    journal = journal_at(path)
    with without_rights():
        assert await journal.entries() == []
        assert await journal.runs() == []
        await refused("read-only", lease_of(journal))
        await journal.aclose()
    assert contents_of(common_folder) == before


async def test_a_database_that_becomes_writable_is_written_at_the_next_call(
    common_folder: Path,
) -> None:
    journal = journal_at(common_folder / "journal.db")
    with without_rights():
        await fill(journal, 1)
        journal.path.chmod(0o444)
        await refused("read-only", lease_of(journal))
        journal.path.chmod(0o600)
        assert (await lease_of(journal)).epoch == 2
        await journal.aclose()


_WRITER = """
import asyncio, sys
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.facts import RunStarted
from minions.contracts.journal.journal import EntryDraft
from minions.testing.virtual_time import FakeClock

async def main(path):
    journal = SqliteJournal(path, FakeClock())
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    fact = RunStarted(recipe="adds", steps={"a": "1"})
    await journal.append(lease, EntryDraft(key="k", fact=fact))
    print("written", flush=True)
    sys.stdin.readline()  # killed here

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_file_that_may_not_be_read_is_reported(common_folder: Path) -> None:
    journal = journal_at(common_folder / "journal.db")
    with without_rights():
        await fill(journal, 1)
        journal.path.chmod(0)
        await refused("cannot-open", journal.entries())


# --- damaged -----------------------------------------------------------------------------------

Damage = Callable[[bytearray], None]


def _no_header(data: bytearray) -> None:
    data[:100] = b"\xa5" * 100


def _random_page(data: bytearray) -> None:
    """Behind the empty tables, which nobody reads."""
    middle = len(data) // 4096 * 3 // 4 * 4096
    data[middle : middle + 4096] = random.Random(1).randbytes(4096)


def _half(data: bytearray) -> None:
    del data[len(data) // 2 :]


def _stub(data: bytearray) -> None:
    del data[100:]


def _no_schema(data: bytearray) -> None:
    data[data.index(b"body_digest TEXT") + 2] ^= 1


def _not_unicode(data: bytearray) -> None:
    """In every page that holds a body."""
    start = 0
    while (at := data.find(b'{"text":"xxxx', start)) >= 0:
        data[at + 10] = 0xFF
        start = at + 10


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_no_header, "not-a-database"),
        (_random_page, "corrupt-database"),
        (_half, "corrupt-database"),
        (_stub, "corrupt-database"),
        (_no_schema, "corrupt-database"),
        (_not_unicode, "corrupt-entry"),
    ],
)
async def test_a_damaged_file_is_reported_without_what_is_in_it(
    journal: SqliteJournal, damage: Damage, code: str
) -> None:
    await fill(journal)
    data = bytearray(journal.path.read_bytes())
    damage(data)
    journal.path.write_bytes(data)
    error = await refused(code, journal.entries())
    assert str(journal.path) in error.message
    assert "xxxx" not in error.message
    assert len(error.message) < 400


async def test_an_empty_file_is_a_new_database(journal: SqliteJournal) -> None:
    journal.path.touch()
    assert await journal.entries() == []


async def changed(journal: SqliteJournal, sql: str) -> None:
    """A row as SQLite stores it and we would not."""
    await fill(journal, 2)
    with closing(sqlite3.connect(journal.path)) as db:
        db.execute(sql)
        db.commit()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("UPDATE entries SET body = '{' WHERE key = 'k1'", "body is not JSON"),
        ("UPDATE entries SET body = '[1]' WHERE key = 'k1'", "body is no JSON object"),
        ("UPDATE entries SET body = x'7bff' WHERE key = 'k1'", "body is not JSON"),
        ("UPDATE entries SET at = 9223372036854775807", "its time is out of range"),
        ("UPDATE entries SET at = 'noon'", "its time is out of range"),
        ("UPDATE blobs SET data = x'00'", "cannot be unpacked"),
        ("UPDATE blobs SET data = 'text'", "cannot be unpacked"),
        ("DELETE FROM blobs", "cannot be unpacked"),
    ],
)
async def test_a_row_that_makes_no_sense_is_reported(
    journal: SqliteJournal, sql: str, words: str
) -> None:
    await changed(journal, sql)
    error = await refused("corrupt-entry", journal.entries())
    assert words in error.message
    assert "Restore a backup" in error.message
    entries = await journal.entries(with_damaged=True)
    told = [each.fact.problem for each in entries if isinstance(each.fact, UnreadableFact)]
    assert any(words in problem for problem in told)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE leases SET epoch = 'many'",
        "UPDATE leases SET deadline = 'noon'",
        "UPDATE entries SET position = 'last' WHERE position = 2",
        "UPDATE entries SET generation = 'new'",
    ],
)
async def test_numbers_that_are_none_are_reported_before_anything_is_written(
    journal: SqliteJournal, sql: str
) -> None:
    await changed(journal, sql)

    async def write() -> None:
        await journal.append(await lease_of(journal), draft("new"))

    await refused("corrupt-database", write())


@pytest.mark.parametrize("wrong", ["epoch = 'many'", "worker_id = x'07'"])
async def test_a_lease_that_makes_no_sense_hides_no_other(
    journal: SqliteJournal, wrong: str
) -> None:
    await changed(journal, f"UPDATE leases SET deadline = 1, {wrong}")
    other = await journal.acquire("ses_2", "run_2", "w", 60)
    assert [each.lease for each in await journal.held_leases()] == [other]


async def test_whatever_bytes_are_wrong_every_call_answers_or_refuses(
    journal: SqliteJournal,
) -> None:
    await fill(journal)
    whole = journal.path.read_bytes()
    codes = set()
    for seed in range(60):
        journal.path.write_bytes(_disturbed(whole, random.Random(seed)))
        for leftover in journal.path.parent.glob("journal.db-*"):
            leftover.unlink()
        codes |= {await _answer(doing) for doing in _every_call(journal)}
        await journal.aclose()
    assert (
        {"ok", "corrupt-database"}
        <= codes
        <= {
            "ok",
            "corrupt-database",
            "corrupt-entry",
            "not-a-database",
        }
    )


def _disturbed(whole: bytes, chance: random.Random) -> bytes:
    data = bytearray(whole)
    page = chance.randrange(len(data) // 4096) * 4096
    match chance.randrange(4):
        case 0:
            data[page : page + 4096] = chance.randbytes(4096)
        case 1:
            data[page : page + 4096] = bytes(4096)
        case 2:
            for _ in range(200):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case _:
            del data[chance.randrange(len(data)) :]
    return bytes(data)


def _every_call(journal: SqliteJournal) -> list[Awaitable[object]]:
    async def write() -> None:
        lease = await lease_of(journal)
        await journal.append(lease, draft("new", text="y" * 50_000))
        await journal.renew(lease, 60)
        await journal.release(lease)

    async def read_blob() -> None:
        await journal.get_blob(await journal.put_blob(b"b" * 100_000))

    return [journal.entries(), journal.entries(run_id="run_1"), write(), read_blob()]


async def _answer(doing: Awaitable[object]) -> str:
    try:
        await doing
    except MinionsError as error:
        return error.error_code
    return "ok"


# --- newer -------------------------------------------------------------------------------------


async def test_a_newer_database_is_refused_and_left_as_it_is(journal: SqliteJournal) -> None:
    await fill(journal, 2)
    with closing(sqlite3.connect(journal.path)) as db:
        db.execute("INSERT INTO applied_migrations (name) VALUES ('9999_future')")
        db.commit()
    before = journal.path.read_bytes()
    for doing in (journal.entries(), lease_of(journal)):
        error = await refused("newer-database", doing)
        assert "'9999_future'" in error.message
        assert "Upgrade this program" in error.message
    assert journal.path.read_bytes() == before


# --- gone --------------------------------------------------------------------------------------


def _deleted(path: Path) -> None:
    for each in names_of(path):
        each.unlink()


def _moved(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def _replaced(path: Path) -> None:
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.replace(path)


def _folder_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("lose", [_deleted, _moved, _replaced, _folder_moved])
async def test_a_file_that_is_lost_while_it_is_in_use_is_noticed(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    journal = journal_at(tmp_path / "folder" / "journal.db")
    lease = await lease_of(journal)
    await journal.append(lease, draft("a"))
    lose(journal.path)
    error = await refused("database-gone", journal.append(lease, draft("b", kind="step")))
    assert "was deleted, moved or replaced while it was in use" in error.message
    assert "Put the file back, or start with another" in error.message
    await journal.aclose()


@pytest.mark.parametrize("kind", ["step", "run"])
async def test_the_loss_is_noticed_at_every_landmark_and_then_for_good(
    journal: SqliteJournal, kind: str
) -> None:
    lease = await lease_of(journal)
    _deleted(journal.path)
    await journal.append(lease, draft("a"))  # too many of these to look each time
    await refused("database-gone", journal.append(lease, draft("b", kind=kind)))
    await refused("database-gone", journal.append(lease, draft("c")))
    await refused("database-gone", journal.entries())


async def test_leases_and_blobs_are_landmarks(journal: SqliteJournal) -> None:
    lease = await lease_of(journal)
    aside = journal.path.with_name("aside.db")
    for doing in (
        lambda: journal.renew(lease, 60),
        lambda: journal.release(lease),
        lambda: journal.put_blob(b"x"),
        lambda: journal.acquire("ses_2", "run_2", "w1", 60),
    ):
        await journal.entries()
        journal.path.rename(aside)
        await refused("database-gone", doing())
        await journal.aclose()
        aside.rename(journal.path)


async def test_a_closed_journal_begins_a_new_file_where_the_old_one_is_lost(
    journal: SqliteJournal,
) -> None:
    lease = await lease_of(journal)
    _deleted(journal.path)
    await refused("database-gone", journal.renew(lease, 60))
    await journal.aclose()
    assert await journal.entries() == []
    assert (await lease_of(journal)).epoch == 1


# --- full --------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 320 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=320k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def enlarge(disk: Path) -> None:
    remount(disk, "size=2m")


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def noise(n: int) -> str:
    """Text that does not compress."""
    return random.Random(n).randbytes(2000).hex()


async def test_on_a_full_disk_nothing_is_half_stored_and_space_heals_it(small_disk: Path) -> None:
    journal = journal_at(small_disk / "journal.db")
    lease = await lease_of(journal)
    stored: list[JournalEntry] = []

    async def write_on() -> None:
        while True:
            n = len(stored)
            stored.append(await journal.append(lease, draft(f"k{n}", text=noise(n))))

    error = await refused("disk-full", write_on())
    assert "Free some space and resume the run." in error.message
    await refused("disk-full", journal.put_blob(random.Random(0).randbytes(1_000_000)))
    assert await journal.entries() == stored
    enlarge(small_disk)
    stored.append(await journal.append(lease, draft("more", text="x")))
    assert await journal.entries() == stored
    await journal.aclose()
    assert await journal.entries() == stored
    await journal.aclose()


async def test_a_database_that_has_no_room_to_begin_is_refused(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 256 * 1024)
    journal = journal_at(small_disk / "journal.db")
    await refused("disk-full", lease_of(journal))
    (small_disk / "ballast").unlink()
    assert (await lease_of(journal)).epoch == 1
    await journal.aclose()


_LIMITED = """
import asyncio, json, random, resource, sys
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.data.errors import JournalError
from minions.contracts.journal.facts import StepFinished
from minions.contracts.journal.journal import EntryDraft
from minions.testing.virtual_time import FakeClock

async def main(path):
    clock = FakeClock()
    journal = SqliteJournal(path, clock, sleep=clock.sleep)
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    stored = 0
    try:
        while True:
            output = random.randbytes(2000).hex()
            fact = StepFinished(step_id="a", status="completed", output=output)
            await journal.append(lease, EntryDraft(key=str(stored), fact=fact))
            stored += 1
    except JournalError as error:
        print(json.dumps([error.error_code, stored, len(await journal.entries())]), flush=True)
    sys.stdin.readline()  # killed here

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_file_that_may_not_grow_keeps_what_was_acknowledged(
    journal: SqliteJournal,
) -> None:
    """As under a quota: the system refuses the write itself."""
    with child(_LIMITED, journal.path) as process:
        code, stored, seen = json.loads(line_of(process))
        process.kill()
    assert code in ("io-error", "disk-full")
    assert stored == seen > 1
    entries = await journal.entries()
    assert [entry.position for entry in entries] == list(range(1, stored + 1))
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    assert (await journal.append(lease, draft("next"))).position == stored + 1


async def test_a_file_that_was_put_back_is_used_again(journal: SqliteJournal) -> None:
    """A-126: the very same one; another file in its place is not."""
    lease = await lease_of(journal)
    first = await journal.append(lease, draft("a", kind="run"))
    away = journal.path.with_name("away.db")
    journal.path.rename(away)
    await refused("database-gone", journal.append(lease, draft("b", kind="run")))
    shutil.copy(away, journal.path)
    await refused("database-gone", journal.append(lease, draft("b", kind="run")))
    away.replace(journal.path)
    second = await journal.append(lease, draft("b", kind="run"))
    assert await journal.entries() == [first, second]
