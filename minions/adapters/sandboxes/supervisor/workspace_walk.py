"""Walks all folders below a workspace, however deep, without following a link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final

from minions.adapters.sandboxes.supervisor.opened_folders import change_mode

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
