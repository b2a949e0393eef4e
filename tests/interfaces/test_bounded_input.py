"""Whatever a command reads of files and streams has a bound, and is a file where one is meant."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from command_line import Cli, Write
from minions.app.runs import batch_items
from minions.app.runs.batch_items import ItemsFile, store_items
from minions.app.settings.user_folders import FolderTrust
from minions.data.bounded_files import BoundedLines, LongLineError, open_regular, read_regular
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.engine.sessions import archive
from minions.engine.sessions.archive import read_archive_file
from minions.interfaces.cli import options as standard_input
from patience import HANG_S

ROOT: Final = Path(__file__).parents[2]
MIB: Final = 1_048_576
RECIPE = """\
id: greet
inputs: {name: {type: string}}
steps: [{id: a, goal: "Greet {{ inputs.name }}"}]
"""
READERS: Final = {
    "a session": ("sessions", "import", "FILE"),
    "a value": ("run", "greet.yaml", "-p", "name=@FILE"),
    "inputs": ("run", "greet.yaml", "--params", "FILE"),
    "a recipe": ("run", "FILE"),
    "a recipe to check": ("validate", "FILE"),
    "items": ("batch", "greet.yaml", "FILE"),
    "items in a table": ("batch", "greet.yaml", "FILE.csv"),
    "cases": ("eval", "greet.yaml", "FILE"),
    "a cassette": ("run", "greet.yaml", "-p", "name=x", "--replay", "FILE"),
    "a task": ("plan", "@FILE"),
    "an instruction": ("migrate", "FILE"),
    "a script": ("run", "greet.yaml", "-p", "name=x", "-m", "scripted/FILE.yaml"),
    "tokens": ("serve", "--token-file", "FILE"),
}


@contextmanager
def not_hanging() -> Iterator[None]:
    """Fails where the block waits for somebody who writes to a pipe."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def put(kind: str, path: Path) -> str:
    """Something that is no file, at that path; how it is called."""
    if kind == "pipe":
        os.mkfifo(path)
        return "it is a pipe, not a file"
    if kind == "device":
        path.symlink_to("/dev/zero")
        return "it is a device, not a file"
    path.mkdir()
    return "directory"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_in_one_line(
    cli: Cli, write: Write, here: Path, reader: str, kind: str
) -> None:
    write("greet.yaml", RECIPE)
    (here / "recipes").mkdir()
    arguments = [each.replace("FILE", "odd") for each in READERS[reader]]
    name = next(each for each in arguments if "odd" in each)
    name = name.removeprefix("name=").removeprefix("scripted/").removeprefix("@")
    words = (put(kind, here / name), "it is a folder", "it is no regular file")
    with not_hanging():
        done = cli(*arguments)
    assert done.code in (2, 4), done
    assert name in done.err
    assert any(each in done.err.lower() for each in words), done.err


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_lock_of_servers_that_is_no_file_is_refused(
    cli: Cli, write: Write, here: Path, kind: str
) -> None:
    write("minions.toml", '[mcp.one]\ncommand = ["true"]\n')
    words = put(kind, here / "mcp.lock.json")
    with not_hanging():
        done = cli("mcp", "list", "--trust")
    assert done.code == 2, done
    assert words in done.err.lower()


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_list_of_trusted_files_that_is_no_file_trusts_nothing(tmp_path: Path, kind: str) -> None:
    trust = FolderTrust(store=tmp_path / "trusted.json")
    words = put(kind, trust.store)
    with not_hanging():
        assert not trust.holds(tmp_path / "minions.toml", b"")
        with pytest.raises(EnvironmentRefusedError, match=words):
            trust.add(tmp_path / "minions.toml", b"")


class Endless(io.RawIOBase):
    """A stream of one byte without end."""

    def __init__(self, byte: bytes = b"x", begin: bytes = b"") -> None:
        self.rest = begin
        self.byte = byte
        self.given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]  # typeshed has any buffer
        buffer[:] = self.read(len(buffer))
        return len(buffer)

    def read(self, size: int = -1, /) -> bytes:
        assert size >= 0, "all of it is asked for"
        assert self.given < 200 * MIB, "it is read on and on"
        data, self.rest = self.rest[:size], self.rest[size:]
        data += self.byte * (size - len(data))
        self.given += len(data)
        return data


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    """Fails where the block held more than that at a time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most


def test_a_line_has_a_bound_to_the_byte() -> None:
    good = b"a" * 10 + b"\n" + b"b" * 10
    assert list(BoundedLines(io.BytesIO(good), 10).lines()) == [b"a" * 10 + b"\n", b"b" * 10]
    for line, bad in ((1, b"a" * 11 + b"\n"), (2, b"a\n" + b"b" * 11), (3, b"\n\n" + b"c" * 11)):
        with pytest.raises(LongLineError) as refused:
            list(BoundedLines(io.BytesIO(bad), 10).lines())
        assert refused.value.line == line


def test_no_more_is_read_than_there_is_room_for() -> None:
    lines, room = BoundedLines(io.BytesIO(b"abcdef"), 10), bytearray(4)
    assert (lines.readinto(room), bytes(room)) == (4, b"abcd")
    assert (lines.readinto(room), bytes(room)) == (2, b"efcd")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_refused_is_closed(tmp_path: Path, kind: str) -> None:
    put(kind, tmp_path / "odd")
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208  # their numbers
    with pytest.raises(OSError, match="odd"):
        open_regular(tmp_path / "odd")
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_line_without_end_takes_no_more_memory_than_its_bound() -> None:
    endless = Endless()
    with little_memory(4 * MIB), pytest.raises(LongLineError):
        list(BoundedLines(endless, MIB).lines())  # type: ignore[arg-type]  # it is read like a file
    assert endless.given <= 2 * MIB


def test_a_session_file_has_a_bound_for_a_line_its_values_and_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive, "_LONGEST_LINE", MIB)
    with little_memory(8 * MIB), pytest.raises(UsageError, match=r"line 1: .* in one line"):
        read_archive_file(Endless(), name="s")  # type: ignore[arg-type]  # as above
    monkeypatch.setattr(archive, "_MOST_VALUES", 1_000)
    head = json.dumps(
        {"format": "minions-session", "version": 1, "session": "s", "blobs": 1, "sessions": []}
    ).replace('"sessions": []', '"sessions": [{"id": "s", "rows": 1}]')
    many = f'{head}\n{{"row": [{"[]," * 999}[]]}}\n'.encode()
    with pytest.raises(UsageError, match="line 2: it has more than 1,000 values"):
        read_archive_file(io.BytesIO(many), name="s")
    monkeypatch.setattr(archive, "_LARGEST_FILE", len(head))
    with pytest.raises(UsageError, match="line 1: the file has more than"):
        read_archive_file(io.BytesIO(f"{head}\n".encode()), name="s")


def test_items_have_a_bound_for_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_items, "_LONGEST_ROW", 1_000)
    for name, text in (
        ("long.jsonl", '{"name": "' + "x" * 2_000 + '"}\n'),
        ("long.csv", "name\n" + "x," * 2_000 + "\n"),
        ("open.csv", "name\n" + '"a\n",' * 1_000),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match="in one line") as refused:
            list(ItemsFile(tmp_path / name).rows())
        assert name in refused.value.message
    monkeypatch.setattr(batch_items, "_MOST_VALUES", 100)
    (tmp_path / "many.jsonl").write_text('{"name": [' + "1," * 101 + "1]}\n")
    (row,) = ItemsFile(tmp_path / "many.jsonl").rows()
    assert row.problem == "it has more than 100 values."


def test_short_records_of_a_table_are_not_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_items, "_LONGEST_ROW", 1_000)
    (tmp_path / "t.csv").write_text("name\n" + '"a\nb"\n' * 1_000)
    assert [row.inputs["name"] for row in ItemsFile(tmp_path / "t.csv").rows()] == ["a\nb"] * 1_000


def test_items_on_standard_input_are_stored_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with little_memory(4 * MIB), pytest.raises(UsageError, match=r"stdin:1: .* in one line"):
        store_items(Endless(), tmp_path / "a", "stdin")  # type: ignore[arg-type]  # as above
    monkeypatch.setattr(batch_items, "_MOST_BYTES", MIB)
    with pytest.raises(UsageError, match="stdin: it has more than"):
        store_items(Endless(b"\n"), tmp_path / "b", "stdin")  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "greet.yaml", "-p", "name=@-"),
        ("run", "greet.yaml", "--params", "-"),
        ("run", "-"),
        ("plan", "@-"),
    ],
    ids=" ".join,
)
def test_a_text_on_standard_input_has_a_bound(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    write("greet.yaml", RECIPE)
    monkeypatch.setattr(standard_input, "MOST_INPUT_BYTES", MIB)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    done = cli(*arguments)
    assert done.code == 2
    assert "standard input has more than 1 MiB" in done.err


def test_a_message_of_a_conversation_has_a_bound(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    done = cli("chat", "--no-store", "-m", "ollama/none")
    assert done.code == 2
    assert "more than 500,000 characters in one line" in done.err


def test_a_file_is_read_up_to_its_bound_and_one_byte(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    assert len(read_regular(path, 10)) == 11
    assert len(read_regular(path, 100)) == 100
    with open_regular(path) as file:
        assert os.get_blocking(file.fileno()) or file.read(1) == b"x"


def limited_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (700 * MIB, 700 * MIB))


@pytest.mark.parametrize("arguments", [("sessions", "import", "sparse"), ("sessions", "import")])
def test_an_import_of_one_endless_line_does_not_take_all_memory(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**36)
    if len(arguments) == 2:
        arguments = (*arguments, "-")
    with Path("/dev/zero").open("rb") as zeros:
        done = subprocess.run(
            [sys.executable, "-m", "minions", *arguments],
            cwd=tmp_path,
            stdin=zeros,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=limited_memory,
            timeout=HANG_S,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert "line 1: it has more than 64 MiB in one line" in done.stderr
