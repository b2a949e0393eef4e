"""The tools of `documents`: passages with file and line, of what the files hold now."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import result_of
from minions.adapters.tools.confined_folder import ConfinedFolder
from minions.adapters.tools.confined_paths import GlobPattern
from minions.adapters.tools.documents_toolset import (
    DocumentIndex,
    IndexBounds,
    documents_toolset,
    fts_query,
    passages_of,
)
from minions.contracts.tools import Effect, Reads, ToolScope
from minions.data.errors import EnvironmentRefusedError, ToolError, UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")
LEAVE = "# Leave\n\nEverybody has 25 days of paid leave.\n\nParental leave is longer.\n"
TRAVEL = "# Travel\n\nA hotel costs at most 180 euros.\nTrains go first.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "more").mkdir(parents=True)
    (folder / "leave.md").write_text(LEAVE)
    (folder / "more" / "travel.md").write_text(TRAVEL)
    (tmp_path / "outside.md").write_text("The outside has paid leave, too.\n")
    return folder


def utc_now() -> datetime:
    return datetime.now(UTC)


def later() -> datetime:
    """So long after files were written that they cannot have changed at the same time."""
    return utc_now() + timedelta(minutes=1)


class Documents:
    """The tools as a caller sees them."""

    def __init__(
        self,
        root: Path,
        cache: Path | None = None,
        *,
        now: Callable[[], datetime] = utc_now,
        **options: JsonValue,
    ) -> None:
        self._toolset = documents_toolset(now, cache)
        opened = self._toolset.open({"root": str(root), **options}, "d")
        self._tools = {made.spec.name: made for made in opened}

    async def __call__(self, name: str, **arguments: JsonValue) -> Mapping[str, JsonValue]:
        result = await result_of(self._tools[f"d__{name}"], arguments, SCOPE)
        return cast("Mapping[str, JsonValue]", result)

    async def places(self, query: str) -> list[str]:
        """`file:line` of the passages, best first."""
        found = cast("list[dict[str, str]]", (await self("search", query=query))["passages"])
        return [f"{each['file']}:{each['line']}" for each in found]

    async def refusal(self, name: str, **arguments: JsonValue) -> ToolError:
        with pytest.raises(ToolError) as caught:
            await self(name, **arguments)
        return caught.value


# --- what is found ----------------------------------------------------------------------------


async def test_a_passage_comes_with_its_file_and_the_numbers_of_its_lines(root: Path) -> None:
    """A-140."""
    found = await Documents(root)("search", query="How much may a hotel cost?")
    assert found == {
        "passages": [
            {
                "file": "more/travel.md",
                "line": 1,
                "text": "1: # Travel\n2: \n3: A hotel costs at most 180 euros.\n"
                "4: Trains go first.",
            }
        ],
        "documents": 2,
        "left_out": "",
    }


async def test_an_edited_file_is_found_by_what_it_says_now(root: Path) -> None:
    """A-140."""
    documents = Documents(root)
    assert await documents.places("hotel") == ["more/travel.md:1"]
    (root / "more" / "travel.md").write_text(TRAVEL.replace("hotel", "hostel"))
    assert await documents.places("hotel") == []
    assert await documents.places("hostel") == ["more/travel.md:1"]


@pytest.mark.parametrize("now", [utc_now, later])
async def test_an_edit_of_the_same_length_at_the_same_time_is_seen(
    root: Path, now: Callable[[], datetime]
) -> None:
    """As when a file is saved twice within one tick of the file system, or a program that copies
    files sets their times back."""
    documents, path = Documents(root, now=now), root / "leave.md"
    await documents.places("leave")
    before = path.stat()
    path.write_text(LEAVE.replace("25 days", "35 days"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await documents.places("35") == ["leave.md:1"]


async def test_files_that_are_deleted_vanish_and_new_ones_appear(root: Path) -> None:
    documents = Documents(root)
    assert await documents.places("leave") == ["leave.md:1"]
    (root / "leave.md").unlink()
    (root / "new.md").write_text("Paid leave is unlimited.\n")
    assert await documents.places("leave") == ["new.md:1"]


async def test_an_unchanged_file_is_not_read_again(root: Path) -> None:
    reads: list[str] = []

    class Watched(ConfinedFolder):
        def opened(self, place):  # type: ignore[no-untyped-def]  # as the base
            reads.append(place.relative)
            return super().opened(place)

    bounds = IndexBounds(max_files=9, max_file_bytes=999, max_bytes=9_999)
    index = DocumentIndex(Watched(root=str(root)), [GlobPattern("**/*")], bounds, now=later)
    for _ in range(3):
        index.search('"leave"', 5)
    assert sorted(reads) == ["leave.md", "more/travel.md"]
    index.close()


@pytest.mark.parametrize(
    ("query", "places"),
    [
        ("paid leave", ["leave.md:1"]),
        ('"days of paid"', ["leave.md:1"]),
        ('"paid days"', []),
        ("HÔTEL", ["more/travel.md:1"]),
        ("costing", ["more/travel.md:1"]),
        ("travel", ["more/travel.md:1"]),
        ('leave OR NOT (hotel* AND "', ["more/travel.md:1", "leave.md:1"]),
        ("path:leave", ["leave.md:1"]),
        ("elephant's-foot", []),
    ],
)
async def test_a_query_is_words_and_never_an_expression(
    root: Path, query: str, places: list[str]
) -> None:
    assert sorted(await Documents(root).places(query)) == sorted(places)


async def test_passages_that_share_only_common_words_are_left_out(root: Path) -> None:
    for number in range(20):
        (root / f"n{number}.md").write_text(f"The rule {number} of the house is for all of us.\n")
    assert await Documents(root).places("the parental leave of the") == ["leave.md:1"]


@given(st.text(max_size=60))
def test_any_text_is_a_query_or_has_no_word(text: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE t USING fts5 (a)")
    database.execute("INSERT INTO t VALUES ('some words')")
    if (query := fts_query(text)) is not None:
        database.execute("SELECT * FROM t WHERE t MATCH ?", (query,)).fetchall()
    database.close()


async def test_a_query_without_a_word_is_told(root: Path) -> None:
    refusal = await Documents(root).refusal("search", query="?!")
    assert refusal.error_code == "bad-pattern"


@given(st.lists(st.sampled_from(["", "# A", "word " * 30, "x" * 2_000, "a", "  "]), max_size=60))
def test_passages_hold_every_line_that_says_something_once_at_its_number(lines: list[str]) -> None:
    passages = list(passages_of("\n".join(lines)))
    held = [
        (passage.first + at, line) for passage in passages for at, line in enumerate(passage.lines)
    ]
    parts = {
        number: [part for _, part in group] for number, group in groupby(held, key=itemgetter(0))
    }
    assert all(lines[number - 1] == "".join(each) for number, each in parts.items())
    assert all(len(each) == 1 or len(lines[number - 1]) > 1_200 for number, each in parts.items())
    numbers = [number for number, _ in held]
    assert numbers == sorted(numbers)
    filled = {number for number, line in enumerate(lines, start=1) if line.strip()}
    assert filled <= set(numbers)
    assert all(passage.last == passage.first + len(passage.lines) - 1 for passage in passages)


async def test_words_far_down_a_long_line_are_found_shown_and_read(root: Path) -> None:
    """A-140."""
    line = f"{'padding ' * 400}The retention period is nine weeks. {'padding ' * 400}"
    (root / "policy.md").write_text(f"# Policy\n\n{line}\n")
    documents = Documents(root)
    found = await documents("search", query="retention", limit=1)
    [passage] = cast("list[dict[str, JsonValue]]", found["passages"])
    assert (passage["file"], passage["line"]) == ("policy.md", 3)
    assert "The retention period is nine weeks." in str(passage["text"])
    assert len(str(passage["text"])) < 1_300
    read = await documents("read", file="policy.md", line=3, lines=1)
    assert read["text"] == f"3: {line}"


# --- reading ----------------------------------------------------------------------------------


async def test_lines_are_read_with_their_numbers(root: Path) -> None:
    read = await Documents(root)("read", file="leave.md", line=3, lines=2)
    assert read == {
        "file": "leave.md",
        "line": 3,
        "text": "3: Everybody has 25 days of paid leave.\n4: ",
    }


async def test_ends_of_lines_as_windows_writes_them_are_no_part_of_the_lines(root: Path) -> None:
    (root / "notes.md").write_bytes(b"# Notes\r\n\r\nWindows wrote this.\r\n")
    documents = Documents(root)
    text = "1: # Notes\n2: \n3: Windows wrote this."
    [passage] = cast("list[dict[str, str]]", (await documents("search", query="wrote"))["passages"])
    assert passage["text"] == text
    assert (await documents("read", file="notes.md"))["text"] == text
    assert (await documents("read", file="notes.md", lines=1))["text"] == "1: # Notes"


async def test_a_byte_order_mark_is_no_part_of_the_text(root: Path) -> None:
    (root / "bom.md").write_bytes("\ufeffWindows wrote this.\n".encode())
    documents = Documents(root)
    assert (await documents("read", file="bom.md"))["text"] == "1: Windows wrote this."
    assert "\ufeff" not in str(await documents("search", query="windows"))


# --- what is not ------------------------------------------------------------------------------


async def test_nothing_outside_of_the_root_is_found_or_read(root: Path) -> None:
    (root / "link.md").symlink_to(root.parent / "outside.md")
    (root / "up").symlink_to(root.parent)
    documents = Documents(root)
    assert await documents.places("outside") == []
    for path in ("../outside.md", "link.md", "up/outside.md", "/etc/passwd"):
        assert (await documents.refusal("read", file=path)).error_code == "outside-root"


async def test_hidden_files_are_left_alone_unless_the_recipe_says_otherwise(root: Path) -> None:
    (root / ".env").write_text("TOKEN=paid\n")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("paid\n")
    documents = Documents(root)
    assert await documents.places("paid") == ["leave.md:1"]
    assert (await documents.refusal("read", file=".env")).error_code == "excluded-path"
    assert ".git/config:1" not in await Documents(root, exclude=[]).places("paid")
    assert ".env:1" not in await Documents(root, exclude=[]).places("paid")
    opened = Documents(root, exclude=[], allow_secrets=[".env"])
    assert ".env:1" in await opened.places("paid")
    secret = Documents(root, exclude=[])
    assert (await secret.refusal("read", file=".env")).error_code == "secret-file"


async def test_only_included_files_are_documents(root: Path) -> None:
    (root / "data.csv").write_text("paid,leave\n")
    documents = Documents(root, include=["**/*.csv"])
    assert await documents.places("leave") == ["data.csv:1"]
    assert (await documents.refusal("read", file="leave.md")).error_code == "excluded-path"


async def test_what_is_not_indexed_is_counted(root: Path) -> None:
    (root / "logo.png").write_bytes(b"\x89PNG\0leave")
    (root / "latin.txt").write_bytes("caf\xe9 leave".encode("latin-1"))
    (root / "long.md").write_text("leave " * 100)
    found = await Documents(root, max_file_bytes=500)("search", query="leave")
    assert found["left_out"] == "1 not UTF-8, 1 not text, 1 too large"
    assert found["documents"] == 2


async def test_the_first_files_are_indexed_up_to_the_limits(root: Path) -> None:
    for number in range(5):
        (root / f"f{number}.md").write_text("same words\n")
    few = await Documents(root, max_files=3)("search", query="words", limit=50)
    assert (few["documents"], few["left_out"]) == (3, "4 beyond the limits")
    small = await Documents(root, max_bytes=30)("search", query="words", limit=50)
    assert small["documents"] == 2


async def test_a_missing_root_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        await Documents(tmp_path / "none")("search", query="a")


async def test_of_a_line_without_blanks_a_part_is_shown(root: Path) -> None:
    (root / "long.md").write_text("needle" + "," * 100_000)
    found = await Documents(root)("search", query="needle")
    assert len(str(found)) < 1_500


async def test_a_search_that_takes_too_long_is_ended(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minions.adapters.tools.documents_toolset._STEPS", 1)
    monkeypatch.setattr("minions.adapters.tools.documents_toolset._MOST_STEPS", 3)
    assert (await Documents(root).refusal("search", query="leave")).error_code == "slow-search"


async def test_a_python_without_full_text_search_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = "CREATE VIRTUAL TABLE texts USING fts5x (text)"
    monkeypatch.setattr("minions.adapters.tools.documents_toolset._SCHEMA", schema)
    with pytest.raises(EnvironmentRefusedError) as caught:
        await Documents(root)("search", query="leave")
    assert caught.value.error_code == "no-full-text"


# --- shared and kept --------------------------------------------------------------------------


async def test_many_searches_at_once_share_an_index_and_leave_the_loop_free(root: Path) -> None:
    for number in range(300):
        (root / f"n{number}.md").write_text(f"number {number} of many words\n" * 50)
    documents, ticks = Documents(root), 0
    loop_thread = threading.get_ident()

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += threading.get_ident() == loop_thread

    ticking = asyncio.create_task(tick())
    found = await asyncio.gather(*(documents.places(f'"number {n}"') for n in range(20)))
    ticking.cancel()
    assert all(each[0].startswith(f"n{n}.md:") for n, each in enumerate(found))
    assert ticks > 20


async def test_a_kept_index_serves_a_later_process_and_is_its_owners_alone(
    root: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    assert await Documents(root, cache, keep=True).places("hotel") == ["more/travel.md:1"]
    (file,) = cache.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    (root / "leave.md").write_text("Now hotel.\n")
    again = await Documents(root, cache, keep=True).places("hotel")
    assert sorted(again) == ["leave.md:1", "more/travel.md:1"]
    assert list(cache.iterdir()) == [file]


async def test_without_keep_nothing_is_written(root: Path, tmp_path: Path) -> None:
    await Documents(root, tmp_path / "cache").places("hotel")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", [b"no database", b"SQLite format 3\0" + b"\xff" * 5_000])
async def test_a_damaged_index_is_made_again(root: Path, tmp_path: Path, damage: bytes) -> None:
    cache = tmp_path / "cache"
    await Documents(root, cache, keep=True).places("hotel")
    (file,) = cache.iterdir()
    file.write_bytes(damage)
    assert await Documents(root, cache, keep=True).places("hotel") == ["more/travel.md:1"]


async def test_an_index_whose_tables_are_gone_is_made_again(root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    await Documents(root, cache, keep=True).places("hotel")
    (file,) = cache.iterdir()
    database = sqlite3.connect(file)
    database.executescript("DROP TABLE passages;")
    database.close()
    assert await Documents(root, cache, keep=True).places("hotel") == ["more/travel.md:1"]


async def test_the_indexes_of_a_process_are_few(tmp_path: Path) -> None:
    toolset = documents_toolset(utc_now)
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.md").write_text(f"word{number}\n")
        search, _ = toolset.open({"root": str(folder)}, "d")
        found = await result_of(search, {"query": f"word{number}"}, SCOPE)
        assert "a.md" in str(found)
    search, _ = toolset.open({"root": str(tmp_path / "0")}, "d")
    assert "a.md" in str(await result_of(search, {"query": "word0"}, SCOPE))


# --- as recipes see it ------------------------------------------------------------------------


async def test_a_missing_root_is_told_with_what_the_tools_have_an_option_for(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="option `root` to one that exists") as caught:
        await Documents(tmp_path / "none")("search", query="x")
    assert "create: true" not in caught.value.message


def test_the_tools_change_nothing_and_what_they_give_is_private() -> None:
    toolset = documents_toolset(utc_now)
    assert [spec.name for spec in toolset.specs] == ["search", "read"]
    assert {spec.effect for spec in toolset.specs} == {Effect.PURE}
    assert {spec.reads for spec in toolset.specs} == {Reads.PRIVATE}
    check_schema(toolset.options)
    assert SchemaValidator(toolset.options).errors({"root": ".", "keep": True}) == ()
