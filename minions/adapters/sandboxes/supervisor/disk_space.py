"""How much space a job takes in its folders.

Of few files all sizes are summed up before and after. Of many that would take longer than most
commands: there the disk is asked, which tells at once, but to which others write, too. So where it
has less than the job may take, what the job changed is summed up: files and folders whose status
changed since its beginning, which no program can hide. Files that it holds open without a name
count, holes do not, and a file with several names counts once.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from minions.adapters.sandboxes.supervisor.process_tree import descendants
from minions.adapters.sandboxes.supervisor.workspace_walk import walk
from minions.contracts.protected_files import is_git_name

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
