"""What is special about the SQLite journal: processes, files, migrations, faults."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

import minions
from minions.adapters.stores.sqlite_database import bundled_migrations
from minions.adapters.stores.sqlite_entries import EntriesQuery, entries_query
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import EntryDraft, Lease, body_text
from minions.data.errors import FencedError, JournalError
from minions.data.json_values import JsonValue
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock

_CHILD = """
import asyncio, sys
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.facts import StepFinished
from minions.contracts.journal.journal import EntryDraft
from minions.testing.virtual_time import FakeClock

async def main(path, session, count):
    journal = SqliteJournal(path, FakeClock())
    lease = await journal.acquire(session, "run_" + session, "w", 60)
    for n in range(int(count)):
        output = "x" * (40_000 if n % 10 == 0 else 10)
        fact = StepFinished(step_id="a", status="completed", output=output)
        entry = await journal.append(lease, EntryDraft(key=str(n), fact=fact))
        print(entry.position, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqliteJournal]:
    made = SqliteJournal(tmp_path / "journal.db", FakeClock())
    yield made
    await made.aclose()


def draft(key: str, **body: JsonValue) -> EntryDraft:
    return holding(body, key=key)


async def lease_of(journal: SqliteJournal, session: str = "ses_1") -> Lease:
    return await journal.acquire(session, f"run_{session}", "w1", ttl_s=60)


async def stored_text(journal: SqliteJournal) -> str:
    """One entry, and the file closed, so that all of it is in the one file."""
    lease = await lease_of(journal)
    await journal.append(lease, draft("a", text="x" * 10_000))
    await journal.aclose()
    return str(journal.path)


def child(path: Path, session: str, count: int) -> subprocess.Popen[str]:
    root = str(Path(minions.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path), session, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )


# --- processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("kill_after", [1, 37])
async def test_every_acknowledged_entry_survives_a_kill(
    journal: SqliteJournal, kill_after: int
) -> None:
    """A-171: the chain of what survives is whole."""
    with child(journal.path, "ses_1", 1_000_000) as writer:
        assert writer.stdout is not None
        for _ in range(kill_after):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        acknowledged = kill_after + len(writer.stdout.readlines())
    entries = await journal.entries("ses_1")
    assert len(entries) in (acknowledged, acknowledged + 1)
    assert [entry.position for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[0].body["output"] == "x" * 40_000
    report = await journal.verify("ses_1")
    assert (report.entries, report.uncovered, report.fault) == (len(entries), 0, None)


async def test_two_processes_append_while_a_third_reads(journal: SqliteJournal) -> None:
    with child(journal.path, "ses_1", 200) as first, child(journal.path, "ses_2", 200) as second:
        assert first.stdout is not None
        first.stdout.readline()
        assert len(await journal.entries("ses_1")) >= 1
        first.communicate()
        second.communicate()
    assert [(await journal.verify(each)).fault for each in ("ses_1", "ses_2")] == [None, None]
    assert (first.returncode, second.returncode) == (0, 0)
    for session in ("ses_1", "ses_2"):
        entries = await journal.entries(session)
        assert [entry.position for entry in entries] == list(range(1, 201))


async def test_two_journals_on_one_file_see_each_others_entries(journal: SqliteJournal) -> None:
    other = SqliteJournal(journal.path, FakeClock())
    lease = await lease_of(journal)
    stored = await other.append(lease, draft("a"))
    assert await journal.entries("ses_1") == [stored]
    await other.aclose()


async def test_last_facts_are_refused_where_another_process_took_the_lease(
    journal: SqliteJournal,
) -> None:
    other = SqliteJournal(journal.path, FakeClock())
    old = (await journal.open_run("ses_1", "run_1", "w1", 60, [draft("a")])).lease
    new = await other.acquire("ses_1", "run_1", "w2", 60, takes_over="w1")
    with pytest.raises(FencedError, match="w2"):
        await journal.close_run(old, [draft("b")])
    assert [(each.lease, each.has_expired) for each in await other.held_leases()] == [(new, False)]
    assert [each.key for each in await other.entries()] == ["a"]
    await other.aclose()


async def test_last_facts_are_refused_where_another_process_released_the_lease(
    journal: SqliteJournal,
) -> None:
    other = SqliteJournal(journal.path, FakeClock())
    lease = (await journal.open_run("ses_1", "run_1", "w1", 60, [draft("a")])).lease
    await other.release(lease)
    with pytest.raises(FencedError, match="its last lease was given back"):
        await journal.close_run(lease, [draft("b")])
    assert [each.key for each in await other.entries()] == ["a"]
    await other.aclose()


async def test_last_facts_stand_behind_those_of_another_process(journal: SqliteJournal) -> None:
    other = SqliteJournal(journal.path, FakeClock())
    lease = (await journal.open_run("ses_1", "run_1", "w1", 60, [draft("a")])).lease
    await other.append(lease, draft("b"))
    (entry,) = await journal.close_run(lease, [draft("c")])
    assert entry.position == 3
    assert (await journal.held_leases(), (await journal.verify("ses_1")).fault) == ([], None)
    await other.aclose()


async def test_last_facts_leave_no_gap_where_somebody_removed_the_ones_before(
    journal: SqliteJournal,
) -> None:
    opened = await journal.open_run("ses_1", "run_1", "w1", 60, [draft("a"), draft("b")])
    with closing(sqlite3.connect(journal.path)) as db, db:
        db.execute("DELETE FROM entries WHERE position = 2")
    (entry,) = await journal.close_run(opened.lease, [draft("c")])
    assert entry.position == 2
    fault = (await journal.verify("ses_1")).fault
    assert fault is not None  # the new one says that another one was there


async def test_a_session_that_was_filled_by_another_process_is_not_opened_anew(
    journal: SqliteJournal,
) -> None:
    with closing(sqlite3.connect(journal.path)) as db, db:
        await journal.release((await journal.open_run("s", "r", "w1", 60, [draft("a")])).lease)
        db.execute("DELETE FROM leases")  # by a tool; the facts are still there
    opened = await journal.open_run("s", "r2", "w1", 60, [draft("a")])
    assert [each.position for each in opened.entries] == [2]
    assert (await journal.verify("s")).fault is None


async def test_a_busy_database_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    clock = FakeClock()
    blocker = sqlite3.connect(path, isolation_level=None)

    async def let_go(seconds: float) -> None:
        await clock.sleep(seconds)
        if blocker.in_transaction and clock.monotonic() > 0.1:
            blocker.execute("ROLLBACK")

    journal = SqliteJournal(path, clock, sleep=let_go)
    lease = await lease_of(journal)
    blocker.execute("BEGIN IMMEDIATE")
    assert (await journal.append(lease, draft("a"))).position == 1
    assert not blocker.in_transaction
    blocker.close()
    await journal.aclose()


async def test_a_database_that_stays_locked_is_reported_after_the_timeout(tmp_path: Path) -> None:
    path, clock = tmp_path / "journal.db", FakeClock()
    journal = SqliteJournal(path, clock, busy_timeout_s=0.5, sleep=clock.sleep)
    lease = await lease_of(journal)
    with closing(sqlite3.connect(path, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match="Another process keeps it locked") as caught:
            await journal.append(lease, draft("a"))
        assert caught.value.error_code == "database-busy"
        assert await journal.entries("ses_1") == []
    assert 0.4 < clock.monotonic() <= 0.5
    await journal.aclose()


# --- files -----------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "minions" / "journal.db"
    journal = SqliteJournal(path, FakeClock())
    await journal.append(await lease_of(journal), draft("a"))
    files = sorted(path.parent.iterdir())
    assert [(file.name, oct(mode(file))) for file in files] == [
        ("journal.db", "0o600"),
        ("journal.db-shm", "0o600"),
        ("journal.db-wal", "0o600"),
    ]
    assert [oct(mode(folder)) for folder in (path.parent, path.parent.parent)] == ["0o700"] * 2
    await journal.aclose()


async def test_nothing_is_created_before_the_first_use(tmp_path: Path) -> None:
    await SqliteJournal(tmp_path / "a" / "journal.db", FakeClock()).aclose()
    assert names(tmp_path) == []


async def test_a_closed_journal_opens_again_at_its_next_use(journal: SqliteJournal) -> None:
    lease = await lease_of(journal)
    await journal.aclose()
    assert (await journal.append(lease, draft("a"))).position == 1


async def test_a_large_body_is_stored_once_and_compressed(journal: SqliteJournal) -> None:
    lease = await lease_of(journal)
    for n in range(20):
        await journal.append(lease, draft(str(n), text="x" * 100_000))
    await journal.aclose()
    assert journal.path.stat().st_size < 180_000  # an empty file has some 35 pages


async def test_listing_all_runs_reads_no_other_entries(journal: SqliteJournal) -> None:
    await lease_of(journal)
    for kinds in [("run",), ("session",), ("run", "session")]:
        plan = plan_of(journal, entries_query(None, None, 0, kinds=kinds))
        assert "SCAN e USING INDEX entries_to_list" in plan
    for kinds in [("mark",), ("mark", "decision")]:
        plan = plan_of(journal, entries_query(None, None, 0, kinds=kinds))
        assert "SCAN e USING INDEX entries_of_judgements" in plan


@pytest.mark.parametrize("kinds", [None, ("message", "model_call")])
async def test_the_last_entries_of_a_session_are_found_by_an_index(
    journal: SqliteJournal, kinds: tuple[str, ...] | None
) -> None:
    await lease_of(journal)
    query = entries_query("ses_1", None, 0, kinds=kinds, limit=1, newest_first=True)
    plan = plan_of(journal, query)
    assert "SEARCH e USING INDEX entries_by_position (session_id=? AND position>?)" in plan
    assert not any("TEMP B-TREE" in line for line in plan)


def plan_of(journal: SqliteJournal, query: EntriesQuery) -> list[str]:
    """How SQLite goes about it."""
    with closing(sqlite3.connect(journal.path)) as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN {query.sql}", query.parameters).fetchall()
    return [row[3] for row in plan]


# --- migrations ------------------------------------------------------------------------------


async def test_an_older_database_is_backed_up_and_migrated(journal: SqliteJournal) -> None:
    await stored_text(journal)
    newer = {**bundled_migrations(), "9999_more": "CREATE TABLE more (a);\nCREATE TABLE less (b);"}
    upgraded = SqliteJournal(journal.path, FakeClock(), migrations=newer)
    entries = await upgraded.entries("ses_1")
    await upgraded.aclose()
    newest = max(bundled_migrations()).partition("_")[0]
    backup = journal.path.with_name(f"journal.db.bak-{newest}")
    assert oct(mode(backup)) == "0o600"
    restored = SqliteJournal(backup, FakeClock())
    assert await restored.entries("ses_1") == entries
    await restored.aclose()
    with pytest.raises(JournalError, match="9999_more") as caught:
        await journal.entries()
    assert caught.value.error_code == "newer-database"


async def test_a_database_of_the_first_version_is_read_as_it_was(tmp_path: Path) -> None:
    first = {"0001_journal": bundled_migrations()["0001_journal"]}
    old = SqliteJournal(tmp_path / "journal.db", FakeClock(), migrations=first)
    assert await old.entries() == []
    await old.aclose()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        db.execute(
            "INSERT INTO entries VALUES (1, 'ses_1', 1, 'run_1', 1, 'a', 'step', 'finished', "
            "?, NULL, 1, 5)",
            (body_text(draft("a", text="as it was")),),
        )
        db.commit()
    new = SqliteJournal(tmp_path / "journal.db", FakeClock())
    (entry,) = await new.entries()
    assert (entry.position, entry.body["output"]) == (1, {"text": "as it was"})
    assert await new.entries(kinds={"run"}) == []
    lease = await new.acquire("ses_1", "run_1", "w1", ttl_s=60)
    assert (await new.append(lease, draft("b"))).position == 2
    report = await new.verify("ses_1")
    assert (report.entries, report.uncovered, report.fault) == (2, 1, None)
    await new.aclose()


async def test_a_migration_that_fails_changes_nothing(journal: SqliteJournal) -> None:
    await stored_text(journal)
    broken = {**bundled_migrations(), "9999_more": "CREATE TABLE more (a);\nCREATE nonsense;"}
    upgraded = SqliteJournal(journal.path, FakeClock(), migrations=broken)
    with pytest.raises(JournalError, match="nonsense"):
        await upgraded.entries()
    assert len(await journal.entries("ses_1")) == 1


async def test_a_new_database_has_no_backup(journal: SqliteJournal) -> None:
    await stored_text(journal)
    assert names(journal.path.parent) == ["journal.db"]


# --- faults ----------------------------------------------------------------------------------


async def refusal(journal: SqliteJournal) -> JournalError:
    with pytest.raises(JournalError) as caught:
        await journal.entries()
    assert str(journal.path) in str(caught.value)
    return caught.value


async def test_a_file_that_is_no_database_is_refused_untouched(journal: SqliteJournal) -> None:
    journal.path.write_text("my diary\n" * 500)
    assert (await refusal(journal)).error_code == "not-a-database"
    assert journal.path.read_text() == "my diary\n" * 500


async def test_a_database_of_another_program_is_refused_untouched(journal: SqliteJournal) -> None:
    with closing(sqlite3.connect(journal.path)) as other:
        other.execute("CREATE TABLE cookies (a)")
    before = journal.path.read_bytes()
    error = await refusal(journal)
    assert error.error_code == "not-a-journal"
    assert "cookies" in str(error)
    assert journal.path.read_bytes() == before


async def test_a_damaged_database_is_reported(journal: SqliteJournal) -> None:
    await stored_text(journal)
    size = journal.path.stat().st_size
    with journal.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    assert (await refusal(journal)).error_code == "corrupt-database"


async def test_a_path_through_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = await refusal(SqliteJournal(tmp_path / "file" / "journal.db", FakeClock()))
    assert error.error_code == "cannot-open"


async def test_a_directory_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    error = await refusal(SqliteJournal(tmp_path, FakeClock()))
    assert error.error_code == "cannot-open"


async def test_a_full_disk_is_reported_and_the_entry_not_stored(journal: SqliteJournal) -> None:
    lease = await lease_of(journal)
    assert journal._file._connection is not None
    (pages,) = journal._file._connection.execute("PRAGMA page_count").fetchone()
    journal._file._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalError, match="Free some space") as caught:
        await journal.append(lease, draft("a", text="x" * 20_000))
    assert caught.value.error_code == "disk-full"
    assert await journal.entries("ses_1") == []


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes"])
async def test_a_body_that_is_not_json_is_refused(journal: SqliteJournal, value: object) -> None:
    lease = await lease_of(journal)
    body: dict[str, JsonValue] = {"a": value}  # type: ignore[dict-item]  # what is refused
    with pytest.raises(JournalError) as caught:
        await journal.append(lease, draft("a", **body))
    assert caught.value.error_code == "body-not-json"


async def test_a_key_that_is_no_unicode_is_refused(journal: SqliteJournal) -> None:
    lease = await lease_of(journal)
    with pytest.raises(JournalError) as caught:
        await journal.append(lease, draft("\ud83d"))
    assert caught.value.error_code == "bad-text"
    assert (await journal.append(lease, draft("a"))).position == 1


async def test_a_blob_that_was_put_just_now_is_not_looked_for_again(tmp_path: Path) -> None:
    clock = FakeClock()
    journal = SqliteJournal(tmp_path / "journal.db", clock)
    digest = await journal.put_blob(b"recipe")
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:

        def put_at() -> int:
            (found,) = db.execute("SELECT put_at FROM blobs WHERE digest = ?", (digest,)).fetchone()
            return int(found)

        first = put_at()
        clock.advance(59)
        assert await journal.put_blob(b"recipe") == digest
        assert put_at() == first
        clock.advance(1)
        await journal.put_blob(b"recipe")
        assert put_at() == first + 60_000_000
    await journal.aclose()


async def test_a_blob_that_was_collected_is_stored_when_it_is_put_again(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", FakeClock())
    digest = await journal.put_blob(b"recipe")
    await journal.collect(spare_s=0)
    assert await journal.put_blob(b"recipe") == digest
    assert await journal.get_blob(digest) == b"recipe"
    await journal.aclose()


async def test_a_blob_is_stored_in_the_file_that_takes_the_place_of_another(
    tmp_path: Path,
) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", FakeClock())
    digest = await journal.put_blob(b"recipe")
    await journal.aclose()
    (tmp_path / "journal.db").unlink()
    await journal.put_blob(b"recipe")
    assert await journal.get_blob(digest) == b"recipe"
    await journal.aclose()
