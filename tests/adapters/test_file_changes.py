"""What the file tools record before they write, and how files are taken back to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve, field, frozen

from minions.adapters.tools import confined_folder
from minions.adapters.tools import confined_folder as recorded_changes
from minions.adapters.tools import confined_paths as folder_descriptors
from minions.adapters.tools.confined_folder import ConfinedFolder
from minions.adapters.tools.confined_paths import recorded_temporary
from minions.adapters.tools.file_restorer import LocalFileRestorer
from minions.adapters.tools.files_toolset import files_toolset
from minions.contracts.file_changes import (
    ChangeRecorder,
    FileChange,
    FileOutcome,
    FileTarget,
    digest_of,
)
from minions.contracts.tools import ToolScope
from minions.data.errors import EnvironmentRefusedError, ToolError
from minions.data.json_values import JsonValue

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")


@frozen
class Recorded(ChangeRecorder):
    """Keeps the changes, and looks at the world when each is recorded."""

    look: Callable[[], object] = lambda: None
    changes: list[FileChange] = field(factory=list)
    seen: list[object] = field(factory=list)

    def record(self, change: FileChange) -> None:
        self.changes.append(change)
        self.seen.append(self.look())

    def close(self) -> None:
        raise AssertionError("a tool does not close it")


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def call(
    root: Path, name: str, recorder: ChangeRecorder | None, **arguments: JsonValue
) -> None:
    tools = files_toolset().open({"root": str(root), "undo": True}, "fs")
    (tool,) = (each for each in tools if each.spec.name == f"fs__{name}")
    await tool.invoke(arguments, evolve(SCOPE, changes=recorder))


def target(root: Path, path: str, before: bytes | None, after: bytes) -> FileTarget:
    return FileTarget(
        root=str(root),
        path=path,
        content=before,
        mode=None if before is None else 0o640,
        left=frozenset({digest_of(after), digest_of(before)}),
        written=frozenset({digest_of(after) or ""}),
    )


def restored(target: FileTarget, *, dry_run: bool = False) -> FileOutcome:
    return LocalFileRestorer().restore(target, dry_run=dry_run).outcome


# --- recording -------------------------------------------------------------------------------


async def test_a_write_is_recorded_before_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    file.chmod(0o640)
    recorder = Recorded(look=file.read_text)
    await call(tmp_path, "write", recorder, path="a.txt", text="new")
    assert recorder.changes == [
        FileChange(
            root=str(tmp_path),
            path="a.txt",
            content=b"old",
            mode=0o640,
            after=digest_of(b"new") or "",
        )
    ]
    assert recorder.seen == ["old"]
    assert file.read_text() == "new"


async def test_an_edit_and_several_writes_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two")
    recorder = Recorded()
    await call(tmp_path, "edit", recorder, path="a.txt", old="two", new="three")
    files: list[JsonValue] = [{"path": "a.txt", "text": "x"}, {"path": "b.txt", "text": "y"}]
    await call(tmp_path, "write_many", recorder, files=files)
    assert [(each.path, each.content) for each in recorder.changes] == [
        ("a.txt", b"one two"),
        ("a.txt", b"one three"),
        ("b.txt", None),
    ]


async def test_the_folders_that_a_write_makes_are_recorded_before_the_first_is_made(
    tmp_path: Path,
) -> None:
    (tmp_path / "there").mkdir()
    recorder = Recorded(look=lambda: names_in(tmp_path / "there"))
    await call(tmp_path, "write", recorder, path="there/new/deep/a.txt", text="x")
    (change,) = recorder.changes
    assert (change.content, change.mode) == (None, None)
    assert change.folders == ("there/new", "there/new/deep")
    assert recorder.seen == [[]]
    assert (tmp_path / "there/new/deep/a.txt").read_text() == "x"


async def test_a_file_that_appears_while_its_folders_are_made_is_recorded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    making = folder_descriptors.folder_below

    def made_by_another(folder: int, parts: list[str], *, create: bool = False) -> object:
        (tmp_path / "new").mkdir()
        (tmp_path / "new/a.txt").write_text("theirs")
        return making(folder, parts, create=create)

    monkeypatch.setattr(confined_folder, "folder_below", made_by_another)
    recorder = Recorded()
    await call(tmp_path, "write", recorder, path="new/a.txt", text="ours")
    assert [each.content for each in recorder.changes] == [None, b"theirs"]


async def test_a_write_that_changes_nothing_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("same")
    recorder = Recorded()
    await call(tmp_path, "write", recorder, path="a.txt", text="same")
    assert recorder.changes == []


@pytest.mark.parametrize("name", ["write", "edit"])
async def test_what_cannot_be_recorded_is_not_changed(tmp_path: Path, name: str) -> None:
    class Refusing(Recorded):
        def record(self, change: FileChange) -> None:
            raise ToolError("no room", code="test")

    (tmp_path / "a.txt").write_text("old")
    given: dict[str, JsonValue] = {"text": "new"} if name == "write" else {"old": "o", "new": "x"}
    with pytest.raises(ToolError, match="no room"):
        await call(tmp_path, name, Refusing(), path="a.txt", **given)
    if name == "write":
        with pytest.raises(ToolError, match="no room"):
            await call(tmp_path, name, Refusing(), path="new/a.txt", **given)
    assert names_in(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


async def test_a_file_that_is_too_large_to_be_recorded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_changes, "MOST_RECORDED", 10)
    (tmp_path / "a.txt").write_text("x" * 11)
    recorder = Recorded()
    with pytest.raises(ToolError, match="more than 10 bytes") as caught:
        await call(tmp_path, "write", recorder, path="a.txt", text="new")
    assert caught.value.error_code == "file-too-large"
    assert recorder.changes == []


async def test_undo_without_a_journal_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefusedError) as caught:
        await call(tmp_path, "write", None, path="a.txt", text="new")
    assert caught.value.error_code == "undo-unavailable"
    assert names_in(tmp_path) == []


# --- restoring -------------------------------------------------------------------------------


def test_a_changed_file_gets_its_content_and_mode_back(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"after")
    change = target(tmp_path, "a.bin", b"\0\xffbefore", b"after")
    assert restored(change, dry_run=True) is FileOutcome.RESTORED
    assert file.read_bytes() == b"after"
    assert restored(change) is FileOutcome.RESTORED
    assert file.read_bytes() == b"\0\xffbefore"
    assert file.stat().st_mode & 0o777 == 0o640
    assert restored(change) is FileOutcome.UNCHANGED


def test_a_created_file_is_removed_and_stays_removed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"after")
    change = target(tmp_path, "a", None, b"after")
    assert restored(change, dry_run=True) is FileOutcome.REMOVED
    assert restored(change) is FileOutcome.REMOVED
    assert list(tmp_path.iterdir()) == []
    assert restored(change) is FileOutcome.UNCHANGED


@pytest.mark.parametrize("now", [b"other", None])
def test_a_file_that_somebody_else_changed_or_removed_is_left(
    tmp_path: Path, now: bytes | None
) -> None:
    if now is not None:
        (tmp_path / "a").write_bytes(now)
    assert restored(target(tmp_path, "a", b"before", b"after")) is FileOutcome.CHANGED_SINCE
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if now is None else [now])


def test_a_link_swapped_in_is_refused_wherever_it_is(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "folder").mkdir(parents=True)
    outside.mkdir()
    (outside / "a").write_bytes(b"after")
    (root / "link").symlink_to(outside)
    (root / "a").symlink_to(outside / "a")
    (tmp_path / "other").symlink_to(root)
    for base, path in ((root, "link/a"), (root, "a"), (tmp_path / "other", "folder/a")):
        assert restored(target(base, path, b"before", b"after")) is FileOutcome.REFUSED
    assert (outside / "a").read_bytes() == b"after"


@pytest.mark.parametrize("path", ["../a", "/a", "x/../../a", "", "x//a", "a\0"])
def test_a_path_that_leads_out_of_the_root_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").write_bytes(b"after")
    root = tmp_path / "root"
    root.mkdir()
    assert restored(target(root, path, b"before", b"after")) is FileOutcome.REFUSED
    assert (tmp_path / "a").read_bytes() == b"after"


def test_the_unfinished_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    for content in (b"before", b"after"):
        (tmp_path / recorded_temporary("a", digest_of(content) or "")).write_bytes(b"half")
    (tmp_path / "a").write_bytes(b"after")
    assert restored(target(tmp_path, "a", b"before", b"after")) is FileOutcome.RESTORED
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_only_empty_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "made/deep").mkdir(parents=True)
    restorer, root = LocalFileRestorer(), str(tmp_path)

    def removed(path: str, *gone: str, dry_run: bool = False) -> FileOutcome:
        return restorer.remove_folder(root, path, gone=gone, dry_run=dry_run).outcome

    assert removed("made", dry_run=True) is FileOutcome.CHANGED_SINCE
    assert removed("made", "deep", dry_run=True) is FileOutcome.REMOVED
    assert removed("made") is FileOutcome.CHANGED_SINCE
    assert removed("made/deep") is FileOutcome.REMOVED
    assert removed("made") is FileOutcome.REMOVED
    assert removed("made") is FileOutcome.UNCHANGED


def test_restoring_waits_for_a_write_to_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"after")
    folder = ConfinedFolder(root=str(tmp_path))
    done = threading.Event()

    def undo() -> None:
        restored(target(tmp_path, "a", b"before", b"after"))
        done.set()

    with folder.changing(folder.place("a")):
        thread = threading.Thread(target=undo)
        thread.start()
        assert not done.wait(0.1)
    thread.join()
    assert (tmp_path / "a").read_bytes() == b"before"
