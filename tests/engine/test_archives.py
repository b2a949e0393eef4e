"""Sessions as lines of text: out of a journal, into another one, and files that are broken."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from msgspec.structs import replace

from builders import draft_of
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.facts import RunStarted, body_of
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.messages import message_to_json, user
from minions.data.errors import JournalError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.sessions.archive import (
    Archive,
    archive_lines,
    load_archive,
    read_archive,
    store_archive,
)
from minions.testing.virtual_time import FakeClock
from older_archives import without_chain


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal(FakeClock())


async def written(
    journal: Journal,
    session: str,
    run: str,
    *rows: tuple[str, str, dict[str, JsonValue]],
) -> list[JournalEntry]:
    lease = await journal.acquire(session, run, "w", 60)
    drafts = [draft_of(kind, state, body, key=str(n)) for n, (kind, state, body) in enumerate(rows)]
    entries = [await journal.append(lease, draft) for draft in drafts]
    await journal.release(lease)
    return entries


OUTPUT: Final[JsonValue] = ["\ud83d half", 2**70, 0.1, None]


async def session_of_a_run(journal: Journal) -> Archive:
    inner = await journal.put_blob(b"inner \xff")
    document = await journal.put_blob(f'{{"steps": [{{"id": "s"}}], "sub": "{inner}"}}'.encode())
    await journal.put_blob(b"not of this session")
    await written(
        journal,
        "ses_1",
        "run_1",
        ("run", "started", {"recipe": "news", "document": document, "looks_like_one": "0" * 64}),
        ("step", "finished", {"step_id": "s", "status": "completed", "output": OUTPUT}),
        ("run", "finished", {"status": "completed"}),
    )
    return await load_archive(journal, "ses_1")


def lines_of(archive: Archive) -> list[bytes]:
    return [f"{line}\n".encode() for line in archive_lines(archive)]


async def test_a_session_comes_over_whole(journal: MemoryJournal) -> None:
    archive = await session_of_a_run(journal)
    lines = lines_of(archive)
    assert len(lines) == 1 + 2 + 3
    assert json.loads(lines[0]) == {
        "format": "minions-session",
        "version": 2,
        "session": "ses_1",
        "sessions": [{"id": "ses_1", "rows": 3, "head": archive.sessions[0].head}],
        "blobs": 2,
    }
    read = read_archive(lines)
    assert read == archive
    other = MemoryJournal(FakeClock())
    assert await store_archive(other, read) == ("ses_1",)
    start, *rest = await journal.entries()
    assert isinstance(start.fact, RunStarted)
    taken = replace(
        start, fact=replace(start.fact, note={"imported": True, "strangers_recipe": True})
    )
    assert await other.entries() == [taken, *rest]
    assert {*archive.blobs.values()} == {await other.get_blob(digest) for digest in archive.blobs}
    again = await load_archive(other, "ses_1")
    assert again == evolve(archive, sessions=again.sessions)


async def test_an_unknown_session_cannot_be_exported(journal: MemoryJournal) -> None:
    with pytest.raises(NotFoundError, match="ses_9"):
        await load_archive(journal, "ses_9")


# --- forks -----------------------------------------------------------------------------------


async def forked(journal: Journal) -> Archive:
    """`ses_3` reads two rows of `ses_2`, which reads two of `ses_1`."""
    body: dict[str, JsonValue] = {"sequence": 1, "message": message_to_json(user("hi"))}
    say = ("message", "recorded", body)
    await written(journal, "ses_1", "run_1", say, say, say)
    for n in (2, 3):
        fork: dict[str, JsonValue] = {"parent": f"ses_{n - 1}", "sequence": 2, "position": 2}
        await written(journal, f"ses_{n}", f"run_{n}", ("session", "forked", fork), say, say)
    return await load_archive(journal, "ses_3")


async def test_a_fork_brings_what_it_reads_of_its_parents(journal: MemoryJournal) -> None:
    archive = await forked(journal)
    assert [(each.session_id, len(each.entries)) for each in archive.sessions] == [
        ("ses_1", 2),
        ("ses_2", 2),
        ("ses_3", 3),
    ]
    other = MemoryJournal(FakeClock())
    stored = await store_archive(other, read_archive(lines_of(archive)))
    assert stored == ("ses_1", "ses_2", "ses_3")
    taken = await load_archive(other, "ses_3")
    assert [each.entries for each in taken.sessions] == [each.entries for each in archive.sessions]


async def test_a_parent_that_is_there_already_is_left_as_it_is(journal: MemoryJournal) -> None:
    archive = await forked(journal)
    before = await journal.entries("ses_1")
    await journal.remove_session("ses_3")
    assert await store_archive(journal, archive) == ("ses_3",)
    assert await journal.entries("ses_1") == before


async def test_another_parent_of_the_same_id_is_refused(journal: MemoryJournal) -> None:
    archive = await forked(journal)
    other = MemoryJournal(FakeClock())
    strange = await written(
        other, "ses_1", "run_x", ("message", "recorded", {"message": {"role": "user"}})
    )
    with pytest.raises(UsageError, match="not as it was exported") as caught:
        await store_archive(other, archive)
    assert caught.value.error_code == "session-differs"
    assert await other.entries() == strange


# --- refusals --------------------------------------------------------------------------------


async def test_a_session_that_is_there_is_refused(journal: MemoryJournal) -> None:
    archive = await session_of_a_run(journal)
    with pytest.raises(UsageError, match="minions sessions rm ses_1") as caught:
        await store_archive(journal, archive)
    assert caught.value.error_code == "session-exists"


async def test_a_run_that_is_in_another_session_is_refused(journal: MemoryJournal) -> None:
    archive = await session_of_a_run(journal)
    other = MemoryJournal(FakeClock())
    await written(other, "ses_0", "run_1", ("run", "started", {}))
    with pytest.raises(UsageError, match="in session 'ses_0'") as caught:
        await store_archive(other, archive)
    assert caught.value.error_code == "run-exists"
    assert len(await other.entries()) == 1


async def test_a_message_of_nobody_is_refused(journal: MemoryJournal) -> None:
    lines = [line.replace(b'"user"', b'"nobody"') for line in lines_of(await forked(journal))]
    other = MemoryJournal(FakeClock())
    with pytest.raises(UsageError, match=r"line 2: .*Invalid enum value 'nobody'") as caught:
        await store_archive(other, read_archive(lines))
    assert caught.value.error_code == "bad-archive"
    assert await other.entries() == []


async def test_a_run_without_its_recipe_is_refused(journal: MemoryJournal) -> None:
    archive = evolve(await session_of_a_run(journal), blobs={})
    other = MemoryJournal(FakeClock())
    with pytest.raises(UsageError, match="run 'run_1' cannot be read") as caught:
        await store_archive(other, archive)
    assert caught.value.error_code == "bad-archive"
    assert await other.entries() == []


class Refusing(MemoryJournal):
    """Has no room for the last session."""

    async def adopt(self, session_id: str, entries: object) -> None:
        if session_id == "ses_3":
            raise JournalError("no room")
        await super().adopt(session_id, entries)  # type: ignore[arg-type]  # as it was given


async def test_what_was_stored_before_the_store_refused_is_taken_back(
    journal: MemoryJournal,
) -> None:
    archive = await forked(journal)
    other = Refusing(FakeClock())
    with pytest.raises(JournalError, match="no room"):
        await store_archive(other, archive)
    assert await other.entries() == []


def _nested(levels: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(levels):
        value = [value]
    return value


Break = Callable[[list[bytes]], list[bytes]]


def _with(line: int, **changes: JsonValue) -> Break:
    """Change values of the row in that line."""

    def changed(lines: list[bytes]) -> list[bytes]:
        row = json.loads(lines[line - 1])["row"] | changes
        return [*lines[: line - 1], f"{json.dumps({'row': row})}\n".encode(), *lines[line:]]

    return changed


BROKEN: dict[str, tuple[Break, int, str]] = {
    "empty": (lambda lines: [], 1, "empty"),
    "cut-between-lines": (lambda lines: lines[:-1], 6, "2 of 3 rows of session 'ses_1'"),
    "cut-in-a-line": (lambda lines: [*lines[:-1], lines[-1][:20]], 6, "middle of a line"),
    "blob-missing": (lambda lines: lines[:1] + lines[2:], 6, "1 of 2 blobs"),
    "row-missing": (lambda lines: lines[:4] + lines[5:], 5, "where row 2 of 3 is expected"),
    "row-twice": (lambda lines: [*lines, lines[-1]], 7, "where row 4 of 3 is expected"),
    "blob-changed": (
        lambda lines: [lines[0], lines[1].replace(b'"data": "', b'"data": "AAAA'), *lines[2:]],
        2,
        "not those that were exported",
    ),
    "no-base64": (
        lambda lines: [lines[0], lines[1].replace(b'"data": "', b'"data": "!'), *lines[2:]],
        2,
        "data",
    ),
    "another-file": (lambda lines: [b'{"a": 1}\n'], 1, "not written by"),
    "no-json": (lambda lines: [b"id: news\n"], 1, "no JSON"),
    "no-text": (lambda lines: [*lines[:3], b"\xff\xfe\n"], 4, "no JSON"),
    "a-list": (lambda lines: [*lines[:3], b"[]\n"], 4, "no JSON object"),
    "blank-line": (lambda lines: [*lines[:3], b"\n", *lines[3:]], 4, "no JSON"),
    "a-key-more": (
        lambda lines: [*lines[:3], lines[3].replace(b'{"row"', b'{"x": 1, "row"'), *lines[4:]],
        4,
        "x",
    ),
    "a-wrong-type": (
        lambda lines: [*lines[:3], lines[3].replace(b'"epoch": 1', b'"epoch": "1"'), *lines[4:]],
        4,
        "epoch",
    ),
    "no-number": (
        lambda lines: [*lines[:3], lines[3].replace(b'"epoch": 1', b'"epoch": NaN'), *lines[4:]],
        4,
        "NaN",
    ),
    "a-strange-session": (
        lambda lines: [*lines[:3], lines[3].replace(b"ses_1", b"ses_2"), *lines[4:]],
        4,
        "'ses_2' is not among",
    ),
    "a-bad-head": (
        lambda lines: [lines[0].replace(b'"rows": 3', b'"rows": "3"'), *lines[1:]],
        1,
        "rows",
    ),
    "no-sessions": (
        lambda lines: [re.sub(rb"\[\{.*\}\]", b"[]", lines[0]), *lines[1:]],
        1,
        "not the last",
    ),
    "nothing-needed": (
        lambda lines: [*lines[:3], lines[3].replace(b'"recipe": "news", ', b""), *lines[4:]],
        4,
        "run started of run 'run_1': Object missing required field `recipe`",
    ),
    "no-such-kind": (
        lambda lines: [*lines[:3], lines[3].replace(b'"kind": "run"', b'"kind": "x"'), *lines[4:]],
        4,
        "the kind 'x' is not known; known are: run, step, ",
    ),
    "no-such-state": (
        lambda lines: [*lines[:3], lines[3].replace(b'"started"', b'"begun"'), *lines[4:]],
        4,
        "run has no state 'begun'; its states are: started, ",
    ),
    "no-zone": (
        lambda lines: [*lines[:3], lines[3].replace(b"+00:00", b""), *lines[4:]],
        4,
        "no zone",
    ),
    "before-1970": (_with(4, at="1969-12-31T23:59:59+00:00"), 4, "from 1970 on"),
    "before-1970-in-utc": (_with(4, at="1970-01-01T00:30:00+01:00"), 4, "from 1970 on"),
    "after-all-times": (_with(4, at="9999-12-31T23:59:59-14:00"), 4, "from 1970 on"),
    "no-generation": (_with(4, generation=0), 4, "generation 0 is not from 1 to 2147483647"),
    "huge-generation": (_with(5, generation=2**31), 5, "generation 2147483648 is not"),
    "no-epoch": (_with(4, epoch=0), 4, "epoch 0 is not from 1 to 2147483647"),
    "huge-epoch": (_with(6, epoch=2**63), 6, "epoch 9223372036854775808 is not"),
    "long-key": (_with(5, key="k" * 2_001), 5, "2001 characters; at most 2000"),
    "deep-body": (_with(5, body={"output": _nested(200)}), 5, "deeper than 200 levels"),
    "very-deep-body": (_with(5, body={"output": _nested(700)}), 5, "deeper than 200 levels"),
    "a-command-in-a-run": (_with(4, run_id="run_1; touch PWNED #"), 4, "is no id of a session or"),
    "an-option-as-a-run": (_with(4, run_id="--db"), 4, "is no id of a session or run"),
    "a-line-in-a-run": (_with(4, run_id="run_1\nx"), 4, "'run_1\\nx' is no id"),
    "a-quote-in-a-run": (_with(4, run_id="run_'$(x)'"), 4, "is no id of a session or run"),
    "no-run": (_with(4, run_id=""), 4, "is no id of a session or run"),
    "a-turned-run": (_with(4, run_id="run_\u202e1"), 4, "is no id of a session or run"),
    "a-long-run": (_with(4, run_id="r" * 201), 4, "is no id of a session or run"),
    "a-command-in-a-session": (
        lambda lines: [each.replace(b"ses_1", b"ses_1`x`") for each in lines],
        1,
        "is no id of a session or run",
    ),
    "a-line-in-a-key": (_with(5, key="a\nb"), 5, "the key 'a\\nb' of run 'run_1' has signs that"),
    "a-line-in-a-recipe": (
        lambda lines: [*lines[:3], lines[3].replace(b'"news"', b'"a\\u001b[2J"'), *lines[4:]],
        4,
        "the recipe 'a\\x1b[2J' of run",
    ),
    "no-status": (_with(6, body={"status": "over"}), 6, "`over` is not a status"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_file_is_refused_with_the_line(journal: MemoryJournal, name: str) -> None:
    break_it, line, words = BROKEN[name]
    broken = break_it(lines_of(await session_of_a_run(journal)))
    with pytest.raises(UsageError) as caught:
        read_archive(broken, name="s.jsonl")
    assert (caught.value.error_code, caught.value.where) == ("bad-archive", f"s.jsonl:{line}")
    assert f"s.jsonl, line {line}: " in caught.value.message
    assert words in caught.value.message
    assert "Nothing was stored" in caught.value.message


# --- the chain of a file ---------------------------------------------------------------------


def _last_removed(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"rows": 3', b'"rows": 2'), *lines[1:-1]]


def _second_removed(lines: list[bytes]) -> list[bytes]:
    moved = lines[5].replace(b'"position": 3', b'"position": 2')
    return [lines[0].replace(b'"rows": 3', b'"rows": 2'), *lines[1:4], moved]


FORGED: dict[str, tuple[Break, int, str]] = {
    "a body": (
        lambda lines: [*lines[:4], lines[4].replace(b"half", b"full"), lines[5]],
        5,
        "row 2 of session 'ses_1' is not the one that was exported",
    ),
    "a time": (
        lambda lines: [*lines[:5], re.sub(rb'"at": "\d{4}', b'"at": "1999', lines[5])],
        6,
        "row 3 of session 'ses_1' is not the one that was exported",
    ),
    "a row removed": (_second_removed, 5, "row 2 of session 'ses_1' is not the one"),
    "the last removed": (_last_removed, 6, "it is not as it was exported"),
    "a value removed": (
        lambda lines: [*lines[:5], re.sub(rb', "chain": "\w+"', b"", lines[5])],
        6,
        "row 3 has no chain value",
    ),
    "all values removed": (
        lambda lines: [lines[0], *(re.sub(rb', "chain": "\w+"', b"", each) for each in lines[1:])],
        7,
        "ends with None, not with ",
    ),
    "other words": (
        lambda lines: [*lines[:5], lines[5].replace(b'{"row"', b'{"text": "{}", "row"')],
        6,
        "its text does not say what its row says",
    ),
}


@pytest.mark.parametrize("name", FORGED)
async def test_a_row_that_does_not_fit_its_chain_is_named(
    journal: MemoryJournal, name: str
) -> None:
    """A-171."""
    forge, line, words = FORGED[name]
    lines = lines_of(await session_of_a_run(journal))
    forged = forge(lines)
    assert forged != lines
    with pytest.raises(UsageError, match="Nothing was stored") as caught:
        read_archive(forged, name="s.jsonl")
    assert (caught.value.error_code, caught.value.where) == ("bad-archive", f"s.jsonl:{line}")
    assert words in caught.value.message


async def test_a_file_of_the_first_version_is_read_and_says_what_is_not_covered(
    journal: MemoryJournal,
) -> None:
    archive = await session_of_a_run(journal)
    older = read_archive(without_chain(lines_of(archive)))
    assert [each.entries for each in older.sessions] == [each.entries for each in archive.sessions]
    assert [(each.head, each.uncovered) for each in older.sessions] == [(None, 3)]
    assert [each.uncovered for each in archive.sessions] == [0]
    other = MemoryJournal(FakeClock())
    await store_archive(other, older)
    assert (await other.verify("ses_1")).fault is None


async def test_bodies_in_other_words_are_hashed_as_they_were_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-171: as another version writes them; so a large one."""
    with monkeypatch.context() as patched:
        patched.setattr(
            "minions.adapters.stores.sqlite_entries.body_text",
            lambda draft, in_parts=False: json.dumps(body_of(draft.fact)),
        )
        source = SqliteJournal(tmp_path / "a.db", FakeClock())
        await written(
            source,
            "ses_1",
            "run_1",
            ("step", "finished", {"step_id": "s", "status": "completed", "output": "a b"}),
            ("step", "finished", {"step_id": "s", "status": "completed", "output": "x" * 40_000}),
        )
    archive = await load_archive(source, "ses_1")
    lines = lines_of(archive)
    assert ["text" in json.loads(line) for line in lines[1:]] == [True, True]
    assert read_archive(lines) == archive
    target = SqliteJournal(tmp_path / "b.db", FakeClock())
    await store_archive(target, archive)
    assert (await target.verify("ses_1")).fault is None
    await source.aclose()
    await target.aclose()


async def test_a_session_that_is_not_as_it_was_stored_is_not_exported(tmp_path: Path) -> None:
    """A-171."""
    source = SqliteJournal(tmp_path / "a.db", FakeClock())
    await session_of_a_run(source)
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        db.execute("UPDATE entries SET key = 'x' WHERE position = 2")
    with pytest.raises(JournalError, match=r"entry 2 \(changed\)") as caught:
        await load_archive(source, "ses_1")
    assert caught.value.error_code == "broken-chain"
    await source.aclose()


async def test_an_honest_export_verifies_and_so_does_what_it_becomes(tmp_path: Path) -> None:
    """A-171: from a database to a file to a database, where grants are left out."""
    source = SqliteJournal(tmp_path / "a.db", FakeClock())
    target = SqliteJournal(tmp_path / "b.db", FakeClock())
    archive = await session_of_a_run(source)
    assert archive.sessions[0].head == (await source.verify("ses_1")).head
    await store_archive(target, read_archive(lines_of(archive)))
    report = await target.verify("ses_1")
    assert (report.entries, report.fault) == (3, None)
    assert report.head != archive.sessions[0].head
    await source.aclose()
    await target.aclose()


async def test_the_largest_values_of_a_row_are_taken(journal: MemoryJournal) -> None:
    largest: dict[str, JsonValue] = {
        "epoch": 2**31 - 1,
        "generation": 2**31 - 1,
        "key": "k" * 2_000,
    }
    lines = without_chain(lines_of(await session_of_a_run(journal)))
    body = json.loads(lines[4])["row"]["body"] | {"output": _nested(199)}
    read_archive(_with(5, **largest, body=body, at="9999-12-31T23:59:59+00:00")(lines))


async def test_a_file_of_a_newer_version_is_refused(journal: MemoryJournal) -> None:
    first, *rest = lines_of(await session_of_a_run(journal))
    newer = first.replace(b'"version": 2', b'"version": 3')
    with pytest.raises(UsageError, match="version 3") as caught:
        read_archive([newer, *rest])
    assert caught.value.error_code == "newer-archive"
