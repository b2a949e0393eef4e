"""How much space a job takes: what counts, when it is looked at, and which disks are believed."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from minions.adapters.sandboxes.supervisor import workspace_folders as disk_space
from minions.adapters.sandboxes.supervisor.workspace_folders import DiskSpace

MOST = 800
ENTRY = 4096


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace. The job is the test itself."""
    monkeypatch.setattr(disk_space, "descendants", lambda _: [os.getpid()])
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def watching(work: Path, *, is_git: bool = False) -> DiskSpace:
    return DiskSpace([str(work)], MOST, is_git=is_git)


def write(path: Path, pages: int = 3) -> int:
    """A file, and what it counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 4096 * pages)
    return counted(path)


def counted(path: Path) -> int:
    return path.lstat().st_blocks * 512 + ENTRY


# --- what counts ---------------------------------------------------------------------------------


def test_files_folders_and_links_count_once_each(work: Path) -> None:
    write(work / "old")
    write(work.parent / "outside", 50)
    disk = watching(work)
    assert (disk.end(), disk.is_exceeded) == (0, False)
    taken = write(work / "a" / "new") + counted(work / "a")
    (work / "link").symlink_to("../outside")
    (work / "dangling").symlink_to("nowhere")
    taken += counted(work / "link") + counted(work / "dangling")
    os.link(work / "a" / "new", work / "same")
    os.link(work / "a" / "new", work / "again")
    os.link(work / "old", work / "older")
    assert disk.end() == taken + 3 * ENTRY
    (work / "older").unlink()
    (work / "old").unlink()
    assert disk.end() < taken + 2 * ENTRY


@pytest.mark.parametrize("is_git", [True, False])
def test_repositories_count_where_they_can_be_written(work: Path, is_git: bool) -> None:
    (work / ".git").mkdir()
    (work / "sub").mkdir()
    disk = watching(work, is_git=is_git)
    taken = write(work / "sub" / "b")
    of_git = write(work / ".git" / "a")
    assert disk.end() == taken + (of_git if is_git else 0)


def test_files_without_a_name_count_once_and_only_on_the_disks_of_the_job(work: Path) -> None:
    disk = watching(work)
    write(work / "gone", 20)
    elsewhere = os.memfd_create("elsewhere")
    os.write(elsewhere, b"x" * 100_000)
    named = write(work / "named")
    with (work / "gone").open("rb") as one, (work / "gone").open("rb"), (work / "named").open():
        (work / "gone").unlink()
        taken = os.fstat(one.fileno()).st_blocks * 512 + ENTRY
        assert disk.end() == taken + ENTRY + named
    os.close(elsewhere)
    assert disk.end() == named


@pytest.mark.parametrize(("later_ns", "is_counted"), [(0, True), (1, False)])
def test_of_many_files_those_count_that_changed_since_a_moment_before(
    work: Path, monkeypatch: pytest.MonkeyPatch, later_ns: int, is_counted: bool
) -> None:
    taken = write(work / "a")
    changed_ns = (work / "a").stat().st_ctime_ns
    monkeypatch.setattr(disk_space, "_FEW", 0)
    clock = SimpleNamespace(time_ns=lambda: changed_ns + 20_000_000 + later_ns)
    monkeypatch.setattr(disk_space, "time", clock)
    monkeypatch.setattr(disk_space, "_tells_free_space", lambda _: False)
    assert watching(work).end() == (taken if is_counted else 0)


def test_few_entries_are_all_summed_up(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work / "a" / "b")
    write(work / "c")
    monkeypatch.setattr(disk_space, "_FEW", 3)
    assert watching(work)._sum_before is not None
    monkeypatch.setattr(disk_space, "_FEW", 2)
    assert watching(work)._sum_before is None


# --- when it is looked at ------------------------------------------------------------------------


class Rounds:
    """The end of a job, after so many looks."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.rests: list[float] = []

    def wait(self, seconds: float) -> bool:
        if seconds != disk_space._PERIOD_S:
            self.rests.append(seconds)
            return False
        self.left -= 1
        return self.left < 0

    def set(self) -> None:
        self.left = 0


Prepare = Callable[..., DiskSpace]


@pytest.fixture
def prepared(work: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """A job of which everything is known."""

    def prepare(
        *,
        used: int,
        measured: Sequence[int],
        told: bool = True,
        few: bool = False,
        full: bool = False,
        rounds: int = 1,
    ) -> DiskSpace:
        disk = watching(work)
        found = iter(measured)
        monkeypatch.setattr(disk, "_is_told", told)
        monkeypatch.setattr(disk, "_sum_before", 0 if few else None)
        monkeypatch.setattr(disk, "_used", lambda: used)
        monkeypatch.setattr(disk, "_measured", lambda: next(found))
        monkeypatch.setattr(disk, "_is_nearly_full", lambda: full)
        monkeypatch.setattr(disk, "_ended", Rounds(rounds))
        return disk

    return prepare


@pytest.mark.parametrize(
    ("used", "measured", "told", "few", "full", "is_exceeded"),
    [
        (MOST, [], True, False, True, False),  # nothing is summed up where the disk has enough
        (MOST + 1, [MOST + 1], True, False, False, True),
        (MOST + 1, [MOST], True, False, False, False),  # others have written
        (MOST + 1, [MOST], True, False, True, True),
        (0, [MOST + 1], True, True, False, True),
        (0, [MOST], True, True, True, False),
        (0, [MOST + 1], False, False, False, True),
        (0, [MOST], False, False, True, True),
        (0, [MOST], False, False, False, False),
    ],
)
def test_a_job_is_stopped_by_what_it_changed_or_where_the_disk_is_nearly_full(
    prepared: Prepare,
    used: int,
    measured: Sequence[int],
    told: bool,
    few: bool,
    full: bool,
    is_exceeded: bool,
) -> None:
    disk = prepared(used=used, measured=measured, told=told, few=few, full=full)
    disk._look_until_end()
    assert disk.is_exceeded is is_exceeded


def test_sums_are_made_now_and_then(prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that takes long is followed by a long rest, and short ones by half a second."""
    moments = iter([10.0, 10.25, 10.5, 10.75, 11.0])
    disk = prepared(used=0, measured=[1, 1], few=True, rounds=3)
    monkeypatch.setattr(disk_space, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    disk._look_until_end()
    assert isinstance(disk._ended, Rounds)
    assert disk._ended.rests == [5.0, 5.0]


def test_where_the_disk_has_less_nothing_is_waited_for(
    prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([10.0, 10.0, 10.0, 10.0])
    disk = prepared(used=MOST + 1, measured=[1, MOST + 1], few=True, rounds=2)
    monkeypatch.setattr(disk_space, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    disk._look_until_end()
    assert disk.is_exceeded


@pytest.mark.parametrize(
    ("used", "measured", "told", "few", "taken"),
    [
        (99, [], True, False, 99),
        (88, [], True, False, 88),
        (MOST // 8, [5], True, False, 5),
        (113, [5], True, False, 5),
        (5_000, [5], True, False, 5),
        (500, [900], True, False, 500),
        (9, [7], True, True, 7),
        (9, [7], False, False, 7),
        (9, [7], False, True, 7),
    ],
)
def test_at_the_end_the_less_of_both_counts(
    prepared: Prepare, used: int, measured: Sequence[int], told: bool, few: bool, taken: int
) -> None:
    assert prepared(used=used, measured=measured, told=told, few=few).end() == taken


def test_who_watches_is_waited_for_at_the_end(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []

    def look(disk: DiskSpace) -> None:
        disk._ended.wait()
        begun.append(True)

    monkeypatch.setattr(DiskSpace, "_look_until_end", look)
    disk = watching(work)
    disk.watch()
    assert disk._watching is not None
    assert disk._watching.daemon
    disk.end()
    assert begun == [True]
    watched = watching(work)
    monkeypatch.setattr(watched, "_watching", SimpleNamespace(join=lambda: begun.append(False)))
    watched.end()
    assert begun == [True, False]


# --- what the disk tells -------------------------------------------------------------------------


def of_disk(**numbers: int) -> SimpleNamespace:
    return SimpleNamespace(
        **{"f_blocks": 1, "f_bfree": 0, "f_frsize": 1000, "f_ffree": 0, "f_bavail": 0, **numbers}
    )


def test_what_is_used_is_what_is_less_free_in_blocks_and_entries(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: of_disk(f_bfree=10, f_ffree=5))
    disk = watching(work)
    monkeypatch.setattr(os, "statvfs", lambda _: of_disk(f_bfree=8, f_ffree=4))
    assert disk._used() == 2_000 + ENTRY


@pytest.mark.parametrize(
    ("free", "is_full"),
    [((64, 64), False), ((63, 64), True), ((64, 63), True), ((63, 63), True)],
)
def test_one_disk_that_is_nearly_full_is_enough(
    work: Path, monkeypatch: pytest.MonkeyPatch, free: tuple[int, int], is_full: bool
) -> None:
    disk = watching(work)
    monkeypatch.setattr(disk, "_devices", {1: "a", 2: "b"})
    by_folder = dict(zip("ab", free, strict=True))
    monkeypatch.setattr(
        os, "statvfs", lambda each: of_disk(f_bavail=by_folder[each], f_frsize=1024 * 1024)
    )
    assert disk._is_nearly_full() is is_full


def test_all_disks_have_to_tell_what_is_free(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stated(path: str) -> SimpleNamespace:
        return SimpleNamespace(stat=lambda: SimpleNamespace(st_dev=path))

    (work / "a").mkdir()
    (work / "b").mkdir()
    folders = [str(work / "a"), str(work / "b")]
    monkeypatch.setattr(disk_space, "descendants", lambda _: [])
    monkeypatch.setattr(disk_space, "Path", stated)
    for told in (set(folders), {folders[0]}, {folders[1]}):
        monkeypatch.setattr(disk_space, "_tells_free_space", told.__contains__)
        assert DiskSpace(folders, MOST, is_git=False)._is_told is (len(told) == 2)


UNTOLD = "9p afs ceph cifs fuse nfs nfs4 smb3 smbfs virtiofs vboxsf fuse.sshfs"


@pytest.mark.parametrize(
    ("kind", "is_told"),
    [*((each, False) for each in UNTOLD.split()), ("ext4", True), ("tmpfs", True)],
)
def test_disks_of_other_machines_are_not_believed(
    work: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_told: bool
) -> None:
    device = work.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    other = "ext4" if not is_told else "nfs"
    lines = f"1 1 999:999 / /a rw - {other} x rw\n2 1 {number} / /b rw,x - {kind} y rw\n"
    monkeypatch.setattr(disk_space, "open", lambda *_, **__: io.StringIO(lines), raising=False)
    assert disk_space._tells_free_space(str(work)) is is_told


def test_a_disk_without_numbers_or_that_cannot_be_looked_up_is_not_believed(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> Iterator[str]:
        raise FileNotFoundError

    def listing(text: str) -> None:
        monkeypatch.setattr(disk_space, "open", lambda *_, **__: io.StringIO(text), raising=False)

    listing("1 1 999:999 / /a rw - nfs x rw\n")
    assert disk_space._tells_free_space(str(work))  # a part of another file system, as of btrfs
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: of_disk(f_blocks=0))
        assert not disk_space._tells_free_space(str(work))
    listing("odd\n")
    assert not disk_space._tells_free_space(str(work))
    monkeypatch.setattr(disk_space, "open", missing)
    assert not disk_space._tells_free_space(str(work))
