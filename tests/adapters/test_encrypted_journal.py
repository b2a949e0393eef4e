"""Journals that an operator's key encrypts: what can be read without it, and what cannot."""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import pytest

from builders import body_cipher, draft_of
from minions.adapters.stores.body_cipher import BodyCipher, JournalKey, is_sealed, read_keys
from minions.adapters.stores.memory_stores import MemoryState, MemoryStepCache
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sealed_stores import SealedState, SealedStepCache
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import EntryDraft, Journal
from minions.contracts.journal.run_rows import RunFilter, SessionFilter, Spender, Spent
from minions.contracts.steps import CachedStep
from minions.data.errors import EnvironmentRefusedError, JournalError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.sessions.archive import archive_lines, load_archive, read_archive, store_archive
from minions.engine.sessions.encryption import rewrite_journal
from minions.testing.virtual_time import FakeClock

CANARY = "Wilhelmine-Krautwurst"
Open: TypeAlias = Callable[[BodyCipher | None], Journal]
"""The same store each time, with other keys."""
Sql: TypeAlias = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgres"])
async def opening(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Open]:
    made: list[Journal] = []

    def make(cipher: BodyCipher | None) -> Journal:
        if request.param == "sqlite":
            made.append(SqliteJournal(tmp_path / "journal.db", clock, cipher=cipher))
        else:
            url = request.getfixturevalue("postgres_url")
            made.append(PostgresJournal(url, clock, lease_clock=clock, cipher=cipher))
        return made[-1]

    yield make
    for journal in made:
        await journal.aclose()


@pytest.fixture
def sql(request: pytest.FixtureRequest, tmp_path: Path) -> Sql:
    """Runs a statement in the store itself, with `{}` before the names of tables."""

    def of_file(text: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as db:
            return db.execute(text.replace("{}", "")).fetchall()

    def of_server(text: str) -> list[tuple[object, ...]]:
        import psycopg

        url = request.getfixturevalue("postgres_url")
        with closing(psycopg.connect(url, autocommit=True)) as db:
            found = db.execute(text.replace("{}", "minions.").encode())
            return found.fetchall() if found.description else []

    return of_file if request.node.callspec.params["opening"] == "sqlite" else of_server


TABLES = ("entries", "blobs", "runs", "sessions", "leases")


def all_bytes(sql: Sql) -> bytes:
    """What stands in all columns of all tables."""
    rows = [value for table in TABLES for row in sql(f"SELECT * FROM {{}}{table}") for value in row]
    return b"\n".join(each if isinstance(each, bytes) else str(each).encode() for each in rows)


def started(text: str = CANARY) -> EntryDraft:
    body: dict[str, JsonValue] = {"recipe": "talk", "model": "any", "steps": {}}
    body |= {"inputs": {"question": text}, "user": "u1"}
    return draft_of("run", "started", body, key="run")


def ended(digest: str, text: str = CANARY) -> EntryDraft:
    error: JsonValue = {"code": "tool-failed", "message": f"no {text}, {digest}"}
    usage: JsonValue = {"input_tokens": 5, "output_tokens": 1, "cost_usd": 0.25}
    body: dict[str, JsonValue] = {"status": "failed", "usage": usage, "error": error}
    return draft_of("run", "finished", body, key="run")


async def filled(
    journal: Journal, session_id: str = "ses_1", run_id: str = "run_1", text: str = CANARY
) -> str:
    """One run with a large body, and a blob that its end names: the blob's digest."""
    lease = await journal.acquire(session_id, run_id, "w", 60)
    opened: dict[str, JsonValue] = {"name": f"{text} of {session_id}", "inputs": {"a": text}}
    await journal.append(lease, draft_of("session", "opened", opened, key="session"))
    await journal.append(lease, started(text))
    large: dict[str, JsonValue] = {"code": "a", "message": text * 5_000}
    await journal.append(lease, draft_of("warning", "recorded", large, key="w"))
    digest = await journal.put_blob(f"blob {text}".encode())
    await journal.append(lease, ended(digest, text))
    await journal.release(lease)
    return digest


async def refused(code: str, work: object) -> str:
    with pytest.raises(JournalError) as caught:
        await work  # type: ignore[misc]  # an awaitable
    assert caught.value.error_code == code
    return caught.value.message


# --- what stands in the database -----------------------------------------------------------------


async def test_no_word_of_a_run_stands_in_an_encrypted_database(opening: Open, sql: Sql) -> None:
    """A-172: bodies, blobs, first words of inputs, errors and names of sessions."""
    journal = opening(body_cipher())
    digest = await filled(journal)
    stored = all_bytes(sql)
    assert CANARY.encode() not in stored
    assert digest.encode() not in stored  # equal blobs of two journals look different
    assert b"ses_1" in stored
    entries = await opening(body_cipher()).entries("ses_1")
    assert CANARY in json.dumps([dict(each.body) for each in entries])
    assert await opening(body_cipher()).get_blob(digest) == f"blob {CANARY}".encode()


async def test_the_first_and_the_last_facts_of_a_run_are_encrypted(opening: Open, sql: Sql) -> None:
    journal = opening(body_cipher())
    opened = await journal.open_run("ses_1", "run_1", "w", 60, [started()])
    (last,) = await journal.close_run(opened.lease, [ended("0" * 64)])
    await journal.aclose()
    assert CANARY.encode() not in all_bytes(sql)
    assert await opening(body_cipher()).entries() == [*opened.entries, last]


async def test_lists_and_budgets_need_no_key(opening: Open) -> None:
    """A-172: they show that there are words, not which."""
    digest = await filled(opening(body_cipher()))
    journal = opening(None)
    (run,) = await journal.runs()
    assert (run.status, run.error_code, run.user) == ("failed", "tool-failed", "u1")
    assert run.input_words == run.error_message == "(encrypted)"
    (session,) = await journal.sessions()
    assert session.name == "(encrypted)"
    assert await journal.spent(Spender(user="u1")) == Spent(6, 0.25)
    assert (await journal.verify("ses_1")).fault is None
    with_key = opening(body_cipher())
    (run,) = await with_key.runs(RunFilter(text=CANARY))
    assert run.input_words == CANARY
    assert run.error_message == f"no {CANARY}, {digest}"
    (session,) = await with_key.sessions(SessionFilter(name=f"{CANARY} of ses_1"))
    assert session.name == f"{CANARY} of ses_1"


async def test_without_the_key_nothing_is_read_and_the_key_is_named(opening: Open) -> None:
    """A-172: by one error, whatever is asked for; nothing is taken to be empty."""
    digest = await filled(opening(body_cipher()))
    for cipher in (None, body_cipher("k2")):
        journal = opening(cipher)
        for work in (
            journal.entries("ses_1"),
            journal.entries("ses_1", with_damaged=True),
            journal.entries(kinds={"warning"}),
            load_archive(journal, "ses_1"),
            journal.collect(spare_s=0),
        ):
            assert "'k1'" in await refused("journal-key-missing", work)
        with pytest.raises(NotFoundError):
            await journal.get_blob(digest)


async def test_another_key_under_the_same_id_is_told(opening: Open) -> None:
    """A-172."""
    await filled(opening(body_cipher()))
    (key,) = read_keys_of("k1 " + "A" * 43 + "=")
    wrong = opening(BodyCipher([key], place="keys"))
    message = await refused("journal-key-wrong", wrong.entries("ses_1"))
    assert message.startswith("The key 'k1' of keys does not decrypt 'entry' 'ses_1' 'run_1'")
    (run,) = await wrong.runs()
    assert run.input_words == "(encrypted)"


def read_keys_of(text: str) -> list[JournalKey]:
    key_id, _, secret = text.partition(" ")
    return [JournalKey(key_id, base64.b64decode(secret))]


async def test_a_body_that_was_moved_to_another_entry_is_refused(opening: Open, sql: Sql) -> None:
    """A-172: also where somebody wrote the chain again."""
    journal = opening(body_cipher())
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    for key in ("a", "b"):
        body: dict[str, JsonValue] = {"code": key, "message": key}
        await journal.append(lease, draft_of("warning", "recorded", body, key=key))
    sql(
        "UPDATE {}entries SET body = (SELECT body FROM {}entries WHERE position = 1) "
        "WHERE position = 2"
    )
    fault = (await opening(None).verify("ses_1")).fault
    assert fault is not None
    assert fault.position == 2
    await refused("journal-key-wrong", opening(body_cipher()).entries("ses_1"))


# --- mixed rows, and other keys ------------------------------------------------------------------


async def test_what_was_stored_in_clear_is_read_beside_what_is_encrypted(
    opening: Open, sql: Sql
) -> None:
    """A-172: the encryption of an older journal begins with its next entry."""
    plain = await filled(opening(None), "ses_1", "run_1", "in clear")
    journal = opening(body_cipher())
    sealed = await filled(journal, "ses_2", "run_2")
    lease = await journal.acquire("ses_1", "run_3", "w", 60)
    await journal.append(lease, started())
    await journal.release(lease)
    assert len(await journal.entries()) == 9
    assert await journal.get_blob(plain) == b"blob in clear"
    assert await journal.collect(spare_s=-1) == await journal.collect(spare_s=-1, dry_run=True)
    assert await journal.get_blob(sealed) == f"blob {CANARY}".encode()
    assert {row.input_words for row in await journal.runs()} == {"in clear", CANARY}
    assert not [each for each in await journal.chained_sessions() if await fault_of(journal, each)]
    assert CANARY.encode() not in all_bytes(sql)
    assert len(await opening(None).runs()) == 3


async def fault_of(journal: Journal, session_id: str) -> object:
    return (await journal.verify(session_id)).fault


async def test_a_new_key_is_for_new_entries_and_the_old_one_still_decrypts(
    opening: Open, sql: Sql
) -> None:
    """A-172."""
    first = await filled(opening(body_cipher("k1")), "ses_1", "run_1")
    journal = opening(body_cipher("k2", "k1"))
    second = await filled(journal, "ses_2", "run_2")
    assert first == second
    assert len(await journal.entries()) == 8
    await refused("journal-key-missing", opening(body_cipher("k1")).entries("ses_2"))
    assert [
        row.session_id for row in await journal.sessions(SessionFilter(name=f"{CANARY} of ses_1"))
    ] == ["ses_1"]
    assert (await journal.collect(spare_s=-1)).blobs == 0
    assert len(sql("SELECT digest FROM {}blobs")) >= 2


async def test_all_is_encrypted_again_under_the_first_key(opening: Open, sql: Sql) -> None:
    """A-172: after that the other keys are not needed, and nothing is in clear."""
    await filled(opening(None), "ses_1", "run_1")
    digest = await filled(opening(body_cipher("k1")), "ses_2", "run_2")
    journal = opening(body_cipher("k2", "k1"))
    busy = await journal.acquire("ses_3", "run_3", "w", 60)
    await opening(None).append(busy, started("busy"))
    before = [dict(each.body) for each in await journal.entries()]
    told = list[str]()
    done = await rewrite_journal(journal, told.append)
    assert (done.sessions, done.entries, told) == (2, 8, ["ses_1", "ses_2"])
    assert done.left == (("ses_3", "a run of it is active"),)
    await journal.release(busy)
    assert (await rewrite_journal(journal)).sessions == 1
    assert (await rewrite_journal(journal)).sessions == 0
    alone = opening(body_cipher("k2"))
    assert [dict(each.body) for each in await alone.entries()] == before
    assert await alone.get_blob(digest) == f"blob {CANARY}".encode()
    for session_id in await alone.chained_sessions():
        assert await fault_of(alone, session_id) is None
    stored = all_bytes(sql)
    assert CANARY.encode() not in stored
    assert b":k1:" not in stored
    lease = await alone.acquire("ses_1", "run_4", "w", 60)
    await alone.append(lease, started())
    assert await fault_of(alone, "ses_1") is None


async def test_a_session_in_which_a_row_was_changed_is_not_encrypted_again(
    opening: Open, sql: Sql
) -> None:
    await filled(opening(None))
    sql("UPDATE {}entries SET key = 'other' WHERE position = 3")
    done = await rewrite_journal(opening(body_cipher()))
    assert done.left == (("ses_1", "row 3 is changed"),)
    assert (done.sessions, done.entries) == (0, 0)


async def test_a_journal_that_does_not_encrypt_rewrites_nothing(clock: FakeClock) -> None:
    journal = MemoryJournal(clock)
    await filled(journal)
    done = await rewrite_journal(journal)
    assert (done.sessions, done.entries, done.blobs, done.left) == (0, 0, 0, ())


async def test_a_session_file_is_in_clear_and_is_encrypted_where_it_is_imported(
    opening: Open, sql: Sql, clock: FakeClock
) -> None:
    """A-172: and the file has a chain of what it holds."""
    journal = opening(body_cipher())
    digest = await filled(journal)
    lines = list(archive_lines(await load_archive(journal, "ses_1")))
    assert CANARY in "\n".join(lines)
    archive = read_archive(line.encode() for line in lines)
    elsewhere = MemoryJournal(clock)
    await store_archive(elsewhere, archive)
    assert await fault_of(elsewhere, "ses_1") is None
    assert await elsewhere.get_blob(digest) == f"blob {CANARY}".encode()
    await journal.remove_session("ses_1")
    await store_archive(journal, archive)
    assert await fault_of(journal, "ses_1") is None
    assert CANARY.encode() not in all_bytes(sql)


# --- values and cached outputs -------------------------------------------------------------------


async def test_saved_values_are_encrypted_and_budgets_are_not() -> None:
    """A-172."""
    inner = MemoryState()
    await inner.put("old", '"in clear"')
    state = SealedState(inner, body_cipher())
    await state.put("a", CANARY)
    await state.put("minions:budget:day:1", '{"usd": 2}')
    assert is_sealed(await inner.get("a") or "")
    assert await inner.get("minions:budget:day:1") == '{"usd": 2}'
    assert [await state.get(key) for key in ("a", "old", "none")] == [CANARY, '"in clear"', None]
    assert await state.replace("a", CANARY, "new")
    assert not await state.replace("a", CANARY, "newer")
    assert await state.get("a") == "new"
    later = SealedState(inner, body_cipher("k2", "k1"))
    assert (await later.rewrite(), await later.rewrite()) == (2, 0)
    assert await SealedState(inner, body_cipher("k2")).get("old") == '"in clear"'
    await refused("journal-key-missing", state.get("a"))
    await inner.put("b", await inner.get("a") or "")
    await refused("journal-key-wrong", later.get("b"))


async def test_cached_outputs_are_encrypted_under_keys_that_are_hidden() -> None:
    """A-172."""
    inner = MemoryStepCache()
    cache = SealedStepCache(inner, body_cipher())
    entry = CachedStep(
        output={"text": CANARY}, run_id="run_1", created_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    await cache.put("0" * 64, entry)
    assert await cache.get("0" * 64) == entry
    assert await inner.get("0" * 64) is None
    assert await SealedStepCache(inner, body_cipher("k2", "k1")).get("0" * 64) is None
    assert (await cache.clear(), await cache.get("0" * 64)) == (1, None)


# --- files with keys -----------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    return file


KEY = "A" * 43 + "="


def test_the_first_key_of_a_file_is_for_new_entries(key_file: Path) -> None:
    key_file.write_text(f"# of 2026\nk2 {KEY}\n\nk1 {'B' * 43}=\n")
    assert [key.id for key in read_keys(key_file)] == ["k2", "k1"]
    assert KEY not in repr(read_keys(key_file))


@pytest.mark.parametrize(
    "text", ["", f"a:b {KEY}", "k1", "k1 QQ==", f"k1 {KEY}\nk1 {KEY}", f"k1 {KEY[:-1]}!"]
)
def test_a_file_without_keys_is_refused(key_file: Path, text: str) -> None:
    key_file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_keys(key_file)
    assert caught.value.error_code == "bad-journal-key-file"
    assert KEY[:-1] not in caught.value.message


def test_a_file_that_others_may_read_is_refused(key_file: Path) -> None:
    key_file.write_text(f"k1 {KEY}")
    key_file.chmod(0o640)
    with pytest.raises(EnvironmentRefusedError) as caught:
        read_keys(key_file)
    assert caught.value.error_code == "open-key-file"


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(EnvironmentRefusedError, match=r"minions-engine\[encrypt\]") as caught:
        body_cipher()
    assert caught.value.error_code == "missing-extra"
