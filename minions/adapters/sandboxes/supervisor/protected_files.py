"""Files that are put back as they were: what a program outside would execute, such as git hooks.

Nothing here follows a link: whoever changed the files may have put links in their place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Final, NamedTuple

from minions.adapters.sandboxes.supervisor.opened_folders import (
    opened,
    opened_in,
    remove,
    status_of,
    write_file,
)

_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of all files; each entry counts with one byte besides."""
_DEEPEST: Final = 100
"""Folders in each other: a command may leave any number of them."""
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Entry(NamedTuple):
    """A file, link or folder as it was."""

    mode: int
    content: bytes | str | Mapping[str, _Entry]
    """Of a file its bytes, of a link its target, of a folder its entries."""


class ProtectedFiles:
    """The present state of some files below a folder.

    Args:
        folder: What the paths start from.
        paths: Relative ones, with `/`.
    Raises:
        OSError: They cannot be read, or are too large to be kept in memory.
    """

    def __init__(self, folder: str, paths: list[str]) -> None:
        self._folder = folder
        self._left = _MOST_BYTES
        self._before = {path: self._present(path) for path in paths}

    def restore(self) -> list[str]:
        """Put back what has changed since; its paths."""
        self._left = _MOST_BYTES
        return [path for path, before in self._before.items() if self._put_back(path, before)]

    def _put_back(self, path: str, before: _Entry | None) -> bool:
        try:
            is_same = self._present(path) == before
        except OSError:
            is_same = False
        if is_same and (before is not None or not self._is_hidden(path)):
            return False
        *above, name = path.split("/")
        with opened(self._folder, above, mend=True) as folder:
            remove(folder, name)
            if before is not None:
                _write(folder, name, before)
        return True

    def _is_hidden(self, path: str) -> bool:
        """Whether a link or a file stands where a folder above the path would be."""
        *above, _ = path.split("/")
        for count in range(1, len(above) + 1):
            with opened(self._folder, above[: count - 1]) as folder:
                status = status_of(folder, above[count - 1])
            if status is None:
                return False
            if not stat.S_ISDIR(status.st_mode):
                return True
        return False

    def _present(self, path: str) -> _Entry | None:
        *above, name = path.split("/")
        try:
            with opened(self._folder, above) as folder:
                return self._entry(folder, name)
        except (FileNotFoundError, NotADirectoryError):  # the latter also for a link
            return None

    def _entry(self, folder: int, name: str, depth: int = 0) -> _Entry | None:
        status = status_of(folder, name)
        if status is None:
            return None
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise OSError(f"{name}: too large to be protected")
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            return _Entry(0, os.readlink(name, dir_fd=folder))
        if stat.S_ISDIR(mode):
            with opened_in(folder, name) as below:
                names = sorted(os.listdir(below))  # noqa: PTH208  # of a descriptor, not of a path
                found = {each: self._entry(below, each, depth + 1) for each in names}
            return _Entry(mode, {key: each for key, each in found.items() if each is not None})
        if not stat.S_ISREG(mode):
            return _Entry(mode, b"")
        return _Entry(mode, self._bytes(folder, name))

    def _bytes(self, folder: int, name: str) -> bytes:
        with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
            data = file.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise OSError(f"{name}: too large to be protected")
        return data


def _write(folder: int, name: str, entry: _Entry) -> None:
    content = entry.content
    if isinstance(content, bytes | str):
        write_file(folder, name, content, entry.mode)
        return
    os.mkdir(name, 0o700, dir_fd=folder)
    with opened_in(folder, name) as below:
        for each, inner in content.items():
            _write(below, each, inner)
        os.fchmod(below, stat.S_IMODE(entry.mode))
