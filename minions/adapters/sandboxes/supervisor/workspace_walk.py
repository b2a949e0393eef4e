"""Walks all folders below a workspace, however deep, without following a link."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

__all__ = ["FOLDER", "MovedError", "WalkedFolder", "walk"]

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_ENTRIES: Final = 5_000_000


class MovedError(OSError):
    """A folder was moved while it was walked."""


class WalkedFolder(NamedTuple):
    """One folder. Its descriptor is open until the walk goes on."""

    parts: tuple[str, ...]
    """The names that lead to it; empty: the workspace itself."""
    descriptor: int
    entries: Sequence[os.DirEntry[str]]


def walk(
    root: str, enter: Callable[[tuple[str, ...], str], bool] | None = None
) -> Iterator[WalkedFolder]:
    """Every folder, the outer ones first, in any order beside. One descriptor is open at a time.

    Args:
        enter: Asked for each folder, by the names before it and its own, after the folder above was
            given. None: all are walked.
    Raises:
        OSError: A folder cannot be read, or there are too many entries.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    count = 0
    try:
        parts: list[str] = []
        waiting: list[list[str]] = []
        above: list[tuple[int, int]] = []
        while True:
            with os.scandir(current) as found:
                entries = list(found)
            count += len(entries) + 1
            if count > _MOST_ENTRIES:
                raise OSError(f"more than {_MOST_ENTRIES:,} files: name a smaller folder as `root`")
            yield WalkedFolder(tuple(parts), current, entries)
            waiting.append([each.name for each in entries if each.is_dir(follow_symlinks=False)])
            while True:  # the next folder: the first that is left in the innermost one
                while not waiting[-1]:
                    waiting.pop()
                    if not waiting:
                        return
                    current = _above(current, above.pop())
                    parts.pop()
                name = waiting[-1].pop()
                if enter is not None and not enter(tuple(parts), name):
                    continue
                below = _opened(current, name)
                if below is None:
                    continue
                here = os.fstat(current)
                above.append((here.st_dev, here.st_ino))
                parts.append(name)
                os.close(current)
                current = below
                break
    finally:
        with contextlib.suppress(OSError):
            os.close(current)


def _above(folder: int, expected: tuple[int, int]) -> int:
    outer = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    found = os.fstat(outer)
    if (found.st_dev, found.st_ino) != expected:
        os.close(outer)
        raise MovedError("a folder was moved while it was looked at")
    os.close(folder)
    return outer


def _opened(folder: int, name: str) -> int | None:
    """The folder below; None: it is gone, or this user does not get into it."""
    try:
        return os.open(name, FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if found.st_uid != os.geteuid():
            if os.access(name, os.X_OK, dir_fd=folder):
                raise  # a command may get to what is in it
            return None
        # Its owner may let himself in: a command does it, or has done it.
        mode = stat.S_IMODE(found.st_mode)
        os.chmod(name, mode | 0o700, dir_fd=folder)
        try:
            return os.open(name, FOLDER, dir_fd=folder)
        finally:
            os.chmod(name, mode, dir_fd=folder)
