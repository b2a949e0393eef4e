"""Changes of files that the supervisor makes for a job: each system call, asked as a process asks.

The test is the process: its own memory, folders and mask are read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from minions.adapters.sandboxes.supervisor import file_requests
from minions.adapters.sandboxes.supervisor.file_requests import FILE_CALLS, FileRequests, Request
from minions.adapters.sandboxes.supervisor.syscall_numbers import system_call
from minions.adapters.sandboxes.supervisor.workspace_guard import ProtectedPath

HERE = -100 & 0xFFFFFFFFFFFFFFFF
ELSEWHERE = "left to the kernel"
RENAMES, LINKS = 2, 0x400
CREATE = os.O_CREAT | os.O_WRONLY


class Asking:
    """Asks for system calls, and keeps what is answered."""

    def __init__(self, requests: FileRequests) -> None:
        self._requests = requests
        self.answers: list[int | str] = []
        self.waits = True
        self.closing: list[bool] = []
        self._kept: list[object] = []

    def _address(self, text: str | bytes) -> int:
        data = os.fsencode(text) if isinstance(text, str) else text
        buffer = ctypes.create_string_buffer(data)
        self._kept.append(buffer)
        return ctypes.addressof(buffer)

    def __call__(self, name: str, *arguments: int | str | bytes) -> int | str:
        """The error, 0 for success, a descriptor as `file N`, or `ELSEWHERE`."""
        number = system_call(name)
        if number is None:
            pytest.skip(f"this machine has no {name}")
        words = [each if isinstance(each, int) else self._address(each) for each in arguments]
        request = Request(7, os.getpid(), number, (*words, *[0] * (6 - len(words))))
        assert self._requests.is_about_files(request)
        self.answers.clear()
        self._requests.answer(3, request)
        [answer] = self.answers
        return answer


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path.resolve() / "work"
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / "sub" / "kept").mkdir(parents=True)
    (folder / "below").mkdir()
    for name in (".git/config", "sub/kept/x", "file", "below/file", "outer/.git"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("good\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("good\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ask(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    requests = FileRequests(
        str(work),
        [
            ProtectedPath(".git", is_pinned=True),
            ProtectedPath("sub/kept", is_pinned=True),
            ProtectedPath("outer/.git", is_pinned=True),
        ],
        frozenset(),
        1000,
    )
    yield from asking(requests, monkeypatch)


def asking(requests: FileRequests, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    made = Asking(requests)

    def respond(listener: int, request: Request, error: int = 0) -> None:
        made.answers.append(error)

    def give(listener: int, request: Request, file: int, *, closes_on_exec: bool) -> None:
        made.closing.append(closes_on_exec)
        made.answers.append(f"file {os.dup(file)}")

    def consent(listener: int, request: Request) -> None:
        made.answers.append(ELSEWHERE)

    monkeypatch.setattr(file_requests, "respond", respond)
    monkeypatch.setattr(file_requests, "consent", consent)
    monkeypatch.setattr(file_requests, "give_file", give)
    monkeypatch.setattr(file_requests, "is_waiting", lambda listener, request: made.waits)
    umask = os.umask(0o027)
    try:
        yield made
    finally:
        os.umask(umask)


def descriptor_of(answer: int | str) -> int:
    assert isinstance(answer, str)
    assert answer.startswith("file ")
    return int(answer[5:])


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- what is done ------------------------------------------------------------------------------


def test_files_are_made_and_opened(ask: Asking, work: Path) -> None:
    file = descriptor_of(ask("openat", HERE, "new", CREATE | os.O_CLOEXEC, 0o777))
    os.write(file, b"hi")
    assert ask.closing == [True]
    assert ((work / "new").read_text(), mode_of(work / "new")) == ("hi", 0o750)
    file = descriptor_of(ask("openat", HERE, str(work / "file"), os.O_RDWR, 0))
    assert ask.closing == [True, False]
    assert os.get_blocking(file)
    assert os.read(file, 9) == b"good\n"
    descriptor_of(ask("openat", HERE, "file", os.O_WRONLY | os.O_TRUNC, 0))
    assert (work / "file").read_text() == ""
    below = os.open("below", os.O_RDONLY)
    descriptor_of(ask("openat", below, "../made", CREATE, 0o600))
    assert (work / "made").exists()
    nameless = descriptor_of(ask("openat", HERE, "below", os.O_TMPFILE | os.O_RDWR, 0o600))
    assert os.fstat(nameless).st_nlink == 0
    descriptor_of(ask("open", "old", CREATE, 0o600))
    descriptor_of(ask("creat", "file", 0o600))


def test_folders_links_and_pipes_are_made_moved_and_removed(ask: Asking, work: Path) -> None:
    assert ask("mkdirat", HERE, "new", 0o777) == 0
    assert mode_of(work / "new") == 0o750
    assert ask("mknodat", HERE, "new/pipe", stat.S_IFIFO | 0o666, 0) == 0
    assert stat.S_ISFIFO((work / "new" / "pipe").stat().st_mode)
    assert ask("mknodat", HERE, "new/plain", 0o666, 0) == 0
    assert mode_of(work / "new" / "plain") == 0o640
    assert ask("symlinkat", "../../anywhere", HERE, "new/link") == 0
    assert (work / "new" / "link").readlink() == Path("../../anywhere")
    assert ask("linkat", HERE, "file", HERE, "new/hard", 0) == 0
    assert (work / "new" / "hard").samefile("file")
    assert ask("renameat2", HERE, "new/plain", HERE, "moved", 0) == 0
    assert ask("renameat", HERE, "new", HERE, "old/") == 0
    assert ask("unlinkat", HERE, "old/pipe", 0) == 0
    assert ask("unlinkat", HERE, "old/", 0x200) == errno.ENOTEMPTY
    assert ask("unlinkat", HERE, "old/link", 0) == 0
    assert ask("unlinkat", HERE, "old/hard", 0) == 0
    assert ask("unlinkat", HERE, "old/", 0x200) == 0
    assert ask("truncate", "file", 3) == 0
    assert (work / "file").read_text() == "goo"
    for name in ("mkdir", "rmdir"):
        assert ask(name, "a", 0o700) == 0
    assert ask("mknod", "b", stat.S_IFREG | 0o600, 0) == 0
    assert ask("rename", "b", "c") == ask("link", "c", "d") == ask("symlink", "c", "e") == 0
    assert ask("unlink", "c") == 0


def test_two_entries_are_exchanged_and_none_is_replaced_unasked(ask: Asking, work: Path) -> None:
    assert ask("renameat2", HERE, "file", HERE, "below/file", 1) == errno.EEXIST
    (work / "below" / "file").write_text("other")
    assert ask("renameat2", HERE, "file", HERE, "below/file", RENAMES) == 0
    assert (work / "file").read_text() == "other"
    assert ask("renameat2", HERE, "file", HERE, "x", 4) == errno.EINVAL


def test_links_are_followed_where_the_call_follows_them(ask: Asking, work: Path) -> None:
    (work / "link").symlink_to("below/../file")
    (work / "dangling").symlink_to("below/made")
    (work / "loop").symlink_to("loop")
    (work / "folder").symlink_to("below")
    os.write(descriptor_of(ask("openat", HERE, "link", os.O_WRONLY, 0)), b"new")
    assert (work / "file").read_text() == "new\nn"[:3] + "d\n"
    descriptor_of(ask("openat", HERE, "dangling", CREATE, 0o600))
    assert (work / "below" / "made").exists()
    assert ask("openat", HERE, "loop", os.O_WRONLY, 0) == errno.ELOOP
    assert ask("openat", HERE, "link", os.O_WRONLY | os.O_NOFOLLOW, 0) == ELSEWHERE
    assert ask("openat", HERE, "dangling", CREATE | os.O_EXCL, 0) == ELSEWHERE
    assert ask("mkdirat", HERE, "dangling", 0o700) == errno.EEXIST
    assert ask("linkat", HERE, "link", HERE, "hard", LINKS) == 0
    assert (work / "hard").samefile("file")
    assert ask("linkat", HERE, "link", HERE, "same", 0) == 0
    assert (work / "same").is_symlink()
    assert ask("unlinkat", HERE, "link", 0) == 0
    assert (work / "file").exists()
    descriptor_of(ask("openat", HERE, "folder/x", CREATE, 0o600))
    assert (work / "below" / "x").exists()
    (work / "to_file").symlink_to("file")
    assert ask("truncate", "to_file", 0) == 0


def test_a_link_itself_is_moved_and_replaced(ask: Asking, work: Path) -> None:
    (work / "link").symlink_to("file")
    (work / "other").symlink_to("below/file")
    assert ask("renameat", HERE, "link", HERE, "moved") == 0
    assert (work / "moved").readlink() == Path("file")
    assert ask("linkat", HERE, "file", HERE, "other", 0) == errno.EEXIST
    assert ask("renameat", HERE, "file", HERE, "other") == 0
    assert not (work / "other").is_symlink()
    assert (work / "below" / "file").exists()


def test_a_path_begins_where_the_call_or_the_link_says(ask: Asking, work: Path) -> None:
    (work / "below" / "link").symlink_to("file")
    (work / "below" / "inner").mkdir()
    os.write(descriptor_of(ask("openat", HERE, "below/link", os.O_WRONLY, 0)), b"new")
    assert (work / "below" / "file").read_text() == "newd\n"
    assert (work / "file").read_text() == "good\n"
    below = os.open("below", os.O_RDONLY)
    descriptor_of(ask("openat", below, "inner", os.O_TMPFILE | os.O_RDWR, 0o600))
    descriptor_of(ask("openat", below, "link", os.O_WRONLY | os.O_EXCL, 0))
    descriptor_of(ask("openat", HERE, "more", CREATE | 1 << 40, 0o600))
    assert ask("renameat2", HERE, "more", HERE, "most", 1 << 40) == 0


def test_rights_are_those_that_the_process_asks_for(ask: Asking, work: Path) -> None:
    os.umask(0)
    descriptor_of(ask("openat", HERE, "a", CREATE, 0o777))
    assert ask("mkdirat", HERE, "b", 0o777) == 0
    assert ask("mknodat", HERE, "c", stat.S_IFREG | 0o777, 0) == 0
    assert [mode_of(work / each) for each in "abc"] == [0o777] * 3
    descriptor_of(ask("openat", HERE, "d", CREATE, 0o7755))
    assert ask("mkdirat", HERE, "e", 0o7755) == 0
    assert [mode_of(work / each) for each in "de"] == [0o755] * 2


def test_no_descriptor_is_left_open(ask: Asking, work: Path) -> None:
    (work / "link").symlink_to("below/../file")
    os.close(descriptor_of(ask("openat", HERE, "file", os.O_WRONLY, 0)))
    before = names_in(Path("/proc/self/fd"))
    os.close(descriptor_of(ask("openat", HERE, "link", os.O_WRONLY, 0)))
    os.close(descriptor_of(ask("openat", HERE, "below", os.O_TMPFILE | os.O_RDWR, 0)))
    assert ask("mkdirat", HERE, "new", 0o700) == ask("truncate", "file", 1) == 0
    assert ask("renameat", HERE, "new", HERE, "newer") == 0
    assert ask("openat", HERE, ".git/config", os.O_WRONLY, 0) == READ_ONLY
    assert ask("openat", HERE, "../outside/x", CREATE, 0) == ELSEWHERE
    assert names_in(Path("/proc/self/fd")) == before


# --- what is refused ---------------------------------------------------------------------------

READ_ONLY = errno.EROFS


@pytest.mark.parametrize(
    "path", [".git/config", "sub/kept/x", "link/config", "below/../.git/config"]
)
def test_what_is_protected_is_not_changed(ask: Asking, work: Path, path: str) -> None:
    (work / "link").symlink_to(".git")
    (work / "to").symlink_to(path)
    above, _, name = path.rpartition("/")
    folder = os.open(above, os.O_RDONLY)
    for base, each in ((HERE, path), (HERE, str(work / path)), (folder, name), (HERE, "to")):
        assert ask("openat", base, each, os.O_WRONLY, 0) == READ_ONLY
        assert ask("openat", base, each, os.O_RDWR | os.O_CREAT, 0o600) == READ_ONLY
        assert ask("openat", base, each, os.O_RDONLY | os.O_TRUNC, 0) == READ_ONLY
        assert ask("linkat", base, each, HERE, "hard", LINKS) == READ_ONLY
        assert ask("openat", base, each, os.O_RDONLY | os.O_CREAT, 0) == ELSEWHERE  # only read
    assert ask("truncate", path, 0) == READ_ONLY
    for new in (f"{above}/new", f"{above}/new/"):
        assert ask("mkdirat", HERE, new, 0o700) == READ_ONLY
    new = f"{above}/new"
    assert ask("openat", HERE, new, CREATE, 0o600) == READ_ONLY
    assert ask("openat", folder, ".", os.O_TMPFILE | os.O_RDWR, 0o600) == READ_ONLY
    assert ask("mknodat", HERE, new, stat.S_IFREG, 0) == READ_ONLY
    assert ask("symlinkat", "x", HERE, new) == READ_ONLY
    assert ask("linkat", HERE, "file", HERE, new, 0) == READ_ONLY
    assert ask("renameat2", HERE, "file", HERE, new, 0) == READ_ONLY
    assert ask("renameat2", HERE, path, HERE, "moved", 0) == READ_ONLY
    assert ask("renameat2", HERE, "file", HERE, path, RENAMES) == READ_ONLY
    assert ask("unlinkat", HERE, path, 0) == READ_ONLY
    assert sorted(each.name for each in (work / above).iterdir()) in (["config", "hooks"], ["x"])


@pytest.mark.parametrize("path", [".git", "sub/kept", "sub", "outer"])
def test_what_is_protected_is_not_moved_nor_what_it_lies_in(
    ask: Asking, work: Path, path: str
) -> None:
    assert ask("renameat2", HERE, path, HERE, "moved", 0) == READ_ONLY
    assert ask("renameat2", HERE, "below", HERE, path, RENAMES) == READ_ONLY
    assert ask("renameat2", HERE, f"{path}/", HERE, "moved", 0) == READ_ONLY
    assert ask("unlinkat", HERE, path, 0x200) == READ_ONLY
    assert (work / path).exists()


@pytest.mark.parametrize("name", [".git", ".GIT", "below/.git", ".g\u200cit", "git~1", ".git."])
def test_no_repository_is_made(ask: Asking, work: Path, name: str) -> None:
    if name == ".git":
        (work / ".git").rename(work.parent / "gone")
    assert ask("mkdirat", HERE, name, 0o700) == READ_ONLY
    assert ask("openat", HERE, name, CREATE, 0o600) == READ_ONLY
    assert ask("symlinkat", "below", HERE, name) == READ_ONLY
    assert ask("renameat", HERE, "below", HERE, name) == READ_ONLY
    assert ask("linkat", HERE, "file", HERE, name, 0) == READ_ONLY


def test_no_folder_becomes_one_of_a_repository(ask: Asking, work: Path) -> None:
    (work / "below" / "HEAD").write_text("x")
    (work / "commondir").mkdir()
    assert ask("mkdirat", HERE, "below/objects", 0o700) == 0
    assert ask("mkdirat", HERE, "below/refs", 0o700) == READ_ONLY
    assert ask("renameat", HERE, "commondir", HERE, "below/COMMONDIR") == READ_ONLY
    assert ask("openat", HERE, "below/commondir", CREATE, 0o600) == READ_ONLY
    assert ask("mkdirat", HERE, "below/others", 0o700) == 0
    assert ask("openat", HERE, "HEAD", CREATE, 0o600) == READ_ONLY
    (work / "refs").mkdir()
    assert ask("mkdirat", HERE, "objects", 0o700) == 0


def test_places_outside_of_the_workspace_are_the_kernels(ask: Asking, work: Path) -> None:
    outside = str(work.parent / "outside")
    (work / "out").symlink_to(outside)
    (work / "file_out").symlink_to(f"{outside}/file")
    for path in (f"{outside}/x", "../outside/x", "out/x", "/dev/null", "/", "file_out", ".."):
        assert ask("openat", HERE, path, CREATE, 0o600) == ELSEWHERE
    for path in (f"{outside}/x", "../outside/x", "out/x", "./../outside//x"):
        assert ask("mkdirat", HERE, path, 0o700) == ELSEWHERE
        assert ask("unlinkat", HERE, path, 0) == ELSEWHERE
        assert ask("truncate", path, 0) == ELSEWHERE
        assert ask("symlinkat", "x", HERE, path) == ELSEWHERE
        assert ask("renameat", HERE, path, HERE, f"{outside}/y") == ELSEWHERE
        assert ask("renameat", HERE, path, HERE, "new") == errno.EXDEV
        assert ask("renameat", HERE, "file", HERE, path) == errno.EXDEV
        assert ask("linkat", HERE, path, HERE, "new", 0) == errno.EXDEV
    assert ask("openat", HERE, "file", os.O_PATH | os.O_RDWR, 0) == ELSEWHERE
    assert ask("linkat", 0, "", HERE, "new", 0x1000) == ELSEWHERE
    assert names_in(Path(outside)) == ["file"]
    assert ask("openat", HERE, str(work), os.O_TMPFILE | os.O_RDWR, 0o600) == READ_ONLY


def test_what_cannot_be_done_is_told_as_the_kernel_tells_it(ask: Asking, work: Path) -> None:
    os.mkfifo(work / "pipe")
    assert ask("openat", HERE, "none/x", CREATE, 0) == errno.ENOENT
    assert ask("openat", HERE, "file/x", CREATE, 0) == errno.ENOTDIR
    assert ask("openat", HERE, "file/", os.O_WRONLY, 0) == errno.ENOTDIR
    assert ask("openat", HERE, "missing", os.O_WRONLY, 0) == errno.ENOENT
    assert ask("openat", HERE, "below", os.O_WRONLY, 0) == errno.EISDIR
    assert ask("openat", HERE, "pipe", os.O_WRONLY, 0) == ELSEWHERE
    assert ask("openat", HERE, "", CREATE, 0) == errno.ENOENT
    assert ask("openat", HERE, "a" * 300, CREATE, 0) == errno.ENAMETOOLONG
    assert ask("openat", HERE, "a/" * 3000, CREATE, 0) == errno.ENAMETOOLONG
    assert ask("openat", 999, "x", CREATE, 0) == errno.EBADF
    assert ask("openat", HERE, 8, CREATE, 0) == errno.EFAULT
    assert ask("mkdirat", HERE, ".", 0o700) == errno.EEXIST
    assert ask("mkdirat", HERE, "below", 0o700) == errno.EEXIST
    assert ask("mknodat", HERE, "file", 0o600, 0) == errno.EEXIST
    assert ask("symlinkat", "x", HERE, "file") == errno.EEXIST
    assert ask("mknodat", HERE, "disk", stat.S_IFBLK | 0o600, 0x800) == errno.EPERM
    assert ask("truncate", "file", 1001) == errno.EFBIG
    assert ask("truncate", "file", 1000) == 0
    assert ask("truncate", "file", -1 & 0xFFFFFFFFFFFFFFFF) == errno.EINVAL
    assert ask("truncate", "file", 1 << 62) == errno.EFBIG
    assert ask("openat", HERE, "sub", os.O_WRONLY, 0) == errno.EISDIR
    assert ask("mknodat", HERE, ".git/config", 0o600, 0) == errno.EEXIST
    assert ask("symlinkat", "x", HERE, ".git/config") == errno.EEXIST
    assert ask("openat", HERE, "a" * 4096, CREATE, 0) == errno.ENAMETOOLONG
    assert ask("openat", HERE, f"below/{'./' * 2040}new", CREATE, 0) != errno.ENAMETOOLONG
    assert ask("truncate", "pipe", 0) in (errno.EINVAL, errno.ENXIO)
    assert ask("openat", 999, str(work / "absolute"), CREATE, 0o600) != errno.EBADF


@pytest.mark.parametrize("address", [1 << 63, (1 << 64) - 1, (1 << 63) - 1, (1 << 63) - 4096])
def test_no_number_that_a_job_gives_ends_the_supervisor(
    ask: Asking, work: Path, address: int
) -> None:
    assert ask("mkdirat", HERE, address, 0o700) == errno.EFAULT
    assert ask("symlinkat", address, HERE, "new") == errno.EFAULT
    assert ask("openat", address | 1000, "x", CREATE, 0) == errno.EBADF
    descriptor_of(ask("openat", HERE, "file", os.O_WRONLY | address & ~0x7FFFFFFF, 0))
    assert ask("mknodat", HERE, "new", 0o600 | address & ~0xFFFFFFFF, 0) == 0
    assert ask("mknodat", HERE, "pipe", stat.S_IFIFO | 0o601 | address & ~0xFFFFFFFF, 0) == 0
    assert stat.S_ISFIFO((work / "pipe").stat().st_mode)


@pytest.mark.parametrize("error", [OSError("no number"), OSError(0, "none")])
def test_a_failure_without_a_number_is_no_success(
    ask: Asking, work: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def failing(*_: object) -> bool:
        raise error

    monkeypatch.setattr(file_requests, "is_waiting", failing)
    assert ask("mkdirat", HERE, "new", 0o700) == errno.EPERM


def test_files_are_made_in_a_folder_that_may_not_be_listed(
    ask: Asking, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only parts of a repository need to know what lies beside them."""

    def closed(*_: object) -> list[str]:
        raise PermissionError(errno.EACCES, "closed")

    monkeypatch.setattr(os, "listdir", closed)
    assert ask("mkdirat", HERE, "below/new", 0o700) == 0
    assert ask("mkdirat", HERE, "below/objects", 0o700) == errno.EACCES


def test_a_repository_that_somebody_makes_meanwhile_is_not_written(ask: Asking, work: Path) -> None:
    for name in ("HEAD", "commondir", "other"):
        (work / "below" / name).write_text("x")
    assert ask("renameat", HERE, "below/other", HERE, "below/HEAD") == READ_ONLY
    assert ask("mkdirat", HERE, "below/refs", 0o700) == READ_ONLY


def test_nothing_is_changed_for_whoever_was_killed_meanwhile(ask: Asking, work: Path) -> None:
    """Its number, and so all that was read, may be another's by now."""
    ask.waits = False
    before = names_in(work)
    calls: tuple[tuple[str, tuple[int | str, ...]], ...] = (
        ("openat", (HERE, "new", CREATE, 0o600)),
        ("mkdirat", (HERE, "new", 0o700)),
        ("mknodat", (HERE, "new", 0o600, 0)),
        ("symlinkat", ("x", HERE, "new")),
        ("linkat", (HERE, "file", HERE, "new", 0)),
        ("renameat", (HERE, "file", HERE, "new")),
        ("unlinkat", (HERE, "file", 0)),
        ("truncate", ("file", 0)),
    )
    for name, arguments in calls:
        assert ask(name, *arguments) == errno.EINTR
    assert names_in(work) == before
    assert (work / "file").read_text() == "good\n"


def test_every_call_that_changes_files_by_their_path_is_known(work: Path) -> None:
    requests = FileRequests(str(work), [], frozenset(), 0)
    numbers = [system_call(each) for each in (*FILE_CALLS, "open", "openat")]
    assert all(
        requests.is_about_files(Request(1, 1, number, ()))
        for number in numbers
        if number is not None
    )


# --- Git's own commands ------------------------------------------------------------------------


@pytest.fixture
def git(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    protected = [ProtectedPath(".git/config", is_pinned=True)]
    (work / "data").mkdir()
    requests = FileRequests(str(work), protected, frozenset({".git", "data"}), 1000)
    yield from asking(requests, monkeypatch)


@pytest.mark.parametrize("folder", [".git", "data"])
def test_git_writes_data_and_nothing_else(git: Asking, work: Path, folder: str) -> None:
    for name in ("index.lock", "HEAD.lock", "COMMIT_EDITMSG", "MERGE_MSG"):
        descriptor_of(git("openat", HERE, f"{folder}/{name}", CREATE, 0o600))
    assert git("renameat", HERE, f"{folder}/index.lock", HERE, f"{folder}/index") == 0
    assert git("mkdirat", HERE, f"{folder}/objects", 0o700) == 0
    assert git("mkdirat", HERE, f"{folder}/objects/aa", 0o700) == 0
    assert git("mkdirat", HERE, f"{folder}/refs", 0o700) == 0
    assert git("renameat", HERE, f"{folder}/HEAD.lock", HERE, f"{folder}/HEAD") == 0
    for name in ("objects", "refs"):
        assert git("mkdirat", HERE, f"below/{name}", 0o700) == 0
    assert git("openat", HERE, "below/HEAD", CREATE, 0o600) == READ_ONLY
    assert git("mkdirat", HERE, "objects", 0o700) == git("mkdirat", HERE, "refs", 0o700) == 0
    assert git("openat", HERE, "HEAD", CREATE, 0o600) == READ_ONLY
    for name in ("config", "config.lock", "hooks", "commondir", "objects/info", "info", "x"):
        assert git("mkdirat", HERE, f"{folder}/{name}", 0o700) in (READ_ONLY, errno.EEXIST)
        assert git("renameat", HERE, f"{folder}/index", HERE, f"{folder}/{name}") == READ_ONLY
    assert git("renameat", HERE, folder, HERE, "moved") == READ_ONLY
    assert git("mkdirat", HERE, "below/.git", 0o700) == READ_ONLY
