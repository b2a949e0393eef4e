"""Files that a command must not change are put back, whatever it left in their place."""

from __future__ import annotations

import os
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from minions.adapters.sandboxes.supervisor import workspace_guard as protected_files
from minions.adapters.sandboxes.supervisor.workspace_folders import (
    opened,
    opened_in,
    remove,
    status_of,
    write_file,
)
from minions.adapters.sandboxes.supervisor.workspace_guard import ProtectedFiles


def state_of(path: Path) -> object:
    """What stands there, with its rights."""
    if path.is_symlink():
        return path.readlink()
    if path.is_dir():
        mode = stat.S_IMODE(path.stat().st_mode)
        return mode, {each.name: state_of(each) for each in path.iterdir()}
    return (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) if path.exists() else None


@pytest.fixture(autouse=True)
def _usual_rights() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With `a/b`, a folder with a link, and nothing at `gone`."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_text("own")
    (tmp_path / "a/b").chmod(0o640)
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/file").write_text("own")
    (tmp_path / "tree/link").symlink_to("deep/file")
    (tmp_path / "tree/deep").chmod(0o750)
    (tmp_path / "link").symlink_to("/nowhere")
    return tmp_path


PATHS = ["a/b", "tree", "link", "gone", "no/gone"]


def clear(path: Path) -> None:
    """Remove it, whatever it is."""
    with opened(str(path.parent), []) as above:
        remove(above, path.name)


def put(path: Path, what: str) -> None:
    """Put something else there: a command may do so, also above the path."""
    clear(path)
    if what == "file":
        path.write_text("other")
    elif what == "folder":
        (path / "x/y").mkdir(parents=True)
        (path / "x/file").write_text("other")
    elif what == "link":
        path.symlink_to("/etc/passwd")
    elif what == "link to a folder":
        path.symlink_to(path.parent)
    elif what == "pipe":
        os.mkfifo(path)


def test_what_is_as_it_was_is_left_alone(folder: Path) -> None:
    protected, before = ProtectedFiles(str(folder), PATHS), (folder / "a/b").stat()
    assert protected.restore() == []
    assert (folder / "a/b").stat() == before
    (folder / "no").mkdir()
    assert protected.restore() == []
    assert (folder / "no").is_dir()


@pytest.mark.parametrize("what", ["file", "folder", "link", "link to a folder", "pipe", "nothing"])
@pytest.mark.parametrize("path", ["a/b", "a", "tree", "tree/deep/file", "tree/deep", "link"])
def test_whatever_stands_in_its_place_is_replaced(folder: Path, path: str, what: str) -> None:
    if (path, what) == ("a", "folder"):
        pytest.skip("what else is in a folder above is not protected")
    before, protected = state_of(folder), ProtectedFiles(str(folder), PATHS)
    put(folder / path, what)
    top = Path(path).parts[0]
    expected = [each for each in PATHS if Path(each).parts[0] == top]
    assert protected.restore() == expected
    (folder / "a").chmod(0o755)  # a folder above is made again with usual rights
    assert state_of(folder) == before
    assert protected.restore() == []


@pytest.mark.parametrize("what", ["file", "folder", "link", "link to a folder", "pipe"])
def test_what_was_not_there_is_removed(folder: Path, what: str) -> None:
    protected, before = ProtectedFiles(str(folder), PATHS), state_of(folder)
    put(folder / "gone", what)
    assert protected.restore() == ["gone"]
    assert state_of(folder) == before


@pytest.mark.parametrize("what", ["file", "link", "link to a folder", "pipe"])
def test_a_folder_above_what_was_not_there_may_not_hide_it(folder: Path, what: str) -> None:
    """A link there would show something else at the path to whoever follows it."""
    protected = ProtectedFiles(str(folder), PATHS)
    put(folder / "no", what)
    assert protected.restore() == ["no/gone"]
    assert state_of(folder / "no") == (0o755, {})


def test_rights_alone_are_a_change(folder: Path) -> None:
    before, protected = state_of(folder), ProtectedFiles(str(folder), PATHS)
    (folder / "a/b").chmod(0o777)
    (folder / "tree/deep").chmod(0o700)
    assert protected.restore() == ["a/b", "tree"]
    assert state_of(folder) == before


def test_files_that_cannot_be_read_by_name_are_seen_and_replaced(folder: Path) -> None:
    protected = ProtectedFiles(str(folder), ["a/b"])
    put(folder / "a/b", "nothing")
    with (folder / "a/b").open("wb") as large:
        large.truncate(5 * 1024 * 1024)
    assert protected.restore() == ["a/b"]
    assert (folder / "a/b").read_text() == "own"


def test_many_files_that_are_too_large_are_not_read_either(folder: Path) -> None:
    """Holes cost a command nothing: what it left is compared as far as it can be what was there."""
    paths = [f"{name}.txt" for name in "abcd"]
    for path in paths:
        (folder / path).write_text("own")
    protected = ProtectedFiles(str(folder), paths)
    for path in paths:
        os.truncate(folder / path, 64 * 1024 * 1024)
    tracemalloc.start()
    try:
        assert protected.restore() == paths
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("deep", [101, 600])
def test_a_folder_that_is_too_deep_to_be_looked_through_is_replaced(
    folder: Path, deep: int
) -> None:
    protected = ProtectedFiles(str(folder), ["a/b", "tree"])
    for name in ("a/b", "tree"):
        put(folder / name, "nothing")
        (folder / name).mkdir()
        current = os.open(folder / name, os.O_RDONLY)
        for _ in range(deep):
            os.mkdir("d", dir_fd=current)
            below = os.open("d", os.O_RDONLY, dir_fd=current)
            os.close(current)
            current = below
        os.close(current)
    try:
        assert protected.restore() == ["a/b", "tree"]
    finally:  # for pytest, which removes what is left
        for name in ("a/b", "tree"):
            if (folder / name / "d").exists():
                clear(folder / name)
    assert (folder / "a/b").read_text() == "own"
    assert (folder / "tree/link").read_text() == "own"


def test_a_folder_may_be_deep_and_have_many_entries_up_to_a_limit(tmp_path: Path) -> None:
    deep = tmp_path.joinpath("top", *["d"] * 100)
    deep.mkdir(parents=True)
    assert ProtectedFiles(str(tmp_path), ["top"]).restore() == []
    (deep / "file").write_text("x")
    with pytest.raises(OSError, match="too large to be protected"):
        ProtectedFiles(str(tmp_path), ["top"])


def test_each_entry_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected_files, "_MOST_KEPT_BYTES", 3)
    for name in ("tree/a", "tree/b", "tree/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        fits = name != "tree/c"
        (tmp_path / name).symlink_to("/nowhere")
        if fits:
            assert ProtectedFiles(str(tmp_path), ["tree"]).restore() == []
            continue
        with pytest.raises(OSError, match="too large to be protected"):
            ProtectedFiles(str(tmp_path), ["tree"])


def test_what_is_neither_file_nor_folder_is_compared_unread(folder: Path) -> None:
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)
    protected = ProtectedFiles(str(folder), ["socket"])
    assert protected.restore() == []
    (folder / "socket").chmod(0o666)
    assert protected.restore() == ["socket"]


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_there_is_a_limit_of_bytes_in_all(tmp_path: Path, more: int, *, fits: bool) -> None:
    """A file counts with a byte more than it has."""
    (tmp_path / "one").write_bytes(b"x" * (4 * 1024 * 1024 - 12 + more))
    (tmp_path / "two").write_bytes(b"x" * 10)
    if fits:
        assert ProtectedFiles(str(tmp_path), ["one", "two"]).restore() == []
        return
    with pytest.raises(OSError, match="too large to be protected"):
        ProtectedFiles(str(tmp_path), ["one", "two"])


def test_a_path_through_a_link_is_none(folder: Path) -> None:
    """What is beyond it is neither read nor written."""
    (folder / "way").symlink_to("a")
    protected = ProtectedFiles(str(folder), ["way/b"])
    with pytest.raises(OSError, match="way"), opened(str(folder), ["way"]):
        pass
    with opened(str(folder), []) as above, pytest.raises(OSError, match="way"):
        opened_in(above, "way").__enter__()
    assert protected.restore() == ["way/b"]
    assert (folder / "a/b").read_text() == "own"


# --- entries of an opened folder ------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o700, 0o000, 0o500])
def test_a_tree_is_removed_whatever_its_rights_are_and_nothing_beyond_its_links(
    tmp_path: Path, mode: int
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("own")
    tree = tmp_path / "tree"
    for name in ("a/b/c", "a/d", "e"):
        (tree / name).mkdir(parents=True)
        (tree / name / "link").symlink_to(kept)
        (tree / name / "file").write_text("x")
    (tree / "a/b").chmod(mode)
    with opened(str(tmp_path), []) as folder:
        remove(folder, "tree")
        remove(folder, "tree")  # it is not there
        assert status_of(folder, "tree") is None
    assert state_of(kept) == (0o755, {"file": (0o644, b"own")})


def test_no_folder_stays_open(folder: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # not a folder

    before = count()
    with opened(str(folder), ["tree", "deep"]) as deep, opened_in(deep, "..") as above:
        assert count() == before + 2
        remove(above, "deep")
    with pytest.raises(FileNotFoundError), opened(str(folder), ["tree", "gone"]):
        pass
    (folder / "tree/x/y").mkdir(parents=True)
    clear(folder / "tree")
    assert count() == before


def test_a_new_file_replaces_none_and_has_no_more_than_usual_rights(tmp_path: Path) -> None:
    with opened(str(tmp_path), []) as folder:
        write_file(folder, "file", b"x", 0o4755)
        write_file(folder, "link", "/nowhere", 0)
        for name in ("file", "link"):
            with pytest.raises(FileExistsError):
                write_file(folder, name, b"y", 0o600)
    assert state_of(tmp_path / "file") == (0o755, b"x")
    assert state_of(tmp_path / "link") == Path("/nowhere")
