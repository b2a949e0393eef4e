"""The folders below a workspace: walked, opened name by name, and measured; no link is followed."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from minions.adapters.sandboxes.supervisor.process_tree import descendants
from minions.contracts.protected_files import is_git_name

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_ENTRIES: Final = 5_000_000


class MovedError(OSError):
    """A folder was moved while it was walked."""


class WalkedFolder:
    """One folder. Its descriptor is open until the next one is asked for."""

    def __init__(self, path: str, descriptor: int, entries: Sequence[os.DirEntry[str]]) -> None:
        self.path = path
        """Relative to the workspace; empty: the workspace itself."""
        self.descriptor = descriptor
        self.entries = entries
        self.below = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        """The folders that are walked next; whoever looks at this one may change the list."""


def walk(root: str) -> Iterator[WalkedFolder]:
    """Every folder, the outer ones first. Only one descriptor is open at a time.

    Raises:
        OSError: A folder cannot be read, or there are too many entries.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    paths = [""]
    waiting: list[list[str]] = []
    above: list[tuple[int, int]] = []
    modes: list[int | None] = [None]  # of folders on the way that are open only as long as that
    count = 0
    try:
        while True:
            with os.scandir(current) as found:
                folder = WalkedFolder(paths[-1], current, list(found))
            count += len(folder.entries) + 1
            if count > _MOST_ENTRIES:
                raise OSError(f"more than {_MOST_ENTRIES:,} files: name a smaller folder as `root`")
            yield folder
            waiting.append(folder.below)
            below: tuple[int, int | None] | None = None
            while below is None:  # the next folder: the first that is left in the innermost one
                while not waiting[-1]:
                    waiting.pop()
                    if not waiting:
                        return
                    current = _above(current, above.pop(), modes.pop())
                    paths.pop()
                name = waiting[-1].pop()
                below = _opened(current, name)
            here = os.fstat(current)
            above.append((here.st_dev, here.st_ino))
            paths.append(f"{paths[-1]}/{name}" if paths[-1] else name)
            os.close(current)
            current, mode = below
            modes.append(mode)
    finally:
        with contextlib.suppress(OSError):  # as it was moved, it cannot be found
            while any(mode is not None for mode in modes):
                current = _above(current, above.pop(), modes.pop())
        os.close(current)


def _above(folder: int, expected: tuple[int, int], mode: int | None) -> int:
    outer = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    if mode is not None:
        os.fchmod(folder, mode)
    found = os.fstat(outer)
    if (found.st_dev, found.st_ino) != expected:
        os.close(outer)
        raise MovedError("a folder was moved while it was looked at")
    os.close(folder)
    return outer


def _opened(folder: int, name: str) -> tuple[int, int | None] | None:
    """The folder below, and the rights that it gets back when it is left; None: it is gone, or this
    user does not get into it.
    """
    try:
        below = os.open(name, _FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return _opened_by_owner(os.open(name, _FOLDER | os.O_PATH, dir_fd=folder))
        return None
    status = os.fstat(below)
    if status.st_mode & stat.S_IXUSR or status.st_uid != os.geteuid():
        return below, None
    mode = stat.S_IMODE(status.st_mode)  # what is in it has names, and cannot be looked at
    os.fchmod(below, mode | stat.S_IRWXU)
    return below, mode


def _opened_by_owner(found: int) -> tuple[int, int] | None:
    """A folder that may not be read: its owner may let himself in, as a command may."""
    try:
        status = os.fstat(found)
        if status.st_uid != os.geteuid():
            if os.access(f"/proc/self/fd/{found}", os.X_OK):
                raise PermissionError(errno.EACCES, "a folder that may be entered and not read")
            return None
        mode = stat.S_IMODE(status.st_mode)
        change_mode(found, mode | stat.S_IRWXU)
        try:
            return os.open(".", _FOLDER, dir_fd=found), mode
        except OSError:
            change_mode(found, mode)
            raise
    finally:
        os.close(found)


# --- changes of files below a folder that is opened name by name, so that no link is followed ----


_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_RIGHTS: Final = 0o777


@contextlib.contextmanager
def opened(root: str, names: Sequence[str], *, mend: bool = False) -> Iterator[int]:
    """A folder below the root.

    Args:
        mend: Remove what is no folder on the way, and make what is missing.
    Raises:
        OSError: One of the names is no folder.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            if mend:
                status = status_of(current, name)
                if status is not None and not stat.S_ISDIR(status.st_mode):
                    os.unlink(name, dir_fd=current)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
            below = os.open(name, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


@contextlib.contextmanager
def opened_in(folder: int, name: str) -> Iterator[int]:
    """A folder in an opened one."""
    below = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield below
    finally:
        os.close(below)


def status_of(folder: int, name: str) -> os.stat_result | None:
    """The status of an entry; None: there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def change_mode(folder: int, mode: int) -> None:
    """Change the rights of a folder that was opened with `O_PATH`: by its name it would be what
    somebody put in its place meanwhile, also a link.
    """
    os.chmod(f"/proc/self/fd/{folder}", mode)  # noqa: PTH101  # not a path


def remove(folder: int, name: str) -> None:
    """Remove an entry, whatever it is and however deep; one that is not there is removed already.

    Raises:
        OSError: It cannot be removed.
    """
    status = status_of(folder, name)
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    current = _entered(folder, name)
    try:
        left = [_emptied(current)]
        names: list[str] = []
        while left:
            if left[-1]:
                names.append(left[-1].pop())
                below = _entered(current, names[-1])
                left.append(_emptied(below))
            else:
                left.pop()
                if not names:
                    break
                below = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
                os.rmdir(names.pop(), dir_fd=below)
            os.close(current)
            current = below
    finally:
        os.close(current)
    os.rmdir(name, dir_fd=folder)


def _entered(folder: int, name: str) -> int:
    found = os.open(name, _FOLDER | os.O_PATH, dir_fd=folder)
    try:
        with contextlib.suppress(OSError):
            change_mode(found, 0o700)  # it is about to be removed
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)


def _emptied(folder: int) -> list[str]:
    """The folders in it, after everything else in it was removed."""
    with os.scandir(folder) as found:
        entries = list(found)
    for each in entries:
        if not each.is_dir(follow_symlinks=False):
            os.unlink(each.name, dir_fd=folder)
    return [each.name for each in entries if each.is_dir(follow_symlinks=False)]


def write_file(folder: int, name: str, content: bytes | str, mode: int) -> None:
    """Write a new file, or a link to a text, with its rights."""
    if isinstance(content, str):
        os.symlink(content, name, dir_fd=folder)
        return
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), stat.S_IMODE(mode) & _RIGHTS)


# --- how much space a job takes in its folders ---------------------------------------------------


_OF_ENTRY: Final = 4096
"""Bytes that each file or folder counts besides its content: small ones are no way around."""
_BLOCK: Final = 512
_PERIOD_S: Final = 0.01
_AT_LEAST_S: Final = 0.5
"""How long nothing is summed up as long as the disk has enough."""
_FEW: Final = 5_000
"""Entries whose sizes are summed up within some 20 ms."""
_RESERVE: Final = 64 * 1024 * 1024
"""Where the disk has less than that, a job that took its share is stopped whatever it changed."""
_SHARE_OF_TIME: Final = 20
_UNTOLD: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse", "nfs", "nfs4", "smb3", "smbfs", "virtiofs", "vboxsf"}
)
"""File systems whose free space may be told late, or not at all."""


class _TooManyError(Exception):
    """There are more entries than are summed up each time."""


class DiskSpace:
    """The space that a job takes from now on."""

    def __init__(self, folders: Sequence[str], most_bytes: int, *, is_git: bool) -> None:
        """Remember what is there, and what is free.

        Args:
            folders: Absolute paths; only there the job can write.
            most_bytes: How much it may take.
            is_git: Whether it writes repositories, too; else they cannot be changed.
        """
        self._folders = tuple(folders)
        self._most = most_bytes
        self._is_git = is_git
        self._devices = {Path(each).stat().st_dev: each for each in folders}
        # A moment back: the time of files goes in steps of some milliseconds.
        self._since_ns = time.time_ns() - 20_000_000
        self._is_told = all(map(_tells_free_space, self._devices.values()))
        self._free_before = self._free()
        self._sum_before: int | None = None
        """None: there are too many files to be summed up again and again."""
        with contextlib.suppress(_TooManyError):
            self._sum_before = self._sum(0, _FEW)
        self._ended = threading.Event()
        self._watching: threading.Thread | None = None
        self.is_exceeded = False
        """Whether the job took more than it may, as far as was seen."""

    def watch(self) -> None:
        """Look again and again, in a thread of its own: `is_exceeded` tells, until `end`."""
        self._watching = threading.Thread(target=self._look_until_end, daemon=True)
        self._watching.start()

    def _look_until_end(self) -> None:
        next_s = 0.0
        while not self._ended.wait(_PERIOD_S):
            begun = time.monotonic()
            is_suspect = not self._is_told or self._used() > self._most
            if not is_suspect and (self._sum_before is None or begun < next_s):
                continue
            if self._measured() > self._most or (is_suspect and self._is_nearly_full()):
                self.is_exceeded = True
                return
            ended = time.monotonic()
            self._ended.wait((ended - begun) * _SHARE_OF_TIME)
            next_s = ended + _AT_LEAST_S

    def end(self) -> int:
        """Measure for the last time, when no process of the job is left.

        Returns:
            How much it took; less than 0: there is more room than before.
        """
        self._ended.set()
        if self._watching is not None:
            self._watching.join()
        used = self._used()
        if self._sum_before is not None or not self._is_told:
            return self._measured()
        return used if used < min(self._most // 8, _RESERVE) else min(used, self._measured())

    def _used(self) -> int:
        return self._free_before - self._free()

    def _free(self) -> int:
        free = 0
        for folder in self._devices.values():
            found = os.statvfs(folder)
            free += found.f_bfree * found.f_frsize + found.f_ffree * _OF_ENTRY
        return free

    def _is_nearly_full(self) -> bool:
        found = (os.statvfs(each) for each in self._devices.values())
        return any(each.f_bavail * each.f_frsize < _RESERVE for each in found)

    def _measured(self) -> int:
        """How much more there is than before; of many files, what was changed."""
        if self._sum_before is None:
            return self._sum(self._since_ns)
        return self._sum(0) - self._sum_before

    def _sum(self, since_ns: int, most_entries: float = math.inf) -> int:
        """Space of all that was changed since then.

        Raises:
            _TooManyError: There are more entries than that.
        """
        seen: set[tuple[int, int]] = set()
        total = sum(self._size(each, since_ns, seen) for each in self._nameless())
        count = 0
        for folder in self._folders:
            # What is moved meanwhile is looked at the next time.
            with contextlib.suppress(OSError):
                for each in walk(folder):
                    if not self._is_git:
                        each.below = [name for name in each.below if not is_git_name(name)]
                    count += len(each.entries)
                    if count > most_entries:
                        raise _TooManyError
                    for entry in each.entries:
                        with contextlib.suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            total += self._size(status, since_ns, seen)
        return total

    def _size(self, status: os.stat_result, since_ns: int, seen: set[tuple[int, int]]) -> int:
        if status.st_ctime_ns < since_ns:
            return 0
        if status.st_nlink != 1:
            inode = (status.st_dev, status.st_ino)
            if inode in seen:
                return _OF_ENTRY
            seen.add(inode)
        return status.st_blocks * _BLOCK + _OF_ENTRY

    def _nameless(self) -> Iterator[os.stat_result]:
        """Files without a name that processes of the job hold open."""
        for pid in descendants(os.getpid()):
            try:
                names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
            except OSError:
                continue
            for name in names:
                try:
                    found = Path(f"/proc/{pid}/fd/{name}").stat()
                except OSError:
                    continue
                if found.st_nlink == 0 and found.st_dev in self._devices:
                    yield found


def _tells_free_space(folder: str) -> bool:
    """Whether the file system of a folder says at once how much is free."""
    found = os.statvfs(folder)
    if not found.f_blocks:
        return False
    device = Path(folder).stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for line in file:
                if line.split(" ", 3)[2] == wanted:
                    kind = line.rpartition(" - ")[2].split(" ", 1)[0]
                    return kind not in _UNTOLD and not kind.startswith("fuse.")
    except (OSError, IndexError):
        return False
    return True
